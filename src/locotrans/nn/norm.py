"""Batch normalisation of channels that lie on the last axis."""

from jaxtyping import Float
from torch import Tensor, nn


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the last axis; every other axis (shapes, points, edges) is batch."""

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """Normalise each channel by its mean and variance over all other axes."""
        return super().forward(x.reshape(-1, x.shape[-1])).reshape(x.shape)

    def statistics(self) -> tuple[Tensor, Tensor, Tensor, Tensor, bool, float, float]:
        """Return what a fused kernel needs to normalise as this layer does, and count the batch.

        That is: weight, bias, running mean and variance, whether to normalise by the batch, the
        momentum of the running statistics, and eps.
        """
        training = self.training
        if training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        return (
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            training,
            self.momentum,
            self.eps,
        )
