"""Which files a list of paths means."""

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path


def find_files(paths: Iterable[Path | str], skip: Iterable[Path | None] = ()) -> list[Path]:
    """List the files of paths and of the folders among them, each once.

    A folder gives what it holds at any depth, in sorted order: files of a known format whose name
    does not begin with a dot. What is named outright is taken as it is, whatever its name; whether
    it can be read shows when it is read.

    Args:
        paths: files and folders.
        skip: files to leave out of folders, such as those that results are written to.

    Raises:
        ValueError: if there is nothing to read.
    """
    from locotrans.data.readers import FORMATS

    suffixes = tuple(f".{suffix.lstrip('.')}" for suffix in FORMATS)
    named = [Path(path) for path in paths]
    ours = {path.resolve() for path in skip if path is not None}
    found: dict[Path, None] = {}  # in order, without repetition
    for path in named:
        if path.is_dir():
            inside = _inside(path, suffixes)
            found.update((file, None) for file in inside if not ours or file.resolve() not in ours)
        else:
            found[path] = None
    if not found:
        where = " ".join(str(path) for path in named) or "no path"
        raise ValueError(
            f"no file of a known format in {where}; known are {' '.join(sorted(suffixes))}"
        )
    return list(found)


def _inside(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Walk through a folder, also along links, but into no folder twice.

    A folder that cannot be listed comes out as if it were a file, to be reported as unreadable.
    """
    unlisted: list[Path] = []

    def note(error: OSError) -> None:
        unlisted.append(Path(error.filename))

    visited: set[tuple[int, int]] = set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=note):
        visited.add(_identity(here))
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and not _seen(os.path.join(here, name), visited)  # noqa: PTH118
        )
        for name in sorted(files):
            if name.lower().endswith(suffixes) and not name.startswith("."):
                yield Path(here, name)
    yield from unlisted


def _identity(folder: str) -> tuple[int, int]:
    status = Path(folder).stat()
    return status.st_dev, status.st_ino


def _seen(folder: str, visited: Collection[tuple[int, int]]) -> bool:
    try:
        return _identity(folder) in visited
    except OSError:  # a link to nowhere, or into a folder that is closed to us
        return False
