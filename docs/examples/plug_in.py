"""A small invariant network from the layers, for any task."""

import torch
from torch import nn

from locotrans.geometry import knn
from locotrans.nn import LCRF, FrameConv, PointLayer, VNEdgeConv
from locotrans.testing import assert_equivariant, assert_invariant


class Invariant(nn.Module):
    """Three features of every point that no rotation changes."""

    def __init__(self, k: int = 10) -> None:
        super().__init__()
        self.k = k
        self.vectors = VNEdgeConv(1, 16)  # vectors that turn along
        self.lcrf = LCRF(16)  # two of them become a frame
        self.first = FrameConv(32)  # the neighbours, seen from the frame
        self.last = PointLayer(32, 3)

    def forward(self, points):
        """Return features (b, n, 3), and the frames."""
        neighbors = knn(points, self.k)
        v = self.vectors(points.unsqueeze(-1), neighbors)
        _, frames = self.lcrf(v)
        return {"features": self.last(self.first(points, neighbors, frames)), "frames": frames}


network = Invariant().double()
points = torch.randn(2, 64, 3, dtype=torch.float64)
assert assert_invariant(network, points, output="features") < 1e-9
assert assert_equivariant(network, points, output="frames") < 1e-9

try:
    assert_invariant(PointLayer(3, 3).double(), points)  # sees plain coordinates
except AssertionError as error:
    print(error)
else:
    raise AssertionError("a layer on plain coordinates must fail")
