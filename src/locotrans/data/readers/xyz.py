"""Tables of points as text: xyz, txt, csv, pts."""

import re

import numpy as np

from locotrans.data.readers.raw import Array, Raw, from_names
from locotrans.data.readers.source import Source
from locotrans.data.readers.text import read_text, table, without_comments

MOST_COLUMNS = 256


def read_xyz(source: Source) -> Raw:
    """Read a table of points, one a line.

    Columns are separated by blanks, tabs, commas or semicolons; where there are semicolons, a comma
    is a decimal point. ``#`` and ``//`` begin a comment. A first line of words names the columns
    (x, y, z, nx, ny, nz, r, g, b or red, green, blue, label), as does a last comment before the
    numbers that has as many words as there are columns. A first line of one whole number is the
    number of points (pts). Without names, `from_columns` decides.
    """
    text = read_text(source)
    data = without_comments(text, b"#", b"//")
    begin, first = _first_line(data, 0)
    if not first:
        raise source.error("holds no points", "write the cloud again, or leave the file out")
    names, count = None, None
    if _is_number(first):
        names = _comment_names(text, begin)
    else:
        names = _split_names(first)
        begin += len(first)
    _, words = _first_line(data, begin)
    data = _one_separator(source, data, begin, words)
    if names is None and first.split() == [first] and first.isdigit() and int(first) > 0:
        following, _ = _first_line(data, begin + len(first))
        if following < len(data):
            count, begin = int(first), begin + len(first)
    head = data[:begin].count(b"\n")  # keep the numbers of lines in messages
    values = table(source, b"\n" * head + data[begin:], "text")
    if count is not None and len(values) != count:
        raise source.error(f"its first line promises {count} points, {len(values)} follow")
    columns = values.shape[1]
    if not 3 <= columns <= MOST_COLUMNS:
        raise source.error(
            f"has {columns} columns ({len(values)} lines)", "write one point a line: x y z ..."
        )
    raw = _interpret(source, values, names, from_comment=_is_number(first))
    return Raw(
        raw.points,
        raw.normals,
        raw.colors,
        raw.labels,
        where=lambda row: f"line {_line_of_row(data, begin, row)}",
    )


def from_columns(source: Source, values: Array) -> Raw:
    """Tell by the values what unnamed columns are.

    The first three are x, y, z. Each following triple is taken for normals if every row has length
    1 within 2% (or 0, where a normal is unknown), and for colours if all values are from 0 to 255;
    colours of 0 to 1 that all have length 1 therefore pass for normals. One whole-numbered column
    after a triple is the label. With 7 columns whose last three are whole numbers from 0 to 255,
    these are the colours and the fourth is an intensity (pts files of scanners), unless columns 4
    to 6 are normals. Anything else is left out.
    """
    columns = values.shape[1]
    if columns < 3:
        raise source.error(f"has {columns} columns", "write one point a row: x y z ...")
    found: dict[str, Array] = {}
    start = 3
    if columns == 7 and _is_bytes(values[:, 4:7]) and not _is_normals(values[:, 3:6]):
        if not _is_bytes(values[:, 3:6]) or values[:, 3].max() > values[:, 6].max() > 50:
            found["colors"], start = values[:, 4:7], 7
    while start + 3 <= columns:
        triple = values[:, start : start + 3]
        if "normals" not in found and _is_normals(triple):
            found["normals"] = triple
        elif "colors" not in found and triple.min() >= 0 and triple.max() <= 255:
            found["colors"] = triple
        else:
            break
        start += 3
    if found and start == columns - 1 and _is_whole(values[:, start]):
        found["labels"] = values[:, start]
    return Raw(values[:, :3], **found)
