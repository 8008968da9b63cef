"""How users' clouds are sampled: a dense cloud of a surface becomes what a scanner or a tool gives.

Each takes one cloud (n, 3), about how many points to keep, and a generator.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.data.corruptions import resample
from locotrans.data.spread import spread_points
from locotrans.geometry import random_rotations

LINES = 32
"""Scan lines across a cloud."""


def area_uniform(
    points: Float[Tensor, "n 3"], count: int, *, generator: torch.Generator
) -> Float[Tensor, "m 3"]:
    """Keep random points: uniform by area where the cloud is."""
    return resample(points[None], count, "random", generator=generator)[0]


def farthest(
    points: Float[Tensor, "n 3"], count: int, *, generator: torch.Generator
) -> Float[Tensor, "m 3"]:
    """Keep farthest points, which lie as evenly as can be."""
    if count >= len(points):
        return points
    return points[torch.from_numpy(spread_points(points.numpy(), count))]


def voxel_grid(
    points: Float[Tensor, "n 3"], count: int, *, generator: torch.Generator
) -> Float[Tensor, "m 3"]:
    """Keep the mean of the points in every cell of a cubic grid of random pose.

    The cell is sought that leaves about ``count`` points, and at most as many.
    """
    if count >= len(points):
        return points
    R = random_rotations(generator=generator).to(points)
    turned = (points - points.mean(0)) @ R.T
    low, high = 0.0, 2.0 * float(turned.abs().max())  # cells too small, and one large enough
    cells = torch.zeros(len(points), dtype=torch.long)
    for _ in range(20):
        side = (low + high) / 2
        _, tried = cell_numbers(torch.floor(turned / side).long()).unique(return_inverse=True)
        if int(tried.max()) < count:
            high, cells = side, tried
        else:
            low = side
    total = points.new_zeros(int(cells.max()) + 1, 3).index_add(0, cells, points)
    return total / cells.bincount()[:, None]


def cell_numbers(cells: Int[Tensor, "n 3"]) -> Int[Tensor, " n"]:
    """Return one number for each cell of a grid, in their order; the grid has less than 2^63."""
    cells = cells - cells.amin(0)
    _, width, depth = (cells.amax(0) + 1).tolist()
    return (cells[:, 0] * width + cells[:, 1]) * depth + cells[:, 2]


def scan_lines(
    points: Float[Tensor, "n 3"], count: int, *, generator: torch.Generator
) -> Float[Tensor, "m 3"]:
    """Keep the points nearest to parallel planes across the cloud, in a random direction."""
    R = random_rotations(generator=generator).to(points)
    height = points @ R[0]
    place = (height - height.min()) / (height.max() - height.min()).clamp_min(1e-9) * LINES
    offset = (place - place.floor() - 0.5).abs()
    return points[offset.argsort(stable=True)[:count]]


SAMPLINGS: dict[str, Callable[..., Tensor]] = {
    "area-uniform": area_uniform,
    "farthest points": farthest,
    "voxel grid": voxel_grid,
    "scan lines": scan_lines,
}
