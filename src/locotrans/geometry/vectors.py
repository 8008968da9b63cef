"""Safe vectors: lengths and directions that stay finite, with finite gradients, at zero.

Vectors lie along the axis named by ``dim``; every other axis is batch.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def safe_length(
    v: Float[Tensor, "*shape"], dim: int = -1, eps: float = 0.0
) -> Float[Tensor, "*reduced"]:
    """Return the Euclidean length of ``v`` along ``dim`` (kept as size 1), plus ``eps``.

    Gradient: zero at the zero vector, where the true one does not exist.
    """
    squared = (v * v).sum(dim, keepdim=True)
    positive = squared > 0
    # the inner `where` keeps sqrt away from 0, so that its infinite slope never meets a zero
    return torch.where(positive, squared, 1.0).sqrt() * positive + eps


def safe_normalize(
    v: Float[Tensor, "*shape"], dim: int = -1, eps: float = 1e-12
) -> Float[Tensor, "*shape"]:
    """Return ``v / max(|v|, eps)`` along ``dim``.

    Clamping the length from below, unlike adding to it, leaves every other vector of exact unit
    length, so that frames are orthonormal to rounding.

    Degenerate: a zero vector stays zero, and its gradient is finite.
    """
    return v / safe_length(v, dim).clamp_min(eps)


def center(points: Float[Tensor, "*batch n 3"]) -> Float[Tensor, "*batch n 3"]:
    """Move the mean of each cloud to the origin.

    A cloud far from the origin loses its low bits in every product; subtracting twice recovers
    what rounding of the first mean left over.

    Symmetry: invariant under translation, equivariant under O(3).
    """
    points = points - points.mean(-2, keepdim=True)
    return points - points.mean(-2, keepdim=True)
