"""Tables without names: what the columns after x, y and z may be."""

import numpy as np

from locotrans.data.readers.raw import Array, Raw
from locotrans.data.readers.source import Source

MOST_COLUMNS = 256
WIDE = 12
"""Three rows of more columns than this are x, y and z of many points, written the other way."""
MOST_LABEL = 63
"""A larger number in a column of whole numbers up to 255 is a colour or an intensity."""


def from_columns(source: Source, values: Array) -> Raw:
    """Tell by the values what unnamed columns are.

    The first three are x, y, z. A following triple is normals if all values are from -1 to 1 and
    19 of 20 rows have length 1 within 2% (rows of length 0, unknown normals, do not count; a few
    odd ones occur in ShapeNetPart). Otherwise it is colours if all values are from 0 to 255: so
    colours from 0 to 1 of length 1, such as pure red and blue, pass for normals. One column of
    whole numbers after such triples is the label; right after x, y, z (not in a pts file) it must
    span no more than -1 to 63, or it might be an intensity. Anything else is left out.

    Of 7 columns the fourth is an intensity and the last three are colours, as scanners write them,
    in a pts file; and in others where the last three are whole numbers from 0 to 255, the last
    one beyond 63 (so no label), or the fourth no such number (so no red).
    """
    columns = values.shape[1]
    if len(values) == 3 and columns > WIDE:
        raise source.error(f"has 3 rows of {columns} columns", "transpose it: one point a row")
    if not 3 <= columns <= MOST_COLUMNS:
        raise source.error(
            f"has {len(values)} rows of {columns} columns", "write one point a row: x, y, z, ..."
        )
    normals = colors = labels = None
    start, scanned = 3, source.file.suffix.lower() == ".pts"
    if columns == 7 and (scanned or _has_intensity(values[:, 3:])):
        start = 4
    while start + 3 <= columns:
        triple = values[:, start : start + 3]
        if normals is None and _is_normals(triple):
            normals = triple
        elif colors is None and _is_colors(triple):
            colors = triple
        else:
            break
        start += 3
    if start == columns - 1 and _is_whole(values[:, start]) and start != 4:
        small = start > 3 or (not scanned and _spans(values[:, start], -1, MOST_LABEL))
        labels = values[:, start] if small else None
    return Raw(values[:, :3], normals, colors, labels)


def _finite(values: Array) -> Array:
    """The rows to judge by: one nan must not turn normals into something else."""
    if values.dtype.kind != "f":
        return values
    return values[np.isfinite(values).reshape(len(values), -1).all(axis=1)]


def _is_normals(triple: Array) -> bool:
    rows = _finite(triple).astype(np.float64)
    if len(rows) == 0 or np.abs(rows).max() > 1.02:
        return False
    squares = np.einsum("nd,nd->n", rows, rows)
    known = squares > 0
    return bool(known.any() and (np.abs(np.sqrt(squares[known]) - 1) <= 0.02).mean() >= 0.95)


def _is_colors(triple: Array) -> bool:
    return _spans(triple, 0, 255)


def _has_intensity(four: Array) -> bool:
    """Whether four columns are an intensity and a colour rather than a colour and a label."""
    if _is_normals(four[:, :3]) or not (_is_whole(four[:, 1:]) and _is_colors(four[:, 1:])):
        return False
    red = _is_whole(four[:, 0]) and _spans(four[:, 0], 0, 255)
    return not red or not _spans(four[:, 3], 0, MOST_LABEL)


def _spans(values: Array, low: int, high: int) -> bool:
    rows = _finite(values)
    return len(rows) > 0 and bool(rows.min() >= low and rows.max() <= high)


def _is_whole(column: Array) -> bool:
    rows = _finite(column)
    return len(rows) > 0 and bool((rows == np.floor(rows)).all() and np.abs(rows).max() < 2**31)
