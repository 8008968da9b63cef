"""Scenes of one's own, such as scans of rooms, cut into spheres to learn from.

Unlike shapes they keep their scale, which tells a cup from a table: a sphere is a cloud of the
set, in the units of the files, taken from its middle.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.data.below import PART_NAMES, clouds_in
from locotrans.data.cache import cached
from locotrans.data.clouds import CloudSet
from locotrans.data.hdf5 import as_axis
from locotrans.data.listing import (
    SPLIT_NAMES,
    SPLITS,
    Entry,
    Listing,
    choose_split,
    is_split,
)
from locotrans.data.own_files import (
    KEEP,
    MOST_PARTS,
    Findings,
    check_numbers,
    left_out,
    part_names,
    read_whole,
    sources_of,
)
from locotrans.data.prepared import Ragged, read_files
from locotrans.data.roots import check_split
from locotrans.data.scenes import Scene, Scenes, read_scene
from locotrans.data.spheres import LEAST, cut_spheres, doubt_radius

WIDENED = 1.5
"""Times its radius that a sphere of too few points reaches, from which it is worth a word."""


def list_scenes(root: Path) -> list[Entry]:
    """List all files below a folder, with the split that a folder on the way says."""
    if not root.is_dir():
        raise FileNotFoundError(f"folder: {root} is not a folder; it should hold the scenes")
    entries = []
    for path in clouds_in(root):
        above = path.relative_to(root).parts[:-1]
        split = next((SPLIT_NAMES[name.lower()] for name in above if is_split(name)), "")
        entries.append(Entry(path, "scene", split))
    if not entries:
        raise FileNotFoundError(f"folder: {root} holds no file of a known format")
    return entries


def load_scenes(
    name: str,
    listing: Listing,
    split: str,
    points: int,
    seed: int,
    up: str,
    share: float,
    skip: bool,
    sphere: float,
) -> CloudSet:
    """Load the spheres of a split's scenes; every point of every scene is in at least one.

    Raises:
        UnreadableFilesError: for files that cannot be read, or whose points have no labels.
    """
    if not sphere > 0:
        raise ValueError(f"{name}: sphere must be positive, got {sphere:g}")
    folder, axis = listing.folder, as_axis(up)
    entries = [replace(entry, label="scene") for entry in listing.entries]  # a table may say others
    check_split(name, split, sorted({*SPLITS, *(entry.split for entry in entries)} - {""}))
    mine = choose_split(entries, folder, split, seed, share)
    key = f"{name}-{split}-{points}-{seed}-{share}-sphere{sphere}" + ("-skip" if skip else "")
    remedy = f"correct them, or leave them out: {name}:sphere={sphere:g},skip=true"
    names = part_names(folder)
    sources = [*sources_of(mine), *([folder / PART_NAMES] if names else [])]
    tensors = cached(
        key, folder, sources, lambda: _read(mine, points, seed, skip, sphere, names, remedy)
    )
    numbers = tensors.pop("scene").tolist()
    ragged = Ragged.from_tensors(tensors)
    assert ragged.parts is not None  # by `_read`
    parts = ragged.parts.long().unflatten(0, (-1, points))
    clouds = ragged.points.unflatten(0, (-1, points))
    ids = [os.path.relpath(entry.path, folder) for entry in mine]
    places = [k for count in torch.tensor(numbers).bincount().tolist() for k in range(count)]
    count = int(parts.max()) + 1
    if count == 0:
        raise ValueError(f"{folder} ({split}): no point has a label; all of them are -1")
    left = [path for number, path in enumerate(ids) if number not in set(numbers)]
    by_path = {entry.path: entry for entry in mine}

    def whole(path: Path) -> Scene:
        scene = read_whole(by_path[path], KEEP, seed, Findings(), read_scene)
        assert scene.parts is not None  # by `_read`
        colors = None if scene.colors is None else scene.colors.numpy()
        return Scene(scene.points.double().numpy(), scene.parts.long().numpy(), colors)

    return CloudSet(
        name=name,
        split=split,
        up=axis,
        points=clouds,
        labels=torch.zeros(len(clouds), dtype=torch.long),
        class_names=("scene",),
        colors=None if ragged.colors is None else ragged.colors.unflatten(0, (-1, points)),
        parts=parts,
        part_names=names or tuple(map(str, range(count))),
        ids=tuple(f"{ids[number]}@{k}" for number, k in zip(numbers, places, strict=True)),
        items="spheres",
        scenes=Scenes(tuple(mine[number].path for number in dict.fromkeys(numbers)), whole, sphere),
        notes=(
            *ragged.remarks,
            *left_out(left),
            *_notes(sphere, clouds),
            *(() if names else _gaps(parts, count)),
        ),
    )


def _gaps(parts: Int[Tensor, "s m"], count: int) -> list[str]:
    """Say which numbers below the greatest label are no point's; each is a class all the same."""
    absent = sorted(set(range(count)) - set(parts.unique().tolist()))
    if not absent:
        return []
    some = ", ".join(map(str, absent[:3])) + (", ..." if len(absent) > 3 else "")
    what, fate = ("labels", "occur nowhere here, and count as classes")
    if len(absent) == 1:
        what, fate = ("label", "occurs nowhere here, and counts as a class")
    return [f"{len(absent):,} {what} below {count - 1} {fate}: {some}"]


def _notes(sphere: float, clouds: Float[Tensor, "s m 3"]) -> list[str]:
    """Say what is doubtful about the radius."""
    notes = []
    reach = float(clouds.norm(dim=-1).amax(1).median())
    if reach > WIDENED * sphere:
        notes.append(
            f"most spheres of radius {sphere:g} hold fewer than {LEAST} points and are widened to "
            f"about {reach:.3g}: sphere is in the units of the files"
        )
    if not 0.1 <= sphere <= 10:
        notes.append(
            f"coordinates of up to {sphere:g} outweigh, or drown beside, colours from 0 to 1: "
            "files in a unit in which spheres have a radius of about 1 are learned better"
        )
    return notes


def _read(
    mine: Sequence[Entry],
    points: int,
    seed: int,
    skip: bool,
    sphere: float,
    names: Sequence[str],
    remedy: str,
) -> dict[str, Tensor]:
    """Read the scenes and cut them: clouds of one size, and the scene that each is of."""
    found, numbers = Findings(), []
    order = {entry.path: (number, entry) for number, entry in enumerate(mine)}

    def cut(path: Path) -> Ragged:
        number, entry = order[path]
        scene = read_whole(entry, KEEP, seed, found, read_scene)
        if scene.parts is None:
            raise ValueError(
                f"{path} has no label for each point, a whole number from -1 (none) to "
                f"{MOST_PARTS - 1:,}, which scenes are learned from: write them into a column or "
                f"property named label, or a line each into {path.with_suffix('.seg').name}"
            )
        if names:
            check_numbers(entry, scene.parts.long(), names)
        doubt = doubt_radius(scene.points.numpy(), sphere)
        if doubt:
            raise ValueError(f"{path}: {doubt}, or name another sphere")
        blocks = list(cut_spheres(scene.points.double().numpy(), sphere, points, seed))
        rows = torch.from_numpy(np.concatenate([rows for _, rows, _ in blocks]))
        numbers.extend([number] * len(blocks))
        return Ragged(
            points=torch.from_numpy(np.concatenate([local for *_, local in blocks])),
            offsets=torch.arange(len(blocks) + 1) * points,
            colors=None if scene.colors is None else scene.colors[rows],
            parts=scene.parts[rows],
        )

    ragged = read_files([entry.path for entry in mine], cut, skip=skip, remedy=remedy)
    said = replace(found, files=0, foreign=0)  # files without labels are refused, or left out
    remarks = tuple(said.remarks())
    return {**replace(ragged, remarks=remarks).tensors(), "scene": torch.tensor(numbers)}
