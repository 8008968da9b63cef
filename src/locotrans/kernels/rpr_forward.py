"""Forward kernels of the relative-pose edge convolution; the formulas are in `rpr`."""

from typing import no_type_check

import triton
import triton.language as tl

from locotrans.kernels.rpr_tiles import (
    activated,
    dot,
    fold,
    load_frame,
    load_matrix,
    load_rows,
    load_stored,
    load_vector,
    operand,
    store_rows,
    store_sums,
)
from locotrans.kernels.tiles import load_vectors


@triton.jit
@no_type_check
def pose_kernel(
    v_ptr,  # (n, 3, WIDTH)
    frames_ptr,  # (n, 3, 3)
    index_ptr,  # (n, k)
    weight_ptr,  # (H, 3 CV)
    bias_ptr,  # (H)
    center_ptr,  # (H)
    norm_ptr,  # (4, HP), if ACTIVATE
    out_ptr,  # (n k, HP)
    sums_ptr,  # (programs, 2, HP)
    points,
    k,
    CV: tl.constexpr,
    H: tl.constexpr,
    CVP: tl.constexpr,
    HP: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STATISTICS: tl.constexpr,
    ACTIVATE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """h1 = sum over axes a of K_a F_a, plus bias, with F_a = sum over i of U[i, a] (v_j - v_r)[i].

    If ACTIVATE, relu(bn(h1)) is written. A program owns COLS of the columns of h1 at ROWS points,
    and walks through their neighbours.
    """
    program = tl.program_id(1)
    r = program * ROWS + tl.arange(0, ROWS)
    inside = r < points
    c = tl.arange(0, CVP)
    h = tl.program_id(0) * COLS + tl.arange(0, COLS)
    w0 = load_matrix(weight_ptr, c, h, 1, 3 * CV, CV, H, PRECISION)  # (CVP, COLS)
    w1 = load_matrix(weight_ptr + CV, c, h, 1, 3 * CV, CV, H, PRECISION)
    w2 = load_matrix(weight_ptr + 2 * CV, c, h, 1, 3 * CV, CV, H, PRECISION)
    bias = load_vector(bias_ptr, h, H)
    center = load_vector(center_ptr, h, H)
    u00 = load_frame(frames_ptr, r, inside, 0, 0)
    u01 = load_frame(frames_ptr, r, inside, 0, 1)
    u02 = load_frame(frames_ptr, r, inside, 0, 2)
    u10 = load_frame(frames_ptr, r, inside, 1, 0)
    u11 = load_frame(frames_ptr, r, inside, 1, 1)
    u12 = load_frame(frames_ptr, r, inside, 1, 2)
    u20 = load_frame(frames_ptr, r, inside, 2, 0)
    u21 = load_frame(frames_ptr, r, inside, 2, 1)
    u22 = load_frame(frames_ptr, r, inside, 2, 2)
    mask = inside[:, None] & (c < WIDTH)[None, :]
    p0, p1, p2 = load_vectors(v_ptr, r, WIDTH, c, mask, tl.float32)
    s1 = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    s2 = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    for n in range(k):
        j = tl.load(index_ptr + r * k + n, mask=inside, other=0).to(tl.int64)
        x0, x1, x2 = load_vectors(v_ptr, j, WIDTH, c, mask, tl.float32)
        x0, x1, x2 = x0 - p0, x1 - p1, x2 - p2
        out = dot(u00 * x0 + u10 * x1 + u20 * x2, w0, PRECISION)
        out += dot(u01 * x0 + u11 * x1 + u21 * x2, w1, PRECISION)
        out += dot(u02 * x0 + u12 * x1 + u22 * x2, w2, PRECISION)
        out += bias
        if ACTIVATE:
            out = activated(out, norm_ptr, h, HP)
        store_rows(out_ptr, r * k + n, h, HP, inside, out)
        if STATISTICS:
            x = tl.where(inside[:, None], out - center, 0.0)
            s1 += fold(x)
            s2 += fold(x * x)
    if STATISTICS:
        store_sums(sums_ptr, program, h, HP, tl.sum(s1, axis=0), tl.sum(s2, axis=0))


@triton.jit
@no_type_check
def linear_kernel(
    x_ptr,  # (edges, CIP), before its batch norm, or behind it and a ReLU if ACTIVATE
    norm_ptr,  # (4, CIP), unless ACTIVATE
    weight_ptr,  # (CO, CI)
    bias_ptr,  # (CO), unless ACTIVATE
    factor_ptr,  # (n, COP), if MULTIPLY
    index_ptr,  # (edges), if MULTIPLY
    center_ptr,  # (CO), if STATISTICS
    out_norm_ptr,  # (4, COP), with scale * bias in its third row, if ACTIVATE
    out_ptr,  # (edges, COP)
    sums_ptr,  # (programs, 2, COP)
    edges,
    tiles,  # of a program
    CI: tl.constexpr,
    CO: tl.constexpr,
    CIP: tl.constexpr,
    COP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    MULTIPLY: tl.constexpr,
    STATISTICS: tl.constexpr,
    ACTIVATE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """y = W relu(bn(x)) + bias, times the factor of the neighbour j if MULTIPLY.

    If ACTIVATE, relu(bn(x)) is what is read, and relu(bn(y)) what is written. For COLS of the
    columns of y. Programs that share edges are neighbours in the grid, so x comes from the cache.
    """
    program = tl.program_id(1)
    ci = tl.arange(0, CIP)
    co = tl.program_id(0) * COLS + tl.arange(0, COLS)
    if ACTIVATE:  # the scale of the batch norm goes into the matrix before it
        w = load_matrix(weight_ptr, ci, co, 1, CI, CI, CO, "ieee")
        w = operand(w * load_vector(out_norm_ptr, co, COP), PRECISION)
    else:
        w = load_matrix(weight_ptr, ci, co, 1, CI, CI, CO, PRECISION)  # (CIP, COLS)
    s1 = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    s2 = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    for t in range(tiles):
        rows = (program * tiles + t) * ROWS + tl.arange(0, ROWS)
        inside = rows < edges
        if MULTIPLY:
            j = tl.load(index_ptr + rows, mask=inside, other=0).to(tl.int64)
            factor = load_rows(factor_ptr, j, co, COP, inside)
        # vectors are loaded here and not before: fewer registers, more programs at a time
        if ACTIVATE:
            x = load_stored(x_ptr, rows, ci, CIP, inside)
        else:
            scale = load_vector(norm_ptr, ci, CIP)
            shift = load_vector(norm_ptr + CIP, ci, CIP)
            x = load_rows(x_ptr, rows, ci, CIP, inside)
            x = tl.maximum(x * scale + shift, 0.0)
        y = dot(x, w, PRECISION)
        if ACTIVATE:
            y += load_vector(out_norm_ptr + 2 * COP, co, COP)
        else:
            y += load_vector(bias_ptr, co, CO)
        if MULTIPLY:
            y *= factor
        if ACTIVATE:
            y = tl.maximum(y + load_vector(out_norm_ptr + COP, co, COP), 0.0)
        store_rows(out_ptr, rows, co, COP, inside, y)
        if STATISTICS:
            y = tl.where(inside[:, None], y - load_vector(center_ptr, co, CO), 0.0)
            s1 += fold(y)
            s2 += fold(y * y)
    if STATISTICS:
        store_sums(sums_ptr, program, co, COP, tl.sum(s1, axis=0), tl.sum(s2, axis=0))


@triton.jit
@no_type_check
def norm_kernel(
    sums_ptr,  # (programs, 2, CP), if TRAINING
    gamma_ptr,
    beta_ptr,
    mean_ptr,  # running statistics, updated in place if TRAINING
    var_ptr,
    bias_ptr,  # of the layer before, or None
    out_ptr,  # (4, CP): scale, shift, mean (or scale * bias, if that is given), 1 / deviation
    programs,
    count,  # a float: of the edges
    eps,
    momentum,
    C: tl.constexpr,
    CP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    TRAINING: tl.constexpr,
):
    """Make the table of a batch norm, from the batch if TRAINING, else from running statistics."""
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    real = cols < C
    gamma = tl.load(gamma_ptr + cols, mask=real, other=0.0)
    beta = tl.load(beta_ptr + cols, mask=real, other=0.0)
    mean = tl.load(mean_ptr + cols, mask=real, other=0.0)
    var = tl.load(var_ptr + cols, mask=real, other=1.0)
    if TRAINING:
        s1 = tl.zeros((ROWS, COLS), tl.float64)
        s2 = tl.zeros((ROWS, COLS), tl.float64)
        for first in range(0, programs, ROWS):
            rows = first + tl.arange(0, ROWS)
            at = sums_ptr + rows[:, None] * (2 * CP) + cols[None, :]
            inside = (rows < programs)[:, None]
            s1 += tl.load(at, mask=inside, other=0.0).to(tl.float64)
            s2 += tl.load(at + CP, mask=inside, other=0.0).to(tl.float64)
        offset = tl.sum(s1, axis=0) / count
        batch_var = (tl.sum(s2, axis=0) / count - offset * offset).to(tl.float32)
        batch_var = tl.maximum(batch_var, 0.0)
        batch_mean = mean + offset.to(tl.float32)
        unbiased = batch_var * (count / (count - 1))
        tl.store(mean_ptr + cols, mean + momentum * (batch_mean - mean), mask=real)
        tl.store(var_ptr + cols, var + momentum * (unbiased - var), mask=real)
        mean = batch_mean
        var = batch_var
    rstd = 1 / tl.sqrt(var + eps)
    tl.store(out_ptr + cols, gamma * rstd)
    tl.store(out_ptr + CP + cols, beta - mean * gamma * rstd)
    if bias_ptr is None:
        tl.store(out_ptr + 2 * CP + cols, mean)
    else:
        bias = tl.load(bias_ptr + cols, mask=real, other=0.0)
        tl.store(out_ptr + 2 * CP + cols, gamma * rstd * bias)
    tl.store(out_ptr + 3 * CP + cols, rstd)
