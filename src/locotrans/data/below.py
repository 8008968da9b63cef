"""Which clouds lie below a folder."""

import logging
import os
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from locotrans.data.prose import is_prose

log = logging.getLogger("locotrans.data")
PART_NAMES = "part_names.txt"
"""The file that names the parts, a line each; it is no cloud."""


def subfolders(folder: Path) -> list[Path]:
    """List the folders directly below one."""
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and not hidden(path.name)]


def hidden(name: str) -> bool:
    """Whether a file or folder is a program's own, such as what macOS packs into archives."""
    return name.startswith(".") or name == "__MACOSX"


def clouds_in(folder: Path) -> list[Path]:
    """List the clouds below a folder; a file of several gives each of them."""
    from locotrans.data.readers import clouds_of

    return [cloud for path in sorted(walk(folder)) for cloud in clouds_of(path)]


def walk(folder: Path) -> Iterator[Path]:
    """Yield the files of known formats below a folder, also along links, but no folder twice.

    A .txt of prose, such as a readme, is passed over with a word.
    A folder that cannot be listed comes out as if it were a file, to be reported as unreadable.
    """
    from locotrans.data.readers import FORMATS

    unlisted: list[Path] = []

    def note(error: OSError) -> None:
        unlisted.append(Path(error.filename))

    visited: set[tuple[int, int]] = set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=note):
        visited.add(_identity(here))
        folders[:] = sorted(
            name
            for name in folders
            if not hidden(name) and not _seen(os.path.join(here, name), visited)  # noqa: PTH118
        )
        for name in sorted(files):
            path = Path(here, name)
            if not name.lower().endswith(FORMATS) or hidden(name) or name == PART_NAMES:
                continue
            if is_prose(path):
                _say_that_it_is_passed_over(path)
                continue
            yield path
    yield from unlisted


@cache
def _say_that_it_is_passed_over(path: Path) -> None:
    """Once, however often a folder is listed."""
    log.warning("%s is passed over: its first lines hold no numbers", path)


def _identity(folder: str) -> tuple[int, int]:
    status = Path(folder).stat()
    return status.st_dev, status.st_ino


def _seen(folder: str, visited: Collection[tuple[int, int]]) -> bool:
    try:
        return _identity(folder) in visited
    except OSError:  # a link to nowhere, or into a folder that is closed to us
        return False
