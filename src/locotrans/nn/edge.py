"""Edge convolution (DGCNN): a layer on [x_j - x_r, x_r] for every neighbour j of r, then a max."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.geometry.neighbors import gather
from locotrans.kernels import use_kernels
from locotrans.nn.graph import global_index
from locotrans.nn.norm import BatchNorm

SLOPE = 0.2  # of every leaky ReLU of the paper


def edge_linear(
    x: Shaped[Tensor, "..."],
    neighbors: Int[Tensor, "b n k"],
    weight: Float[Tensor, "d c2"],
) -> Shaped[Tensor, "..."]:
    """Apply a linear layer to the edges [x_j - x_r, x_r], without building them.

    ``W [x_j - x_r; x_r] = W1 x_j + (W2 - W1) x_r``: two products per *point*, k times fewer than
    one per edge; a gather and an add remain.

    Args:
        x: scalar features (b, n, c) or vector features (b, n, 3, c).
        neighbors: indices j of the neighbours of every r.
        weight: W = [W1 W2].

    Returns:
        (b, n, k, d) or (b, n, k, 3, d).
    """
    w1, w2 = weight.chunk(2, dim=-1)
    return gather(F.linear(x, w1), neighbors) + F.linear(x, w2 - w1).unsqueeze(2)


def leaky_max(x: Float[Tensor, "b n k c"]) -> Float[Tensor, "b n c"]:
    """Return the leaky ReLU of the maximum over the neighbours.

    The same as the maximum of the leaky ReLUs, which is monotone, at a k-th of the cost.
    """
    return F.leaky_relu(x.max(dim=2).values, SLOPE)


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
        if use_kernels(x):
            return self._fused(x, neighbors)
        return leaky_max(self.norm(edge_linear(x, neighbors, self.linear.weight)))

    def _fused(
        self, x: Float[Tensor, "b n c"], neighbors: Int[Tensor, "b n k"]
    ) -> Float[Tensor, "b n d"]:
        from locotrans.kernels.edge_max import edge_max

        w1, w2 = self.linear.weight.chunk(2, dim=-1)
        u, w = F.linear(x, torch.cat([w1, w2 - w1])).flatten(0, 1).chunk(2, dim=-1)
        out = edge_max(u, w, global_index(neighbors), *self.norm.statistics())
        return out.unflatten(0, x.shape[:2])


class PointLayer(nn.Module):
    """A linear layer without bias, batch norm and leaky ReLU, for every point alone."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels, bias=False)
        self.norm = BatchNorm(out_channels)

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch d"]:
        """Map the features of every point."""
        return F.leaky_relu(self.norm(self.linear(x)), SLOPE)


def max_mean_pool(x: Float[Tensor, "b n c"]) -> Float[Tensor, "b c2"]:
    """Pool a cloud into one vector: the maximum and the mean over its points, concatenated."""
    return torch.cat([x.max(dim=1).values, x.mean(dim=1)], dim=-1)
