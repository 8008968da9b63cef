"""Forward kernels of the last stage, with the maximum; the formulas are in `rpr`."""

from typing import no_type_check

import triton
import triton.language as tl

from locotrans.kernels.rpr_tiles import (
    dot,
    fold,
    load_matrix,
    load_rows,
    load_vector,
    store_rows,
    store_sums,
)


@triton.jit
@no_type_check
def max_kernel(
    x_ptr,  # (n k, CP), before its batch norm
    norm_ptr,  # (4, CP)
    weight_ptr,  # (D, C), its rows `stride` apart
    z_ptr,  # (n, DP)
    gamma_ptr,  # (D)
    center_ptr,  # (D)
    best_ptr,  # (n, DP)
    arg_ptr,  # (n, DP) int8, if SAVE
    total_ptr,  # (n, DP), if SAVE
    sums_ptr,  # (programs, 2, DP)
    points,
    k,
    stride,
    C: tl.constexpr,
    D: tl.constexpr,
    CP: tl.constexpr,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SAVE: tl.constexpr,
    STATISTICS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """e = W1 relu(bn(x)) + z_r; its extreme over the neighbours, where that is, and its sum.

    Batch norm is monotone in every channel, rising or falling with the sign of gamma: the maximum
    of bn(e) is at the largest or at the smallest e. The first neighbour wins a tie, and wins if
    gamma is 0. What all of them share, z_r, is added last. Programs that share points are
    neighbours in the grid, so x comes from the cache.
    """
    program = tl.program_id(1)
    r = program * ROWS + tl.arange(0, ROWS)
    inside = r < points
    c = tl.arange(0, CP)
    d = tl.program_id(0) * COLS + tl.arange(0, COLS)
    w = load_matrix(weight_ptr, c, d, 1, stride, C, D, PRECISION)  # (CP, COLS)
    gamma = load_vector(gamma_ptr, d, D)
    sign = (gamma > 0).to(tl.float32) - (gamma < 0).to(tl.float32)
    if STATISTICS:
        offset = load_rows(z_ptr, r, d, DP, inside) - load_vector(center_ptr, d, D)
    best = tl.zeros((ROWS, COLS), tl.float32)
    arg = tl.zeros((ROWS, COLS), tl.int32)
    total = tl.zeros((ROWS, COLS), tl.float32)
    squares = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    for n in range(k):
        # vectors are loaded here and not before: fewer registers, more programs at a time
        scale = load_vector(norm_ptr, c, CP)
        shift = load_vector(norm_ptr + CP, c, CP)
        x = load_rows(x_ptr, r * k + n, c, CP, inside)
        e = dot(tl.maximum(x * scale + shift, 0.0), w, PRECISION)
        better = ((e - best) * sign > 0) | (n == 0)
        best = tl.where(better, e, best)
        if SAVE:
            arg = tl.where(better, n, arg)
        if SAVE or STATISTICS:
            total += e
        if STATISTICS:
            difference = tl.where(inside[:, None], e + offset, 0.0)
            squares += fold(difference * difference)
    z = load_rows(z_ptr, r, d, DP, inside)
    store_rows(best_ptr, r, d, DP, inside, best + z)
    if SAVE:
        store_rows(arg_ptr, r, d, DP, inside, arg)
        store_rows(total_ptr, r, d, DP, inside, total + k * z)
    if STATISTICS:
        s1 = tl.where(inside[:, None], total + k * offset, 0.0)
        store_sums(sums_ptr, program, d, DP, s1, tl.sum(squares, axis=0))


@triton.jit
@no_type_check
def output_kernel(
    best_ptr,  # (n, DP)
    norm_ptr,  # (4, DP)
    out_ptr,  # (n, D)
    points,
    D: tl.constexpr,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """out = leaky_relu(bn(best))."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    x = load_rows(best_ptr, r, d, DP, r < points)
    x = x * load_vector(norm_ptr, d, DP) + load_vector(norm_ptr + DP, d, DP)
    mask = (r < points)[:, None] & (d < D)[None, :]
    at = out_ptr + r.to(tl.int64)[:, None] * D + d[None, :]
    tl.store(at, tl.where(x > 0, x, x * SLOPE), mask=mask)
