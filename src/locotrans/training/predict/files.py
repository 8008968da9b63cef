"""Which files a list of paths means."""

import os
from collections.abc import Iterable
from pathlib import Path

from locotrans.data.below import walk
from locotrans.training.predict.output import COLUMNS

TABLE = ",".join(COLUMNS).encode()
"""How a table of `predict` begins."""
ARRAYS = (b"embeddings.npy", b"paths.npy")
"""The first array of what `embed` writes, of some files or of none; in a zip its name is at 30."""


def find_files(paths: Iterable[Path | str], outputs: Iterable[Path | None] = ()) -> list[Path]:
    """List the files of paths and of the folders among them, each once.

    A folder gives what it holds at any depth, in sorted order: files of a known format whose name
    does not begin with a dot, and which `predict` or `embed` did not write; a .txt of prose, such
    as a readme, is passed over with a word. What is named outright is taken as it is, whatever its
    name; whether it can be read shows when it is read. An h5 file of several clouds gives each of
    them, as ``many.h5#0`` and so on.

    Args:
        paths: files and folders.
        outputs: files that results will be written to.

    Raises:
        ValueError: if there is nothing to read, or if an output would replace what is read.
    """
    from locotrans.data.readers import FORMATS, clouds_of, file_of

    named = [Path(path) for path in paths]
    found: dict[Path, None] = {}  # in order, without repetition
    for path in named:
        files = (file for file in walk(path) if not _is_output(file)) if path.is_dir() else [path]
        found.update((cloud, None) for file in files for cloud in clouds_of(file))
    if not found:
        if not named:
            raise ValueError("nothing to read: name files or folders")
        where = " ".join(str(path) for path in named)
        raise ValueError(
            f"no file of a known format in {where}; known are {' '.join(sorted(FORMATS))}"
        )
    written = [path for path in outputs if path is not None]
    places = {os.path.realpath(path): path for path in written}
    if len(places) < len(written):
        raise ValueError(f"{written[0]} cannot hold both results; name two files")
    for path in found if places else ():
        if os.path.realpath(file_of(path)) in places:
            raise ValueError(f"the result would replace {path}, which is read; name another file")
    return list(found)


def _is_output(path: Path) -> bool:
    """Say whether an earlier call wrote this file: a table or embeddings, but no cloud."""
    if path.suffix not in (".csv", ".npz"):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return False  # reading it will tell
    return head.startswith(TABLE) or head[30:].startswith(ARRAYS)


def printable(path: Path) -> str:
    """Return a path for a terminal: what is no character to print is written as an escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(path))


def reason_of(error: Exception, path: Path) -> str:
    """Say in a line why a file gave no answer; an error that was not foreseen is named."""
    reason = " ".join(str(error).removeprefix(f"{path}: ").split()) or type(error).__name__
    expected = isinstance(error, ValueError | OSError)
    return reason if expected else f"{type(error).__name__}: {reason}"
