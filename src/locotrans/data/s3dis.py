"""S3DIS: rooms of six areas, 13 classes, cut into blocks of floor or into spheres.

A block is one cloud of the set: x and y from the block's middle, z from the room's floor, in
metres; a sphere is taken from its middle. What other sets have as parts is here the class of each
point (-1 where it has none); the label says nothing.
"""

import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from locotrans.data.cache import cached
from locotrans.data.clouds import CloudSet
from locotrans.data.registry import register_dataset
from locotrans.data.roots import Layout, check_split, count_note, find_layout
from locotrans.data.scenes import Scene, Scenes
from locotrans.data.spheres import LEAST, cut_spheres

_NAMES = "ceiling floor wall beam column window door table chair sofa bookcase board clutter"
CLASSES = tuple(_NAMES.split())
ROOMS = {1: 44, 2: 40, 3: 23, 4: 49, 5: 68, 6: 48}
"""Rooms of each area."""

LAYOUT = Layout(
    "rooms", ("stanford_indoor3d", "s3dis"), ("Area_*_*.npy",), "an array x y z r g b label a room"
)
HOME = (
    "Stanford3dDataset_v1.2_Aligned_Version.zip, on request, from the page of the data set "
    "(search: Stanford Large-Scale 3D Indoor Spaces); "
    "`locotrans data prepare-s3dis` turns it into the room arrays"
)


@register_dataset("s3dis")
def load_s3dis(
    split: str,
    *,
    root: Path | None = None,
    points: int = 4096,
    seed: int = 0,
    variant: str = "",
    block: float = 1.0,
    stride: float = 1.0,
    sphere: float = 0.0,
) -> CloudSet:
    """Load the blocks, or the spheres, of the training or of the test rooms.

    Args:
        split: "train" or "test".
        root: Folder that holds ``stanford_indoor3d``, or that folder.
        points: Points of each block; a block of fewer repeats some.
        seed: Seed of the choice of points.
        variant: "area5" tests on area 5 and trains on the others, and so on for 1 to 6. Without
            it the rooms are split by the folder's ``rooms_split.json``.
        block: Side of a block in metres.
        stride: Distance of blocks in metres; less than ``block``, of which it must be a fraction
            1/k, makes them overlap.
        sphere: Radius in metres: instead of blocks of floor, spheres that together hold every point
            of the room, and do not depend on how it is turned; 0 gives blocks.
    """
    check_split("s3dis", split, ("train", "test"))
    _, folder = find_layout("s3dis", root, (LAYOUT,), "", HOME)
    ratio = round(block / stride) if stride > 0 and block > 0 else 0
    if ratio < 1 or abs(ratio * stride - block) > 1e-6 * block:
        raise ValueError(f"block must be a multiple of stride, got {block} and {stride}")
    if sphere < 0:
        raise ValueError(f"sphere must not be negative, got {sphere}")
    rooms, notes = choose_rooms(folder, split, variant)
    cut = f"sphere{sphere}" if sphere else f"{block}-{stride}"
    key = f"s3dis-{variant}-{split}-{points}-{cut}-{seed}"

    def read() -> dict[str, Tensor]:
        if sphere:
            return _read_spheres(rooms, points, sphere, seed)
        return _read_blocks(rooms, points, block, ratio, seed)

    tensors = cached(key, folder, rooms, read)
    corners = zip(tensors["room"].tolist(), tensors["corner"].tolist(), strict=True)
    return CloudSet(
        name=f"s3dis:{variant}" if variant else "s3dis",
        title=title_of(folder, variant),
        split=split,
        up="z",
        points=tensors["points"],
        labels=torch.zeros(len(tensors["points"]), dtype=torch.long),
        class_names=("room",),
        parts=tensors["parts"].long(),
        part_names=CLASSES,
        colors=tensors["colors"],
        ids=tuple(f"{rooms[room].stem}@{x:.2f},{y:.2f}" for room, (x, y) in corners),
        items="spheres" if sphere else "blocks",
        scenes=Scenes(tuple(rooms), _whole, sphere, block, ratio),
        notes=tuple(notes),
    )


def choose_rooms(folder: Path, split: str, variant: str) -> tuple[list[Path], list[str]]:
    """Return the files of a split's rooms, and notes on what is missing."""
    files = sorted(folder.glob("Area_*_*.npy"))
    areas = {path: _area(path) for path in files}
    listing = folder / "rooms_split.json"
    if variant:
        if variant not in [f"area{n}" for n in ROOMS]:
            raise ValueError(f"s3dis has the folds area1 to area6, got {variant!r}")
        test = int(variant.removeprefix("area"))
        rooms = [path for path in files if (areas[path] == test) == (split == "test")]
    elif listing.exists():
        splits = json.loads(listing.read_text())
        if split not in splits:
            raise ValueError(f"{listing} has no split {split!r}; it has {', '.join(splits)}")
        named = splits[split]
        rooms = [folder / f"{name}.npy" for name in named]
        absent = [path for path in rooms if not path.exists()]
        if absent:
            raise FileNotFoundError(f"{listing} names {absent[0].name}, which is not there")
    else:
        raise ValueError(f"name the test area, such as s3dis:area5: {folder} has no {listing.name}")
    if not rooms:
        have = sorted(set(areas.values()))
        raise FileNotFoundError(f"s3dis:{variant} {split}: {folder} has rooms of areas {have} only")
    notes = []
    for area, total in ROOMS.items():
        count = sum(areas[path] == area for path in (rooms if variant else files))
        if count or (variant and (area == test) == (split == "test")):
            notes += count_note(f"rooms of area {area}", count, (total,))
    return rooms, notes


def title_of(folder: Path, variant: str) -> str:
    """Say which rooms are for training and which for testing, or nothing for an official fold.

    So "S3DIS Area 6 (30/10 rooms)" does not pass for a whole area, nor some rooms of area 5 for it.
    """
    if variant:
        test = int(variant.removeprefix("area"))
        there = Counter(map(_area, folder.glob("Area_*_*.npy")))
        whole, rest = ROOMS[test], sum(ROOMS.values()) - ROOMS[test]
        if there == Counter(ROOMS):
            return ""
        counts = f"{there.total() - there[test]}/{there[test]}"
        return f"S3DIS Area {test} ({counts} of {rest}/{whole} rooms)"
    listing = json.loads((folder / "rooms_split.json").read_text())
    rooms = [listing.get(split, []) for split in ("train", "test")]
    areas = [", ".join(sorted({name.split("_")[1] for name in names})) for names in rooms]
    names = list(dict.fromkeys(filter(None, areas)))
    word = "Area" if len(names) == 1 and "," not in names[0] else "Areas"
    return f"S3DIS {word} {' / '.join(names)} ({len(rooms[0])}/{len(rooms[1])} rooms)"


def _area(path: Path) -> int:
    return int(path.stem.split("_")[1])


def read_room(path: Path) -> Float[np.ndarray, "n 7"]:
    """Read the array of a room: x y z in metres, r g b from 0 to 255, label from 0 to 12 or -1."""
    try:
        room = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a whole array file ({error}); make it again") from None
    if room.ndim != 2 or room.shape[1] != 7 or len(room) == 0:
        raise ValueError(f"{path} has shape {room.shape}, expected (points, 7): x y z r g b label")
    room = room.astype(np.float32, copy=False)
    if not np.isfinite(room).all():
        raise ValueError(f"{path} holds nan or infinity")
    low, high = room[:, 6].min(), room[:, 6].max()
    if low < -1 or high >= len(CLASSES):
        raise ValueError(
            f"{path}: labels span {low:g} to {high:g}, expected 0 to 12, or -1 for none"
        )
    return room


def _whole(path: Path) -> Scene:
    room = read_room(path)
    return Scene(room[:, :3].astype(np.float64), room[:, 6].astype(np.int64), room[:, 3:6] / 255)


def cut_blocks(
    room: Float[np.ndarray, "n columns"], block: float, ratio: int
) -> Iterator[tuple[Float[np.ndarray, "2"], np.ndarray]]:
    """Give the lower corner (x, y) and the rows of each block, by one sort for each shift."""
    start = room[:, :2].min(0)
    for shift in np.ndindex(ratio, ratio):
        origin = start + np.array(shift, np.float32) * block / ratio
        cell = np.floor((room[:, :2] - origin) / block).astype(np.int64)
        inside = np.flatnonzero((cell >= 0).all(1))
        if len(inside) == 0:
            continue
        width = cell[inside, 1].max() + 1
        code = cell[inside, 0] * width + cell[inside, 1]
        order = np.argsort(code, kind="stable")
        codes, first = np.unique(code[order], return_index=True)
        for value, rows in zip(codes, np.split(inside[order], first[1:]), strict=True):
            corner = origin + block * np.array(divmod(value, width), np.float32)
            yield corner.astype(np.float32), rows


def _read_blocks(
    rooms: list[Path], points: int, block: float, ratio: int, seed: int
) -> dict[str, Tensor]:
    clouds: list[np.ndarray] = []
    corners, numbers = [], []
    for number, path in enumerate(rooms):
        room = read_room(path)
        floor = room[:, 2].min()
        rng = np.random.default_rng([seed, zlib.crc32(path.stem.encode())])
        before = len(clouds)
        for corner, rows in cut_blocks(room, block, ratio):
            if len(rows) < LEAST:
                continue
            cloud = room[np.resize(rng.permutation(rows), points)]
            cloud[:, :2] -= corner + np.float32(block / 2)
            cloud[:, 2] -= floor
            clouds.append(cloud)
            corners.append(corner - room[:, :2].min(0))
            numbers.append(number)
        if len(clouds) == before:
            raise ValueError(
                f"{path} has {len(room)} points, and no block of {block:g} m has {LEAST} of them; "
                "leave the room out, or take larger blocks (s3dis:block=2,stride=2) or spheres "
                "(s3dis:sphere=1.0)"
            )
    return _tensors(clouds, corners, numbers)


def _read_spheres(rooms: list[Path], points: int, radius: float, seed: int) -> dict[str, Tensor]:
    clouds, corners, numbers = [], [], []
    for number, path in enumerate(rooms):
        room = read_room(path)
        xyz = room[:, :3].astype(np.float64)
        for center, rows, local in cut_spheres(xyz, radius, points, seed):
            cloud = room[rows]
            cloud[:, :3] = local
            clouds.append(cloud)
            corners.append((xyz[center] - xyz.min(0))[:2].astype(np.float32))
            numbers.append(number)
    return _tensors(clouds, corners, numbers)


def _tensors(
    clouds: list[np.ndarray], corners: list[np.ndarray], numbers: list[int]
) -> dict[str, Tensor]:
    joined = torch.from_numpy(np.stack(clouds))
    return {
        "points": joined[..., :3].clone(),
        "colors": joined[..., 3:6] / 255,
        "parts": joined[..., 6].to(torch.int8),
        "corner": torch.from_numpy(np.stack(corners)),
        "room": torch.tensor(numbers),
    }
