"""Rotations as 3 x 3 matrices that act from the left: ``R @ v``, points as ``points @ R.mT``.

Right-handed axes; a positive angle turns counter-clockwise when the axis points at the viewer.
"""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

Axis = Literal["x", "y", "z"]
AXES: tuple[Axis, ...] = get_args(Axis)


def random_rotations(
    *shape: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "*shape 3 3"]:
    """Draw rotations from the Haar (uniform) measure of SO(3).

    Four independent normal numbers, normalised, are a uniform unit quaternion, and the double
    cover of SO(3) by unit quaternions preserves the measure.
    """
    q = torch.randn(*shape, 4, generator=generator, dtype=dtype, device=device)
    return quaternion_to_matrix(q)


def random_axis_rotations(
    *shape: int,
    axis: Axis,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "*shape 3 3"]:
    """Draw rotations about the named coordinate axis, uniform in the angle."""
    turn = torch.rand(shape, generator=generator, dtype=dtype, device=device)
    return axis_rotation(axis, 2 * math.pi * turn)


def axis_rotation(axis: Axis, angle: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the rotation by ``angle`` (radians) about the named coordinate axis."""
    if axis not in AXES:
        raise ValueError(f"axis must be one of {', '.join(AXES)}, got {axis!r}")
    if not angle.is_floating_point():
        angle = angle.to(torch.get_default_dtype())
    i = AXES.index(axis)
    j, k = (i + 1) % 3, (i + 2) % 3
    R = torch.zeros(*angle.shape, 3, 3, dtype=angle.dtype, device=angle.device)
    R[..., i, i] = 1
    R[..., j, j] = R[..., k, k] = angle.cos()
    R[..., k, j] = angle.sin()
    R[..., j, k] = -angle.sin()
    return R


def quaternion_to_matrix(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the rotation of the quaternion (w, x, y, z), which need not be normalised."""
    w, x, y, z = torch.nn.functional.normalize(q, dim=-1).unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def rotation_angle(R: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch"]:
    """Return the angle of each rotation in radians, in [0, pi].

    ``atan2`` of the two halves (the skew part has length 2 sin, the trace is 1 + 2 cos) keeps
    full precision near 0 and pi, where ``acos`` of the trace loses half of the digits.
    """
    skew = torch.stack(
        [
            R[..., 2, 1] - R[..., 1, 2],
            R[..., 0, 2] - R[..., 2, 0],
            R[..., 1, 0] - R[..., 0, 1],
        ],
        dim=-1,
    )
    return torch.atan2(skew.norm(dim=-1), R.diagonal(dim1=-2, dim2=-1).sum(-1) - 1)


def rotation_axis(R: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 3"]:
    """Return the unit axis about which each rotation turns by its `rotation_angle`.

    Up to a right angle it is the direction of the skew part, ``R - R^T = 2 sin [a]_x``. Beyond,
    ``(R + R^T) / 2 = cos I + (1 - cos) a a^T``: every column of ``a a^T`` lies along the axis a,
    and the longest is taken. Each keeps full precision where the other loses it.

    Degenerate: the identity has no axis and gives the zero vector; by 180 degrees the sign is free.
    """
    cosine = rotation_angle(R).cos()[..., None, None]
    outer = (R + R.mT) / 2 - cosine * torch.eye(3, dtype=R.dtype, device=R.device)
    longest = outer.diagonal(dim1=-2, dim2=-1).argmax(-1)
    column = outer.gather(-1, longest[..., None, None].expand(*R.shape[:-1], 1)).squeeze(-1)
    skew = R[..., [2, 0, 1], [1, 2, 0]] - R[..., [1, 2, 0], [2, 0, 1]]
    sign = torch.where((column * skew).sum(-1, keepdim=True) >= 0, 1.0, -1.0)
    axis = torch.where(cosine.squeeze(-1) > 0, skew, sign * column)
    return axis / axis.norm(dim=-1, keepdim=True).clamp_min(1e-30)
