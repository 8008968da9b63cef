"""Primitive surfaces, many at once, and points drawn on them uniformly by area.

A `Surfaces` is a group of ``p`` primitives of one kind and one part for each of ``s`` shapes, with
sizes and poses as tensors. Every kind has an area and a sampler that maps uniform numbers to
points without rejection, so a whole block of different shapes is drawn in a few tensor operations.
Each solid is sampled as if it stood alone: where two parts touch, the hidden faces have points too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Number = Tensor | float
"""A size or coordinate: one for all, or a tensor that broadcasts to (s, p)."""

Profile = Sequence[tuple[Number, Number]]
"""A polyline of (radius, height)."""

BOX, LATHE, SPHERE, TORUS = range(4)


@dataclass(frozen=True, eq=False)
class Surfaces:
    """``p`` primitives of one kind, belonging to one part, in each of ``s`` shapes."""

    kind: int
    part: str
    size: Float[Tensor, "s p 3"]
    area: Float[Tensor, "s p"]
    center: Float[Tensor, "s p 3"]
    rotation: Float[Tensor, "s p 3 3"]

    def mirrored(self) -> "Surfaces":
        """Reflect in the plane x = 0.

        Every primitive is its own mirror image in its local y, so the reflection can be undone
        there, and what is left of the pose is a rotation again.
        """
        flip_x, flip_y = row(-1.0, 1.0, 1.0), row(1.0, -1.0, 1.0)
        return Surfaces(
            self.kind,
            self.part,
            self.size,
            self.area,
            self.center * flip_x,
            flip_x.mT * self.rotation * flip_y,
        )


def box(
    part: str,
    size: Sequence[Number],
    center: Sequence[Number],
    rotation: Float[Tensor, "*pose 3 3"] | None = None,
) -> Surfaces:
    """Boxes with the given edge lengths."""
    x, y, z = size
    return _surfaces(BOX, part, size, 2 * (x * y + y * z + z * x), center, rotation)


def sphere(part: str, radius: Tensor, center: Sequence[Number]) -> Surfaces:
    """Spheres."""
    return _surfaces(SPHERE, part, (radius, 0.0, 0.0), 4 * math.pi * radius**2, center, None)


def torus(
    part: str,
    radius: Tensor,
    tube: Tensor,
    half_arc: float,
    center: Sequence[Number],
    rotation: Float[Tensor, "*pose 3 3"] | None = None,
) -> Surfaces:
    """Arcs of a torus in the local xy plane, from ``-half_arc`` to ``half_arc`` about local x.

    The ends of an arc are open: they belong inside whatever it is attached to.
    """
    area = 4 * math.pi * half_arc * radius * tube
    return _surfaces(TORUS, part, (radius, tube, half_arc), area, center, rotation)


def lathe(
    part: str,
    profile: Profile,
    center: Sequence[Number],
    rotation: Float[Tensor, "*pose 3 3"] | None = None,
) -> Surfaces:
    """The surface swept by a polyline of (radius, height) turned about the local z axis.

    The outside lies to the right of the direction of travel (radius to the right, height up):
    a wall followed upwards faces outwards, a lid followed towards the axis faces up. So one
    function gives cylinders, cones, discs, rings and hollow vessels.
    """
    radii = torch.cat(torch.broadcast_tensors(*(_number(r) for r, _ in profile)), dim=-1)
    heights = torch.cat(torch.broadcast_tensors(*(_number(z) for _, z in profile)), dim=-1)
    start, end, rise = radii[:, :-1], radii[:, 1:], heights.diff(dim=-1)
    area = math.pi * (start + end) * torch.hypot(end - start, rise)
    x, y, z = (_number(value) for value in center)
    axis = _identity() if rotation is None else rotation
    offset = axis[..., 2] * heights[:, :-1, None]
    center = (x + offset[..., 0], y + offset[..., 1], z + offset[..., 2])
    return _surfaces(LATHE, part, (start, end, rise), area, center, rotation)


def cylinder(
    part: str,
    radius: Number,
    height: Number,
    center: Sequence[Number],
    rotation: Float[Tensor, "*pose 3 3"] | None = None,
) -> Surfaces:
    """Closed cylinders that stand on ``center`` and rise along local z."""
    profile: Profile = [(0.0, 0.0), (radius, 0.0), (radius, height), (0.0, height)]
    return lathe(part, profile, center, rotation)


def row(*values: float) -> Float[Tensor, "1 p"]:
    """One number for each primitive of a group, the same in all shapes.

    Single precision is spelt out: a changed default type must not change the data.
    """
    return torch.tensor([values], dtype=torch.float32)


def _number(value: Number) -> Tensor:
    return value if isinstance(value, Tensor) else row(value)


def _identity() -> Tensor:
    return torch.eye(3, dtype=torch.float32)


def _surfaces(
    kind: int,
    part: str,
    size: Sequence[Number],
    area: Number,
    center: Sequence[Number],
    rotation: Tensor | None,
) -> Surfaces:
    numbers = [_number(value) for value in (*size, *center, area)]
    R = _identity() if rotation is None else rotation
    shape = torch.broadcast_shapes(*(value.shape for value in numbers), R.shape[:-2])
    columns = torch.stack([value.expand(shape) for value in numbers], dim=-1)
    return Surfaces(
        kind,
        part,
        size=columns[..., :3],
        center=columns[..., 3:6],
        area=columns[..., 6],
        rotation=R.expand(*shape, 3, 3),
    )


class Layout(NamedTuple):
    """All primitives of many shapes, of any kinds; area 0 fills up shapes that have fewer."""

    kind: Int[Tensor, "s p"]
    part: Int[Tensor, "s p"]
    size: Float[Tensor, "s p 3"]
    area: Float[Tensor, "s p"]
    center: Float[Tensor, "s p 3"]
    rotation: Float[Tensor, "s p 3 3"]


def sample_surfaces(
    layout: Layout, points: int, rng: np.random.Generator
) -> tuple[Float[Tensor, "s m 3"], Float[Tensor, "s m 3"], Int[Tensor, "s m"]]:
    """Draw independent points, uniform by area, on all primitives of each shape together.

    Being independent, the first points of a cloud are as good a sample as any others.

    Returns:
        The points, their outward unit normals, and the part of each.
    """
    kind, part, size, area, center, rotation = layout
    s, p = area.shape
    share = area.cumsum(dim=-1)
    share = share / share[:, -1:]
    choice = torch.searchsorted(share, _uniform(rng, s, points), right=True)
    flat = (choice + p * torch.arange(s)[:, None]).flatten()  # (s m) index into all primitives
    kinds = kind.flatten()[flat]
    # numbers of the primitives as rows, so that all arithmetic runs along whole rows of points
    table = torch.cat([size, center, rotation.mT.flatten(-2)], dim=-1).flatten(0, 1).T.contiguous()
    out = torch.empty(6, s * points, dtype=torch.float32)
    for which, sampler in _SAMPLERS.items():
        rows = (kinds == which).nonzero().flatten()
        numbers = table.index_select(1, flat[rows])
        point, normal = sampler(numbers[:3], rng)
        x, y, z = numbers[6:].unflatten(0, (3, 3))  # columns of the rotations, (3, n) each
        out[:3].index_copy_(1, rows, numbers[3:6] + x * point[0] + y * point[1] + z * point[2])
        out[3:].index_copy_(1, rows, x * normal[0] + y * normal[1] + z * normal[2])
    position, normals = out.view(2, 3, s, points).permute(0, 2, 3, 1).contiguous()
    return position, normals, part.gather(1, choice)


def _uniform(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.random(shape, dtype=np.float32))


Columns = Sequence[Tensor] | Tensor
"""x, y and z of many vectors, each of them in one piece of memory."""


def _on_box(size: Float[Tensor, "3 n"], rng: np.random.Generator) -> tuple[Columns, Columns]:
    """Choose a pair of faces by area, then push a point of the solid onto the nearer one."""
    x, y, z = size
    cube, level = 2 * _uniform(rng, 3, size.shape[1]) - 1, _uniform(rng, size.shape[1])
    side = torch.ones_like(cube).copysign(cube)  # a fair sign, never 0
    level = level * (y * z + z * x + x * y)
    on_x, on_z = level < y * z, level >= y * z + z * x
    face = torch.stack([on_x, ~(on_x | on_z), on_z])
    return torch.where(face, side, cube) * size / 2, side * face


def _on_lathe(size: Float[Tensor, "3 n"], rng: np.random.Generator) -> tuple[Columns, Columns]:
    r"""Draw along the segment with density proportional to the radius, then turn.

    The share t of the segment solves :math:`r_0 t + (r_1 - r_0) t^2 / 2 = u (r_0 + r_1) / 2`,
    written so that equal radii need no case of their own.
    """
    start, end, rise = size
    u, turn = _uniform(rng, 2, size.shape[1])
    root = (start**2 + u * (end**2 - start**2)).clamp_min(0).sqrt()
    t = u * (start + end) / (start + root).clamp_min(1e-12)
    cos, sin = (2 * math.pi * turn).cos(), (2 * math.pi * turn).sin()
    radius = start + t * (end - start)
    length = torch.hypot(rise, end - start)
    across, along = rise / length, (start - end) / length
    return (radius * cos, radius * sin, t * rise), (across * cos, across * sin, along)


def _on_sphere(size: Float[Tensor, "3 n"], rng: np.random.Generator) -> tuple[Columns, Columns]:
    """Draw the height uniformly: equal slices of a sphere have equal areas (Archimedes)."""
    u, turn = _uniform(rng, 2, size.shape[1])
    z = 2 * u - 1
    ring = (1 - z * z).clamp_min(0).sqrt()
    x, y = ring * (2 * math.pi * turn).cos(), ring * (2 * math.pi * turn).sin()
    return (size[0] * x, size[0] * y, size[0] * z), (x, y, z)


def _on_torus(size: Float[Tensor, "3 n"], rng: np.random.Generator) -> tuple[Columns, Columns]:
    r"""Invert the area of the tube, :math:`\theta + (r / R) \sin\theta`, by Newton's method."""
    radius, tube, half_arc = size
    u, turn = 2 * _uniform(rng, 2, size.shape[1]) - 1
    ratio, level = tube / radius, math.pi * u
    theta = level
    for _ in range(5):  # to rounding for ratios up to 1/2
        theta = theta - (theta + ratio * theta.sin() - level) / (1 + ratio * theta.cos())
    out, up = theta.cos(), theta.sin()
    cos, sin = (half_arc * turn).cos(), (half_arc * turn).sin()
    ring = radius + tube * out
    return (ring * cos, ring * sin, tube * up), (out * cos, out * sin, up)


_SAMPLERS = {BOX: _on_box, LATHE: _on_lathe, SPHERE: _on_sphere, TORUS: _on_torus}
