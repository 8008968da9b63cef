r"""Vector neurons: layers whose channels are vectors, so that h(R p) = R h(p) (Eq. 2).

Vector features are ``(*batch, 3, c)``. A linear layer without bias acts on the channels and
commutes with a rotation, which acts on the axis of size 3; so `nn.Linear(c, d, bias=False)` *is*
the vector-neuron linear layer.

The products of a GPU are fast for widths that are multiples of 8. So the layers that run by kernels
take and, asked for `wide` ones, give features whose channels zero vectors fill up to such a width;
they add nothing anywhere, and get no gradient.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.geometry.neighbors import gather, global_index
from locotrans.geometry.vectors import safe_length
from locotrans.kernels import use_kernels, use_learning_loops, use_loops
from locotrans.nn.edge import SLOPE, by_rows, edge_products, multiply
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
    """Batch norm of the lengths of vectors; a new length below zero turns a vector round.

    It starts with a bias of 1 and weights of 1/2, so that new lengths are about 1 ± 1/2: hardly a
    vector is turned round, and short ones stay short (lengths of normal vectors have a mean of 2.4
    standard deviations).

    Symmetry: SO(3)- and O(3)-equivariant, since a length is invariant.
    Differs: the authors' starts with a bias of 0 and weights of 1, which turns round every vector
        that is shorter than the mean, and makes of one that is nearly zero, whose direction is
        chance, a long one. Neighbours then differ in sign, their mean has little left, and frames
        learn slowly to agree.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = BatchNorm(channels)
        nn.init.constant_(self.norm.weight, 0.5)
        nn.init.ones_(self.norm.bias)

    def forward(self, v: Float[Tensor, "*batch 3 c"]) -> Float[Tensor, "*batch 3 c"]:
        """Give every vector the normalised length."""
        length = safe_length(v, dim=-2, eps=EPS)
        return v * (self.norm(length) / length)


class VNLayer(nn.Module):
    """A linear layer, batch norm and leaky ReLU for vectors, for every point alone.

    Args:
        in_channels: vectors in; several numbers where these are a concatenation, whose parts may
            be wide.
        out_channels: vectors out.
        shared_direction: learn one direction for all channels instead of one each.
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        out_channels: int,
        *,
        shared_direction: bool = False,
    ) -> None:
        super().__init__()
        self.parts = (in_channels,) if isinstance(in_channels, int) else tuple(in_channels)
        channels = sum(self.parts)
        self.linear = nn.Linear(channels, out_channels, bias=False)
        self.direction = nn.Linear(channels, 1 if shared_direction else out_channels, bias=False)
        self.norm = VNBatchNorm(out_channels)

    def forward(
        self,
        v: Float[Tensor, "*batch 3 c"],
        mean: Float[Tensor, "*shape 1 3 c"] | None = None,
        *,
        wide: bool = False,
    ) -> Float[Tensor, "*batch 3 d"]:
        """Map the vectors of every point.

        Args:
            v: vectors of the points.
            mean: vectors that all points of a cloud share, which count as channels behind those of
                ``v``; their product is taken once a cloud instead of once a point.
            wide: let zero vectors follow the channels where they do on the way.
        """
        if use_kernels(v):
            from locotrans.kernels.vn_points import vn_norm_act

            pq, offset = self._products(v, mean)
            out = vn_norm_act(pq, self.norm.norm.statistics(), shared=self._shared(), offset=offset)
            return out if wide else narrow(out, self.linear.out_features)
        if use_loops(v, training=self.norm.norm.training):
            from locotrans.kernels import cpu

            parts = [self.linear.weight, self.direction.weight]
            return cpu.vn_layer(v, mean, parts, self.norm.norm)
        p = vn_linear(v, mean, self.linear.weight)
        return vn_leaky_relu(self.norm(p), vn_linear(v, mean, self.direction.weight))

    def with_mean(
        self, v: Float[Tensor, "b n 3 c"], *, wide: bool = False
    ) -> tuple[Float[Tensor, "b n 3 d"], Float[Tensor, "b 1 3 d"]]:
        """Do as `forward`, and return the mean of the new vectors over each cloud besides."""
        if not use_kernels(v):
            out = self(v)
            return out, out.mean(dim=1, keepdim=True)
        from locotrans.kernels.vn_points import vn_norm_act_mean

        pq, _ = self._products(v, None)
        out, mean = vn_norm_act_mean(pq, self.norm.norm.statistics(), shared=self._shared())
        d = self.linear.out_features
        return (out, mean) if wide else (narrow(out, d), narrow(mean, d))

    def _shared(self) -> bool:
        return self.direction.out_features == 1

    def _products(
        self, v: Float[Tensor, "*batch 3 c"], mean: Float[Tensor, "*shape 1 3 c"] | None
    ) -> tuple[Float[Tensor, "*batch 3 e"], Float[Tensor, "*shape 1 3 e"] | None]:
        """Return vectors and directions, side by side, for a kernel: of the points, of a cloud."""
        from locotrans.kernels.vn_weights import pack_halves, pack_layer

        weights = (self.linear.weight, self.direction.weight)
        channels = self.linear.in_features
        if mean is None:
            v, parts = fill_channels(v, *self.parts)
            return F.linear(v, pack_layer(*weights, parts, v.dtype)), None
        v, _ = fill_channels(v, channels // 2)
        mean, _ = fill_channels(mean, channels // 2)
        first, second = pack_halves(*weights, v.dtype)
        offset = F.linear(mean, second)
        return F.linear(v, first), offset.expand(*v.shape[:-3], 1, -1, -1)


def vn_linear(
    v: Float[Tensor, "*batch 3 c"],
    mean: Float[Tensor, "*shape 1 3 c"] | None,
    weight: Float[Tensor, "d e"],
) -> Float[Tensor, "*batch 3 d"]:
    """Apply a linear layer to the channels of ``v`` and, behind them, of ``mean``."""
    if mean is None:
        return F.linear(v, weight)
    w1, w2 = weight.chunk(2, dim=1)
    return F.linear(v, w1) + F.linear(mean, w2)


def narrow(v: Float[Tensor, "*shape c"], channels: int) -> Float[Tensor, "*shape d"]:
    """Leave out the zero vectors that follow some channels."""
    return v if v.shape[-1] == channels else v[..., :channels]


def fill_channels(
    v: Float[Tensor, "*shape c"], *channels: int
) -> tuple[Float[Tensor, "*shape d"], tuple[int, ...]]:
    """Fill features up to an aligned width, if they do not come so.

    Args:
        v: the features.
        *channels: how many vectors there are; those of each part, where it is a concatenation.

    Returns:
        The features, and the channels of their parts: one only if the parts were not filled up.
    """
    from locotrans.kernels.vn_weights import aligned

    given, total = v.shape[-1], sum(channels)
    if given == sum(map(aligned, channels)):
        return v, channels
    if given not in (total, aligned(total)):
        raise ValueError(f"the layer takes {total} vectors a point, not {given}")
    return F.pad(v, (0, aligned(total) - given)), (total,)


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
        self, v: Float[Tensor, "b n 3 c"], neighbors: Int[Tensor, "b n k"], *, wide: bool = False
    ) -> Float[Tensor, "b n 3 d"]:
        """Convolve vectors over the given neighbourhoods.

        Args:
            v: vectors of the points.
            neighbors: the neighbourhoods.
            wide: let zero vectors follow the channels where they do on the way.
        """
        index = global_index(neighbors)
        # one product and one gather serve the vectors and their directions
        parts = [self.linear.weight, self.direction.weight]
        if use_kernels(v):
            from locotrans.kernels.vn_edges import vn_edge_conv
            from locotrans.kernels.vn_weights import pack_edges

            x, weight, channels = v, pack_edges(*parts), self.linear.in_features // 2
            if channels == 1:
                x, weight = narrow(x, 1), weight[:, :1]
            else:
                x, _ = fill_channels(x, channels)
            uw = multiply(x.flatten(0, 1), weight)
            out = vn_edge_conv(uw, index, self.norm.norm.statistics()).unflatten(0, v.shape[:2])
            return out if wide else narrow(out, self.linear.out_features)
        if use_loops(v, training=self.norm.norm.training):
            from locotrans.kernels import cpu

            linear, direction = parts
            out = cpu.vn_edge_conv(v.flatten(0, 1), index, linear, direction, self.norm.norm)
            return out.unflatten(0, v.shape[:2])
        u, w = edge_products(v.flatten(0, 1), torch.cat(parts))  # (m, 3, 2 d) each
        if use_learning_loops(v, training=self.norm.norm.training):
            from locotrans.kernels import learning_vn

            norm = self.norm.norm.statistics()
            return learning_vn.vn_edge_conv(u, w, index, v.shape[1], norm).unflatten(0, v.shape[:2])

        def edges(rows: slice) -> Tensor:
            p, q = (gather(u, index[rows]) + w[rows].unsqueeze(1)).chunk(2, dim=-1)
            return vn_leaky_relu(self.norm(p), q).mean(dim=1)  # of (m, k, 3, d)

        out = by_rows(edges, index, u[0].numel(), self.norm.norm.training)
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
        v = self.layer2(self.layer1(v, mean, wide=True), wide=True)
        if use_kernels(v):
            from locotrans.kernels.vn_weights import pack_layer

            return F.linear(v.to(self.linear.weight.dtype), pack_layer(self.linear.weight, None))
        return self.linear(v)
