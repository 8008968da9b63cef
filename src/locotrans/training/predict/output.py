"""Rows to files: as they come, and under their name only when they are complete."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

Row = Mapping[str, Any]
Write = Callable[[Row], None]


@contextmanager
def replacing(path: Path, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
    """Open a file that takes the place of ``path`` when the block ends, and vanishes if it fails.

    It is what `record.write_atomically` does, for content that is too large to hold.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        opened = temporary.open(mode, **options)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}; choose another name") from error
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[Write]:
    """Write a CSV file with a header; None is an empty field."""
    # file names need not be text: their bytes are written as they are
    options = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}
    with replacing(path, "w", **options) as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        yield writer.writerow


@contextmanager
def json_rows(path: Path, columns: Sequence[str]) -> Iterator[Write]:
    """Write a JSON array of objects, one a line."""
    with replacing(path, "w", encoding="utf-8") as file:
        before = "[\n"

        def write(row: Row) -> None:
            nonlocal before
            file.write(before + json.dumps({key: row[key] for key in columns}))
            before = ",\n"

        yield write
        file.write("\n]\n" if before != "[\n" else "[]\n")
