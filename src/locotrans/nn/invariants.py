"""Invariant features of a point or of a shape, made of its vectors (`locotrans.nn.vn`)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.kernels import use_kernels, use_loops
from locotrans.nn.edge import max_mean_pool
from locotrans.nn.vn import VNProjection, narrow


class VNInvariants(nn.Module):
    """Invariant features: inner products of all vectors with three learned ones.

    With ``Z = (z_1, z_2, z_3)`` a 3 x 3 matrix of equivariant vectors of the point, ``Z^T v`` does
    not change when both turn: ``(R Z)^T (R v) = Z^T v``.

    Symmetry: invariant under O(3).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.projection = VNProjection(channels, 3)

    def forward(
        self, v: Float[Tensor, "*batch 3 c"], mean: Float[Tensor, "*shape 1 3 c"] | None = None
    ) -> Float[Tensor, "*batch e"]:
        """Return the inner products of every point, those with z_1 first."""
        return self.of_points(v, mean)

    def of_points(
        self, v: Float[Tensor, "*batch 3 c"], mean: Float[Tensor, "*shape 1 3 c"] | None = None
    ) -> Float[Tensor, "*batch e"]:
        """Do as `forward`, also where that pools."""
        return self._inner_products(self.projection(v, mean), v, mean)

    def _inner_products(
        self,
        z: Float[Tensor, "*batch 3 3"],
        v: Float[Tensor, "*batch 3 c"],
        mean: Float[Tensor, "*shape 1 3 c"] | None,
    ) -> Float[Tensor, "*batch e"]:
        if mean is None:
            return (z.mT @ narrow(v, self.channels)).flatten(-2)
        parts = [z.mT @ narrow(x, self.channels // 2) for x in (v, mean)]
        return torch.cat(parts, dim=-1).flatten(-2)


class VNPooledInvariants(VNInvariants):
    """The same, pooled over the points."""

    def forward(
        self,
        v: Float[Tensor, "b n 3 c"],
        mean: Float[Tensor, "b 1 3 c"] | None = None,
        z: Float[Tensor, "b n 3 3"] | None = None,
    ) -> Float[Tensor, "b e"]:
        """Return the maximum and the mean over the points of the inner products, concatenated.

        Args:
            v: vectors of the points.
            mean: vectors that all points of a cloud share.
            z: the three learned vectors of every point (`projection`), where they are known.
        """
        z = self.projection(v, mean) if z is None else z
        if use_kernels(v):
            from locotrans.kernels.pool import pool_projections

            channels = self.channels if mean is None else self.channels // 2
            return pool_projections(v, z, mean, channels).flatten(1)
        if use_loops(v):
            from locotrans.kernels import cpu

            parts = [v] if mean is None else [v, mean.expand_as(v)]
            pooled = [cpu.pool_projections(part, z) for part in parts]  # each (b, 3, c) twice
            return torch.cat([torch.cat(x, -1).flatten(1) for x in zip(*pooled, strict=True)], -1)
        return max_mean_pool(self._inner_products(z, v, mean))
