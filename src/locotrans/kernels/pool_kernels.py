"""Kernels of the pooling of invariants; the formulas are in `pool`.

Maxima and means, and their gradients, are (b, 2, 3, ROW): those of v, then those of the shared
vectors, in each row. The places of the maxima are (b, 3, WIDTH) for each of the two.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _load_vectors(
    v, r, c, mask, N_STRIDE: tl.constexpr, S_STRIDE: tl.constexpr, REAL: tl.constexpr
):  # fmt: skip
    """Load the vectors of some points and channels of one cloud."""
    pointer = v + r.to(tl.int64)[:, None] * N_STRIDE + c[None, :]
    x = tl.load(pointer, mask=mask, other=0.0).to(REAL)
    y = tl.load(pointer + S_STRIDE, mask=mask, other=0.0).to(REAL)
    z = tl.load(pointer + 2 * S_STRIDE, mask=mask, other=0.0).to(REAL)
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
def pool_segments(
    v, z, tops, places, totals, n, segments, length, b_stride,
    N_STRIDE: tl.constexpr, S_STRIDE: tl.constexpr, REAL: tl.constexpr,
    POINTS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Pool a segment of `length` points; tops, places and totals are (b, segments, 3, WIDTH).

    Channels beyond WIDTH, up to WIDE, are read and forgotten: whole rows are read several at once.
    """
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
        mask = (r < n)[:, None] & (c < WIDE)[None, :]
        x0, x1, x2 = _load_vectors(v, r, c, mask, N_STRIDE, S_STRIDE, REAL)
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
def pool_clouds(
    tops, places, totals, pooled, argmax, n, segments,
    REAL: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """Join the segments of a cloud: (b, segments, 3, WIDTH) to some channels of `pooled`."""
    blocks = tl.cdiv(3 * WIDTH, C)
    cloud = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)  # of all 3 WIDTH products
    mask = c < 3 * WIDTH
    top = tl.full((C,), float("-inf"), dtype=REAL)
    place = tl.zeros((C,), dtype=tl.int32)
    total = tl.zeros((C,), dtype=REAL)
    for segment in range(segments):
        pointer = (cloud * segments + segment) * 3 * WIDTH + c
        x = tl.load(tops + pointer, mask=mask, other=0.0)
        better = x > top  # later segments have later points
        top = tl.where(better, x, top)
        place = tl.where(better, tl.load(places + pointer, mask=mask, other=0), place)
        total += tl.load(totals + pointer, mask=mask, other=0.0)
    pointer = pooled + cloud * 6 * ROW + (c // WIDTH) * ROW + c % WIDTH
    tl.store(pointer, top, mask=mask)
    tl.store(pointer + 3 * ROW, total / n, mask=mask)
    tl.store(argmax + cloud * 3 * WIDTH + c, place, mask=mask)


@triton.jit
@no_type_check
def _load_gradient(
    grad, argmax, i, c, r, n, REAL: tl.constexpr, WIDTH: tl.constexpr, ROW: tl.constexpr
):  # fmt: skip
    """Load row i of G for some points of a cloud, (points, channels)."""
    mask = c < WIDTH
    top = tl.load(grad + i * ROW + c, mask=mask, other=0.0).to(REAL)
    mean = tl.load(grad + (3 + i) * ROW + c, mask=mask, other=0.0).to(REAL) / n
    place = tl.load(argmax + i * WIDTH + c, mask=mask, other=0)
    return mean[None, :] + tl.where(place[None, :] == r[:, None], top[None, :], 0.0)


@triton.jit
@no_type_check
def pool_gradients(
    v, shared, z, grad, argmax, shared_argmax, dv, dz, n, b_stride,
    N_STRIDE: tl.constexpr, S_STRIDE: tl.constexpr, M_STRIDE: tl.constexpr, SHARED: tl.constexpr,
    REAL: tl.constexpr, POINTS: tl.constexpr, C: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """Store dv and dz of a few points, going through all channels; dv (b, n, 3, WIDE)."""
    blocks = tl.cdiv(n, POINTS)
    cloud = (tl.program_id(0) // blocks).to(tl.int64)
    r = (tl.program_id(0) % blocks) * POINTS + tl.arange(0, POINTS)
    v += cloud * b_stride
    z += cloud * 9 * n
    dv += cloud * n * 3 * WIDE
    grad += cloud * 6 * ROW
    argmax += cloud * 3 * WIDTH
    z00, z10, z20 = _load_column(z, 0, r, n, REAL)
    z01, z11, z21 = _load_column(z, 1, r, n, REAL)
    z02, z12, z22 = _load_column(z, 2, r, n, REAL)
    d00 = tl.zeros((POINTS, C), dtype=REAL)
    d10, d20 = d00, d00
    d01, d11, d21 = d00, d00, d00
    d02, d12, d22 = d00, d00, d00
    for start in range(0, WIDE, C):
        c = start + tl.arange(0, C)
        mask = (r < n)[:, None] & (c < WIDE)[None, :]
        x0, x1, x2 = _load_vectors(v, r, c, mask, N_STRIDE, S_STRIDE, REAL)
        g0 = _load_gradient(grad, argmax, 0, c, r, n, REAL, WIDTH, ROW)
        g1 = _load_gradient(grad, argmax, 1, c, r, n, REAL, WIDTH, ROW)
        g2 = _load_gradient(grad, argmax, 2, c, r, n, REAL, WIDTH, ROW)
        pointer = dv + r.to(tl.int64)[:, None] * (3 * WIDE) + c[None, :]
        tl.store(pointer, z00 * g0 + z01 * g1 + z02 * g2, mask=mask)
        tl.store(pointer + WIDE, z10 * g0 + z11 * g1 + z12 * g2, mask=mask)
        tl.store(pointer + 2 * WIDE, z20 * g0 + z21 * g1 + z22 * g2, mask=mask)
        d00, d01, d02 = d00 + x0 * g0, d01 + x0 * g1, d02 + x0 * g2
        d10, d11, d12 = d10 + x1 * g0, d11 + x1 * g1, d12 + x1 * g2
        d20, d21, d22 = d20 + x2 * g0, d21 + x2 * g1, d22 + x2 * g2
    if SHARED:
        shared += cloud * 3 * M_STRIDE
        shared_argmax += cloud * 3 * WIDTH
        grad += WIDTH
        zero = tl.arange(0, 1)
        for start in range(0, WIDTH, C):
            c = start + tl.arange(0, C)
            x0, x1, x2 = _load_vectors(shared, zero, c, (c < WIDTH)[None, :], 0, M_STRIDE, REAL)
            g0 = _load_gradient(grad, shared_argmax, 0, c, r, n, REAL, WIDTH, ROW)
            g1 = _load_gradient(grad, shared_argmax, 1, c, r, n, REAL, WIDTH, ROW)
            g2 = _load_gradient(grad, shared_argmax, 2, c, r, n, REAL, WIDTH, ROW)
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


@triton.jit
@no_type_check
def shared_gradients(
    z, grad, argmax, dshared, n,
    REAL: tl.constexpr, POINTS: tl.constexpr, C: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """Store axis s of the gradient of the shared vectors of one cloud; dshared (b, 3, WIDE)."""
    blocks = tl.cdiv(WIDE, C)
    row = tl.program_id(0) // blocks
    cloud = (row // 3).to(tl.int64)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    z += cloud * 9 * n + (row % 3) * 3
    grad += cloud * 6 * ROW + WIDTH
    argmax += cloud * 3 * WIDTH
    total = tl.zeros((C,), dtype=REAL)
    for i in range(3):
        part = tl.zeros((POINTS,), dtype=REAL)
        for start in range(0, n, POINTS):
            r = start + tl.arange(0, POINTS)
            part += tl.load(z + r * 9 + i, mask=r < n, other=0.0).to(REAL)
        mask = c < WIDTH
        top = tl.load(grad + i * ROW + c, mask=mask, other=0.0).to(REAL)
        mean = tl.load(grad + (3 + i) * ROW + c, mask=mask, other=0.0).to(REAL)
        place = tl.load(argmax + i * WIDTH + c, mask=mask, other=0)
        chosen = tl.load(z + place * 9 + i, mask=mask, other=0.0).to(REAL)
        total += tl.sum(part, axis=0) / n * mean + chosen * top
    tl.store(dshared + row.to(tl.int64) * WIDE + c, total, mask=c < WIDE)
