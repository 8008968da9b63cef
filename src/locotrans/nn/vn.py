r"""Vector neurons: layers whose channels are vectors, so that h(R p) = R h(p) (Eq. 2).

Vector features are ``(*batch, 3, c)``. A linear layer without bias acts on the channels and
commutes with a rotation, which acts on the axis of size 3; so `nn.Linear(c, d, bias=False)` *is*
the vector-neuron linear layer.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.geometry.neighbors import gather, global_index
from locotrans.geometry.vectors import safe_length
from locotrans.kernels import use_kernels, use_loops
from locotrans.nn.edge import SLOPE, by_rows, edge_products, max_mean_pool
from locotrans.nn.norm import BatchNorm

EPS = 1e-6


def vn_leaky_relu(
    v: Float[Tensor, "*batch 3 c"], direction: Float[Tensor, "*batch 3 d"]
) -> Float[Tensor, "*batch 3 c"]:
    r"""Shrink what points against a learned direction: the leaky ReLU of vectors.

    ``v - (1 - slope) min(0, <v, q>) q / (|q|^2 + eps)``: a vector in the half-space of its
    direction q passes; of any other, the part along q keeps the slope only.

    Args:
        v: the vectors.
        direction: q, one a channel, or one for all channels (d = 1).

    Symmetry: SO(3)- and O(3)-equivariant.
    """
    along = (v * direction).sum(-2, keepdim=True).clamp(max=0)
    squared = (direction * direction).sum(-2, keepdim=True)
    return v - (1 - SLOPE) * along / (squared + EPS) * direction


class VNBatchNorm(nn.Module):
    """Batch norm of the lengths of vectors; directions stay.

    Symmetry: SO(3)- and O(3)-equivariant, since a length is invariant.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = BatchNorm(channels)

    def forward(self, v: Float[Tensor, "*batch 3 c"]) -> Float[Tensor, "*batch 3 c"]:
        """Give every vector the normalised length."""
        length = safe_length(v, dim=-2, eps=EPS)
        return v * (self.norm(length) / length)


class VNLayer(nn.Module):
    """A linear layer, batch norm and leaky ReLU for vectors, for every point alone.

    Args:
        in_channels: vectors in.
        out_channels: vectors out.
        shared_direction: learn one direction for all channels instead of one each.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, shared_direction: bool = False
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels, bias=False)
        self.direction = nn.Linear(in_channels, 1 if shared_direction else out_channels, bias=False)
        self.norm = VNBatchNorm(out_channels)

    def forward(
        self,
        v: Float[Tensor, "*batch 3 c"],
        mean: Float[Tensor, "*shape 1 3 c"] | None = None,
    ) -> Float[Tensor, "*batch 3 d"]:
        """Map the vectors of every point.

        Args:
            v: vectors of the points.
            mean: vectors that all points of a cloud share, which count as channels behind those of
                ``v``; their product is taken once a cloud instead of once a point.
        """
        if use_kernels(v):
            return self.fused(v, mean)[..., : self.linear.out_features]
        if use_loops(v, training=self.training):
            from locotrans.kernels import cpu

            parts = [self.linear.weight, self.direction.weight]
            return cpu.vn_layer(v, mean, parts, self.norm.norm)
        p = vn_linear(v, mean, self.linear.weight)
        return vn_leaky_relu(self.norm(p), vn_linear(v, mean, self.direction.weight))

    def fused(
        self, v: Float[Tensor, "*batch 3 c"], mean: Float[Tensor, "*shape 1 3 c"] | None = None
    ) -> Float[Tensor, "*batch 3 d8"]:
        """Do as `forward` by the kernel; zero vectors fill the channels up to a multiple of 8."""
        from locotrans.kernels.vn import vn_norm_act

        width = aligned(self.linear.out_features)
        weight = torch.cat([fill_rows(self.linear.weight), fill_rows(self.direction.weight)])
        pq = vn_linear(v, mean, weight)
        shared = self.direction.out_features == 1
        p, q = (pq[..., :width], pq[..., width : width + 1]) if shared else (pq, None)
        return vn_norm_act(p, q, *self.norm.norm.statistics())


def vn_linear(
    v: Float[Tensor, "*batch 3 c"],
    mean: Float[Tensor, "*shape 1 3 c"] | None,
    weight: Float[Tensor, "d e"],
) -> Float[Tensor, "*batch 3 d"]:
    """Apply a linear layer to the channels of ``v`` and, behind them, of ``mean``.

    Both may be wider than the weight, by zero vectors; on a GPU they are filled up to a width that
    its fast products take.
    """
    parts = weight.chunk(1 if mean is None else 2, dim=1)
    if use_kernels(v):
        v, mean = fill_channels(v), None if mean is None else fill_channels(mean)
        parts = tuple(F.pad(part, (0, v.shape[-1] - part.shape[1])) for part in parts)
    product = F.linear(v, parts[0])
    return product if mean is None else product + F.linear(mean, parts[1])


def aligned(channels: int) -> int:
    """Return the next multiple of 8: the fast products of a GPU take no other widths."""
    return channels + -channels % 8


def fill_channels(v: Float[Tensor, "*shape c"]) -> Float[Tensor, "*shape d"]:
    """Append zero vectors until the channels are aligned."""
    return F.pad(v, (0, -v.shape[-1] % 8)) if v.shape[-1] % 8 else v


def fill_rows(weight: Float[Tensor, "d c"]) -> Float[Tensor, "e c"]:
    """Append zero rows, which give zero vectors, until the rows are aligned."""
    return F.pad(weight, (0, 0, 0, -len(weight) % 8))


class VNEdgeConv(nn.Module):
    """A VN layer on the edges [v_j - v_r, v_r], then the mean over the neighbours.

    Symmetry: SO(3)-equivariant. The mean, unlike a maximum, is equivariant for vectors.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * in_channels, out_channels, bias=False)
        self.direction = nn.Linear(2 * in_channels, out_channels, bias=False)
        self.norm = VNBatchNorm(out_channels)

    def forward(
        self, v: Float[Tensor, "b n 3 c"], neighbors: Int[Tensor, "b n k"]
    ) -> Float[Tensor, "b n 3 d"]:
        """Convolve vectors over the given neighbourhoods."""
        index = global_index(neighbors)
        # one product and one gather serve the vectors and their directions
        parts = [self.linear.weight, self.direction.weight]
        if use_kernels(v):
            from locotrans.kernels.vn import vn_edge_conv

            weight = torch.cat([fill_rows(part) for part in parts])
            w1, w2 = (fill_channels(part) for part in weight.chunk(2, dim=-1))
            weight = torch.cat([w1, w2], dim=-1)
            u, w = edge_products(fill_channels(v).flatten(0, 1), weight)
            out = vn_edge_conv(u, w, index, *self.norm.norm.statistics())
            return out.unflatten(0, v.shape[:2])[..., : self.linear.out_features]
        if use_loops(v, training=self.training):
            from locotrans.kernels import cpu

            linear, direction = parts
            out = cpu.vn_edge_conv(v.flatten(0, 1), index, linear, direction, self.norm.norm)
            return out.unflatten(0, v.shape[:2])
        u, w = edge_products(v.flatten(0, 1), torch.cat(parts))  # (m, 3, 2 d) each

        def edges(rows: slice) -> Tensor:
            p, q = (gather(u, index[rows]) + w[rows].unsqueeze(1)).chunk(2, dim=-1)
            return vn_leaky_relu(self.norm(p), q).mean(dim=1)  # of (m, k, 3, d)

        out = by_rows(edges, index.shape[0], index.shape[1] * u[0].numel(), self.training)
        return out.unflatten(0, v.shape[:2])


class VNProjection(nn.Module):
    """Two VN layers (c -> c//2 -> c//4) and a linear map to a few vectors a point."""

    def __init__(self, channels: int, vectors: int) -> None:
        super().__init__()
        self.layer1 = VNLayer(channels, channels // 2)
        self.layer2 = VNLayer(channels // 2, channels // 4)
        self.linear = nn.Linear(channels // 4, vectors, bias=False)

    def forward(
        self, v: Float[Tensor, "*batch 3 c"], mean: Float[Tensor, "*shape 1 3 c"] | None = None
    ) -> Float[Tensor, "*batch 3 m"]:
        """Project the vectors of every point, and those that its cloud has in common."""
        if use_kernels(v):
            return vn_linear(
                self.layer2.fused(self.layer1.fused(v, mean)), None, self.linear.weight
            )
        return self.linear(self.layer2(self.layer1(v, mean)))


class VNInvariants(nn.Module):
    """Invariant features: inner products of all vectors with three learned ones.

    With ``Z = (z_1, z_2, z_3)`` a 3 x 3 matrix of equivariant vectors of the point, ``Z^T v`` does
    not change when both turn: ``(R Z)^T (R v) = Z^T v``.

    Symmetry: invariant under O(3).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
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
        return _inner_products(self.projection(v, mean), v, mean)


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
        elif use_loops(v):
            from locotrans.kernels.cpu import pool_projections
        else:
            return max_mean_pool(_inner_products(z, v, mean))
        parts = [v] if mean is None else [v, mean.expand_as(v)]
        pooled = [pool_projections(part, z) for part in parts]  # each (b, 3, c) twice
        return torch.cat([torch.cat(x, dim=-1).flatten(1) for x in zip(*pooled, strict=True)], -1)


def _inner_products(
    z: Float[Tensor, "*batch 3 3"],
    v: Float[Tensor, "*batch 3 c"],
    mean: Float[Tensor, "*shape 1 3 c"] | None,
) -> Float[Tensor, "*batch e"]:
    if mean is None:
        return (z.mT @ v).flatten(-2)
    return torch.cat([z.mT @ v, z.mT @ mean], dim=-1).flatten(-2)
