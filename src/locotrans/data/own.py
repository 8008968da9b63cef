"""One's own data: a folder per class, or a table of paths and labels.

Files may be of any format that `read_cloud` knows; meshes are sampled.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from locotrans.counting import counted, listed
from locotrans.data.below import PART_NAMES
from locotrans.data.clouds import CloudSet
from locotrans.data.hdf5 import as_axis
from locotrans.data.listing import (
    SPLITS,
    Entry,
    Listing,
    choose_split,
    list_folder,
    list_table,
)
from locotrans.data.own_files import (
    KEEP,
    Findings,
    left_out,
    part_names,
    read_entry,
    sources_of,
)
from locotrans.data.own_scenes import list_scenes, load_scenes
from locotrans.data.prepared import Ragged, normalized, prepared, read_files, resample
from locotrans.data.registry import register_dataset
from locotrans.data.roots import DATA_VARIABLE, cache_root, check_split, data_root


@register_dataset("folder")
def load_folder(
    split: str,
    *,
    root: Path | None = None,
    points: int = 1024,
    seed: int = 0,
    up: str = "z",
    share: float = 0.8,
    skip: bool = False,
    sphere: float = 0.0,
) -> CloudSet:
    """Load a folder per class: ``chair/*.ply``, ``chair/train/*.ply`` or ``train/chair/*.ply``.

    Args:
        split: "train" or "test".
        root: The folder.
        points: Points of each shape; a smaller file is filled up (`resample`).
        seed: Seed of the split, of the points on meshes and of the choice of points.
        up: The axis that points up.
        share: Share of each class that is for training, where no folders say which; 0: none.
        skip: Leave out files that cannot be read, instead of raising an error.
        sphere: Radius, in the units of the files, of the spheres that labelled scenes are cut into
            (`load_scenes`); 0 takes the files for shapes, and scales them.
    """
    listing = entries_of("folder", root, scenes=sphere != 0)
    if sphere:
        return load_scenes("folder", listing, split, points, seed, up, share, skip, sphere)
    return load_entries("folder", listing, split, points, seed, up, share, skip)


@register_dataset("csv")
def load_csv(
    split: str,
    *,
    root: Path | None = None,
    points: int = 1024,
    seed: int = 0,
    up: str = "z",
    share: float = 0.8,
    skip: bool = False,
    sphere: float = 0.0,
) -> CloudSet:
    """Load a table with a header: ``path,label`` and perhaps ``split`` and ``parts``.

    Paths are relative to the table. ``parts`` is a text file with the part number of each point.

    Args:
        split: "train" or "test".
        root: The table, or a folder that holds one ``.csv`` file.
        points: Points of each shape; a smaller file is filled up (`resample`).
        seed: Seed of the split, of the points on meshes and of the choice of points.
        up: The axis that points up.
        share: Share of each class that is for training, where the table has no ``split``; 0: none.
        skip: Leave out files that cannot be read, instead of raising an error.
        sphere: As for a folder; ``label`` says nothing then.
    """
    listing = entries_of("csv", root, scenes=sphere != 0)
    if sphere:
        return load_scenes("csv", listing, split, points, seed, up, share, skip, sphere)
    return load_entries("csv", listing, split, points, seed, up, share, skip)


def entries_of(name: str, root: Path | None, *, scenes: bool = False) -> Listing:
    """List the files of a "folder" or a "csv"; a folder of scenes has no folders of classes."""
    place = data_root(root)
    if place == cache_root():  # which holds what we prepared, and nothing of the user's
        what = "the folder that holds one per class" if name == "folder" else "the table"
        raise FileNotFoundError(
            f"{name}: name {what} as root (--root), or in the environment variable {DATA_VARIABLE}"
        )
    if name == "folder":
        return Listing(place, place, (list_scenes if scenes else list_folder)(place))
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
    folder, entries, axis = listing.folder, listing.entries, as_axis(up)
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
    ids = [os.path.relpath(entry.path, folder) for entry in mine]
    notes = list(ragged.remarks)
    few = int((sizes[rows] < points).sum())
    if few:
        files = counted(few, "file has", "files have")
        copies = "moved copies" if parts is None else "copies"
        notes.append(
            f"{files} fewer than {counted(points, 'point')}: they are filled up with {copies}"
        )
    present = {mine[row].label for row in rows}
    absent = [label for label in names if label not in present]
    if absent:
        which = counted(len(absent), "class has", "classes have")
        notes.append(f"{which} no shape here: {listed(absent)}")
    if len(names) == 1 and not count:
        notes.append(f"there is one class only, {names[0]}: nothing to tell it from")
    notes += left_out([ids[row] for row in range(len(ids)) if sizes[row] == 0])
    return CloudSet(
        name=name,
        split=split,
        up=axis,
        points=normalized(clouds.points),
        labels=torch.tensor([names.index(mine[row].label) for row in rows]),
        class_names=tuple(names),
        normals=clouds.normals,
        colors=clouds.colors,
        parts=parts if count else None,
        part_names=part_names(folder) or tuple(map(str, range(count))),
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
    names, names_file = part_names(listing.folder), listing.folder / PART_NAMES
    remedy = f"`locotrans data check {listing.root}` names all; {name}:skip=true leaves them out"

    def read() -> Ragged:
        found = Findings()
        ragged = read_files(
            paths,
            lambda path: read_entry(by_path[path], keep, seed, found, names),
            skip=skip,
            remedy=remedy,
        )
        return replace(ragged, remarks=tuple(found.remarks()))

    key = f"{name}-{split}-{keep}-{seed}-{share}" + ("-skip" if skip else "")
    sources = [*sources_of(mine), *([names_file] if names else [])]
    return prepared(key, listing.folder, sources, read)


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
