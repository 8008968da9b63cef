"""Tables without names: what the columns after x, y and z may be."""

import numpy as np

from locotrans.data.readers.raw import Array, Raw
from locotrans.data.readers.source import Source

MOST_COLUMNS = 256


def from_columns(source: Source, values: Array) -> Raw:
    """Tell by the values what unnamed columns are.

    The first three are x, y, z. A following triple is normals if all values are from -1 to 1 and
    19 of 20 rows have length 1 within 2% (rows of length 0, unknown normals, do not count; a few
    odd ones occur in ShapeNetPart). Otherwise it is colours if all values are from 0 to 255: so
    colours from 0 to 1 of length 1, such as pure red and blue, pass for normals. One column of
    whole numbers after such triples is the label. In a pts file of 7 columns the fourth is an
    intensity and the last three are colours, as scanners write them. Anything else is left out.
    """
    columns = values.shape[1]
    if not 3 <= columns <= MOST_COLUMNS:
        remedy = "transpose it" if len(values) == 3 else "write one point a row: x, y, z, ..."
        raise source.error(f"has {len(values)} rows of {columns} columns", remedy)
    normals = colors = labels = None
    start = 3
    if columns == 7 and source.file.suffix.lower() == ".pts":
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
    if start in (6, 9) and start == columns - 1 and _is_whole(values[:, start]):
        labels = values[:, start]
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
    rows = _finite(triple)
    return len(rows) > 0 and bool(rows.min() >= 0 and rows.max() <= 255)


def _is_whole(column: Array) -> bool:
    rows = _finite(column)
    return len(rows) > 0 and bool((rows == np.floor(rows)).all() and np.abs(rows).max() < 2**31)
