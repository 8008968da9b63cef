"""Backward kernels of the last stage, with the maximum; the formulas are in `rpr`."""

from typing import no_type_check

import triton
import triton.language as tl

from locotrans.kernels.rpr_tiles import (
    dot,
    load_matrix,
    load_rows,
    load_vector,
    store_matrix,
    store_rows,
    store_sums,
)


@triton.jit
@no_type_check
def point_sums_kernel(
    grad_ptr,  # (m, DP)
    best_ptr,  # (m, DP)
    norm_ptr,  # (4, DP)
    sums_ptr,  # (programs, 2, DP)
    points,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """Partial sums of g = dL/dout leaky'(bn(e)) and of g ehat, at the chosen edges."""
    program = tl.program_id(0)
    r = program * ROWS + tl.arange(0, ROWS)
    inside = r < points
    d = tl.program_id(1) * COLS + tl.arange(0, COLS)
    g = load_rows(grad_ptr, r, d, DP, inside)
    e = load_rows(best_ptr, r, d, DP, inside)
    scale = load_vector(norm_ptr, d, DP)
    shift = load_vector(norm_ptr + DP, d, DP)
    mean = load_vector(norm_ptr + 2 * DP, d, DP)
    rstd = load_vector(norm_ptr + 3 * DP, d, DP)
    g = tl.where(e * scale + shift > 0, g, g * SLOPE)
    store_sums(sums_ptr, program, d, DP, g, g * (e - mean) * rstd)


@triton.jit
@no_type_check
def point_terms_kernel(
    grad_ptr,  # (m, DP)
    best_ptr,  # (m, DP)
    total_ptr,  # (m, DP)
    z_ptr,  # (m, DP)
    norm_ptr,  # (4, DP)
    sums_ptr,  # (2, DP)
    chosen_ptr,  # (m, DP)
    dense_ptr,  # (m, DP)
    dz_ptr,  # (m, DP)
    points,
    k,
    inverse,  # 1 / edges, 0 in evaluation
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """Split the gradient of e into what a point knows, and what depends on the edge (see `rpr`).

    chosen = scale g,  dense = -scale (c1 + c2 rstd (z - mean)),
    dz = chosen - scale (k c1 + c2 rstd (total - k mean)).
    """
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = r < points
    d = tl.program_id(1) * COLS + tl.arange(0, COLS)
    g = load_rows(grad_ptr, r, d, DP, inside)
    e = load_rows(best_ptr, r, d, DP, inside)
    total = load_rows(total_ptr, r, d, DP, inside)
    z = load_rows(z_ptr, r, d, DP, inside)
    scale = load_vector(norm_ptr, d, DP)
    shift = load_vector(norm_ptr + DP, d, DP)
    mean = load_vector(norm_ptr + 2 * DP, d, DP)
    rstd = load_vector(norm_ptr + 3 * DP, d, DP)
    c1 = load_vector(sums_ptr, d, DP) * inverse
    c2 = load_vector(sums_ptr + DP, d, DP) * inverse * rstd
    chosen = scale * tl.where(e * scale + shift > 0, g, g * SLOPE)
    dz = chosen - scale * (k * c1 + c2 * (total - k * mean))
    store_rows(chosen_ptr, r, d, DP, inside, chosen)
    store_rows(dense_ptr, r, d, DP, inside, -scale * (c1 + c2 * (z - mean)))
    store_rows(dz_ptr, r, d, DP, inside, dz)


@triton.jit
@no_type_check
def load_max_gradient(chosen_ptr, dense_ptr, arg_ptr, rows, cols, K: tl.constexpr,
                      DP: tl.constexpr, inside, TRAINING: tl.constexpr):  # fmt: skip
    """Form S = [chosen edge] chosen_r + dense_r, the part of the gradient of e that is not of a."""
    r = rows // K
    n = rows - r * K
    at = r.to(tl.int64)[:, None] * DP + cols[None, :]
    arg = tl.load(arg_ptr + at, mask=inside[:, None], other=-1)
    chosen = tl.load(chosen_ptr + at, mask=inside[:, None], other=0.0)
    s = tl.where(arg.to(tl.int32) == n[:, None], chosen.to(tl.float32), 0.0)
    if TRAINING:
        s += tl.load(dense_ptr + at, mask=inside[:, None], other=0.0).to(tl.float32)
    return s


@triton.jit
@no_type_check
def max_backward_kernel(
    x_ptr,  # (edges, CP), before its batch norm
    norm_ptr,  # (4, CP)
    weight_ptr,  # (D, C)
    gram_weight_ptr,  # (C, C), if TRAINING
    chosen_ptr,  # (m, DP)
    dense_ptr,  # (m, DP), if TRAINING
    arg_ptr,  # (m, DP) int8
    dz_ptr,  # (edges, CP)
    sums_ptr,  # (programs, 2, CP)
    edges,
    K: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    CP: tl.constexpr,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TRAINING: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """da = S W1 + a G: the gradient of e is S - diag(w) W1 a, and G = -W1^T diag(w) W1."""
    program = tl.program_id(0)
    rows = program * ROWS + tl.arange(0, ROWS)
    inside = rows < edges
    c = tl.arange(0, CP)
    x = load_rows(x_ptr, rows, c, CP, inside)
    a = x * load_vector(norm_ptr, c, CP) + load_vector(norm_ptr + CP, c, CP)
    if TRAINING:
        g = load_matrix(gram_weight_ptr, c, c, C, 1, C, C, PRECISION)
        da = dot(tl.maximum(a, 0.0), g, PRECISION)
    else:
        da = tl.zeros((ROWS, CP), tl.float32)
    for first in range(0, DP, COLS):
        d = first + tl.arange(0, COLS)
        s = load_max_gradient(chosen_ptr, dense_ptr, arg_ptr, rows, d, K, DP, inside, TRAINING)
        w = load_matrix(weight_ptr, d, c, C, 1, D, C, PRECISION)  # (COLS, CP)
        da += dot(s, w, PRECISION)
    dz = tl.where((a > 0) & inside[:, None], da, 0.0)
    store_rows(dz_ptr, rows, c, CP, inside, dz)
    xhat = (x - load_vector(norm_ptr + 2 * CP, c, CP)) * load_vector(norm_ptr + 3 * CP, c, CP)
    store_sums(sums_ptr, program, c, CP, dz, dz * xhat)


@triton.jit
@no_type_check
def max_weight_kernel(
    x_ptr,  # (edges, CP), before its batch norm
    norm_ptr,  # (4, CP)
    chosen_ptr,  # (m, DP)
    dense_ptr,  # (m, DP), if TRAINING
    arg_ptr,  # (m, DP) int8
    out_ptr,  # (programs, DP, CP), or (programs, CP, CP) if GRAM
    edges,
    tiles,  # of a program
    K: tl.constexpr,
    CP: tl.constexpr,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GRAM: tl.constexpr,
    TRAINING: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Partial sums of S^T a, or of a^T a if GRAM: dW1 = S^T a - diag(w) W1 (a^T a).

    Programs that share edges are neighbours in the grid, so x comes from the cache.
    """
    program = tl.program_id(1)
    c = tl.arange(0, CP)
    b = tl.program_id(0) * COLS + tl.arange(0, COLS)
    scale = load_vector(norm_ptr, c, CP)
    shift = load_vector(norm_ptr + CP, c, CP)
    out = tl.zeros((COLS, CP), tl.float32)
    for t in range(tiles):
        rows = (program * tiles + t) * ROWS + tl.arange(0, ROWS)
        inside = rows < edges
        x = load_rows(x_ptr, rows, c, CP, inside)
        a = tl.where(inside[:, None], tl.maximum(x * scale + shift, 0.0), 0.0)
        if GRAM:
            s = load_rows(x_ptr, rows, b, CP, inside) * load_vector(norm_ptr, b, CP)
            s = tl.maximum(s + load_vector(norm_ptr + CP, b, CP), 0.0)
        else:
            s = load_max_gradient(chosen_ptr, dense_ptr, arg_ptr, rows, b, K, DP, inside, TRAINING)
        out += dot(tl.trans(s), a, PRECISION)
    store_matrix(out_ptr, program, b, c, CP if GRAM else DP, CP, out)
