"""VN-DGCNN (Deng et al. 2021): DGCNN with vector neurons, an equivariant backbone."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from locotrans.nn.graph import feature_graph, point_graph
from locotrans.nn.vn import VNEdgeConv, VNLayer, narrow


class VNFeatures(NamedTuple):
    """What the equivariant backbone knows of a cloud."""

    vectors: Float[Tensor, "b n 3 c"]
    """The vector features of every point."""
    mean: Float[Tensor, "b 1 3 c"] | None
    """Their mean over the points, if it is to be appended to those of every point."""
    layers: list[Float[Tensor, "b n 3 _"]]
    """The output of every edge convolution."""
    neighbors: list[Int[Tensor, "b n k"]]
    """The graph of every edge convolution; the first one is of coordinates."""


class VNDGCNN(nn.Module):
    """VN edge convolutions, all their outputs concatenated and embedded point by point.

    Args:
        widths: vector channels of the edge convolutions.
        embedding: vector channels of the embedding.
        k: neighbours.
        append_mean: append the mean over the points to the features of every point.

    Symmetry: SO(3)-equivariant, ``h(R p) = R h(p)`` (Eq. 2).
    """

    def __init__(
        self,
        widths: Sequence[int] = (21, 21, 42, 85),
        embedding: int = 341,
        k: int = 20,
        *,
        append_mean: bool = True,
    ) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.k = k
        self.append_mean = append_mean
        self.channels = 2 * embedding if append_mean else embedding
        self.convs = nn.ModuleList(
            VNEdgeConv(c, d) for c, d in zip([1, *widths[:-1]], widths, strict=True)
        )
        self.embed = VNLayer(widths, embedding, shared_direction=True)

    def forward(
        self, points: Float[Tensor, "b n 3"], *, wide: bool = False, bfloat16: bool = False
    ) -> VNFeatures:
        """Return the vector features of every point, layer by layer.

        Args:
            points: the clouds.
            wide: let zero vectors follow the channels where they do on the way, see
                `locotrans.nn.vn`.
            bfloat16: embed so, by kernels. (Edges are differences of neighbours, which it would
                round away.)
        """
        v = points.unsqueeze(-1)  # (b, n, 3, 1): a point is one vector
        layers: list[Tensor] = []
        graphs: list[Tensor] = []
        for conv in self.convs:
            graph = feature_graph(v.flatten(-2), self.k) if layers else point_graph(points, self.k)
            v = conv(v, graph, wide=True)
            layers.append(v)
            graphs.append(graph)
        joined, mean = torch.cat(layers, dim=-1), None
        joined = joined.bfloat16() if bfloat16 else joined
        if self.append_mean:
            v, mean = self.embed.with_mean(joined, wide=wide)
        else:
            v = self.embed(joined, wide=wide)
        if not wide:
            layers = [narrow(x, width) for x, width in zip(layers, self.widths, strict=True)]
        return VNFeatures(v, mean, layers, graphs)
