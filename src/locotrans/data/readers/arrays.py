"""Named arrays of one cloud, as npz and h5 files hold them."""

from collections.abc import Container, Mapping
from dataclasses import replace

import numpy as np

from locotrans.data.readers.columns import from_columns
from locotrans.data.readers.raw import LABELS, Array, Raw
from locotrans.data.readers.source import Source

POINTS = ("points", "xyz", "pos", "data", "vertices", "coords", "coord", "arr_0")
NORMALS = ("normals", "normal")
COLORS = ("colors", "color", "colours", "colour", "rgb")
SEGMENTS = (*LABELS, "pid", "y")


def choose(source: Source, names: Container[str], found: str) -> list[str]:
    """The names to read, of those in the file: the points, and one of each further kind."""
    kinds = (POINTS, NORMALS, COLORS, SEGMENTS)
    chosen = [next((name for name in kind if name in names), None) for kind in kinds]
    if chosen[0] is None:
        raise source.error(
            f"has no array {', '.join(POINTS[:4])}, but {found or 'none'}", "name it points"
        )
    return [name for name in chosen if name is not None]


def matrix(source: Source, array: Array, what: str) -> Array:
    """Make sure of (n, columns) numbers; a leading axis of length 1 is dropped."""
    if array.ndim == 3 and len(array) == 1:
        array = array[0]
    if array.dtype.kind not in "fiu":
        raise source.error(f"{what} holds {array.dtype}, not numbers", "save float32")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise source.error(f"{what} holds {array.dtype}", "save float32 or float64")
    if array.ndim != 2:
        raise source.error(f"{what} has the shape {array.shape}", "save (n, 3)")
    return array


def from_arrays(source: Source, arrays: Mapping[str, Array]) -> Raw:
    """Put together the arrays of one cloud that `choose` named."""
    name = next(name for name in POINTS if name in arrays)
    raw = from_columns(source, matrix(source, arrays[name], name))
    count = len(raw.points)
    for name in {*NORMALS, *COLORS} & set(arrays):
        values = matrix(source, arrays[name], name)
        if len(values) != count or values.shape[1] not in (3, 4):
            raise source.error(
                f"{name} has the shape {values.shape}, but there are {count} points",
                f"save ({count}, 3)",
            )
        values = values[:, :3]
        raw = replace(raw, normals=values) if name in NORMALS else replace(raw, colors=values)
    for name in set(SEGMENTS) & set(arrays):
        labels = arrays[name].astype(np.int64) if arrays[name].dtype == bool else arrays[name]
        if labels.size == 1 and count != 1:
            continue  # the class of the whole
        if labels.dtype.kind not in "fiu" or labels.size != count or labels.dtype.itemsize > 8:
            raise source.error(
                f"{name} holds {labels.dtype} of the shape {labels.shape}, "
                f"but there are {count} points",
                f"save ({count},) integers",
            )
        raw = replace(raw, labels=labels.reshape(count))
    return raw
