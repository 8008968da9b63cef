"""Point Cloud Data (pcd): text, binary and compressed."""

import re
from dataclasses import dataclass

import numpy as np

from locotrans.data.readers.lzf import LzfError, decompress
from locotrans.data.readers.raw import Array, Raw, check_names, from_names
from locotrans.data.readers.source import Source
from locotrans.data.readers.text import numbers, unix_lines

TYPES = {f"{kind}{size}" for kind in "IU" for size in (1, 2, 4, 8)} | {"F4", "F8"}
BEST_RATIO = 88  # 3 bytes of LZF give 264


@dataclass(frozen=True)
class _Header:
    fields: list[str]
    types: list[np.dtype[np.generic]]
    counts: list[int]
    points: int
    kind: str
    size: int

    @property
    def row(self) -> int:
        return sum(t.itemsize * c for t, c in zip(self.types, self.counts, strict=True))


def read_pcd(source: Source) -> Raw:
    """Read the points; fields in any order, and of a field of several numbers the first.

    Normals are normal_x, normal_y, normal_z; colours are packed in rgb or rgba.
    """
    data = source.read()
    header = _read_header(source, data)
    body = data[header.size :]
    if header.kind == "ascii":
        columns = _read_text(source, header, body)
    elif header.kind == "binary":
        _check_length(source, header.points * header.row, len(body))
        columns = _split(header, np.frombuffer(body, np.uint8, header.points * header.row), "rows")
    else:
        columns = _split(header, _decompress(source, header, body), "columns")
    raw = from_names(source, columns)
    packed = next((columns[name] for name in ("rgb", "rgba") if name in columns), None)
    if packed is None:
        return raw
    bits = _bits(packed)
    colors = np.stack([bits >> 16 & 255, bits >> 8 & 255, bits & 255], axis=1).astype(np.uint8)
    return Raw(raw.points, raw.normals, colors, raw.labels)


def _read_header(source: Source, data: bytes) -> _Header:
    end = re.search(rb"(?:^|[\r\n])DATA[ \t]+(\w+)[ \t]*(\r\n|\r|\n|$)", data[: 1 << 16])
    if end is None:
        raise source.error(
            "its header has no line DATA", "give it the suffix of its format, or write it again"
        )
    head = unix_lines(data[: end.start()]).decode("latin-1").split("\n")
    lines = {words[0]: words[1:] for line in head if (words := line.split())}
    fields, kind = lines.get("FIELDS", lines.get("COLUMNS", [])), end[1].decode().lower()
    sizes, kinds = lines.get("SIZE", []), lines.get("TYPE", [])
    counts = lines.get("COUNT", ["1"] * len(fields))
    size = lines.get("WIDTH", [""])[:1] + lines.get("HEIGHT", ["1"])[:1]
    numbers_ = [*counts, *size, *lines.get("POINTS", [])]
    types = [kind_.upper() + size for kind_, size in zip(kinds, sizes, strict=False)]
    problem = None
    if kind not in ("ascii", "binary", "binary_compressed"):
        problem = f"DATA is {kind!r}, not ascii, binary or binary_compressed"
    elif not len(fields) == len(sizes) == len(kinds) == len(counts) > 0:
        problem = "FIELDS, SIZE, TYPE and COUNT are missing or differ in length"
    elif not TYPES.issuperset(types):
        problem = f"TYPE and SIZE must be of {', '.join(sorted(TYPES))}, got {types[:20]}"
    elif not all(re.fullmatch("[0-9]{1,12}", word) for word in numbers_):
        problem = "COUNT, WIDTH or POINTS is missing or not a whole number"
    if problem is not None:
        raise source.error(f"its header is damaged: {problem}")
    dtypes = [np.dtype(f"<{t[0].lower()}{t[1]}") for t in types]
    points = int(lines["POINTS"][0]) if lines.get("POINTS") else int(size[0]) * int(size[1])
    header = _Header(fields, dtypes, [int(c) for c in counts], points, kind, end.end())
    if points and header.row == 0:
        raise source.error("its header is damaged: every COUNT is 0")
    check_names(source, fields)
    return header


def _check_length(source: Source, needed: int, given: int) -> None:
    if needed > given:
        raise source.error(f"is cut short: its points take {needed} bytes, {given} follow")


def _read_text(source: Source, header: _Header, body: bytes) -> dict[str, Array]:
    width = sum(header.counts)
    _check_length(source, header.points * width * 2, len(body) + 1)  # a digit and a blank each
    values = numbers(source, body, "numbers after the header")
    if len(values) != header.points * width:
        raise source.error(
            f"promises {header.points} points of {width} numbers, but has {len(values)} numbers"
        )
    rows = values.reshape(header.points, width)
    columns, place = {}, 0
    for name, type_, count in zip(header.fields, header.types, header.counts, strict=True):
        if count:
            column = rows[:, place]
            packed = name in ("rgb", "rgba") and type_.kind == "f"
            columns[name] = column.astype(np.float32) if packed else column
        place += count
    return columns


def _decompress(source: Source, header: _Header, body: bytes) -> Array:
    size = header.points * header.row
    _check_length(source, 8, len(body))
    packed, unpacked = np.frombuffer(body, "<u4", 2).tolist()
    _check_length(source, packed, len(body) - 8)
    if unpacked != size or size > BEST_RATIO * packed:
        raise source.error(
            f"its {packed} compressed bytes claim to hold {unpacked}, its points take {size}"
        )
    source.check_size(size, "unpacking")
    try:
        return np.frombuffer(decompress(body[8 : 8 + packed], size), np.uint8)
    except LzfError as error:
        raise source.error(f"its compressed part {error}") from None


def _split(header: _Header, data: Array, layout: str) -> dict[str, Array]:
    """Cut bytes into the first number of each field: point by point, or field by field."""
    columns, place = {}, 0
    rows = data.reshape(header.points, header.row) if layout == "rows" else None
    for name, type_, count in zip(header.fields, header.types, header.counts, strict=True):
        width = type_.itemsize * count
        if rows is not None:
            block = rows[:, place : place + width]
            place += width
        else:
            block = data[place : place + width * header.points].reshape(header.points, width)
            place += width * header.points
        if count:
            columns[name] = np.ascontiguousarray(block[:, : type_.itemsize]).view(type_)[:, 0]
    return columns


def _bits(packed: Array) -> Array:
    """The bits of colours that are stored in the place of a number of 4 bytes."""
    if packed.dtype == np.float64:  # whole numbers that were read from text
        return packed.astype(np.int64)
    return packed.view("u4") if packed.dtype.itemsize == 4 else packed.astype(np.int64)
