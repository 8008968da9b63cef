"""A layer that turns with the cloud, and the check that it does."""

import torch

from locotrans.geometry import knn
from locotrans.nn import VNEdgeConv
from locotrans.testing import assert_equivariant

conv = VNEdgeConv(in_channels=1, out_channels=8).double()


def layer(points):
    """Return eight vectors a point, (b, n, 3, 8)."""
    neighbors = knn(points, k=10)
    return conv(points.unsqueeze(-1), neighbors)


points = torch.randn(2, 100, 3, dtype=torch.float64)
error = assert_equivariant(layer, points)
assert error < 1e-12
