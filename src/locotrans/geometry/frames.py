r"""Local reference frames: two equivariant vectors a point become a rotation matrix (Eqs. 3-8).

A frame is ``U = [u1, u2, u1 x u2]`` with the axes as columns, shape ``(*batch, 3, 3)``: the paper's
``U^T v`` is literally ``U.mT @ v``.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry.neighbors import gather
from locotrans.geometry.vectors import safe_length, safe_normalize

FrameKind = Literal["symmetric", "symmetric_printed", "gram_schmidt", "handcrafted"]


def symmetric_frame(
    v1: Float[Tensor, "*batch 3"], v2: Float[Tensor, "*batch 3"]
) -> Float[Tensor, "*batch 3 3"]:
    r"""Build the symmetric frame of Eqs. 6-8 in closed form.

    With the bisector ``e = normalise(v1 + v2)`` and ``d = normalise(v2 - v1)``, orthogonal to it
    because both vectors have unit length, Eq. 8 reads ``u1 = (e + d) / sqrt(2)`` and
    ``u2 = (e - d) / sqrt(2)``: no square roots of differences, no cancellation.

    Symmetry: SO(3)-equivariant. Exchanging the vectors exchanges the axes.
    Degenerate: parallel or opposite vectors (the bisector or its normal is undefined) and zero
        vectors give a finite matrix that is not a rotation, with finite gradients.
    Differs: the value is that of `printed_symmetric_frame`; the gradient is that of the whole
        formula, where the authors stop it at the angle.
    """
    v1, v2 = safe_normalize(v1), safe_normalize(v2)
    e = safe_normalize(v1 + v2)
    d = safe_normalize(v2 - v1)
    return _complete((e + d) / math.sqrt(2), (e - d) / math.sqrt(2))


def printed_symmetric_frame(
    v1: Float[Tensor, "*batch 3"], v2: Float[Tensor, "*batch 3"], eps: float = 1e-6
) -> Float[Tensor, "*batch 3 3"]:
    r"""Build the symmetric frame of Eqs. 6-8 step by step, as printed and as the authors do.

    Args:
        v1: first vector.
        v2: second vector.
        eps: added to every length before a division, as in the authors' program.

    Symmetry: SO(3)-equivariant.
    Gradient: the half angle is detached, as in the authors' program: its derivative is infinite
        at 0 and 180 degrees.
    Degenerate: as `symmetric_frame`; near-parallel vectors lose up to half of the digits.
    Differs: ``eps`` keeps the frame from being exactly orthonormal, even in float64, by about
        ``eps / sin(theta)``.
    """
    v1 = v1 / safe_length(v1, eps=eps)
    v2 = v2 / safe_length(v2, eps=eps)
    tiny = torch.finfo(v1.dtype).eps
    cos_2theta = (v1 * v2).sum(-1, keepdim=True).detach().clamp(-1 + tiny, 1 - tiny)
    sin_theta = ((1 - cos_2theta) / 2).sqrt()  # Eq. 6
    cos_theta = ((1 + cos_2theta) / 2).sqrt()
    bisector = v1 + v2
    bisector = bisector / safe_length(bisector, eps=eps) * (sin_theta + cos_theta)  # Eq. 7
    u1, u2 = bisector - v1, bisector - v2
    return _complete(u1 / safe_length(u1, eps=eps), u2 / safe_length(u2, eps=eps))  # Eq. 8


def gram_schmidt_frame(
    v1: Float[Tensor, "*batch 3"], v2: Float[Tensor, "*batch 3"]
) -> Float[Tensor, "*batch 3 3"]:
    r"""Build an orthonormal frame that keeps the direction of ``v1`` (Eqs. 4-5).

    The correction falls on ``v2`` alone; this asymmetry is what `symmetric_frame` removes.

    Symmetry: SO(3)-equivariant, ``f(R v1, R v2) = R f(v1, v2)``. Not O(3): a reflection flips the
        third axis.
    Degenerate: parallel inputs give a finite matrix that is not a rotation.
    """
    u1 = safe_normalize(v1)
    v2 = safe_normalize(v2)
    u2 = safe_normalize(v2 - (v2 * u1).sum(-1, keepdim=True) * u1)
    return _complete(u1, u2)


def handcrafted_frame(
    points: Float[Tensor, "*batch n 3"], neighbors: Int[Tensor, "*batch n k"]
) -> Float[Tensor, "*batch n 3 3"]:
    """Build a frame from the global centre and the local barycentre (Tab. 5, row 1).

    The first axis points from the centre of the cloud to the point, the second, orthogonalised,
    from the point to the mean of its neighbours. Nothing is learned.

    Symmetry: SO(3)-equivariant, translation-invariant.
    Degenerate: a point at the centre, or with its barycentre on the line to the centre (or on
        itself), gets a finite matrix that is not a rotation.
    """
    to_point = points - points.mean(-2, keepdim=True)
    to_barycenter = gather(points, neighbors).mean(-2) - points
    return gram_schmidt_frame(to_point, to_barycenter)


def _complete(
    u1: Float[Tensor, "*batch 3"], u2: Float[Tensor, "*batch 3"]
) -> Float[Tensor, "*batch 3 3"]:
    """Return ``[u1, u2, u1 x u2]``, the axes as columns (Eq. 3)."""
    return torch.stack([u1, u2, torch.linalg.cross(u1, u2)], dim=-1)
