"""Statistics of batch norm, which many programs find together.

A program strides over the tiles and keeps one partial sum; a small kernel adds those of all
programs, in float64. Forward, these are sums of x - shift and of its square: shifting by one of the
x keeps the digits of a variance that is small beside the mean. Backward, they are dbeta and dgamma.

Where several processes train together, each has a shift of its own: their means and variances are
joined. Backward, their sums are added for the gradient of x; dbeta and dgamma remain those of the
process, like all gradients of parameters.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from locotrans.distributed import moments_over_processes, processes, sum_over_processes
from locotrans.kernels.batch_norm import Norm
from locotrans.kernels.tiles import load_channel

PROGRAMS = 132 * 16  # of a reduction, at most


@triton.jit
@no_type_check
def load_norm(mean, var, weight, bias, c, channels, BN_EPS: tl.constexpr, REAL: tl.constexpr):
    """Load what batch norm needs: the mean, 1 / deviation, gamma and beta of every channel."""
    rstd = 1 / tl.sqrt(load_channel(var, c, channels, REAL) + BN_EPS)
    gamma = load_channel(weight, c, channels, REAL)
    mu = load_channel(mean, c, channels, REAL)
    return mu, rstd, gamma, load_channel(bias, c, channels, REAL)


@triton.jit
@no_type_check
def load_means(sums, c, channels, count, TRAINING: tl.constexpr, REAL: tl.constexpr):
    """Return the means of dy and dy x, from dbeta and dgamma in `sums`; 0 in evaluation."""
    if TRAINING:
        mean_dy = load_channel(sums, c, channels, REAL) / count
        mean_dyx = load_channel(sums + channels, c, channels, REAL) / count
    else:
        mean_dy = tl.zeros((1, c.shape[0]), dtype=REAL)
        mean_dyx = mean_dy
    return mean_dy, mean_dyx


@triton.jit
@no_type_check
def store_partial(partial, program, c, channels, first, second):
    """Store the sums of a program's two tiles over their rows; `partial` is (programs, 2, c)."""
    pointer = partial + program * 2 * channels + c
    tl.store(pointer, tl.sum(first, axis=0), mask=c < channels)
    tl.store(pointer + channels, tl.sum(second, axis=0), mask=c < channels)


@triton.jit
@no_type_check
def _join_partial(partial, c, channels, programs, ROWS: tl.constexpr, C: tl.constexpr):
    """Return both sums of some channels over all programs, in float64."""
    first = tl.zeros((ROWS, C), dtype=tl.float64)
    second = tl.zeros((ROWS, C), dtype=tl.float64)
    for start in range(0, programs, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < programs)[:, None] & (c < channels)[None, :]
        pointer = partial + rows[:, None] * 2 * channels + c[None, :]
        first += tl.load(pointer, mask=mask, other=0.0).to(tl.float64)
        second += tl.load(pointer + channels, mask=mask, other=0.0).to(tl.float64)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
@no_type_check
def _finish_sums(partial, sums, programs, channels, ROWS: tl.constexpr, C: tl.constexpr):
    """Add up the partial sums of all programs; `sums` is (2, c)."""
    c = tl.program_id(0) * C + tl.arange(0, C)
    first, second = _join_partial(partial, c, channels, programs, ROWS, C)
    tl.store(sums + c, first, mask=c < channels)
    tl.store(sums + channels + c, second, mask=c < channels)


@triton.jit
@no_type_check
def _finish_statistics(
    partial, shift, moments, running_mean, running_var, momentum, programs, channels, count,
    ROWS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Turn the partial sums of x - shift and its square into mean and variance, in float64."""
    c = tl.program_id(0) * C + tl.arange(0, C)
    inside = c < channels
    first, second = _join_partial(partial, c, channels, programs, ROWS, C)
    offset = first / count
    mean = tl.load(shift + c, mask=inside, other=0.0).to(tl.float64) + offset
    var = tl.maximum(second / count - offset * offset, 0.0)
    tl.store(moments + c, mean, mask=inside)
    tl.store(moments + channels + c, var, mask=inside)
    # running statistics take the unbiased variance
    old_mean = tl.load(running_mean + c, mask=inside, other=0.0)
    old_var = tl.load(running_var + c, mask=inside, other=0.0)
    tl.store(running_mean + c, old_mean + momentum * (mean - old_mean), mask=inside)
    unbiased = var * count / (count - 1)
    tl.store(running_var + c, old_var + momentum * (unbiased - old_var), mask=inside)


def share_tiles(tiles: int, blocks: int) -> int:
    """Return how many programs share the tiles of one block of channels."""
    return min(tiles, max(1, PROGRAMS // blocks))


def batch_moments(
    partial: Float[Tensor, "programs 2 c"], shift: Float[Tensor, " c"], norm: Norm, count: int
) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """Return mean and biased variance, and update the running statistics in place.

    Args:
        partial: sums of x - shift and of its square.
        shift: one of the x.
        norm: the batch norm.
        count: how many x a channel has in this process.
    """
    if processes() > 1:
        return _moments_of_all(partial, shift, norm, count)
    if count < 2:
        raise ValueError("batch norm in training needs more than one vector a channel; got 1")
    programs, _, channels = partial.shape
    moments = torch.empty_like(partial[0])
    _finish_statistics[(triton.cdiv(channels, 8),)](
        partial, shift, moments, norm.running_mean, norm.running_var, norm.momentum,
        programs, channels, count, **_finish(programs),
    )  # fmt: skip
    mean, var = moments.unbind()
    return mean, var


def _moments_of_all(
    partial: Float[Tensor, "programs 2 c"], shift: Float[Tensor, " c"], norm: Norm, count: int
) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """Do as `batch_moments` where several processes share the batch."""
    offset, square = partial.sum(0, dtype=torch.float64) / count
    var = (square - offset.square()).clamp_min(0)
    mean, var = moments_over_processes(shift + offset, var)
    total = count * processes()
    unbiased = var * total / (total - 1)
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), norm.momentum)
    return mean.to(partial.dtype), var.to(partial.dtype)


def add_partial(partial: Float[Tensor, "programs 2 c"]) -> Float[Tensor, "2 c"]:
    """Return the sums over the programs."""
    programs, _, channels = partial.shape
    sums = torch.empty_like(partial[0])
    _finish_sums[(triton.cdiv(channels, 8),)](
        partial, sums, programs, channels, **_finish(programs)
    )
    return sums


def sums_of_batch(
    sums: Float[Tensor, "2 c"], count: int, training: bool
) -> tuple[Float[Tensor, "2 c"], int]:
    """Return dbeta, dgamma and the count of what batch norm has normalised together.

    That is what all processes have, in training; in evaluation nobody reads them.
    """
    if not training:
        return sums, count
    return sum_over_processes(sums), count * processes()


def _finish(programs: int) -> dict[str, int]:
    """Return the tile that adds up partial sums: few steps, since each waits for memory."""
    rows = min(1024, triton.next_power_of_2(programs))
    return {"ROWS": rows, "C": 8, "num_warps": max(1, rows // 64)}
