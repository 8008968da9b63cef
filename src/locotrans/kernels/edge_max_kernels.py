"""Kernels of the scalar edge convolutions; the formulas are in `edge_max`.

A program has a tile of ROWS points r x C channels, and goes through the neighbours j one by one.
The source of the edges is u (n, source_row) or, when FRAME, the points (n, 3); m (n, 3, m_row) is
used in a FRAME, and w (n, w_row) when OFFSET. What is not used is any tensor.
"""

from typing import no_type_check

import triton
import triton.language as tl

from locotrans.kernels.statistics import load_means, load_norm, store_partial
from locotrans.kernels.tiles import (
    load_channel,
    load_tile,
    load_vectors,
    store_tile,
    store_vectors,
)


@triton.jit
@no_type_check
def _load_points(points, rows, inside, REAL: tl.constexpr):
    """Load the coordinates of some rows of an (n, 3) tensor, as three columns (rows, 1)."""
    pointer = points + rows.to(tl.int64)[:, None] * 3
    x = tl.load(pointer, mask=inside[:, None], other=0.0).to(REAL)
    y = tl.load(pointer + 1, mask=inside[:, None], other=0.0).to(REAL)
    z = tl.load(pointer + 2, mask=inside[:, None], other=0.0).to(REAL)
    return x, y, z


@triton.jit
@no_type_check
def _load_reference(
    source, m, w, r, n, c, m_row, w_row,
    FRAME: tl.constexpr, OFFSET: tl.constexpr, REAL: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Load what reference points give to all their edges: w_r, and in a frame p_r and m_r."""
    inside = r < n
    mask = inside[:, None] & (c < WIDTH)[None, :]
    offset = tl.zeros((r.shape[0], c.shape[0]), dtype=REAL)
    if OFFSET:
        offset = load_tile(w, r, w_row, c, mask, REAL)
    if FRAME:
        x, y, z = _load_points(source, r, inside, REAL)
        mx, my, mz = load_vectors(m, r, m_row, c, mask, REAL)
        return offset, x, y, z, mx, my, mz
    else:
        return offset, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0


@triton.jit
@no_type_check
def _edge(
    source, j, inside, c, mask, source_row, offset, x, y, z, mx, my, mz,
    FRAME: tl.constexpr, REAL: tl.constexpr,
):  # fmt: skip
    """Return e of one edge a row and, in a frame, p_j - p_r as columns (rows, 1)."""
    if FRAME:
        dx, dy, dz = _load_points(source, j, inside, REAL)
        dx, dy, dz = dx - x, dy - y, dz - z
        return offset + mx * dx + my * dy + mz * dz, dx, dy, dz
    else:
        return offset + load_tile(source, j, source_row, c, mask, REAL), 0.0, 0.0, 0.0


@triton.jit
@no_type_check
def _first_edge(
    source, m, w, index, n, c, source_row, m_row, w_row,
    FRAME: tl.constexpr, OFFSET: tl.constexpr, REAL: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return e of edge 0, the shift of the statistics: the same for all programs; (1, channels)."""
    zero = tl.arange(0, 1)
    offset, x, y, z, mx, my, mz = _load_reference(
        source, m, w, zero, n, c, m_row, w_row, FRAME, OFFSET, REAL, WIDTH
    )
    e, _, _, _ = _edge(
        source, tl.load(index + zero), zero < n, c, (c < WIDTH)[None, :], source_row,
        offset, x, y, z, mx, my, mz, FRAME, REAL,
    )  # fmt: skip
    return e


@triton.jit
@no_type_check
def _leaky(e, mean, rstd, gamma, beta, SLOPE: tl.constexpr):
    y = (e - mean) * rstd * gamma + beta
    return tl.where(y > 0, y, SLOPE * y)


@triton.jit
@no_type_check
def _through_leaky(grad, e, mean, rstd, gamma, beta, SLOPE: tl.constexpr):
    """Return g and x of the maximum e."""
    x = (e - mean) * rstd
    return tl.where(x * gamma + beta > 0, grad, SLOPE * grad), x


@triton.jit
@no_type_check
def edge_maxima(
    source, m, w, index, out, best, slot, partial, shift_out, mean, var, weight, bias,
    n, k, channels, programs, source_row, m_row, w_row,
    FRAME: tl.constexpr, OFFSET: tl.constexpr, TRAINING: tl.constexpr, SAVE: tl.constexpr,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store `best` and `slot` over every programs-th tile; and sum e - shift and its square.

    In evaluation, where there is nothing to sum, store the output instead, and those if SAVE.
    """
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    gamma = load_channel(weight, c, channels, REAL)
    sign = tl.where(gamma > 0, 1.0, tl.where(gamma < 0, -1.0, 0.0))
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    shift = tl.zeros((1, C), dtype=REAL)
    if TRAINING:
        shift = _first_edge(
            source, m, w, index, n, c, source_row, m_row, w_row, FRAME, OFFSET, REAL, WIDTH
        )
        if program == 0:
            tl.store(shift_out + c[None, :], shift, mask=(c < channels)[None, :])

    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        offset, x, y, z, mx, my, mz = _load_reference(
            source, m, w, r, n, c, m_row, w_row, FRAME, OFFSET, REAL, WIDTH
        )
        maximum = tl.zeros((ROWS, C), dtype=REAL)
        place = tl.zeros((ROWS, C), dtype=tl.int32)
        edges = index + r.to(tl.int64) * k
        for i in range(k):
            j = tl.load(edges + i, mask=r < n, other=0)
            e, _, _, _ = _edge(
                source, j, r < n, c, mask, source_row, offset, x, y, z, mx, my, mz, FRAME, REAL
            )
            if TRAINING:
                shifted = tl.where(mask, e - shift, 0.0)
                first += shifted
                second += shifted * shifted
            better = (sign * e > sign * maximum) | (i == 0)
            maximum = tl.where(better, e, maximum)
            place = tl.where(better, i, place)
        if TRAINING or SAVE:
            store_tile(best, r, WIDTH, c, mask, maximum)
            store_tile(slot, r, WIDTH, c, mask, place)
        if not TRAINING:
            mu, rstd, _, beta = load_norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
            y_max = _leaky(maximum, mu, rstd, gamma, beta, SLOPE)
            store_tile(out, r, WIDTH, c, mask, y_max)
    if TRAINING:
        store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def edge_output(
    best, out, mean, var, weight, bias, n, channels,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store the output, from the maxima."""
    blocks = tl.cdiv(WIDTH, C)
    r = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    mu, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    maximum = load_tile(best, r, WIDTH, c, mask, REAL)
    store_tile(out, r, WIDTH, c, mask, _leaky(maximum, mu, rstd, gamma, beta, SLOPE))


@triton.jit
@no_type_check
def edge_reductions(
    best, grad, partial, mean, var, weight, bias, n, channels, programs, g_row,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum g and g x*, over every programs-th tile."""
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mu, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        g = load_tile(grad, r, g_row, c, mask, REAL)
        maximum = load_tile(best, r, WIDTH, c, mask, REAL)
        g, x = _through_leaky(g, maximum, mu, rstd, gamma, beta, SLOPE)
        first += g  # 0 outside the mask
        second += g * x
    store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def edge_gradients(
    source, m, w, index, best, slot, grad, sums, du, dm, dw, mean, var, weight, bias,
    n, k, channels, count, source_row, m_row, w_row, g_row,
    FRAME: tl.constexpr, OFFSET: tl.constexpr, TRAINING: tl.constexpr,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add de of every edge to du_j, in memory, and to dw_r or dm_r, in registers."""
    blocks = tl.cdiv(WIDTH, C)
    r = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    mu, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    mean_g, mean_gx = load_means(sums, c, channels, count, TRAINING, REAL)
    g = load_tile(grad, r, g_row, c, mask, REAL)
    maximum = load_tile(best, r, WIDTH, c, mask, REAL)
    g, _ = _through_leaky(g, maximum, mu, rstd, gamma, beta, SLOPE)
    place = load_tile(slot, r, WIDTH, c, mask, tl.int32)
    # de = [e is e*] peak - base - (e - mean) tilt
    peak = gamma * rstd * g
    base = gamma * rstd * mean_g
    tilt = gamma * rstd * rstd * mean_gx
    offset, x, y, z, mx, my, mz = _load_reference(
        source, m, w, r, n, c, m_row, w_row, FRAME, OFFSET, REAL, WIDTH
    )
    total = tl.zeros((ROWS, C), dtype=REAL)
    along_x = tl.zeros((ROWS, C), dtype=REAL)
    along_y = tl.zeros((ROWS, C), dtype=REAL)
    along_z = tl.zeros((ROWS, C), dtype=REAL)
    edges = index + r.to(tl.int64) * k
    for i in range(k):
        j = tl.load(edges + i, mask=r < n, other=0)
        e, dx, dy, dz = _edge(
            source, j, r < n, c, mask, source_row, offset, x, y, z, mx, my, mz, FRAME, REAL
        )
        de = tl.where(place == i, peak, 0.0) - base - (e - mu) * tilt
        total += de
        if FRAME:
            along_x += de * dx
            along_y += de * dy
            along_z += de * dz
        else:
            wanted = mask
            if not TRAINING:
                wanted = mask & (place == i)  # de is 0 elsewhere
            pointer = du + j.to(tl.int64)[:, None] * WIDTH + c[None, :]
            tl.atomic_add(pointer, de, mask=wanted, sem="relaxed")
    if FRAME:
        store_vectors(dm, r, WIDTH, c, mask, along_x, along_y, along_z)
    if OFFSET:
        store_tile(dw, r, WIDTH, c, mask, total)
