"""PointNet (Qi et al. 2017): a network for every point alone, aligned by two learned transforms."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.nn.dense import Dense


class TransformNet(nn.Module):
    """Predict one square matrix a cloud from its points; the identity at the start."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.points = nn.Sequential(Dense(channels, 64), Dense(64, 128), Dense(128, 1024))
        self.shape = nn.Sequential(Dense(1024, 512), Dense(512, 256))
        self.matrix = nn.Linear(256, channels * channels)
        nn.init.zeros_(self.matrix.weight)
        nn.init.zeros_(self.matrix.bias)

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b c c"]:
        """Return the matrix that aligns each cloud."""
        offset = self.matrix(self.shape(self.points(x).max(dim=1).values))
        identity = torch.eye(self.channels, dtype=x.dtype, device=x.device)
        return identity + offset.unflatten(-1, (self.channels, self.channels))


class PointNet(nn.Module):
    """Layers shared by all points, with an input and a feature transform.

    Symmetry: none under rotation; equivariant under permutation of the points.
    """

    channels = 1024

    def __init__(self) -> None:
        super().__init__()
        self.input_transform = TransformNet(3)
        self.low = nn.Sequential(Dense(3, 64), Dense(64, 64))
        self.feature_transform = TransformNet(64)
        self.high = nn.Sequential(Dense(64, 64), Dense(64, 128), Dense(128, 1024))

    def forward(self, points: Float[Tensor, "b n 3"]) -> Float[Tensor, "b n c"]:
        """Return the features of every point."""
        x = self.low(points @ self.input_transform(points))
        return self.high(x @ self.feature_transform(x))
