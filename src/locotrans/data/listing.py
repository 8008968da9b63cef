"""Which files are one's own data, their classes and splits: from folders, or from a table.

Where neither says the split it is drawn: each class is divided by itself, and where a file goes
depends on its name and the seed alone, so that files added later move few of the others.
"""

import csv
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Entry:
    """A file, its class, perhaps its split and a file with the part of each of its points."""

    path: Path
    label: str
    split: str = ""
    parts: Path | None = None


def list_folder(root: Path) -> list[Entry]:
    """List the files of a folder per class, with their splits where folders tell them."""
    if not root.is_dir():
        raise FileNotFoundError(f"folder: {root} is not a folder; it should hold one per class")
    tops = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name[0] != "."]
    entries: list[Entry] = []
    empty = []
    split_first = bool(tops) and {path.name for path in tops} <= {*SPLITS, "val"}
    classes = [(c, top.name) for top in tops for c in _subfolders(top)] if split_first else []
    for folder, split in classes or [(top, "") for top in tops]:
        inner = {sub.name: sub for sub in _subfolders(folder) if sub.name in SPLITS}
        found = [
            Entry(path, folder.name, name or split)
            for name, place in (inner or {"": folder}).items()
            for path in _clouds_in(place)
        ]
        entries += found
        if not found:
            empty.append(folder)
    if empty:
        raise ValueError(f"class folder {empty[0]} holds no file of a known format; remove it")
    if not entries:
        raise FileNotFoundError(f"folder: {root} holds no class folders with files")
    return entries


def list_table(path: Path) -> list[Entry]:
    """List the rows of a table of paths and labels."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a readable CSV table: {error}") from None
    columns = set(rows[0]) if rows else set()
    if not {"path", "label"} <= columns:
        raise ValueError(f"{path} needs a header with the columns path and label, and rows")
    entries, absent = [], []
    for number, row in enumerate(rows, start=2):
        if not row["path"] or not row["label"]:
            raise ValueError(f"{path}, line {number}: path or label is empty")
        parts = path.parent / row["parts"] if row.get("parts") else None
        entry = Entry(path.parent / row["path"], row["label"], row.get("split") or "", parts)
        absent += [file for file in (entry.path, parts) if file is not None and not file.exists()]
        entries.append(entry)
    if absent:
        raise FileNotFoundError(
            f"{path} names {len(absent)} files that are not there, the first is {absent[0]}; "
            "paths are relative to the table"
        )
    return entries


def choose_split(
    entries: Sequence[Entry], folder: Path, split: str, seed: int, share: float
) -> list[Entry]:
    """Return the entries of a split, by what they say or else by seed and share."""
    marked = sum(bool(entry.split) for entry in entries)
    if marked not in (0, len(entries)):
        raise ValueError(
            f"{marked} of {len(entries)} files under {folder} say their split, the others do not"
        )
    if marked:
        chosen = [entry for entry in entries if entry.split == split]
    else:
        if not 0 < share < 1:
            raise ValueError(f"share must be between 0 and 1, got {share}")
        chosen = []
        for label, size in Counter(entry.label for entry in entries).items():
            files = [entry for entry in entries if entry.label == label]
            files.sort(key=lambda entry: _rank(entry.path, folder, seed))
            cut = min(max(1, round(share * size)), size - 1) if size > 1 else 1
            picked = files[:cut] if split == "train" else files[cut:]
            chosen += sorted(picked, key=lambda entry: entry.path)
    if not chosen:
        raise ValueError(f"{folder} has no files in split {split!r}; add some, or change share")
    return chosen


def _rank(path: Path, folder: Path, seed: int) -> bytes:
    name = Path(os.path.relpath(path, folder)).as_posix()
    return hashlib.blake2b(f"{seed}|{name}".encode(), digest_size=8).digest()


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."]


def _clouds_in(folder: Path) -> list[Path]:
    """List the files of known formats below a folder; links to folders are not followed."""
    from locotrans.data.readers import FORMATS

    known = {"." + str(suffix).lstrip(".") for suffix in FORMATS}
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "."]
        found += [Path(place, name) for name in files if name[0] != "."]
    return sorted(path for path in found if path.suffix.lower() in known)
