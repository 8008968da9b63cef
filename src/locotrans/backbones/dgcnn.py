"""DGCNN (Wang et al. 2019): edge convolutions on graphs rebuilt in feature space."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.nn.edge import EdgeConv, PointLayer
from locotrans.nn.graph import feature_graph, point_graph


class DGCNN(nn.Module):
    """Edge convolutions, all their outputs concatenated and embedded point by point.

    Args:
        widths: channels of the edge convolutions.
        channels: channels of the embedding.
        k: neighbours.
        extra: channels that a point has beside its coordinates.

    Symmetry: none; it sees plain coordinates.
    """

    def __init__(
        self,
        widths: Sequence[int] = (64, 64, 128, 256),
        channels: int = 1024,
        k: int = 20,
        extra: int = 0,
    ) -> None:
        super().__init__()
        self.k = k
        self.channels = channels
        self.convs = nn.ModuleList(
            EdgeConv(c, d) for c, d in zip([3 + extra, *widths[:-1]], widths, strict=True)
        )
        self.embed = PointLayer(sum(widths), channels)

    def forward(self, points: Float[Tensor, "b n 3"]) -> Float[Tensor, "b n c"]:
        """Return the features of every point."""
        return self.embed(self.layers(points))

    def layers(
        self, points: Float[Tensor, "b n 3"], extra: Float[Tensor, "b n e"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """Return the outputs of all edge convolutions, concatenated; the first graph is of space.

        Args:
            points: the clouds.
            extra: further features of every point.
        """
        x = points if extra is None else torch.cat([points, extra], dim=-1)
        layers: list[Tensor] = []
        for conv in self.convs:
            neighbors = feature_graph(x, self.k) if layers else point_graph(points, self.k)
            x = conv(x, neighbors)
            layers.append(x)
        return torch.cat(layers, dim=-1)
