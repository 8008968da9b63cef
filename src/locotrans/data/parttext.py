"""The text layouts of part data: a folder per category, lists of the splits.

"normal": ``<category>/<shape>.txt`` with x y z nx ny nz part (-1: no label). "pts":
``<category>/points/<shape>.pts`` and ``<category>/points_label/<shape>.seg``, where parts count
from 1 within their category. What a data set gives are numbers over all categories.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
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
    found = read_table_of_parts(folder, "synsetoffset2category.txt")
    if found is not None:
        table, own = found, found.parts
        if layout == "pts":
            own = tuple(tuple(range(1, len(numbers) + 1)) for numbers in table.parts)
    else:
        table, own = _table_from_files(folder, layout, ragged, categories)
    labels = torch.tensor([_category(table, folder, categories[row]) for row in rows])
    files = [paths[there[row]] for row in rows]
    files = [_labels_path(file) for file in files] if layout == "pts" else files
    numbers = _overall_numbers(table, own, ragged)
    _check_parts(table, own, numbers, ragged, rows, labels, files)
    clouds = resample(ragged, points, rows=rows, seed=seed)
    assert clouds.parts is not None
    clouds = replace(clouds, parts=numbers[labels[:, None], clouds.parts])
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


Numbers = tuple[tuple[int, ...], ...]
"""For each category, the numbers that its files have for its parts, in the order of the table."""


def _table_from_files(
    folder: Path, layout: str, ragged: Ragged, categories: Sequence[str]
) -> tuple[PartTable, Numbers]:
    """Collect the part numbers that occur in each category, for data of one's own.

    Numbers that begin anew in every category get numbers of their own over all of them.

    Raises:
        ValueError: if no point has a label, or categories share some numbers only.
    """
    pairs = read_categories(folder / "synsetoffset2category.txt")
    found: dict[str, set[int]] = {synset: set() for _, synset in pairs}
    for row, synset in enumerate(categories):
        found.setdefault(synset, set()).update(_parts_of(ragged, row).unique().tolist())
    names, synsets = zip(*pairs, strict=True)
    own = tuple(tuple(sorted(found[synset] - {-1})) for synset in synsets)
    if not any(own):
        raise ValueError(f"{folder}: no point of any shape has a label; all of them are -1")
    counts = Counter(number for numbers in own for number in numbers)
    shared = [number for number, count in counts.items() if count > 1]
    if not shared:
        return PartTable(names, synsets, own), own
    if layout == "pts" and min(counts) == 1:
        own = tuple(tuple(range(1, max(numbers, default=0) + 1)) for numbers in own)
    least = min(counts)
    if any(numbers != tuple(range(least, least + len(numbers))) for numbers in own):
        both = [name for name, numbers in zip(names, own, strict=True) if shared[0] in numbers]
        raise ValueError(
            f"{folder}: {both[0]} and {both[1]} both have a part {shared[0]}, and parts are not "
            "numbered anew in every category either: number them over all categories, or from "
            f"{least} without gaps in each"
        )
    starts = [sum(map(len, own[:place])) for place in range(len(own))]
    sizes = map(len, own)
    overall = tuple(tuple(range(start, start + n)) for start, n in zip(starts, sizes, strict=True))
    return PartTable(names, synsets, overall), own


def _parts_of(ragged: Ragged, row: int) -> Int[Tensor, "n"]:
    assert ragged.parts is not None  # by `_read`
    start, end = ragged.offsets[row : row + 2].tolist()
    return ragged.parts[start:end]


def _overall_numbers(
    table: PartTable, own: Numbers, ragged: Ragged
) -> Int[Tensor, "categories numbers"]:
    """Return the part of the table that a number in a file means, by category; -2 for none.

    The last column is what the number -1 means: -1.
    """
    assert ragged.parts is not None
    top = max(int(ragged.parts.max()), *(max(numbers, default=0) for numbers in own))
    result = torch.full((len(own), top + 2), -2)
    for row, (numbers, parts) in enumerate(zip(own, table.parts, strict=True)):
        result[row, list(numbers)] = torch.tensor(parts, dtype=torch.long)
    result[:, -1] = -1
    return result


def _check_parts(
    table: PartTable,
    own: Numbers,
    numbers: Int[Tensor, "categories numbers"],
    ragged: Ragged,
    rows: Sequence[int],
    labels: Int[Tensor, "s"],
    files: Sequence[Path],
) -> None:
    """Refuse a number that is no part of the shape's category, at whichever point of its file."""
    for row, label, file in zip(rows, labels.tolist(), files, strict=True):
        parts = _parts_of(ragged, row).long()
        foreign = parts[numbers[label, parts] == -2]
        if len(foreign):
            raise ValueError(
                f"{file} has the part number {int(foreign[0])}, and {table.categories[label]} has "
                f"the parts {', '.join(map(str, own[label])) or '-1 (none)'}; correct it, or write "
                "-1 for a point without a label"
            )


def overlap_notes(lists: Mapping[str, Sequence[str]], splits: Sequence[str]) -> list[str]:
    """Say how many shapes of these splits stand in another one too, as 35 official ones do."""
    mine = {shape for split in splits for shape in lists[split]}
    shared = {split: len(mine & set(lists[split])) for split in sorted(lists.keys() - set(splits))}
    return [
        f"{counted(count, 'shape stands', 'shapes stand')} in {split} too"
        for split, count in shared.items()
        if count
    ]
