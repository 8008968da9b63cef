"""Tables of points as text: xyz, txt, csv, pts."""

import re
from dataclasses import replace

from locotrans.data.readers.columns import from_columns
from locotrans.data.readers.raw import Raw, check_names, from_names
from locotrans.data.readers.source import Source
from locotrans.data.readers.text import read_text, table, without_comments


def read_xyz(source: Source) -> Raw:
    """Read a table of points, one a line.

    Columns are separated by blanks, tabs, commas or semicolons; where there are semicolons, a comma
    is a decimal point, and so it is where blanks separate and no word has a dot or two commas.
    ``#`` and ``//`` begin a comment. A first line of words names the columns (x, y, z, nx, ny, nz,
    r, g, b or red, green, blue, label), and so does a last comment before the numbers that has as
    many words as there are columns; a first name left empty is that of a column of row numbers.
    A first line of one whole number is the number of points (pts). Without names, `from_columns`
    decides by the values.
    """
    text = read_text(source)
    data = without_comments(text, b"#", b"//")
    begin, first = _next_line(data, 0)
    names, titled, promised = _comment_names(text, data.count(b"\n", 0, begin)), False, None
    numbered = False
    if first and not _are_numbers(first):
        names, titled = _split_names(first), True
        numbered = bool(data[data.rfind(b"\n", 0, begin) + 1 : begin])  # as pandas writes
        begin += len(first)
    elif first.strip().isdigit():  # alone on its line
        promised = int(first[:20])
        begin += len(first)
        _refuse_atoms(source, data, begin)
    start, first = _next_line(data, begin)
    if not first:
        raise source.error("holds no points", "write the cloud again, or leave the file out")
    # as many empty lines as were left out, so that errors name the right line
    data = b"\n" * data.count(b"\n", 0, start) + _blank_separated(source, data[start:])
    values = table(source, data, "text")
    columns = values.shape[1]
    if promised not in (None, len(values)):
        raise source.error(f"its first line promises {promised} points, {len(values)} follow")
    if titled and numbered and len(names) == columns - 1:
        names = ["", *names]
    if titled and len(names) != columns:
        raise source.error(
            f"its first line names {len(names)} columns, the lines have {columns}",
            "name every column, without blanks in the names",
        )
    if len(names) == columns:
        check_names(source, names)
        raw = from_names(source, dict(zip(names, values.T, strict=True)))
    else:
        raw = from_columns(source, values)
    return replace(raw, where=lambda row: f"line {_line_of(data, row)}")


def _next_line(data: bytes, begin: int) -> tuple[int, bytes]:
    """Where the next line that holds something begins, and its content."""
    match = re.compile(rb"[^\s,;][^\n]*").search(data, begin)
    return (match.start(), match[0]) if match else (len(data), b"")


def _are_numbers(line: bytes) -> bool:
    try:
        return bool([float(word) for word in re.split(rb"[\s,;\"]+", line) if word])
    except ValueError:
        return False


def _split_names(line: bytes) -> list[str]:
    separator = rb"[,;]" if b"," in line or b";" in line else rb"\s+"
    names = [name.strip(b" \t\"'") for name in re.split(separator, line.strip())]
    return [name.decode("latin-1") for name in names]


def _comment_names(text: bytes, lines: int) -> list[str]:
    """Names from the last comment before the numbers, if it holds x, y and z."""
    head = b"\n".join(text.split(b"\n", lines)[:lines])
    comments = re.findall(rb"(?:#|//)[#/ \t]*([^\n]+)", head)
    names = _split_names(comments[-1]) if comments else []
    return names if {"x", "y", "z"} <= {name.lower() for name in names} else []


def _blank_separated(source: Source, data: bytes) -> bytes:
    """Put blanks in the place of separators, having made sure that no value is missing."""
    if b"," in data or b";" in data:
        missing = re.search(rb"[,;][ \t]*[,;]|\n[ \t]*[,;]", data)
        if missing:
            raise source.error(
                f"a value is missing between separators: {missing[0].strip()!r}",
                "fill in a number or remove the line",
            )
    comma = b"." if b";" in data or _has_decimal_commas(data) else b" "
    return data.translate(bytes.maketrans(b',;\t"', comma + b"   "))


def _has_decimal_commas(data: bytes) -> bool:
    """Whether blanks separate, and each comma stands between two digits, one a word at most."""
    if b"," not in data or b"." in data:
        return False
    separates = re.search(rb"(?<!\d),|,(?!\d)|,[^\s,]*,", data)
    return separates is None and re.search(rb"[^\s][ \t]+[^\s]", data) is not None


def _refuse_atoms(source: Source, data: bytes, begin: int) -> None:
    """Say so if it is the xyz of chemists: a number, a remark, then lines such as C 0 0 0."""
    atom = rb"[ \t]*[A-Z][a-z]?(?:[ \t]+[-+.\deE]+){3,}[ \t]*(?:\n|$)"
    lines = data[begin:].split(b"\n", 3)[2:3]
    if lines and re.match(atom, lines[0]):
        raise source.error(
            "is a chemical xyz file: each line names an element before its coordinates",
            "remove the first two lines and the first column",
        )


def _line_of(data: bytes, row: int) -> int:
    """The line, from 1, of a row from 0: lines without a number do not count."""
    for line, content in enumerate(data.split(b"\n"), start=1):
        row -= bool(content.strip())
        if row < 0:
            return line
    return 0
