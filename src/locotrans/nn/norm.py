"""Batch normalisation of channels that lie on the last axis."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.distributed import moments_over_processes, processes
from locotrans.kernels.batch_norm import Norm

_waiting: list[Tensor] | None = None  # counters of batches to be raised together


@contextmanager
def count_together() -> Iterator[None]:
    """Let all batch norms that run inside count their batch at the end, in one operation."""
    global _waiting
    before, _waiting = _waiting, []
    try:
        yield
    finally:
        counters, _waiting = _waiting, before
        if counters:
            torch._foreach_add_(counters, 1)


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
        weight, bias, running_mean, running_var, training, momentum, eps = self.statistics()
        rows = F.batch_norm(rows, running_mean, running_var, weight, bias, training, momentum, eps)
        return rows.reshape(x.shape)

    def _over_processes(self, x: Float[Tensor, "m c"]) -> Float[Tensor, "m c"]:
        """Normalise by the moments of the rows of all processes, in one small exchange."""
        weight, bias, running_mean, running_var, _, momentum, eps = self.statistics()
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        var, mean = torch.var_mean(wide, dim=0, correction=0)
        mean, var = moments_over_processes(mean, var)
        with torch.no_grad():  # running statistics take the unbiased variance
            count = len(x) * processes()
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * count / (count - 1), momentum)
        return ((wide - mean) * torch.rsqrt(var + eps) * weight + bias).to(x.dtype)

    def statistics(self) -> Norm:
        """Return what a fused kernel needs to normalise as this layer does, and count the batch."""
        training = self.training
        if training and self.num_batches_tracked is not None:
            self._count(self.num_batches_tracked)
        assert self.running_mean is not None
        assert self.running_var is not None
        momentum = self.momentum
        if momentum is None:  # the mean over all batches so far, of which this one may wait
            waits = training and _waiting is not None
            momentum = 1 / max(1, int(self.num_batches_tracked or 0) + waits)
        running = (self.running_mean, self.running_var)
        return Norm(self.weight, self.bias, *running, training, momentum, self.eps)

    @staticmethod
    def _count(counter: Tensor) -> None:
        """Count a batch: now, or at the end of `count_together`, which raises a counter once."""
        if _waiting is None or any(counter is c for c in _waiting):
            counter.add_(1)
        else:
            _waiting.append(counter)
