r"""The fused embedding of points: batch norm, leaky ReLU, maximum and mean over each cloud.

`embed_pool` is what `locotrans.nn.edge.PointLayer` does after its product, and `max_mean_pool` of
what it gives. For every point r of a cloud of n, and every channel::

    x = (y - mean) / sqrt(var + bn_eps)         mean and variance over all points, in training
    o = leaky(gamma x + beta)
    pooled = [max over r of o, mean over r of o]

Backward, with g = leaky' (do + dmean / n + dmax at the point of the maximum)::

    dbeta = sum g,  dgamma = sum g x            over all points
    dy = gamma rstd (g - [training] (dbeta + x dgamma) / points)

Bytes that each pass must move, with V = s c b n, the size of y at s bytes an entry (67 MB for 32
clouds of 1,024 points, c = 1024, bfloat16; 16 us at 4.3 TB/s)::

    statistics   output   reductions   gradients
        V          2 V        V           2 V       (and V for do, if anything but pooled is used)
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.kernels import on_device
from locotrans.kernels.batch_norm import Norm
from locotrans.kernels.statistics import (
    add_partial,
    batch_moments,
    load_means,
    load_norm,
    share_tiles,
    store_partial,
    sums_of_batch,
)
from locotrans.kernels.tiles import arithmetic, load_channel, load_tile, store_tile

# A program's tile is points x channels, 16 of them a thread.
ROWS = 32
CHANNELS = 64
WARPS = 4


@triton.jit
@no_type_check
def _embed_statistics(
    y, partial, shift_out, m, programs,
    REAL: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum y - shift and its square, over every programs-th tile; the shift is the first point."""
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    shift = load_channel(y, c, WIDTH, REAL)
    if program == 0:
        tl.store(shift_out + c[None, :], shift, mask=(c < WIDTH)[None, :])
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(m, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < m)[:, None] & (c < WIDTH)[None, :]
        shifted = tl.where(mask, load_tile(y, r, WIDTH, c, mask, REAL) - shift, 0.0)
        first += shifted
        second += shifted * shifted
    store_partial(partial, program, c, WIDTH, first, second)


@triton.jit
@no_type_check
def _embed_output(
    y, out, pooled, argmax, mean, var, weight, bias, n,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store the output of a cloud and some channels, its maximum, where that is, and its mean."""
    blocks = tl.cdiv(WIDTH, C)
    cloud = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mu, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, WIDTH, BN_EPS, REAL)
    y += cloud * n * WIDTH
    out += cloud * n * WIDTH
    top = tl.full((ROWS, C), float("-inf"), dtype=REAL)
    place = tl.zeros((ROWS, C), dtype=tl.int32)
    total = tl.zeros((ROWS, C), dtype=REAL)
    for start in range(0, n, ROWS):
        r = start + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        o = (load_tile(y, r, WIDTH, c, mask, REAL) - mu) * rstd * gamma + beta
        o = tl.where(o > 0, o, SLOPE * o)
        store_tile(out, r, WIDTH, c, mask, o)
        better = mask & (o > top)  # later tiles have later points
        top = tl.where(better, o, top)
        place = tl.where(better, r[:, None], place)
        total += tl.where(mask, o, 0.0)
    maximum = tl.max(top, axis=0)
    first = tl.min(tl.where(top == maximum[None, :], place, n), axis=0)
    inside = c < WIDTH
    tl.store(pooled + cloud * 2 * WIDTH + c, maximum, mask=inside)
    tl.store(pooled + cloud * 2 * WIDTH + WIDTH + c, tl.sum(total, axis=0) / n, mask=inside)
    tl.store(argmax + cloud * WIDTH + c, first, mask=inside)


@triton.jit
@no_type_check
def _load_pooled(grad, argmax, cloud, c, n, REAL: tl.constexpr, WIDTH: tl.constexpr):
    """Load dmax and dmean / n of a cloud, and where the maximum is, as rows (1, channels)."""
    dmax = load_channel(grad + cloud * 2 * WIDTH, c, WIDTH, REAL)
    dmean = load_channel(grad + cloud * 2 * WIDTH + WIDTH, c, WIDTH, REAL) / n
    return dmax, dmean, load_channel(argmax + cloud * WIDTH, c, WIDTH, tl.int32)


@triton.jit
@no_type_check
def _load_gradient(
    y, dout, dmax, dmean, place, r, c, mask, mu, rstd, gamma, beta,
    EMBEDDED: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return g and x of some points of a cloud; g is 0 outside the mask."""
    x = (load_tile(y, r, WIDTH, c, mask, REAL) - mu) * rstd
    g = dmean + tl.where(place == r[:, None], dmax, 0.0)
    if EMBEDDED:
        g += load_tile(dout, r, WIDTH, c, mask, REAL)
    g = tl.where(mask, g, 0.0)
    return tl.where(x * gamma + beta > 0, g, SLOPE * g), x


@triton.jit
@no_type_check
def _embed_reductions(
    y, dout, grad, argmax, partial, mean, var, weight, bias, n, EMBEDDED: tl.constexpr,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum g and g x over a cloud."""
    blocks = tl.cdiv(WIDTH, C)
    cloud = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mu, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, WIDTH, BN_EPS, REAL)
    dmax, dmean, place = _load_pooled(grad, argmax, cloud, c, n, REAL, WIDTH)
    y += cloud * n * WIDTH
    dout += cloud * n * WIDTH
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for start in range(0, n, ROWS):
        r = start + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        g, x = _load_gradient(
            y, dout, dmax, dmean, place, r, c, mask, mu, rstd, gamma, beta,
            EMBEDDED, SLOPE, REAL, WIDTH,
        )  # fmt: skip
        first += g
        second += g * x
    store_partial(partial, cloud, c, WIDTH, first, second)


@triton.jit
@no_type_check
def _embed_gradients(
    y, dout, grad, argmax, sums, dy, mean, var, weight, bias, n, m,
    EMBEDDED: tl.constexpr, TRAINING: tl.constexpr,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store dy of some points of a cloud."""
    blocks, tiles = tl.cdiv(WIDTH, C), tl.cdiv(n, ROWS)
    tile = tl.program_id(0) // blocks
    cloud = (tile // tiles).to(tl.int64)
    r = (tile % tiles) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    mu, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, WIDTH, BN_EPS, REAL)
    mean_g, mean_gx = load_means(sums, c, WIDTH, m, TRAINING, REAL)
    dmax, dmean, place = _load_pooled(grad, argmax, cloud, c, n, REAL, WIDTH)
    start = cloud * n * WIDTH
    g, x = _load_gradient(
        y + start, dout + start, dmax, dmean, place, r, c, mask, mu, rstd, gamma, beta,
        EMBEDDED, SLOPE, REAL, WIDTH,
    )  # fmt: skip
    store_tile(dy + start, r, WIDTH, c, mask, gamma * rstd * (g - mean_g - x * mean_gx))


class _EmbedPool(torch.autograd.Function):
    """`embed_pool` and its derivative."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, slope: float, *flat: Any) -> tuple[Tensor, Tensor]:
        norm = Norm(*flat)
        y = y.contiguous()
        b, n, width = y.shape
        dtype, real = arithmetic(y)
        blocks = triton.cdiv(width, CHANNELS)
        tile = {"REAL": real, "ROWS": ROWS, "C": CHANNELS, "WIDTH": width, "num_warps": WARPS}
        mean, var = norm.running_mean, norm.running_var
        if norm.training:
            programs = share_tiles(triton.cdiv(b * n, ROWS), blocks)
            partial = y.new_empty(programs, 2, width, dtype=dtype)
            shift = y.new_empty(width, dtype=dtype)
            _embed_statistics[(programs * blocks,)](y, partial, shift, b * n, programs, **tile)
            mean, var = batch_moments(partial, shift, norm, b * n)
        out, pooled = torch.empty_like(y), y.new_empty(b, 2 * width, dtype=dtype)
        argmax = y.new_empty(b, width, dtype=torch.int32)
        constants = {"BN_EPS": norm.eps, "SLOPE": slope, **tile}
        _embed_output[(b * blocks,)](
            y, out, pooled, argmax, mean, var, norm.weight, norm.bias, n, **constants
        )
        ctx.save_for_backward(y, argmax, norm.weight, norm.bias, mean, var)
        ctx.training, ctx.constants = norm.training, constants
        ctx.set_materialize_grads(False)
        return out, pooled

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dout: Tensor | None, dpooled: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        y, argmax, weight, bias, mean, var = ctx.saved_tensors
        b, n, width = y.shape
        embedded = dout is not None
        dout = y if dout is None else dout.contiguous()
        grad = y.new_zeros(b, 2 * width) if dpooled is None else dpooled.contiguous()
        blocks = triton.cdiv(width, CHANNELS)
        partial = y.new_empty(b, 2, width, dtype=arithmetic(y)[0])
        _embed_reductions[(b * blocks,)](
            y, dout, grad, argmax, partial, mean, var, weight, bias, n, EMBEDDED=embedded,
            **ctx.constants,
        )  # fmt: skip
        sums = add_partial(partial)
        dbeta, dgamma = sums.to(weight.dtype).unbind()
        sums, count = sums_of_batch(sums, b * n, ctx.training)
        dy = torch.empty_like(y)
        _embed_gradients[(b * triton.cdiv(n, ROWS) * blocks,)](
            y, dout, grad, argmax, sums, dy, mean, var, weight, bias, n, count,
            EMBEDDED=embedded, TRAINING=ctx.training, **ctx.constants,
        )  # fmt: skip
        return dy, None, *Norm.gradients(dgamma, dbeta)


@on_device
def embed_pool(
    y: Float[Tensor, "b n c"],
    norm: Norm,
    slope: float = 0.2,
) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b c2"]]:
    """Apply batch norm and leaky ReLU to every point, and pool each cloud.

    Args:
        y: the products of every point.
        norm: the batch norm; in training by the statistics of these points.
        slope: of the leaky ReLU.

    Returns:
        The features of every point, in the type of y; their maximum and mean over each cloud, side
        by side, in that of the arithmetic, float32 at least.

    Gradient: that of a maximum goes to the first of equal points. In evaluation the backward pass
        reads the running statistics again.
    """
    if norm.channels != y.shape[-1]:
        raise ValueError(f"y {tuple(y.shape)} and a batch norm of {norm.channels} channels differ")
    return _EmbedPool.apply(y, slope, *norm)
