"""One's own data: a folder per class, or a table of paths and labels.

Files may be of any format that `read_cloud` knows; meshes are sampled.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

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
from locotrans.data.registry import log, register_dataset
from locotrans.data.roots import check_split, data_root, read_lines

KEEP = 8192
"""Points that are kept of each file, unless more are asked for."""


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
    """
    folder = data_root(root)
    return load_entries("folder", folder, list_folder(folder), split, points, seed, up, share)


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
    """
    table = data_root(root)
    if table.is_dir():
        tables = sorted(table.glob("*.csv"))
        if len(tables) != 1:
            raise FileNotFoundError(f"{table} holds {len(tables)} .csv files; name one as root")
        table = tables[0]
    entries = list_table(table)
    return load_entries("csv", table.parent, entries, split, points, seed, up, share)


def load_entries(
    name: str,
    folder: Path,
    entries: Sequence[Entry],
    split: str,
    points: int,
    seed: int,
    up: str,
    share: float,
) -> CloudSet:
    """Load the files of a split; class names come from all entries, so splits agree on them."""
    check_split(name, split, sorted({*SPLITS, *(entry.split for entry in entries)} - {""}))
    labels = {entry.label for entry in entries}
    numeric = all(label.isdecimal() for label in labels)
    names = sorted(labels, key=lambda label: (int(label) if numeric else 0, label))
    mine = choose_split(entries, folder, split, seed, share)
    paths = [entry.path for entry in mine]
    sources = paths + [entry.parts for entry in mine if entry.parts is not None]
    by_path = {entry.path: entry for entry in mine}
    keep = max(points, KEEP)

    def read() -> Ragged:
        holes: list[int] = []
        ragged = read_files(paths, lambda path: read_entry(by_path[path], keep, seed, holes))
        if sum(holes):
            log.warning("%s (%s): %s nan points of scans are left out", name, split, sum(holes))
        return ragged

    ragged = prepared(f"{name}-{split}-{keep}-{seed}-{share}", folder, sources, read)
    clouds = resample(ragged, points, seed=seed)
    names_file = folder / "part_names.txt"
    count = 0 if clouds.parts is None else int(clouds.parts.max()) + 1
    few = int((ragged.offsets.diff() < points).sum())
    return CloudSet(
        name=name,
        split=split,
        up=as_axis(up),
        points=normalized(clouds.points),
        labels=torch.tensor([names.index(entry.label) for entry in mine]),
        class_names=tuple(names),
        normals=clouds.normals,
        colors=clouds.colors,
        parts=clouds.parts,
        part_names=tuple(read_lines(names_file) if names_file.exists() else map(str, range(count))),
        ids=tuple(os.path.relpath(path, folder) for path in paths),
        notes=(f"{few:,} files have fewer than {points:,} points and repeat some",) if few else (),
    )


def read_entry(entry: Entry, keep: int, seed: int, holes: list[int]) -> Ragged:
    """Read a file, at most ``keep`` of its points, with its parts if it has any.

    How many of its points are nan alone, and left out, is appended to ``holes``.
    """
    from locotrans.data.readers import read_cloud

    cloud = read_cloud(entry.path, samples=keep, seed=seed)
    holes.append(cloud.holes)
    parts = cloud.labels
    beside = entry.parts or entry.path.with_suffix(".seg")
    if entry.parts is not None or beside.exists():
        parts = torch.from_numpy(read_table(beside, 1)[:, 0]).long()
        if len(parts) != len(cloud):
            raise ValueError(
                f"{beside} has {len(parts)} lines for the {len(cloud)} points of {entry.path}"
            )
    if parts is not None and int(parts.min()) < 0:
        raise ValueError(f"{entry.path} has a part number below 0")
    whole = Ragged.of(cloud.points, cloud.normals, cloud.colors, parts)
    if len(cloud) <= keep:
        return whole
    some = resample(whole, keep, seed=seed)
    kept = [None if t is None else t[0] for t in (some.normals, some.colors, some.parts)]
    return Ragged.of(some.points[0], *kept)
