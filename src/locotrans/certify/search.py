r"""The worst rotation: a grid that leaves no gap wider than it says, then a climb from its peaks.

A rotation is a unit quaternion up to sign. The quaternions whose largest entry is the i-th, scaled
to make that entry 1, fill a cube; the four cubes hold every rotation once. Each is cut into m^3
cells, evenly in angle, and the grid takes the centre of each. **Guarantee**: every rotation lies
within `covering_radius` of one of the grid. So whatever goes wrong on a whole ball of rotations of
at least that radius is met, however sharp its edge; narrower weaknesses are found if their error
rises towards them, or by luck.
"""

import math
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from locotrans.geometry import axis_rotation, quaternion_to_matrix

MAX_DIVISIONS = 40  # 256,000 rotations
STARTS = 4  # peaks of the grid to climb from
ROUNDS = 10  # halvings of a step, or steps; the last is far below a degree

Errors = Callable[[Float[Tensor, "r 3 3"]], Float[Tensor, " r"]]


class Search(NamedTuple):
    """What a search saw, and the worst of it."""

    rotations: Float[Tensor, "r 3 3"]
    """Every rotation that was tried: the grid, the 24 of the cube, then the climbs."""
    errors: Float[Tensor, " r"]
    radius: float
    """Guarantee: any ball of rotations of this radius (degrees) was entered."""

    @property
    def worst(self) -> tuple[Float[Tensor, "3 3"], float]:
        """The worst rotation, and its error."""
        i = int(self.errors.argmax())
        return self.rotations[i], float(self.errors[i])


def search_rotations(errors: Errors, radius: float) -> Search:
    """Look for the rotation of the largest error.

    Args:
        errors: gives the error of each of some rotations; nan counts as infinite.
        radius: no gap of the grid is wider than this, in degrees. The number of rotations grows
            with its inverse cube: 864 for 26 degrees, 2,048 for 20, 16,384 for 10.
    """
    m = divisions_for(radius)
    rotations = torch.cat([rotation_grid(m), cube_rotations()])
    found = _checked(errors, rotations)
    radius = covering_radius(m)
    tried, values = [rotations], [found]
    top = found.topk(STARTS)
    here, best = rotations[top.indices], top.values
    step = torch.full((STARTS,), math.radians(radius) / 2, dtype=torch.float64)
    for _ in range(ROUNDS):
        around = _around(here, step)  # (starts, 6, 3, 3)
        near = _checked(errors, around.flatten(0, 1))
        tried.append(around.flatten(0, 1))
        values.append(near)
        higher, which = near.view(STARTS, 6).max(1)
        better = higher > best
        chosen = around[torch.arange(STARTS), which]
        here = torch.where(better[:, None, None], chosen, here)
        best = torch.where(better, higher, best)
        step = torch.where(better, step, step / 2)
    return Search(torch.cat(tried), torch.cat(values), radius)


def rotation_grid(divisions: int) -> Float[Tensor, "r 3 3"]:
    """Return the centres of 4 m^3 cells that fill SO(3), in float64."""
    edges = _edges(divisions)
    angles = edges.atan()
    middle = ((angles[:-1] + angles[1:]) / 2).tan()
    xyz = torch.cartesian_prod(middle, middle, middle)
    one = torch.ones(len(xyz), 1, dtype=torch.float64)
    first = torch.cat([one, xyz], dim=1)
    return quaternion_to_matrix(torch.cat([first.roll(i, dims=1) for i in range(4)]))


def covering_radius(divisions: int) -> float:
    """Return the largest angle, in degrees, from a rotation to the nearest of the grid.

    A cell is a box on a plane of quaternions, and those within an angle of its centre are a convex
    cone: where the cone holds the eight corners it holds the box. The corners are what is measured.
    """
    edges = _edges(divisions)
    angles = edges.atan()
    middle = ((angles[:-1] + angles[1:]) / 2).tan()
    centre = _quaternions(middle, middle, middle)
    least = torch.ones(len(centre), dtype=torch.float64)
    for low in product((0, 1), repeat=3):
        corner = _quaternions(*(edges[i : i + divisions] for i in low))
        least = torch.minimum(least, (centre * corner).sum(-1))
    return math.degrees(2 * math.acos(float(least.min())))


def divisions_for(radius: float) -> int:
    """Return the fewest divisions of a cube's edge whose grid covers within ``radius`` degrees."""
    finest = covering_radius(MAX_DIVISIONS)
    if not finest <= radius <= 180:
        raise ValueError(f"radius must be from {finest:.1f} to 180 degrees, got {radius}")
    return next(m for m in range(1, MAX_DIVISIONS + 1) if covering_radius(m) <= radius)


def cube_rotations() -> Float[Tensor, "24 3 3"]:
    """Return the 24 rotations that map the coordinate axes to each other: clouds in line with them
    are where distances tie."""
    found = []
    for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (2, 1, 0), (1, 0, 2)):
        for signs in product((1.0, -1.0), repeat=3):
            R = torch.diag(torch.tensor(signs, dtype=torch.float64))[list(order)]
            if torch.linalg.det(R) > 0:
                found.append(R)
    return torch.stack(found)


def _edges(divisions: int) -> Float[Tensor, " e"]:
    return torch.linspace(-math.pi / 4, math.pi / 4, divisions + 1, dtype=torch.float64).tan()


def _quaternions(x: Tensor, y: Tensor, z: Tensor) -> Float[Tensor, "m 4"]:
    xyz = torch.cartesian_prod(x, y, z)
    q = torch.cat([torch.ones(len(xyz), 1, dtype=torch.float64), xyz], dim=1)
    return q / q.norm(dim=1, keepdim=True)


def _around(R: Float[Tensor, "s 3 3"], step: Float[Tensor, " s"]) -> Float[Tensor, "s 6 3 3"]:
    """Turn each rotation a step further, either way about each axis."""
    turns = [axis_rotation(axis, sign * step) for axis in ("x", "y", "z") for sign in (1, -1)]
    return torch.stack(turns, dim=1) @ R.unsqueeze(1)


def _checked(errors: Errors, rotations: Tensor) -> Float[Tensor, " r"]:
    return torch.nan_to_num(errors(rotations).double().cpu(), nan=math.inf, posinf=math.inf)
