"""Edge convolution (DGCNN): a layer on [x_j - x_r, x_r] for every neighbour j of r, then a max."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.geometry.neighbors import gather, global_index
from locotrans.kernels import use_kernels, use_loops
from locotrans.nn.norm import BatchNorm

SLOPE = 0.2  # of every leaky ReLU of the paper
CACHE = 2**18  # numbers of an edge tensor that a CPU works on at a time,
DEVICE_CACHE = 2**26  # and that other devices do


def edge_products(
    x: Shaped[Tensor, "..."], weight: Float[Tensor, "d c2"]
) -> tuple[Shaped[Tensor, "..."], Shaped[Tensor, "..."]]:
    """Return two products per *point* from which a linear layer on edges [x_j - x_r, x_r] follows.

    ``W [x_j - x_r; x_r] = W1 x_j + (W2 - W1) x_r``: k times fewer products than one per edge; a
    gather and an add remain.

    Args:
        x: scalar features (m, c) or vector features (m, 3, c) of m points.
        weight: W = [W1 W2].

    Returns:
        ``W1 x`` and ``(W2 - W1) x``.
    """
    w1, w2 = weight.chunk(2, dim=-1)
    return multiply(x, w1), multiply(x, w2 - w1)


def multiply(
    x: Shaped[Tensor, "*batch c"], weight: Float[Tensor, "d c"]
) -> Shaped[Tensor, "*batch d"]:
    """Return ``W x`` of every point; of one channel number by number, in true float32.

    The edge of a point with itself is ``W1 x + (W2 - W1) x``, a sum in which W1 cancels. With one
    channel and factors that are rounded (TF32), a small W2 can be lost in it at all points at once:
    vectors of length zero remain, with a gradient of 1 / eps, and one step of training throws the
    weights of the channel far away. Backward, the gradient of such an edge is long and nearly
    across x, and cancels in the same way.
    """
    if x.shape[-1] == weight.shape[-1] == 1:
        return x * weight.mT
    return F.linear(x, weight)


def by_rows(
    edges: Callable[[slice], Tensor], index: Int[Tensor, "m k"], channels: int, training: bool
) -> Shaped[Tensor, "..."]:
    """Compute an edge layer for all reference points, or for some at a time where that is the same.

    In evaluation the reference points do not depend on each other. Taking a few at a time bounds
    the memory, and keeps their edges in the cache of a CPU, which is several times faster.

    Args:
        edges: gives the output of a slice of the reference points.
        index: their neighbours.
        channels: numbers that an edge has in its largest tensor.
        training: batch statistics are needed, hence all edges at once.
    """
    rows, k = index.shape
    if training or torch.is_grad_enabled() or torch.compiler.is_exporting():
        return edges(slice(0, rows))
    cache = CACHE if index.device.type == "cpu" else DEVICE_CACHE
    step = max(1, cache // (k * channels))
    return torch.cat([edges(slice(start, start + step)) for start in range(0, rows, step)])


def leaky_max(x: Float[Tensor, "*batch k c"]) -> Float[Tensor, "*batch c"]:
    """Return the leaky ReLU of the maximum over the neighbours.

    The same as the maximum of the leaky ReLUs, which is monotone, at a k-th of the cost.
    """
    return F.leaky_relu(x.max(dim=-2).values, SLOPE)


class EdgeConv(nn.Module):
    """Eq. 14: ``x'_r = max_j phi(x_r, x_j - x_r)``, phi a linear layer, batch norm, leaky ReLU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * in_channels, out_channels, bias=False)
        self.norm = BatchNorm(out_channels)

    def forward(
        self, x: Float[Tensor, "b n c"], neighbors: Int[Tensor, "b n k"]
    ) -> Float[Tensor, "b n d"]:
        """Convolve features over the given neighbourhoods."""
        index = global_index(neighbors)
        if use_loops(x, training=self.norm.training):
            from locotrans.kernels import cpu

            out = cpu.edge_conv(x.flatten(0, 1), index, self.linear.weight, self.norm)
            return out.unflatten(0, x.shape[:2])
        u, w = edge_products(x.flatten(0, 1), self.linear.weight)
        if use_kernels(x):
            from locotrans.kernels.edge_max import edge_max

            out = edge_max(u, w, index, self.norm.statistics())
        else:

            def edges(rows: slice) -> Tensor:
                return leaky_max(self.norm(gather(u, index[rows]) + w[rows].unsqueeze(1)))

            out = by_rows(edges, index, u.shape[1], self.norm.training)
        return out.unflatten(0, x.shape[:2])


class PointLayer(nn.Module):
    """A linear layer without bias, batch norm and leaky ReLU, for every point alone."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels, bias=False)
        self.norm = BatchNorm(out_channels)

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch d"]:
        """Map the features of every point."""
        if use_loops(x, training=self.norm.training):
            from locotrans.kernels import cpu

            return cpu.point_layer(x, *cpu.fold_linear(self.linear, self.norm))
        return F.leaky_relu(self.norm(self.linear(x)), SLOPE)

    def pooled(
        self, x: Float[Tensor, "b n c"]
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b d2"]]:
        """Map the features of every point, and pool them over each cloud by `max_mean_pool`."""
        if use_kernels(x):
            from locotrans.kernels.embed import embed_pool

            return embed_pool(self.linear(x), self.norm.statistics(), SLOPE)
        embedding = self(x)
        return embedding, max_mean_pool(embedding)


def max_mean_pool(x: Float[Tensor, "b n c"]) -> Float[Tensor, "b c2"]:
    """Pool a cloud into one vector: the maximum and the mean over its points, concatenated."""
    if use_loops(x):
        from locotrans.kernels import cpu

        return cpu.max_mean_pool(x)
    return torch.cat([x.max(dim=1).values, x.mean(dim=1)], dim=-1)
