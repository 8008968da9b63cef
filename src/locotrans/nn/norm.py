"""Batch normalisation of channels that lie on the last axis."""

from jaxtyping import Float
from torch import Tensor, nn


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the last axis; every other axis (shapes, points, edges) is batch."""

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """Normalise each channel by its mean and variance over all other axes."""
        return super().forward(x.reshape(-1, x.shape[-1])).reshape(x.shape)
