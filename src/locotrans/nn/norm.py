"""Batch normalisation of channels that lie on the last axis."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.distributed import gather_processes, processes


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the last axis; every other axis (shapes, points, edges) is batch.

    Where several processes train together, the batch is that of all of them. Each must have as
    many rows as the others.
    """

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """Normalise each channel by its mean and variance over all other axes."""
        rows = x.reshape(-1, x.shape[-1])
        if self.training and processes() > 1:
            return self._over_processes(rows).reshape(x.shape)
        return super().forward(rows).reshape(x.shape)

    def _over_processes(self, x: Float[Tensor, "m c"]) -> Float[Tensor, "m c"]:
        """Normalise by the moments of the rows of all processes, in one small exchange."""
        weight, bias, running_mean, running_var, _, momentum, eps = self.statistics()
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        var, mean = torch.var_mean(wide, dim=0, correction=0)
        means, variances = gather_processes(torch.stack([mean, var])).unbind(1)  # each (p, c)
        mean = means.mean(0)
        var = variances.mean(0) + (means - mean).square().mean(0)
        with torch.no_grad():  # running statistics take the unbiased variance
            count = len(x) * processes()
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * count / (count - 1), momentum)
        return ((wide - mean) * torch.rsqrt(var + eps) * weight + bias).to(x.dtype)

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
