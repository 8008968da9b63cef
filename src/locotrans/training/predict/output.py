"""Rows to files: as they come, and under their name only when they are complete."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from locotrans.training.record import replacing

COLUMNS = ("path", "class", "confidence", "agreement", "points", "error")
"""Of the tables that `predict` writes."""

Row = Mapping[str, Any]
Write = Callable[[Row], None]


@contextmanager
def csv_rows(path: Path) -> Iterator[Write]:
    """Write a CSV file with a header; None is an empty field."""
    # file names need not be text: their bytes are written as they are
    options = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}
    with replacing(path, "w", **options) as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        yield writer.writerow


@contextmanager
def json_rows(path: Path) -> Iterator[Write]:
    """Write a JSON array of objects, one a line."""
    with replacing(path, "w", encoding="utf-8") as file:
        before = "[\n"

        def write(row: Row) -> None:
            nonlocal before
            file.write(before + json.dumps(row))
            before = ",\n"

        yield write
        file.write("\n]\n" if before != "[\n" else "[]\n")
