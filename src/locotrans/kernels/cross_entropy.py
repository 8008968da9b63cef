r"""The fused cross-entropy with label smoothing, of a batch of shapes.

`cross_entropy` is `torch.nn.functional.cross_entropy` with ``label_smoothing``, s, over c classes::

    log p = z - log sum exp z
    loss = mean over the rows of -(1 - s) log p[label] - s / c sum of log p
    dz = dloss / rows (p - (1 - s) [is the label] - s / c)

One program does it all, dz for dloss = 1 included: a batch has a few thousand numbers, and what
counts is the number of launches.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.kernels import on_device

TILE = 2048  # rows x classes at a time
WARPS = 4


@triton.jit
@no_type_check
def _cross_entropy_kernel(
    logits, labels, loss, gradient, rows, classes, smoothing, ROWS: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """Store the loss and its gradient; a label that is no class makes the loss nan."""
    total = tl.zeros((ROWS,), dtype=tl.float32)
    c = tl.arange(0, C)[None, :]
    for start in range(0, rows, ROWS):
        r = start + tl.arange(0, ROWS)
        mask = (r < rows)[:, None] & (c < classes)
        place = r.to(tl.int64)[:, None] * classes + c
        z = tl.load(logits + place, mask=mask, other=float("-inf")).to(tl.float32)
        label = tl.load(labels + r, mask=r < rows, other=0)
        z -= tl.where(r < rows, tl.max(z, axis=1), 0.0)[:, None]
        exponentials = tl.where(mask, tl.exp(z), 0.0)
        normaliser = tl.where(r < rows, tl.sum(exponentials, axis=1), 1.0)[:, None]
        log_p = tl.where(mask, z - tl.log(normaliser), 0.0)
        target = smoothing / classes + tl.where(c == label[:, None], 1 - smoothing, 0.0)
        valid = (label >= 0) & (label < classes)
        row_loss = tl.where(valid, -tl.sum(target * log_p, axis=1), float("nan"))
        total += tl.where(r < rows, row_loss, 0.0)
        tl.store(gradient + place, (exponentials / normaliser - target) / rows, mask=mask)
    tl.store(loss, tl.sum(total, axis=0) / rows)


class _CrossEntropy(torch.autograd.Function):
    """`cross_entropy` and its derivative."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        logits, labels = logits.contiguous(), labels.contiguous()
        rows, classes = logits.shape
        loss = logits.new_empty((), dtype=torch.float32)
        gradient = torch.empty_like(logits, dtype=torch.float32)
        columns = triton.next_power_of_2(classes)
        tile = {"ROWS": max(1, TILE // columns), "C": columns, "num_warps": WARPS}
        _cross_entropy_kernel[(1,)](
            logits, labels, loss, gradient, rows, classes, smoothing, **tile
        )
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        dlogits = torch.empty_like(gradient, dtype=ctx.dtype)
        return torch.mul(gradient, dloss, out=dlogits), None, None


@on_device
def cross_entropy(
    logits: Float[Tensor, "b classes"], labels: Int[Tensor, "b"], smoothing: float
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy in float32, with ``smoothing`` spread over all classes.

    Degenerate: a label that is no class makes it nan.
    """
    return _CrossEntropy.apply(logits, labels, float(smoothing))
