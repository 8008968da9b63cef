"""Backward kernels of the last stage, with the maximum; the formulas are in `rpr`."""

from typing import no_type_check

import triton
import triton.language as tl

from locotrans.kernels.rpr_tiles import (
    dot,
    fold,
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
    grad_ptr,  # (n, DP)
    best_ptr,  # (n, DP)
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
    grad_ptr,  # (n, DP)
    best_ptr,  # (n, DP)
    total_ptr,  # (n, DP)
    z_ptr,  # (n, DP)
    norm_ptr,  # (4, DP)
    terms_ptr,  # (3, DP)
    chosen_ptr,  # (n, DP)
    dense_ptr,  # (n, DP)
    dz_ptr,  # (n, DP)
    points,
    k,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """Split the gradient of e into what a point knows, and what depends on the edge (see `rpr`).

    chosen = scale g,  dense = -scale (c1 + c2 rstd (z - mean)) = -q z - t,
    dz = chosen - scale (k c1 + c2 rstd (total - k mean)) = chosen - q total - k t.
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
    q = load_vector(terms_ptr + DP, d, DP)
    t = load_vector(terms_ptr + 2 * DP, d, DP)
    chosen = scale * tl.where(e * scale + shift > 0, g, g * SLOPE)
    store_rows(chosen_ptr, r, d, DP, inside, chosen)
    store_rows(dense_ptr, r, d, DP, inside, -q * z - t)
    store_rows(dz_ptr, r, d, DP, inside, chosen - q * total - k * t)


@triton.jit
@no_type_check
def load_chosen(chosen_ptr, arg_ptr, r, n, cols, DP: tl.constexpr, inside):
    """Form [n is the chosen neighbour] chosen_r, of neighbour n of every point."""
    at = r.to(tl.int64)[:, None] * DP + cols[None, :]
    arg = tl.load(arg_ptr + at, mask=inside[:, None], other=-1)
    chosen = tl.load(chosen_ptr + at, mask=inside[:, None], other=0.0)
    return tl.where(arg.to(tl.int32) == n, chosen.to(tl.float32), 0.0)


@triton.jit
@no_type_check
def max_backward_kernel(
    x_ptr,  # (n k, CP), before its batch norm
    norm_ptr,  # (4, CP)
    weight_ptr,  # (D, C)
    gram_weight_ptr,  # (C, C), if TRAINING
    chosen_ptr,  # (n, DP)
    arg_ptr,  # (n, DP) int8
    base_ptr,  # (n, CP), if TRAINING
    dz_ptr,  # (n k, CP)
    sums_ptr,  # (programs, 2, CP)
    points,
    k,
    C: tl.constexpr,
    D: tl.constexpr,
    CP: tl.constexpr,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    WIDTH: tl.constexpr,
    TRAINING: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """da = [chosen edge] chosen W1 + base + a G, with base = dense W1, G = -W1^T diag(w) W1.

    For WIDTH of the columns of a. A program owns ROWS points and walks through their neighbours;
    the products with COLS rows of W1 follow one another.
    """
    program = tl.program_id(1)
    r = program * ROWS + tl.arange(0, ROWS)
    inside = r < points
    c = tl.arange(0, CP)
    b = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    weights = ()
    for block in tl.static_range(DP // COLS):
        d = block * COLS + tl.arange(0, COLS)
        w = load_matrix(weight_ptr, d, b, C, 1, D, C, PRECISION)  # (COLS, WIDTH)
        weights = weights + (w,)  # noqa: RUF005 (Triton has no unpacking)
    if TRAINING:
        g = load_matrix(gram_weight_ptr, c, b, C, 1, C, C, PRECISION)  # (CP, WIDTH)
    s1 = tl.zeros((ROWS // 16, 8, WIDTH), tl.float32)
    s2 = tl.zeros((ROWS // 16, 8, WIDTH), tl.float32)
    for n in range(k):
        # vectors are loaded here and not before: fewer registers, more programs at a time
        x = load_rows(x_ptr, r * k + n, b, CP, inside)
        z = x * load_vector(norm_ptr, b, CP) + load_vector(norm_ptr + CP, b, CP)
        if TRAINING:
            a = load_rows(x_ptr, r * k + n, c, CP, inside)
            a = a * load_vector(norm_ptr, c, CP) + load_vector(norm_ptr + CP, c, CP)
            da = dot(tl.maximum(a, 0.0), g, PRECISION) + load_rows(base_ptr, r, b, CP, inside)
        else:
            da = tl.zeros((ROWS, WIDTH), tl.float32)
        for block in tl.static_range(DP // COLS):
            d = block * COLS + tl.arange(0, COLS)
            s = load_chosen(chosen_ptr, arg_ptr, r, n, d, DP, inside)
            da += dot(s, weights[block], PRECISION)
        dz = tl.where((z > 0) & inside[:, None], da, 0.0)
        store_rows(dz_ptr, r * k + n, b, CP, inside, dz)
        s1 += fold(dz)
        s2 += fold(dz * (x - load_vector(norm_ptr + 2 * CP, b, CP)))
    rstd = load_vector(norm_ptr + 3 * CP, b, CP)
    store_sums(sums_ptr, program, b, CP, tl.sum(s1, axis=0), tl.sum(s2, axis=0) * rstd)


@triton.jit
@no_type_check
def max_weight_kernel(
    x_ptr,  # (n k, CP), before its batch norm
    norm_ptr,  # (4, CP)
    chosen_ptr,  # (n, DP)
    dense_ptr,  # (n, DP), if TRAINING
    arg_ptr,  # (n, DP) int8
    out_ptr,  # (programs, HEIGHT, CP)
    points,
    k,
    tiles,  # of points, of a program
    CP: tl.constexpr,
    DP: tl.constexpr,
    HEIGHT: tl.constexpr,  # DP + CP if TRAINING, else DP
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TRAINING: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Partial sums of S^T a and, below it if TRAINING, of a^T a; COLS of their rows.

    dW1 = S^T a - diag(w) W1 (a^T a), with S = [chosen edge] chosen + dense. Programs that share
    edges are neighbours in the grid, so x comes from the cache.
    """
    program = tl.program_id(1)
    first = tl.program_id(0) * COLS
    c = tl.arange(0, CP)
    b = tl.arange(0, COLS)
    scale = load_vector(norm_ptr, c, CP)
    shift = load_vector(norm_ptr + CP, c, CP)
    out = tl.zeros((COLS, CP), tl.float32)
    for tile in range(tiles):
        r = (program * tiles + tile) * ROWS + tl.arange(0, ROWS)
        inside = r < points
        if first < DP:
            at = r.to(tl.int64)[:, None] * DP + (first + b)[None, :]
            arg = tl.load(arg_ptr + at, mask=inside[:, None], other=-1)
            chosen = tl.load(chosen_ptr + at, mask=inside[:, None], other=0.0)
            if TRAINING:
                dense = tl.load(dense_ptr + at, mask=inside[:, None], other=0.0)
            for n in range(k):
                x = load_rows(x_ptr, r * k + n, c, CP, inside)
                a = tl.maximum(x * scale + shift, 0.0)
                s = tl.where(arg.to(tl.int32) == n, chosen, 0.0).to(tl.float32)
                if TRAINING:
                    s += dense
                out += dot(tl.trans(s), a, PRECISION)
        else:
            part = first - DP + b
            for n in range(k):
                x = load_rows(x_ptr, r * k + n, c, CP, inside)
                a = tl.maximum(x * scale + shift, 0.0)
                s = load_rows(x_ptr, r * k + n, part, CP, inside) * load_vector(norm_ptr, part, CP)
                s = tl.maximum(s + load_vector(norm_ptr + CP, part, CP), 0.0)
                out += dot(tl.trans(tl.where(inside[:, None], s, 0.0)), a, PRECISION)
    part = out_ptr + program.to(tl.int64) * (HEIGHT * CP)
    store_matrix(part, first + b, c, CP, out)
