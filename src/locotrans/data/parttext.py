"""The text layouts of part data: a folder per category, lists of the splits.

"normal": ``<category>/<shape>.txt`` with x y z nx ny nz part (-1: no label). "pts":
``<category>/points/<shape>.pts`` and ``<category>/points_label/<shape>.seg``, where parts count
from 1 within their category.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from locotrans.counting import counted
from locotrans.data.parttable import PartTable, read_categories, read_table_of_parts
from locotrans.data.prepared import (
    Clouds,
    Ragged,
    prepared,
    read_files,
    read_table,
    resample,
)

MOST = 9_999  # part number: more than any set has, less than what a table of parts has room for
Loaded = tuple[Clouds, Tensor, PartTable, tuple[str, ...], list[str]]


def load_text(folder: Path, layout: str, splits: Sequence[str], points: int, seed: int) -> Loaded:
    """Load the shapes of one or more lists; what is listed twice is taken once.

    The whole release is prepared at once, so that every split comes from the same file.
    """
    lists = read_lists(folder)
    known = dict.fromkeys(shape for shapes in lists.values() for shape in shapes)
    paths = {shape: _path(folder, layout, shape) for shape in known}
    there = [shape for shape, path in paths.items() if path.exists()]
    wanted = list(dict.fromkeys(shape for split in splits for shape in lists[split]))
    place = {shape: row for row, shape in enumerate(there)}
    rows = [place[shape] for shape in wanted if shape in place]
    if not rows:
        raise FileNotFoundError(
            f"{folder}: the lists of {', '.join(splits)} name {len(wanted)} shapes, and none is "
            f"there{', for example ' + str(paths[wanted[0]]) if wanted else ''}"
        )
    sources = [paths[shape] for shape in there]
    if layout == "pts":
        sources += [_labels_path(path) for path in sources]
    ragged = prepared(f"parts-{layout}", folder, sources, lambda: _read(layout, paths, there))
    categories = [shape.split("/")[0] for shape in there]
    table = read_table_of_parts(folder, "synsetoffset2category.txt")
    if table is None:
        table = _table_from_files(folder, ragged, categories)
    labels = torch.tensor([_category(table, folder, categories[row]) for row in rows])
    clouds = resample(ragged, points, rows=rows, seed=seed)
    if layout == "pts":
        files = [_labels_path(paths[there[row]]) for row in rows]
        clouds = _number_parts(table, labels, clouds, files)
    absent = len(wanted) - len(rows)
    notes = [f"{absent:,} listed shapes are not there"] if absent else []
    notes += overlap_notes(lists, splits)
    return clouds, labels, table, tuple(there[row] for row in rows), notes


def read_lists(folder: Path) -> dict[str, list[str]]:
    """Read the official lists as "category/shape", by split."""
    lists = {}
    for split in ("train", "val", "test"):
        path = folder / "train_test_split" / f"shuffled_{split}_file_list.json"
        try:
            entries = json.loads(path.read_text())
            lists[split] = ["/".join(entry.split("/")[-2:]) for entry in entries]
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is missing; unpack the release again") from None
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"{path} must be a JSON list of category/shape") from None
    return lists


def _path(folder: Path, layout: str, shape: str) -> Path:
    category, _, token = shape.partition("/")
    if layout == "normal":
        return folder / category / f"{token}.txt"
    return folder / category / "points" / f"{token}.pts"


def _labels_path(path: Path) -> Path:
    return path.parents[1] / "points_label" / f"{path.stem}.seg"


def _read(layout: str, paths: dict[str, Path], shapes: Sequence[str]) -> Ragged:
    def read(path: Path) -> Ragged:
        if layout == "normal":
            table = read_table(path, 7)
            parts = _whole(path, table[:, 6])
            return Ragged.of(points=table[:, :3], normals=table[:, 3:6], parts=parts)
        labels = _labels_path(path)
        xyz, parts = read_table(path, 3), _whole(labels, read_table(labels, 1)[:, 0])
        if len(xyz) != len(parts):
            raise ValueError(f"{path} has {len(xyz)} points, its .seg file {len(parts)} labels")
        return Ragged.of(points=xyz, parts=parts)

    return read_files([paths[shape] for shape in shapes], read)


def _whole(path: Path, parts: np.ndarray) -> np.ndarray:
    """Return the part numbers of a file, if that is what they are; -1 is a point without a label.

    All points of the file are looked at, of which a data set may take some only.
    """
    wrong = (parts != parts.round()) | (parts < -1) | (parts > MOST)
    if wrong.any():
        raise ValueError(
            f"{path} has the part number {parts[wrong][0]:g}; part numbers are whole, from 0 to "
            f"{MOST:,}, or -1 for a point without a label"
        )
    return parts


def _category(table: PartTable, folder: Path, synset: str) -> int:
    if synset not in table.synsets:
        raise ValueError(f"{folder}/synsetoffset2category.txt does not name category {synset}")
    return table.synsets.index(synset)


def _table_from_files(folder: Path, ragged: Ragged, categories: Sequence[str]) -> PartTable:
    """Collect the part numbers that occur in each category, for data of one's own."""
    pairs = read_categories(folder / "synsetoffset2category.txt")
    found: dict[str, set[int]] = {synset: set() for _, synset in pairs}
    parts = torch.zeros(0) if ragged.parts is None else ragged.parts
    for row, synset in enumerate(categories):
        start, end = ragged.offsets[row : row + 2].tolist()
        found.setdefault(synset, set()).update(parts[start:end].unique().tolist())
    found = {synset: numbers - {-1} for synset, numbers in found.items()}
    if not any(found.values()):
        raise ValueError(f"{folder}: no point of any shape has a label; all of them are -1")
    names, synsets = zip(*pairs, strict=True)
    return PartTable(names, synsets, tuple(tuple(sorted(found[synset])) for synset in synsets))


def _number_parts(
    table: PartTable, labels: Tensor, clouds: Clouds, files: Sequence[Path]
) -> Clouds:
    """Turn part numbers within the category, from 1, into numbers over all categories."""
    assert clouds.parts is not None
    sizes = torch.tensor([len(found) for found in table.parts])[labels][:, None]
    unlabelled = clouds.parts == -1
    wrong = ((clouds.parts < 1) & ~unlabelled) | (clouds.parts > sizes)
    if bool(wrong.any()):
        row = int(wrong.any(1).nonzero()[0, 0])
        number, category = int(clouds.parts[row][wrong[row]][0]), table.categories[int(labels[row])]
        raise ValueError(
            f"{files[row]} has the part number {number}, and {category} has parts from 1 to "
            f"{int(sizes[row])}; correct it"
        )
    starts = torch.tensor([min(found, default=0) for found in table.parts])
    numbers = clouds.parts - 1 + starts[labels][:, None]
    return Clouds(clouds.points, None, None, numbers.where(~unlabelled, -1))


def overlap_notes(lists: Mapping[str, Sequence[str]], splits: Sequence[str]) -> list[str]:
    """Say how many shapes of these splits stand in another one too, as 35 official ones do."""
    mine = {shape for split in splits for shape in lists[split]}
    shared = {split: len(mine & set(lists[split])) for split in sorted(lists.keys() - set(splits))}
    return [
        f"{counted(count, 'shape stands', 'shapes stand')} in {split} too"
        for split, count in shared.items()
        if count
    ]
