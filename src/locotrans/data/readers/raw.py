"""From the arrays of a file to a `Cloud`: the checks and conversions that all formats share."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from locotrans.data.cloud import Cloud
from locotrans.data.readers.source import Source

Array = npt.NDArray[Any]

AXES = ("x", "y", "z")
NORMALS = (
    ("nx", "ny", "nz"),
    ("normal_x", "normal_y", "normal_z"),
    ("normals_x", "normals_y", "normals_z"),
    ("normalx", "normaly", "normalz"),
)
COLORS = (
    ("red", "green", "blue"),
    ("r", "g", "b"),
    ("diffuse_red", "diffuse_green", "diffuse_blue"),
)
LABELS = (
    *("label", "labels", "class", "class_id", "classification"),
    *("scalar_label", "scalar_class", "scalar_classification"),
    *("category", "category_id", "seg", "segment", "part", "semantic", "semantic_class"),
)
"""Names of a column of labels, in order of preference."""


@dataclass(frozen=True)
class Raw:
    """What a parser found, unchecked: numbers of any type, (n, 3) or (n,)."""

    points: Array
    normals: Array | None = None
    colors: Array | None = None
    labels: Array | None = None
    faces: Array | None = None
    where: Callable[[int], str] = "point {}".format
    """Says where in the file a point stands."""


MEANT = {*AXES, *LABELS, *(name for names in (*NORMALS, *COLORS) for name in names)}
"""Names of columns that have a meaning."""


def from_names(source: Source, columns: Mapping[str, Array]) -> Raw:
    """Pick the columns that have a meaning by their names, whatever their case and order."""
    known = {name.strip(" \"'").lower(): column for name, column in columns.items()}

    def triple(*candidates: tuple[str, ...]) -> Array | None:
        names = next((names for names in candidates if known.keys() >= set(names)), None)
        return None if names is None else np.stack([known[name] for name in names], axis=1)

    points = triple(AXES)
    if points is None:
        found = ", ".join(list(columns)[:20]) or "none"
        raise source.error(f"has no columns x, y and z, but {found}", "name the columns x, y and z")
    labels = next((known[name] for name in LABELS if name in known), None)
    return Raw(points, triple(*NORMALS), triple(*COLORS), labels)


def check_names(source: Source, names: Iterable[str]) -> None:
    """Refuse columns of one name: which of them is meant?"""
    counts = Counter(name.strip(" \"'").lower() for name in names)
    for name, count in counts.items():
        if count > 1 and name in MEANT:
            raise source.error(f"has {count} columns {name}", "name every column once")


def finish(source: Source, raw: Raw) -> Cloud:
    """Check every array and convert it.

    Degenerate: points of nan alone are holes of a scan and are left out, but not from a mesh;
        a normal of nan alone, which a program could not estimate, becomes zero. Any other number
        that is not finite is an error.
    """
    if len(raw.points) == 0:
        raise source.error("holds no points", "write the cloud again, or leave the file out")
    count = len(raw.points)
    raw, rows = _without_holes(source, raw)
    _check_finite(source, raw, "coordinates", raw.points)
    points, offset = _single(source, raw.points)
    normals, labels = raw.normals, raw.labels
    faces = None if raw.faces is None or len(raw.faces) == 0 else raw.faces  # lines alone
    if normals is not None:
        unknown = _rows_of_nan(normals)
        normals = np.where(unknown[:, None], 0, normals) if unknown.any() else normals
        _check_finite(source, raw, "normals", normals)
        if np.abs(normals).max() > 1e6:
            raise source.error("holds normals longer than 1e6", "write unit normals, or leave out")
    return Cloud(
        points=torch.from_numpy(points),
        normals=None if normals is None else torch.from_numpy(np.array(normals, np.float32)),
        colors=None if raw.colors is None else torch.from_numpy(_unit(source, raw, raw.colors)),
        labels=None if labels is None else torch.from_numpy(_whole(source, raw, labels)),
        faces=None if faces is None else torch.from_numpy(_corners(source, faces, len(points))),
        offset=offset,
        holes=count - len(points),
        rows=None if rows is None else torch.from_numpy(rows),
        path=source.path,
    )


def _without_holes(source: Source, raw: Raw) -> tuple[Raw, Array | None]:
    """Leave out the points of nan alone, unless triangles count on their numbers.

    Returns:
        The rest, and which points they are, or None if they are all.
    """
    hole = _rows_of_nan(raw.points)
    count = int(hole.sum())
    if count == 0 or (raw.faces is not None and len(raw.faces)):
        return raw, None
    if count == len(hole):
        raise source.error(f"its {count} points are all nan", "scan it again, or leave it out")
    rows = np.flatnonzero(~hole)
    kept = replace(
        raw,
        points=raw.points[rows],
        normals=None if raw.normals is None else raw.normals[rows],
        colors=None if raw.colors is None else raw.colors[rows],
        labels=None if raw.labels is None else raw.labels[rows],
        where=lambda row: raw.where(int(rows[row])),
    )
    return kept, rows


def _rows_of_nan(values: Array) -> Array:
    if values.dtype.kind != "f" or np.isfinite(values.sum(dtype=np.float64)):
        return np.zeros(len(values), bool)
    rows: Array = np.all(np.isnan(values), axis=1)
    return rows


def _check_finite(source: Source, raw: Raw, what: str, values: Array) -> None:
    if values.dtype.kind != "f" or np.isfinite(values.sum(dtype=np.float64)):
        return
    broken = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if broken.any():  # a sum may overflow without
        rows = np.flatnonzero(broken)
        raise source.error(
            f"{what} of {len(rows)} of {len(values)} points are nan or infinite, "
            f"first at {raw.where(int(rows[0]))}",
            "remove these points",
        )


def _single(source: Source, values: Array) -> tuple[Array, tuple[float, float, float]]:
    """Convert to float32, by `without_offset` where values are wider; return the offset, too."""
    if values.dtype.kind == "f" and values.dtype.itemsize <= 4:
        return np.array(values, np.float32, order="C"), (0.0, 0.0, 0.0)
    wide = np.array(values, np.float64, order="C")
    farthest = np.abs(wide).max()
    if farthest > 1e38:
        raise source.error(
            f"coordinates reach {farthest:.3g}, beyond single precision", "check its units"
        )
    single, offset = without_offset(wide)
    return single, (offset[0].item(), offset[1].item(), offset[2].item())


def without_offset(wide: Array) -> tuple[Array, Array]:
    """Convert to float32, less a whole-numbered offset where float32 would lose the shape.

    That is where the cloud is farther than 1,000 from the origin, farther than 16 times its own
    extent, and not representable: map coordinates, but not a part in millimetres.
    """
    low, high = wide.min(axis=0), wide.max(axis=0)
    farthest = max(np.abs(low).max(), np.abs(high).max())
    single = wide.astype(np.float32)
    near = farthest < 1000 or farthest < 16 * (high - low).max()
    if near or (single == wide).all():
        return single, np.zeros(3)
    offset = np.floor((low + high) / 2)
    return (wide - offset).astype(np.float32), offset


def _unit(source: Source, raw: Raw, colors: Array) -> Array:
    """Bring colours to [0, 1] from 0-1 (floats), 0-255 or 0-65535."""
    _check_finite(source, raw, "colours", colors)
    low, high = colors.min(), colors.max()
    if low < 0 or high > 65535:
        raise source.error(
            f"colours span {low:g} to {high:g}", "write them from 0 to 1, 0 to 255 or 0 to 65535"
        )
    scale = 255.0 if high <= 255 else 65535.0
    if colors.dtype.kind == "f" and high <= 1:
        scale = 1.0
    return (colors / scale).astype(np.float32)


def _whole(source: Source, raw: Raw, labels: Array) -> Array:
    if labels.dtype.kind == "f":
        _check_finite(source, raw, "labels", labels)
    broken = np.abs(labels.astype(np.float64)) > 2**53
    if labels.dtype.kind == "f":
        broken |= labels != np.floor(labels)
    if broken.any():
        first = int(np.flatnonzero(broken)[0])
        raise source.error(
            f"label {labels[first]:g} at {raw.where(first)} is not a whole number below 2**53",
            "write whole numbers, or rename the column",
        )
    return labels.astype(np.int64)


def _corners(source: Source, faces: Array, count: int) -> Array:
    broken = ((faces < 0) | (faces >= count)).any(axis=1)
    if broken.any():
        first = int(np.flatnonzero(broken)[0])
        raise source.error(
            f"{int(broken.sum())} of {len(faces)} triangles refer to vertices that do not exist, "
            f"first triangle {first}: {faces[first].tolist()} of {count} vertices"
        )
    return np.array(faces, np.int64, order="C")
