"""Which files are one's own data, their classes and splits: from folders, or from a table.

Where neither says the split it is drawn: each class is divided by itself, and where a file goes
depends on its name and the seed alone, so that files added later move few of the others.
"""

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from locotrans.counting import counted
from locotrans.data.below import clouds_in, subfolders

SPLITS = ("train", "test")
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
}
"""Words for splits, in lower case, and ours."""
LABELLED_SCENES = "scenes whose points are labelled want --data folder:sphere=RADIUS"


@dataclass(frozen=True)
class Entry:
    """A file, its class, perhaps its split and a file with the part of each of its points."""

    path: Path
    label: str
    split: str = ""
    parts: Path | None = None


@dataclass(frozen=True)
class Listing:
    """The files of a data set, and the folder that their names are relative to."""

    root: Path
    """What the user named."""
    folder: Path
    entries: Sequence[Entry]


def list_folder(root: Path) -> list[Entry]:
    """List the files of a folder per class, with their splits where folders tell them.

    Raises:
        ValueError: for a class without files, and where some of the folders beside each other are
            named as splits and others are not.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"folder: {root} is not a folder; it should hold one per class")
    entries: list[Entry] = []
    empty = []
    for folder, split in _class_folders(root):
        inner = _splits_of(folder)
        found = [
            Entry(path, folder.name, name or split)
            for name, place in inner or [("", folder)]
            for path in clouds_in(place)
        ]
        entries += found
        if not found:
            empty.append(folder)
    if empty:
        names = ", ".join(map(str, empty))
        raise ValueError(
            f"class folder {names} holds no file of a known format; remove it"
            if len(empty) == 1
            else f"class folders {names} hold no files of a known format; remove them"
        )
    if not entries:
        raise FileNotFoundError(
            f"folder: {root} holds no class folders with files; {LABELLED_SCENES}"
        )
    return entries


def _class_folders(root: Path) -> list[tuple[Path, str]]:
    """List the folders of classes, with the split that a folder above says."""
    splits = _splits_of(root)
    for _, folder in splits:
        if not subfolders(folder):
            raise ValueError(
                f"{folder} holds no folder per class; if {root} is itself a class, name the folder "
                f"above it as root; {LABELLED_SCENES}"
            )
    if splits:
        return [(folder, split) for split, top in splits for folder in subfolders(top)]
    return [(folder, "") for folder in subfolders(root)]


def _splits_of(folder: Path) -> list[tuple[str, Path]]:
    """List the folders that are named as splits, if there are such."""
    subs = subfolders(folder)
    named = [(SPLIT_NAMES[sub.name.lower()], sub) for sub in subs if is_split(sub.name)]
    others = [sub.name for sub in subs if not is_split(sub.name)]
    if named and others:
        raise ValueError(
            f"{folder} holds {named[0][1].name}/, which is named as a split, beside {others[0]}/, "
            "which is not: keep train/ and test/ (and val/) alone there, or rename the class"
        )
    return named


def is_split(name: str) -> bool:
    """Say whether a folder is named as a split."""
    return name.lower() in SPLIT_NAMES


def is_table(path: Path) -> bool:
    """Whether a file begins as a table of paths and labels does."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
        return {"path", "label"} <= set(_columns(_decode(head[: len(head) // 2 * 2])))
    except (OSError, ValueError):
        return False


def list_table(path: Path) -> list[Entry]:
    """List the rows of a table of paths and labels; commas, semicolons or tabs separate."""
    from locotrans.data.readers import file_of

    entries: dict[Path, Entry] = {}
    absent, without = [], []
    for number, row in _rows(path):
        line = f"{path}, line {number}"
        if not row["path"] or not row["label"]:
            raise ValueError(f"{line}: path or label is empty")
        parts = path.parent / row["parts"] if row.get("parts") else None
        split = (row.get("split") or "").strip()
        split = SPLIT_NAMES.get(split.lower(), split)
        entry = Entry(path.parent / row["path"], row["label"], split, parts)
        if entry.path in entries:
            other = entries[entry.path].label
            raise ValueError(f"{line}: {row['path']} stands there twice ({other}, {entry.label})")
        files = [file_of(file) for file in (entry.path, parts) if file is not None]
        for file in files:
            if file.is_dir():
                raise ValueError(f"{line}: {file} is a folder; name the files in it, one a row")
        absent += [file for file in files if not file.exists()]
        without += [number] if parts is None else []
        entries[entry.path] = entry
    if absent:
        raise FileNotFoundError(
            f"{path} names {counted(len(absent), 'file that is', 'files that are')} not there, the "
            f"first is {absent[0]}; "
            "paths are relative to the table"
        )
    if 0 < len(without) < len(entries):
        raise ValueError(
            f"{path}: {len(without)} of {len(entries)} rows name no parts, the first is line "
            f"{without[0]}; name them in every row, or in none"
        )
    return list(entries.values())


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the lines of a table below its header, with their numbers."""
    try:
        text = _decode(path.read_bytes())
        columns, separator = _columns(text), _separator(text)
        if not {"path", "label"} <= set(columns):
            raise ValueError(
                f"needs a header with the columns path and label; it begins {text[:60]!r}"
            )
        reader = csv.reader(
            io.StringIO(text, newline=""), skipinitialspace=True, delimiter=separator
        )
        next(reader)
        empty = True
        for values in reader:
            if not values:
                continue
            if len(values) != len(columns):
                raise ValueError(
                    f"line {reader.line_num} has {len(values)} values for {len(columns)} columns; "
                    "quote values that hold a separator"
                )
            empty = False
            yield reader.line_num, dict(zip(columns, map(str.strip, values), strict=True))
        if empty:
            raise ValueError("has a header with the columns path and label, but no rows")
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a readable CSV table: {error}; save it as UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _decode(data: bytes) -> str:
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16" if wide else "utf-8-sig")


def _separator(text: str) -> str:
    line = text.partition("\n")[0]
    return max(",;\t", key=line.count)


def _columns(text: str) -> list[str]:
    line, separator = text.partition("\n")[0], _separator(text)
    return [name.strip(" \"'\r").lower() for name in line.split(separator)]


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
        if not 0 <= share < 1:
            raise ValueError(f"share must be 0, all for testing, or below 1, got {share}")
        chosen = []
        for label, size in Counter(entry.label for entry in entries).items():
            files = [entry for entry in entries if entry.label == label]
            files.sort(key=lambda entry: _rank(entry.path, folder, seed))
            cut = min(max(1, round(share * size)), max(1, size - 1)) if share > 0 else 0
            picked = files[:cut] if split == "train" else files[cut:]
            chosen += sorted(picked, key=lambda entry: entry.path)
    if not chosen:
        known = ", ".join(sorted({entry.split for entry in entries} - {""}))
        remedy = f"the splits there are {known}" if marked else "add some, or change share"
        raise ValueError(f"{folder} has no files in split {split!r}; {remedy}")
    return chosen


def _rank(path: Path, folder: Path, seed: int) -> bytes:
    name = Path(os.path.relpath(path, folder)).as_posix()
    return hashlib.blake2b(f"{seed}|{name}".encode(), digest_size=8).digest()
