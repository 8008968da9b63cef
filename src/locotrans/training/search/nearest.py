"""Exact search among unit vectors: products first, then true distances of those in question.

The distance is the length of the difference of unit vectors: 0 for the same direction, 2 for the
opposite one. Below some 100,000 shapes a product of a matrix and a vector takes milliseconds, and
an approximate index has nothing to save.
"""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float32, Float64

BLOCK = 4096
"""Rows at a time."""
SLACK = 1e-5
"""More than rounding changes a product of unit vectors in single precision."""


def find_nearest(
    embeddings: Float32[np.ndarray, "n c"], query: Float32[np.ndarray, "c"], k: int = 10
) -> list[tuple[int, float]]:
    """Return the rows and distances of the ``k`` nearest vectors, the nearest first.

    Products alone would give equal distances below 0.004 to rounding; the candidates that they
    leave are compared by the differences themselves, in double precision.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    starts = range(0, len(embeddings), BLOCK)
    products = np.concatenate([embeddings[start : start + BLOCK] @ query for start in starts])
    k = min(k, len(products))
    least = np.partition(products, -k)[-k] - SLACK
    candidates = np.flatnonzero(products >= least)
    distances = _distances(embeddings[candidates], query)
    order = np.argsort(distances, kind="stable")[:k]
    return [(int(candidates[i]), float(distances[i])) for i in order]


def find_duplicates(
    embeddings: Float32[np.ndarray, "n c"],
    within: float,
    same: Callable[[int, int], bool] | None = None,
) -> list[list[tuple[int, float]]]:
    """Return groups of rows that are linked by distances of at most ``within``.

    Each group lists rows and their distances to its first one; the largest group comes first.

    Args:
        embeddings: unit vectors.
        within: distance up to which two rows are linked,
        same: if this, asked about two rows, does not say no.
    """
    if not 0 <= within < 1:
        raise ValueError(f"the distance must be from 0 to 1, got {within}")
    parent = list(range(len(embeddings)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for first, second in _close_pairs(embeddings, within):
        a, b = sorted((root(first), root(second)))
        if a != b and (same is None or same(first, second)):
            parent[b] = a
    groups: dict[int, list[int]] = {}
    for row in range(len(embeddings)):
        groups.setdefault(root(row), []).append(row)
    found = [rows for rows in groups.values() if len(rows) > 1]
    return [
        list(zip(rows, _distances(embeddings[rows], embeddings[rows[0]]).tolist(), strict=True))
        for rows in sorted(found, key=len, reverse=True)
    ]


def _close_pairs(
    embeddings: Float32[np.ndarray, "n c"], within: float
) -> Iterator[tuple[int, int]]:
    least = 1 - within**2 / 2 - SLACK  # |a - b|^2 = 2 - 2 a.b
    for start in range(0, len(embeddings), BLOCK):
        block = embeddings[start : start + BLOCK]
        for other in range(start, len(embeddings), BLOCK):
            products = block @ embeddings[other : other + BLOCK].T
            for row in np.flatnonzero((products >= least).any(1)):
                columns = other + np.flatnonzero(products[row] >= least)
                columns = columns[columns > start + row]
                distances = _distances(embeddings[columns], block[row])
                for column in columns[distances <= within]:
                    yield start + int(row), int(column)


def _distances(
    rows: Float32[np.ndarray, "n c"], query: Float32[np.ndarray, "c"]
) -> Float64[np.ndarray, "n"]:
    return np.linalg.norm(rows.astype(np.float64) - query.astype(np.float64), axis=-1)
