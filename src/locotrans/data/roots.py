"""Where data lie: the root folder, the layouts that a data set comes in, and what to say if not."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DATA_VARIABLE = "LOCOTRANS_DATA"
CACHE_VARIABLE = "LOCOTRANS_CACHE"


@dataclass(frozen=True)
class Layout:
    """One of the forms in which a data set is handed around."""

    name: str
    """The word that chooses it, as in ``modelnet40:text``."""
    folders: tuple[str, ...]
    """Folders in which a release unpacks, below the data root."""
    markers: tuple[str, ...]
    """Patterns below that folder that must all match for the layout to be recognised."""
    about: str
    """What people call it."""


def data_root(root: Path | None) -> Path:
    """Return the folder of data: the argument, the environment variable, the cache folder."""
    if root is not None:
        return root.expanduser()
    named = os.environ.get(DATA_VARIABLE)
    return Path(named).expanduser() if named else cache_root()


def cache_root() -> Path:
    """Return the cache folder: LOCOTRANS_CACHE, or locotrans in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "locotrans"


def find_layouts(root: Path, layouts: Sequence[Layout]) -> list[tuple[Layout, Path]]:
    """List the layouts that lie in ``root``, or in a folder there named as the release is."""
    found = []
    for layout in layouts:
        for folder in (root, *(root / name for name in layout.folders)):
            if folder.is_dir() and all(any(folder.glob(mark)) for mark in layout.markers):
                found.append((layout, folder))
                break
    return found


def find_layout(
    name: str, root: Path | None, layouts: Sequence[Layout], wanted: str, home: str
) -> tuple[Layout, Path]:
    """Return the first layout that is there, and its folder.

    Args:
        name: The data set, for messages.
        root: As given by the user.
        layouts: Layouts of the data set, best first.
        wanted: Name of a layout, or nothing to take whichever is there.
        home: Where people get the files.

    Raises:
        FileNotFoundError: saying which files are expected where, and where people get them.
    """
    known = [layout.name for layout in layouts]
    if wanted and wanted not in known:
        raise ValueError(f"{name} comes in the layouts {', '.join(known)}; got {wanted!r}")
    place = data_root(root)
    choice = [layout for layout in layouts if wanted in ("", layout.name)]
    found = find_layouts(place, choice)
    if found:
        return found[0]
    raise missing(name, place, [f"{_expected(place, la)} ({la.about})" for la in choice], home)


def missing(name: str, place: Path, expected: Sequence[str], home: str) -> FileNotFoundError:
    """Make the error that tells a user what is missing and what to do."""
    state = "" if place.is_dir() else " (there is no such folder)"
    return FileNotFoundError(
        f"{name}: no files found under {place}{state}. Expected:\n  "
        + "\n  or ".join(expected)
        + f"\nWhere to get them: {home}\n"
        f"Then name the folder as root (--root), or in the environment variable {DATA_VARIABLE}."
    )


def _expected(place: Path, layout: Layout) -> str:
    folder = place / layout.folders[0] if layout.folders else place
    if place.name in layout.folders:
        folder = place
    return f"{folder}/ with {', '.join(layout.markers)}"


def check_split(name: str, split: str, splits: Sequence[str]) -> None:
    """Refuse a split that a data set does not have."""
    if split not in splits:
        raise ValueError(f"{name} has the splits {', '.join(splits)}; got {split!r}")


def count_note(what: str, found: int, official: Sequence[int]) -> list[str]:
    """Return a note if a count is none of the official ones."""
    if found in official:
        return []
    usual = " or ".join(f"{n:,}" for n in official)
    return [f"{found:,} {what}, where the official release has {usual}"]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank, without spaces around them."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file; fetch or unpack it again") from None
    return [line.strip() for line in lines if line.strip()]
