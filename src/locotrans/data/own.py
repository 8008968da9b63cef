"""One's own data: a folder per class, or a table of paths and labels.

Files may be of any format that `read_cloud` knows; meshes are sampled.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from locotrans.counting import counted
from locotrans.data.cloud import Cloud
from locotrans.data.clouds import CloudSet
from locotrans.data.hdf5 import as_axis
from locotrans.data.listing import SPLITS, Entry, choose_split, list_folder, list_table
from locotrans.data.prepared import (
    Ragged,
    normalized,
    prepared,
    read_files,
    read_table,
    resample,
)
from locotrans.data.registry import register_dataset
from locotrans.data.roots import DATA_VARIABLE, cache_root, check_split, data_root, read_lines

KEEP = 8192
"""Points that are kept of each file, unless more are asked for."""
MOST_PARTS = 4096
"""Labels of points beyond this are not numbers of parts."""


@register_dataset("folder")
def load_folder(
    split: str,
    *,
    root: Path | None = None,
    points: int = 1024,
    shapes: int | None = None,
    seed: int = 0,
    up: str = "z",
    share: float = 0.8,
    skip: bool = False,
) -> CloudSet:
    """Load a folder per class: ``chair/*.ply``, ``chair/train/*.ply`` or ``train/chair/*.ply``.

    Args:
        split: "train" or "test".
        root: The folder.
        points: Points of each shape; a file of fewer repeats some.
        shapes: Not used here.
        seed: Seed of the split, of the points on meshes and of the choice of points.
        up: The axis that points up.
        share: Share of each class that is for training, where no folders say which.
        skip: Leave out files that cannot be read, instead of raising an error.
    """
    return load_entries("folder", entries_of("folder", root), split, points, seed, up, share, skip)


@register_dataset("csv")
def load_csv(
    split: str,
    *,
    root: Path | None = None,
    points: int = 1024,
    shapes: int | None = None,
    seed: int = 0,
    up: str = "z",
    share: float = 0.8,
    skip: bool = False,
) -> CloudSet:
    """Load a table with a header: ``path,label`` and perhaps ``split`` and ``parts``.

    Paths are relative to the table. ``parts`` is a text file with the part number of each point.

    Args:
        split: "train" or "test".
        root: The table, or a folder that holds one ``.csv`` file.
        points: Points of each shape; a file of fewer repeats some.
        shapes: Not used here.
        seed: Seed of the split, of the points on meshes and of the choice of points.
        up: The axis that points up.
        share: Share of each class that is for training, where the table has no ``split``.
        skip: Leave out files that cannot be read, instead of raising an error.
    """
    return load_entries("csv", entries_of("csv", root), split, points, seed, up, share, skip)


@dataclass(frozen=True)
class Listing:
    """The files of a data set, and the folder that their names are relative to."""

    root: Path
    """What the user named."""
    folder: Path
    entries: Sequence[Entry]


def entries_of(name: str, root: Path | None) -> Listing:
    """List the files of a "folder" or a "csv"."""
    place = data_root(root)
    if place == cache_root():  # which holds what we prepared, and nothing of the user's
        what = "the folder that holds one per class" if name == "folder" else "the table"
        raise FileNotFoundError(
            f"{name}: name {what} as root (--root), or in the environment variable {DATA_VARIABLE}"
        )
    if name == "folder":
        return Listing(place, place, list_folder(place))
    if place.is_dir():
        tables = sorted(place.glob("*.csv"))
        if len(tables) != 1:
            raise FileNotFoundError(f"{place} holds {len(tables)} .csv files; name one as root")
        place = tables[0]
    return Listing(place, place.parent, list_table(place))


def load_entries(
    name: str,
    listing: Listing,
    split: str,
    points: int,
    seed: int,
    up: str,
    share: float,
    skip: bool,
) -> CloudSet:
    """Load the files of a split; class names come from all entries, so splits agree on them."""
    folder, entries = listing.folder, listing.entries
    check_split(name, split, sorted({*SPLITS, *(entry.split for entry in entries)} - {""}))
    labels = {entry.label for entry in entries}
    numeric = all(label.isdecimal() for label in labels)
    names = sorted(labels, key=lambda label: (int(label) if numeric else 0, label))
    mine = choose_split(entries, folder, split, seed, share)
    ragged = read_split(name, listing, split, mine, max(points, KEEP), seed, share, skip)
    sizes = ragged.offsets.diff()
    rows = sizes.nonzero().flatten().tolist()  # the others were skipped
    clouds = resample(ragged, points, rows=rows, seed=seed, by_place=False)
    parts = clouds.parts
    count = 0 if parts is None else int(parts.max()) + 1
    names_file = folder / "part_names.txt"
    ids = [os.path.relpath(entry.path, folder) for entry in mine]
    notes = list(ragged.remarks)
    few = int((sizes[rows] < points).sum())
    if few:
        files = counted(few, "file has", "files have")
        notes.append(f"{files} fewer than {counted(points, 'point')}: some are repeated")
    left = [ids[row] for row in range(len(ids)) if sizes[row] == 0]
    if left:
        one, more = "file cannot be read and is", "files cannot be read and are"
        notes.append(f"{counted(len(left), one, more)} left out: {', '.join(left)}")
    return CloudSet(
        name=name,
        split=split,
        up=as_axis(up),
        points=normalized(clouds.points),
        labels=torch.tensor([names.index(mine[row].label) for row in rows]),
        class_names=tuple(names),
        normals=clouds.normals,
        colors=clouds.colors,
        parts=parts if count else None,
        part_names=tuple(read_lines(names_file) if names_file.exists() else map(str, range(count))),
        ids=tuple(ids[row] for row in rows),
        notes=tuple(notes),
    )


def read_split(
    name: str,
    listing: Listing,
    split: str,
    mine: Sequence[Entry],
    keep: int,
    seed: int,
    share: float,
    skip: bool,
) -> Ragged:
    """Read the files of a split, or take them from the prepared cache."""
    paths = [entry.path for entry in mine]
    by_path = {entry.path: entry for entry in mine}
    remedy = f"`locotrans data check {listing.root}` names all; {name}:skip=true leaves them out"

    def read() -> Ragged:
        found = Findings()
        ragged = read_files(
            paths,
            lambda path: read_entry(by_path[path], keep, seed, found),
            skip=skip,
            remedy=remedy,
        )
        return replace(ragged, remarks=tuple(found.remarks()))

    key = f"{name}-{split}-{keep}-{seed}-{share}" + ("-skip" if skip else "")
    return prepared(key, listing.folder, sources_of(mine), read)


def file_sizes(name: str, root: Path, split: str, *, skip: bool = False) -> list[int]:
    """Return how many points each file of a split has, up to `KEEP`.

    Args:
        name: "folder" or "csv".
        root: The folder or table.
        split: "train" or "test".
        skip: Leave out files that cannot be read, instead of raising an error.
    """
    listing, seed, share = entries_of(name, root), 0, 0.8
    mine = choose_split(listing.entries, listing.folder, split, seed, share)
    ragged = read_split(name, listing, split, mine, KEEP, seed, share, skip)
    return [size for size in ragged.offsets.diff().tolist() if size > 0]


def sources_of(entries: Sequence[Entry]) -> list[Path]:
    """List every file that the entries depend on, each once."""
    from locotrans.data.readers import buffers_of, file_of

    sources: dict[Path, None] = {}
    for entry in entries:
        file = file_of(entry.path)
        beside = entry.parts or entry.path.with_suffix(".seg")
        more = [beside] if beside.exists() else []
        sources.update(dict.fromkeys([file, *more, *buffers_of(file)]))
    return list(sources)


@dataclass
class Findings:
    """What is worth a word about the files of a split, once they are read."""

    files: int = 0
    holes: int = 0
    """Points of nan alone."""
    labelled: int = 0
    """Files whose points have parts."""
    foreign: int = 0
    """Files whose points have labels that are no parts."""

    def remarks(self) -> list[str]:
        """Say it."""
        said = []
        if self.holes:
            holes = counted(self.holes, "nan point of scans is", "nan points of scans are")
            said.append(f"{holes} left out")
        if self.foreign:
            said.append(
                f"labels of points in {counted(self.foreign, 'file')} are no parts (-1 to "
                f"{MOST_PARTS - 1:,}) and are left out"
            )
        if 0 < self.labelled < self.files:
            said.append(
                f"parts of {self.labelled:,} of {self.files:,} files are left out, for want of the "
                "others'"
            )
        return said


def read_entry(entry: Entry, keep: int, seed: int, found: Findings) -> Ragged:
    """Read a file, at most ``keep`` of its points, with its parts if it has any."""
    from locotrans.data.readers import read_cloud

    cloud = read_cloud(entry.path, samples=keep, seed=seed)
    check_extent(entry.path, cloud.points)
    parts = _read_parts(entry, cloud)
    if parts is None and cloud.labels is not None:
        low, high = cloud.labels.aminmax()
        parts = cloud.labels if low >= -1 and high < MOST_PARTS else None
        found.foreign += parts is None
    found.files += 1
    found.holes += cloud.holes
    found.labelled += parts is not None
    whole = Ragged.of(cloud.points, cloud.normals, cloud.colors, parts)
    if len(cloud) <= keep:
        return whole
    some = resample(whole, keep, seed=seed)
    kept = [None if t is None else t[0] for t in (some.normals, some.colors, some.parts)]
    return Ragged.of(some.points[0], *kept)


def check_extent(path: Path, points: Tensor, size: int | None = None) -> None:
    """Refuse a cloud whose points differ by no more than rounding.

    Args:
        path: its file.
        points: the points, or some of them.
        size: how many the file has, where that is another number.
    """
    wide = points.double()
    middle = wide.mean(0)
    if not (wide - middle).norm(dim=1).max() > 1e-6 * middle.abs().max():
        count = len(points) if size is None else size
        what = "has one point only" if count == 1 else f"its {count} points are all the same"
        raise ValueError(f"{path}: {what}: leave the file out")


def _read_parts(entry: Entry, cloud: Cloud) -> Int[Tensor, "n"] | None:
    """Read the parts from the file that is named for them, or that lies beside the cloud."""
    beside = entry.parts or entry.path.with_suffix(".seg")
    if entry.parts is None and not beside.exists():
        return None
    numbers = torch.from_numpy(read_table(beside, 1)[:, 0])
    if len(numbers) != len(cloud):
        raise ValueError(
            f"{beside} has {len(numbers)} lines for the {len(cloud)} points of {entry.path}"
        )
    wrong = (numbers < -1) | (numbers >= MOST_PARTS) | (numbers != numbers.floor())
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"{beside}, value {row + 1}: {numbers[row]:g} is no part; parts are whole numbers up "
            f"to {MOST_PARTS - 1:,}, and -1 where none is known"
        )
    return numbers.long()
