"""DGCNN (Wang et al. 2019): edge convolutions on graphs rebuilt in feature space."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.nn.edge import EdgeConv, PointLayer
from locotrans.nn.graph import feature_graph, point_graph


class DGCNN(nn.Module):
    """Edge convolutions, all their outputs concatenated and embedded point by point.

    Symmetry: none; it sees plain coordinates.
    """

    def __init__(
        self, widths: Sequence[int] = (64, 64, 128, 256), channels: int = 1024, k: int = 20
    ) -> None:
        super().__init__()
        self.k = k
        self.channels = channels
        self.convs = nn.ModuleList(
            EdgeConv(c, d) for c, d in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.embed = PointLayer(sum(widths), channels)

    def forward(self, points: Float[Tensor, "b n 3"]) -> Float[Tensor, "b n c"]:
        """Return the features of every point."""
        x = points
        layers: list[Tensor] = []
        for conv in self.convs:
            neighbors = feature_graph(x, self.k) if layers else point_graph(points, self.k)
            x = conv(x, neighbors)
            layers.append(x)
        return self.embed(torch.cat(layers, dim=-1))
