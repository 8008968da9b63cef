r"""Batch norm and leaky ReLU of one vector a shape, in one launch each way.

`norm_act` is what `locotrans.nn.heads.HeadLayer` does between its product and its dropout. A batch
has a few shapes, so a program holds all of them, for some channels::

    x = (y - mean) / sqrt(var + bn_eps)         mean and variance over the shapes, in training
    o = leaky(gamma x + beta)

Backward, with g = leaky' do::

    dbeta = sum g,  dgamma = sum g x
    dy = gamma rstd (g - [training] (dbeta + x dgamma) / shapes)

A pass moves some 100 KB; what counts is the number of launches.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.distributed import processes
from locotrans.kernels import on_device
from locotrans.kernels.batch_norm import Norm
from locotrans.kernels.tiles import load_channel

SHAPES = 256  # at most
TILE = 2048  # shapes x channels of a program, at most
CHANNELS = 32
WARPS = 4


@triton.jit
@no_type_check
def _load_tile(base, r, c, mask, WIDTH: tl.constexpr):
    """Load some channels of all shapes."""
    return tl.load(base + r[:, None] * WIDTH + c[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _norm_act_kernel(
    y, out, moments, running_mean, running_var, weight, bias, m, momentum,
    TRAINING: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store the output of some channels, their mean and 1 / deviation; update the running ones."""
    r, c = tl.arange(0, ROWS), tl.program_id(0) * C + tl.arange(0, C)
    inside = (c < WIDTH)[None, :]
    mask = (r < m)[:, None] & inside
    x = _load_tile(y, r, c, mask, WIDTH)
    mean = load_channel(running_mean, c, WIDTH, tl.float32)
    var = load_channel(running_var, c, WIDTH, tl.float32)
    if TRAINING:
        old_mean, old_var = mean, var
        mean = (tl.sum(x, axis=0) / m)[None, :]
        deviation = tl.where(mask, x - mean, 0.0)
        squares = tl.sum(deviation * deviation, axis=0)[None, :]
        var = squares / m
        # running statistics take the unbiased variance
        unbiased = squares / (m - 1)
        tl.store(running_mean + c[None, :], old_mean + momentum * (mean - old_mean), mask=inside)
        tl.store(running_var + c[None, :], old_var + momentum * (unbiased - old_var), mask=inside)
    rstd = 1 / tl.sqrt(var + BN_EPS)
    tl.store(moments + c[None, :], mean, mask=inside)
    tl.store(moments + WIDTH + c[None, :], rstd, mask=inside)
    gamma = load_channel(weight, c, WIDTH, tl.float32)
    o = (x - mean) * rstd * gamma + load_channel(bias, c, WIDTH, tl.float32)
    tl.store(out + r[:, None] * WIDTH + c[None, :], tl.where(o > 0, o, SLOPE * o), mask=mask)


@triton.jit
@no_type_check
def _norm_act_gradient(
    y, grad, dy, dweight, dbias, moments, weight, bias, m,
    TRAINING: tl.constexpr, SLOPE: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store all gradients of some channels."""
    r, c = tl.arange(0, ROWS), tl.program_id(0) * C + tl.arange(0, C)
    inside = (c < WIDTH)[None, :]
    mask = (r < m)[:, None] & inside
    gamma = load_channel(weight, c, WIDTH, tl.float32)
    rstd = load_channel(moments + WIDTH, c, WIDTH, tl.float32)
    x = (_load_tile(y, r, c, mask, WIDTH) - load_channel(moments, c, WIDTH, tl.float32)) * rstd
    g = _load_tile(grad, r, c, mask, WIDTH)  # 0 outside the mask
    g = tl.where(x * gamma + load_channel(bias, c, WIDTH, tl.float32) > 0, g, SLOPE * g)
    sum_g, sum_gx = tl.sum(g, axis=0)[None, :], tl.sum(g * x, axis=0)[None, :]
    tl.store(dbias + c[None, :], sum_g, mask=inside)
    tl.store(dweight + c[None, :], sum_gx, mask=inside)
    if TRAINING:
        g -= (sum_g + x * sum_gx) / m
    tl.store(dy + r[:, None] * WIDTH + c[None, :], gamma * rstd * g, mask=mask)


class _NormAct(torch.autograd.Function):
    """`norm_act` and its derivative."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, slope: float, *flat: Any) -> Tensor:
        norm = Norm(*flat)
        y = y.contiguous()
        m, width = y.shape
        rows = triton.next_power_of_2(m)
        columns = min(CHANNELS, TILE // rows)
        tile = {"ROWS": rows, "C": columns, "WIDTH": width, "num_warps": WARPS}
        ctx.constants = {"TRAINING": norm.training, "SLOPE": slope, **tile}
        out, moments = torch.empty_like(y), norm.weight.new_empty(2, width)
        _norm_act_kernel[(triton.cdiv(width, columns),)](
            y, out, moments, norm.running_mean, norm.running_var, norm.weight, norm.bias,
            m, norm.momentum, BN_EPS=norm.eps, **ctx.constants,
        )  # fmt: skip
        ctx.save_for_backward(y, norm.weight, norm.bias, moments)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, weight, bias, moments = ctx.saved_tensors
        dy, dweight, dbias = (torch.empty_like(x) for x in (y, weight, bias))
        _norm_act_gradient[(triton.cdiv(y.shape[1], ctx.constants["C"]),)](
            y, grad.contiguous(), dy, dweight, dbias, moments, weight, bias, len(y),
            **ctx.constants,
        )  # fmt: skip
        return dy, None, *Norm.gradients(dweight, dbias)


def supported(y: Tensor, *, training: bool) -> bool:
    """Say whether these are vectors of shapes, few enough, and enough to be normalised.

    Where several processes train together, they are not the whole batch.
    """
    if training and processes() > 1:
        return False
    return y.dim() == 2 and (2 if training else 1) <= len(y) <= SHAPES


@on_device
def norm_act(
    y: Float[Tensor, "b c"],
    norm: Norm,
    slope: float = 0.2,
) -> Float[Tensor, "b c"]:
    """Apply batch norm and leaky ReLU to at most 256 vectors.

    Args:
        y: one vector a shape.
        norm: the batch norm; in training by the statistics of these vectors.
        slope: of the leaky ReLU.

    Returns:
        The new vectors, in the type of y; arithmetic is float32.
    """
    return _NormAct.apply(y, slope, *norm)
