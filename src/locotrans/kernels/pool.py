r"""Fused pooling of invariants: inner products with three vectors, their maximum and mean.

`pool_projections` is what `locotrans.nn.vn.VNInvariants` does after its projection, and the pooling
of its features: with ``inv[i, c] = sum over s of z[s, i] v[s, c]`` at every point, the maximum and
the mean of inv over the points of each cloud. The features of the points, (b, n, 3, c), never exist
in memory.

Backward, with G[i, c] = dmean[i, c] / n + dmaximum[i, c] at the point of the maximum, dmean / n at
any other::

    dv[s, c] = sum over i of z[s, i] G[i, c]
    dz[s, i] = sum over c of v[s, c] G[i, c]

Bytes that each pass must move, with V = 3 c s b n, the size of v at s bytes an entry (134 MB for 32
clouds of 1,024 points, c = 341, float32; z is 9 numbers a point, 36 b n, and all else is smaller)::

    forward   V          31 us at 4.3 TB/s
    backward  2 V        62 us
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.kernels.vn import _real

# A program's tile is points x channels, 4 vectors of v a thread. Forward, it keeps maximum, place
# and sum of 3 products for each; backward, 9 sums for dz.
POINTS, CHANNELS = 8, 64
BACK_POINTS, BACK_CHANNELS = 16, 32
WARPS = 4
PROGRAMS = 132 * 8  # at least, if there are points enough: clouds are cut into segments


@triton.jit
@no_type_check
def _load_vectors(v, n_stride, s_stride, r, c, mask, REAL: tl.constexpr):
    """Load the vectors of some points and channels of one cloud."""
    pointer = v + r.to(tl.int64)[:, None] * n_stride + c[None, :]
    x = tl.load(pointer, mask=mask, other=0.0).to(REAL)
    y = tl.load(pointer + s_stride, mask=mask, other=0.0).to(REAL)
    z = tl.load(pointer + 2 * s_stride, mask=mask, other=0.0).to(REAL)
    return x, y, z


@triton.jit
@no_type_check
def _load_column(z, i, r, n, REAL: tl.constexpr):
    """Load the vector z_i of some points of one cloud, as three columns (points, 1)."""
    pointer = z + r.to(tl.int64)[:, None] * 9 + i
    inside = (r < n)[:, None]
    z0 = tl.load(pointer, mask=inside, other=0.0).to(REAL)
    z1 = tl.load(pointer + 3, mask=inside, other=0.0).to(REAL)
    z2 = tl.load(pointer + 6, mask=inside, other=0.0).to(REAL)
    return z0, z1, z2


@triton.jit
@no_type_check
def _update(top, place, total, x, r, mask):
    """Take one more tile of products into maximum, place and sum; of equals the first stays."""
    better = mask & (x > top)  # later tiles have later points
    return tl.where(better, x, top), tl.where(better, r[:, None], place), total + x


@triton.jit
@no_type_check
def _store_segment(tops, places, totals, row, c, n, top, place, total, WIDTH: tl.constexpr):
    """Store maximum, first place and sum over the points of a tile, in a row of (rows, WIDTH)."""
    pointer = row.to(tl.int64) * WIDTH + c
    maximum = tl.max(top, axis=0)
    first = tl.min(tl.where(top == maximum[None, :], place, n), axis=0)
    tl.store(tops + pointer, maximum, mask=c < WIDTH)
    tl.store(places + pointer, first, mask=c < WIDTH)
    tl.store(totals + pointer, tl.sum(total, axis=0), mask=c < WIDTH)


@triton.jit
@no_type_check
def _pool_segments(
    v, z, tops, places, totals, n, segments, length, b_stride, n_stride, s_stride,
    REAL: tl.constexpr, POINTS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Pool a segment of `length` points; tops, places and totals are (b, segments, 3, WIDTH)."""
    blocks = tl.cdiv(WIDTH, C)
    segment = tl.program_id(0) // blocks  # of all clouds
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    cloud = (segment // segments).to(tl.int64)
    v += cloud * b_stride
    z += cloud * 9 * n
    top0 = tl.full((POINTS, C), float("-inf"), dtype=REAL)
    total0 = tl.zeros((POINTS, C), dtype=REAL)
    place0 = tl.zeros((POINTS, C), dtype=tl.int32)
    top1, total1, place1 = top0, total0, place0
    top2, total2, place2 = top0, total0, place0
    start = (segment % segments) * length
    for first in range(start, min(start + length, n), POINTS):
        r = first + tl.arange(0, POINTS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        x0, x1, x2 = _load_vectors(v, n_stride, s_stride, r, c, mask, REAL)
        z0, z1, z2 = _load_column(z, 0, r, n, REAL)
        top0, place0, total0 = _update(
            top0, place0, total0, z0 * x0 + z1 * x1 + z2 * x2, r, mask
        )  # fmt: skip
        z0, z1, z2 = _load_column(z, 1, r, n, REAL)
        top1, place1, total1 = _update(
            top1, place1, total1, z0 * x0 + z1 * x1 + z2 * x2, r, mask
        )  # fmt: skip
        z0, z1, z2 = _load_column(z, 2, r, n, REAL)
        top2, place2, total2 = _update(
            top2, place2, total2, z0 * x0 + z1 * x1 + z2 * x2, r, mask
        )  # fmt: skip
    _store_segment(tops, places, totals, segment * 3, c, n, top0, place0, total0, WIDTH)
    _store_segment(tops, places, totals, segment * 3 + 1, c, n, top1, place1, total1, WIDTH)
    _store_segment(tops, places, totals, segment * 3 + 2, c, n, top2, place2, total2, WIDTH)


@triton.jit
@no_type_check
def _pool_clouds(
    tops, places, totals, maximum, mean, argmax, n, segments, width,
    REAL: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Join the segments of a cloud: (b, segments, width) to (b, width), width the 3 c products."""
    blocks = tl.cdiv(width, C)
    cloud = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = c < width
    top = tl.full((C,), float("-inf"), dtype=REAL)
    place = tl.zeros((C,), dtype=tl.int32)
    total = tl.zeros((C,), dtype=REAL)
    for segment in range(segments):
        pointer = (cloud * segments + segment) * width + c
        x = tl.load(tops + pointer, mask=mask, other=0.0)
        better = x > top  # later segments have later points
        top = tl.where(better, x, top)
        place = tl.where(better, tl.load(places + pointer, mask=mask, other=0), place)
        total += tl.load(totals + pointer, mask=mask, other=0.0)
    tl.store(maximum + cloud * width + c, top, mask=mask)
    tl.store(mean + cloud * width + c, total / n, mask=mask)
    tl.store(argmax + cloud * width + c, place, mask=mask)


@triton.jit
@no_type_check
def _load_gradient(
    grad_max, grad_mean, argmax, row, c, r, n, REAL: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Load a row of G for some points, (points, channels)."""
    pointer = row * WIDTH + c
    mask = c < WIDTH
    mean = tl.load(grad_mean + pointer, mask=mask, other=0.0).to(REAL) / n
    top = tl.load(grad_max + pointer, mask=mask, other=0.0).to(REAL)
    place = tl.load(argmax + pointer, mask=mask, other=0)
    return mean[None, :] + tl.where(place[None, :] == r[:, None], top[None, :], 0.0)


@triton.jit
@no_type_check
def _pool_gradients(
    v, z, grad_max, grad_mean, argmax, dv, dz, n, b_stride, n_stride, s_stride,
    REAL: tl.constexpr, POINTS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store dv and dz of a few points, going through all channels; dv (b, n, 3, WIDTH)."""
    blocks = tl.cdiv(n, POINTS)
    cloud = (tl.program_id(0) // blocks).to(tl.int64)
    r = (tl.program_id(0) % blocks) * POINTS + tl.arange(0, POINTS)
    v += cloud * b_stride
    z += cloud * 9 * n
    dv += cloud * n * 3 * WIDTH
    z00, z10, z20 = _load_column(z, 0, r, n, REAL)
    z01, z11, z21 = _load_column(z, 1, r, n, REAL)
    z02, z12, z22 = _load_column(z, 2, r, n, REAL)
    d00 = tl.zeros((POINTS, C), dtype=REAL)
    d10, d20 = d00, d00
    d01, d11, d21 = d00, d00, d00
    d02, d12, d22 = d00, d00, d00
    for start in range(0, WIDTH, C):
        c = start + tl.arange(0, C)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        x0, x1, x2 = _load_vectors(v, n_stride, s_stride, r, c, mask, REAL)
        g0 = _load_gradient(grad_max, grad_mean, argmax, cloud * 3, c, r, n, REAL, WIDTH)
        g1 = _load_gradient(grad_max, grad_mean, argmax, cloud * 3 + 1, c, r, n, REAL, WIDTH)
        g2 = _load_gradient(grad_max, grad_mean, argmax, cloud * 3 + 2, c, r, n, REAL, WIDTH)
        pointer = dv + r.to(tl.int64)[:, None] * (3 * WIDTH) + c[None, :]
        tl.store(pointer, z00 * g0 + z01 * g1 + z02 * g2, mask=mask)
        tl.store(pointer + WIDTH, z10 * g0 + z11 * g1 + z12 * g2, mask=mask)
        tl.store(pointer + 2 * WIDTH, z20 * g0 + z21 * g1 + z22 * g2, mask=mask)
        d00, d01, d02 = d00 + x0 * g0, d01 + x0 * g1, d02 + x0 * g2
        d10, d11, d12 = d10 + x1 * g0, d11 + x1 * g1, d12 + x1 * g2
        d20, d21, d22 = d20 + x2 * g0, d21 + x2 * g1, d22 + x2 * g2
    pointer = dz + cloud * 9 * n + r.to(tl.int64) * 9
    tl.store(pointer, tl.sum(d00, axis=1), mask=r < n)
    tl.store(pointer + 1, tl.sum(d01, axis=1), mask=r < n)
    tl.store(pointer + 2, tl.sum(d02, axis=1), mask=r < n)
    tl.store(pointer + 3, tl.sum(d10, axis=1), mask=r < n)
    tl.store(pointer + 4, tl.sum(d11, axis=1), mask=r < n)
    tl.store(pointer + 5, tl.sum(d12, axis=1), mask=r < n)
    tl.store(pointer + 6, tl.sum(d20, axis=1), mask=r < n)
    tl.store(pointer + 7, tl.sum(d21, axis=1), mask=r < n)
    tl.store(pointer + 8, tl.sum(d22, axis=1), mask=r < n)


# -------------------------------------------------------------------------------- torch's side


class _Pool(torch.autograd.Function):
    """`pool_projections` and its derivative."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        if v.stride(3) != 1:
            v = v.contiguous()
        z = z.contiguous()
        b, n, _, c = v.shape
        dtype, real = _real(v)
        blocks = triton.cdiv(c, CHANNELS)
        wanted = min(triton.cdiv(PROGRAMS, b * blocks), triton.cdiv(n, POINTS))
        length = POINTS * triton.cdiv(n, POINTS * wanted)
        segments = triton.cdiv(n, length)  # none is empty
        tops = v.new_empty(b, segments, 3, c, dtype=dtype)
        places = torch.empty_like(tops, dtype=torch.int32)
        totals = torch.empty_like(tops)
        _pool_segments[(b * segments * blocks,)](
            v, z, tops, places, totals, n, segments, length, *v.stride()[:3],
            REAL=real, POINTS=POINTS, C=CHANNELS, WIDTH=c, num_warps=WARPS,
        )  # fmt: skip
        maximum, mean = v.new_empty(b, 3, c), v.new_empty(b, 3, c)
        argmax = places.new_empty(b, 3, c)
        _pool_clouds[(b * triton.cdiv(3 * c, 128),)](
            tops, places, totals, maximum, mean, argmax, n, segments, 3 * c,
            REAL=real, C=128, num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(v, z, argmax)
        return maximum, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_max: Tensor, grad_mean: Tensor) -> tuple[Tensor, Tensor]:
        v, z, argmax = ctx.saved_tensors
        b, n, _, c = v.shape
        _, real = _real(v)
        dv = v.new_empty(b, n, 3, c)
        dz = torch.empty_like(z)
        _pool_gradients[(b * triton.cdiv(n, BACK_POINTS),)](
            v, z, grad_max.contiguous(), grad_mean.contiguous(), argmax, dv, dz,
            n, *v.stride()[:3],
            REAL=real, POINTS=BACK_POINTS, C=BACK_CHANNELS, WIDTH=c, num_warps=WARPS,
        )  # fmt: skip
        return dv, dz


def pool_projections(
    v: Float[Tensor, "b n 3 c"], z: Float[Tensor, "b n 3 3"]
) -> tuple[Float[Tensor, "b 3 c"], Float[Tensor, "b 3 c"]]:
    """Return the maximum and the mean over the points of ``Z^T v``.

    Args:
        v: the vectors of every point. Read in place if channels lie side by side.
        z: three vectors of every point, its columns.

    Returns:
        Maximum and mean of each inner product over its cloud, in the type of v; arithmetic is
        float32 at least.

    Symmetry: invariant under O(3), if v and z turn together.
    Gradient: that of a maximum goes to the first of equal points.
    """
    if v.shape[:3] != z.shape[:3] or z.shape[3] != 3:
        raise ValueError(f"v {tuple(v.shape)} and z {tuple(z.shape)} do not belong together")
    return _Pool.apply(v, z)
