"""`locotrans index`: embeddings of the files of a folder that are new or have changed."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from locotrans.counting import counted
from locotrans.training.checkpoint import find_weights
from locotrans.training.predict.arrays import ArrayWriter
from locotrans.training.predict.embeddings import embeddings_of
from locotrans.training.predict.files import find_files
from locotrans.training.predict.progress import follow, load_inference
from locotrans.training.predict.samples import Choice
from locotrans.training.predict.stream import Inference
from locotrans.training.search.index import Facts, Index, save_index

SAVE_SECONDS = 60.0
"""A build that is killed loses no more than this."""
COPIED = 4096
"""Rows of the old index that are copied at a time."""

Stamps = Mapping[str, tuple[int, int]]
"""The size and the time of each file."""


def build_index(
    folder: Path,
    out: Path,
    weights: Path | None = None,
    *,
    points: int | None = None,
    seed: int | None = None,
    choice: Choice | None = None,
    batch_size: int = 32,
    device: str = "auto",
    workers: int | None = None,
) -> int:
    """Write an index of a folder, or bring the one that is there up to date.

    Only files that are new or have changed (by size and time) are read; those that are gone drop
    out. What is on disk is always a whole index: the old one, with each minute's share of the new.

    Args:
        folder: Folder of point clouds and meshes, searched at any depth.
        out: File of the index.
        weights: Run folder or weights file of a classifier; by default as the index was built.
        points: Points chosen of each file; by default as in training.
        seed: Seed of their choice, and of the points drawn from meshes; by default as the index was
            built, and 0 in a new one.
        choice: How they are chosen: farthest points, which depend neither on the order of the
            points nor on the pose, even (farthest ones of the points and others between them), or
            at random; by default as the index was built, and in a new one even for a network
            trained so, or else farthest points.
        batch_size: Files at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
        workers: Processes that read; by default none for a few files, else one a core.

    Returns:
        The exit status: 0, or 1 if some files could not be read.
    """
    from locotrans.data.readers import FORMATS

    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name the folder of the shapes")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}; make it first")
    if out.suffix.lower() in FORMATS:
        raise ValueError(f"--out {out} has the name of a shape; name it .index, say")
    old = Index.open(out) if out.exists() else None
    if weights is None:
        if old is None:
            raise ValueError("a new index needs weights: name a run folder or a file (--weights)")
        weights = old.weights
    elif not weights.exists():  # by name
        weights = find_weights(weights)
    if old is not None and points is None:
        points = old.facts.points
    if choice is None and old is not None:
        choice = old.facts.choice
    if seed is None:
        seed = 0 if old is None else old.facts.seed
    inference, metadata = load_inference(weights, points, seed, batch_size, device, workers, choice)
    if choice is None and inference.choice == "random":  # which depends on the order of the points
        inference.choice = "farthest"
    facts = Facts(metadata["model"], metadata["sha256"], inference.points, seed, inference.choice)
    found = stamps_of(folder, find_files([folder]))
    kept = rows_to_keep(old, facts, found, folder)
    fresh = [name for name in found if name not in kept]
    failed = 0
    if old is None or fresh or len(kept) < len(old) or old.folder != folder.resolve():
        with ExitStack() as stack:
            update = Update(folder, out, weights, facts, stack)
            if old is not None:
                update.copy(old, kept)
            failed = update.embed(inference, fresh, found)
            update.save()
    gone = 0 if old is None else sum(name not in found for name in old.names)
    print(
        f"{out}: {counted(len(kept) + len(fresh) - failed, 'shape')}; {len(kept):,} kept, "
        f"{len(fresh) - failed:,} embedded, {gone:,} dropped, {failed:,} failed"
    )
    return int(failed > 0)


def stamps_of(folder: Path, files: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Return the size and the time of each file, by its name below the folder.

    Those of files that it is read with count as its own: sizes are added, the last time is taken.
    A file that is gone by now is left out; one that cannot be read shows when it is read.
    """
    from locotrans.data.readers import buffers_of, file_of

    stamps = {}
    for file in files:
        try:
            whole = file_of(file)
            states = [path.stat() for path in (whole, *buffers_of(whole))]
        except OSError:
            continue
        size, last = sum(x.st_size for x in states), max(x.st_mtime_ns for x in states)
        stamps[file.relative_to(folder).as_posix()] = (size, last)
    return stamps


def rows_to_keep(old: Index | None, facts: Facts, found: Stamps, folder: Path) -> dict[str, int]:
    """Return the rows of the old index whose files have not changed.

    Raises:
        ValueError: the old index is of other weights or points, or of another folder.
    """
    if old is None:
        return {}
    if old.facts != facts:
        before, now = asdict(old.facts), asdict(facts)
        others = [name for name in now if now[name] != before[name]]
        if "sha256" in others:
            raise ValueError(
                f"{old.path} was built with other weights ({before['model']}, "
                f"{before['sha256'][:8]}): name those, or another --out"
            )
        raise ValueError(
            f"{old.path} was built with {', '.join(f'{name} {before[name]}' for name in others)}, "
            f"now it would be {', '.join(str(now[name]) for name in others)}: "
            "give what it was built with, or name another --out"
        )
    known = old.stamps()
    if known and folder.resolve() != old.folder and not known.keys() & found.keys():
        raise ValueError(
            f"{old.path} is of {old.folder}, and {folder} holds none of its files: "
            "name another --out"
        )
    return {
        name: known[name][0]
        for name, stamp in found.items()
        if name in known and known[name][1:] == stamp
    }


class Update:
    """The rows of an index that is being built, in temporary files until they are saved."""

    def __init__(
        self, folder: Path, out: Path, weights: Path, facts: Facts, stack: ExitStack
    ) -> None:
        self.place = (folder, weights, facts)
        self.folder, self.out = folder, out
        self.rows = ArrayWriter(out.parent, stack)
        self.names: list[str] = []

    def copy(self, old: Index, kept: Mapping[str, int]) -> None:
        """Take over rows of the old index."""
        names, numbers = list(kept), np.fromiter(kept.values(), np.int64, len(kept))
        for start in range(0, len(names), COPIED):
            some = numbers[start : start + COPIED]
            stamps = {"sizes": old.sizes[some], "times": old.times[some]}
            self.rows.append({"embeddings": old.embeddings[some], **stamps})
        self.names += names

    def embed(self, inference: Inference, names: Sequence[str], found: Stamps) -> int:
        """Add the rows of files; return how many could not be read."""
        files = [self.folder / name for name in names]
        known = dict(zip(files, names, strict=True))
        failed, saved = 0, time.monotonic()
        ask = partial(embeddings_of, inference.model, False)
        with follow(inference, len(files)) as tally:
            for samples, parts in inference.run(files, ask):
                vectors = iter(np.concatenate(parts) if parts else ())
                for sample in samples:
                    error, vector = sample.error, None
                    if error is None:
                        vector = unit(next(vectors))
                        error = None if np.isfinite(vector).all() else "its embedding is not finite"
                    if error is None and vector is not None:
                        self._add(known[sample.path], found[known[sample.path]], vector)
                    else:
                        failed += 1
                        print(f"{sample.path}: error: {error}", file=sys.stderr)
                    tally(error is None)
                if time.monotonic() - saved > SAVE_SECONDS:
                    self.save()
                    saved = time.monotonic()
        return failed

    def _add(self, name: str, stamp: tuple[int, int], vector: np.ndarray) -> None:
        size, changed = (np.array([value], np.int64) for value in stamp)
        self.rows.append({"embeddings": vector[None], "sizes": size, "times": changed})
        self.names.append(name)

    def save(self) -> None:
        """Replace the index on disk by the rows there are."""
        if not self.names:
            raise ValueError(f"no file of {self.folder} could be read: there is nothing to index")
        folder, weights, facts = self.place
        save_index(self.out, self.rows, self.names, folder, weights, facts)


def unit(vector: np.ndarray) -> np.ndarray:
    """Return a vector of length 1 in single precision; zero stays zero."""
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / (length or 1.0)).astype(np.float32)
