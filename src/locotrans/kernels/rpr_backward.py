r"""Backward kernels of the relative-pose edge convolution; the formulas are in `rpr`.

The gradient of a stage ``y = W a``, ``a = relu(bn(x))``, with S = dL/dy formed on load::

    da = S W,   dW = S^T a,   dz = da [a > 0]

``dz``, the gradient of bn(x), is stored, with its partial sums ``sum dz`` and ``sum dz xhat``: they
are the gradients of beta and gamma, and what the next stage needs to form its own S::

    S = scale (dz - [training] (sum dz + xhat sum dz xhat) / edges) = p dz - q x - t

Weight gradients are accumulated in registers over the tiles of a program, which writes its own
part; torch adds the parts.
"""

from typing import no_type_check

import triton
import triton.language as tl

from locotrans.kernels.rpr_forward import (
    dot,
    fold,
    load_frame,
    load_matrix,
    load_rows,
    load_vector,
    store_rows,
    store_sums,
)


@triton.jit
@no_type_check
def gradient_terms(norm_ptr, sums_ptr, cols, inverse, WIDTH: tl.constexpr):
    """Return rows p, q and t with S = p dz - q x - t."""
    scale = load_vector(norm_ptr, cols, WIDTH)
    mean = load_vector(norm_ptr + 2 * WIDTH, cols, WIDTH)
    rstd = load_vector(norm_ptr + 3 * WIDTH, cols, WIDTH)
    mean_dz = load_vector(sums_ptr, cols, WIDTH) * inverse
    mean_dzx = load_vector(sums_ptr + WIDTH, cols, WIDTH) * inverse
    q = scale * rstd * mean_dzx
    return scale, q, scale * mean_dz - q * mean


@triton.jit
@no_type_check
def load_gradient(dz_ptr, x_ptr, p, q, t, rows, cols, WIDTH: tl.constexpr, inside):
    """Form S, the gradient of x, from that of bn(x); zero where outside."""
    at = rows.to(tl.int64)[:, None] * WIDTH + cols[None, :]
    mask = inside[:, None] & (cols < WIDTH)[None, :]
    dz = tl.load(dz_ptr + at, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    return tl.where(inside[:, None], p * dz - q * x - t, 0.0)


@triton.jit
@no_type_check
def store_matrix(pointer, program, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, x):
    """Store a block of the (ROWS, COLS) matrix of a program."""
    pointer += program.to(tl.int64) * (ROWS * COLS)
    tl.store(pointer + rows[:, None] * COLS + cols[None, :], x)


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


@triton.jit
@no_type_check
def linear_backward_kernel(
    out_ptr,  # (edges, COP), before its batch norm
    out_norm_ptr,  # (4, COP)
    out_sums_ptr,  # (2, COP)
    out_dz_ptr,  # (edges, COP)
    x_ptr,  # (edges, CIP), before its batch norm
    norm_ptr,  # (4, CIP)
    weight_ptr,  # (CO, CI)
    bias_ptr,  # (CO)
    factor_ptr,  # (n, COP), if MULTIPLY
    index_ptr,  # (edges), if MULTIPLY
    dz_ptr,  # (edges, CIP)
    sums_ptr,  # (programs, 2, CIP)
    dweight_ptr,  # (programs, COP, CIP)
    dbias_ptr,  # (programs, COP), if MULTIPLY
    dfactor_ptr,  # (n, COP) float32 zeros, if MULTIPLY
    edges,
    tiles,  # of a program
    inverse,  # 1 / edges, 0 in evaluation
    CI: tl.constexpr,
    CO: tl.constexpr,
    CIP: tl.constexpr,
    COP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    MULTIPLY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Backward of `linear_kernel`, for COLS of the columns of a (all of them if MULTIPLY)."""
    program = tl.program_id(1)
    co = tl.arange(0, COP)
    b = tl.program_id(0) * COLS + tl.arange(0, COLS)
    w = load_matrix(weight_ptr, co, b, CI, 1, CO, CI, PRECISION)  # (COP, COLS)
    scale = load_vector(norm_ptr, b, CIP)
    shift = load_vector(norm_ptr + CIP, b, CIP)
    mean = load_vector(norm_ptr + 2 * CIP, b, CIP)
    rstd = load_vector(norm_ptr + 3 * CIP, b, CIP)
    gp, gq, gt = gradient_terms(out_norm_ptr, out_sums_ptr, co, inverse, COP)
    dw = tl.zeros((COP, COLS), tl.float32)
    db = tl.zeros((ROWS // 16, 8, COP), tl.float32)
    s1 = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    s2 = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    for t in range(tiles):
        rows = (program * tiles + t) * ROWS + tl.arange(0, ROWS)
        inside = rows < edges
        s = load_gradient(out_dz_ptr, out_ptr, gp, gq, gt, rows, co, COP, inside)
        x = load_rows(x_ptr, rows, b, CIP, inside)
        a = tl.maximum(x * scale + shift, 0.0)
        if MULTIPLY:
            # out = kernel factor_j
            j = tl.load(index_ptr + rows, mask=inside, other=0).to(tl.int64)
            kernel = dot(a, tl.trans(w), PRECISION) + load_vector(bias_ptr, co, CO)
            at = dfactor_ptr + j[:, None] * COP + co[None, :]
            tl.atomic_add(at, s * kernel, mask=inside[:, None], sem="relaxed")
            s *= load_rows(factor_ptr, j, co, COP, inside)
            db += fold(s)
        da = dot(s, w, PRECISION)
        dw += dot(tl.trans(s), a, PRECISION)
        dz = tl.where(a > 0, da, 0.0)
        store_rows(dz_ptr, rows, b, CIP, inside, dz)
        s1 += fold(dz)
        s2 += fold(dz * (x - mean) * rstd)
    store_sums(sums_ptr, program, b, CIP, tl.sum(s1, axis=0), tl.sum(s2, axis=0))
    store_matrix(dweight_ptr, program, co, b, COP, CIP, dw)
    if MULTIPLY:
        tl.store(dbias_ptr + program * COP + co, tl.sum(tl.sum(db, axis=0), axis=0))


@triton.jit
@no_type_check
def pose_backward_kernel(
    out_ptr,  # (m k, HP), before its batch norm
    out_norm_ptr,  # (4, HP)
    out_sums_ptr,  # (2, HP)
    out_dz_ptr,  # (m k, HP)
    v_ptr,  # (n, 3, CVP)
    reference_ptr,  # (m, 3, CVP)
    frames_ptr,  # (m, 3, 3)
    index_ptr,  # (m, k)
    weight_ptr,  # (H, 3 CV)
    dv_ptr,  # (n, 3, CVP) float32 zeros, if VECTORS
    dreference_ptr,  # (m, 3, CVP) float32 zeros, or dv if m is n, if VECTORS
    dweight_ptr,  # (programs, 3, HB, CVP)
    points,
    k,
    inverse,  # 1 / edges, 0 in evaluation
    CV: tl.constexpr,
    H: tl.constexpr,
    CVP: tl.constexpr,
    HP: tl.constexpr,
    HB: tl.constexpr,  # HP, or 64 if that is more: a narrower product has no fast instruction
    ROWS: tl.constexpr,
    VECTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Backward of `pose_kernel`: dF_a = S K_a, dv_j[i] = sum over a of U[i, a] dF_a = -dv_r[i]."""
    program = tl.program_id(0)
    r = program * ROWS + tl.arange(0, ROWS)
    inside = r < points
    c = tl.arange(0, CVP)
    h = tl.arange(0, HB)
    w0 = load_matrix(weight_ptr, h, c, 3 * CV, 1, H, CV, PRECISION)  # (HB, CVP)
    w1 = load_matrix(weight_ptr + CV, h, c, 3 * CV, 1, H, CV, PRECISION)
    w2 = load_matrix(weight_ptr + 2 * CV, h, c, 3 * CV, 1, H, CV, PRECISION)
    u00 = load_frame(frames_ptr, r, inside, 0, 0)
    u01 = load_frame(frames_ptr, r, inside, 0, 1)
    u02 = load_frame(frames_ptr, r, inside, 0, 2)
    u10 = load_frame(frames_ptr, r, inside, 1, 0)
    u11 = load_frame(frames_ptr, r, inside, 1, 1)
    u12 = load_frame(frames_ptr, r, inside, 1, 2)
    u20 = load_frame(frames_ptr, r, inside, 2, 0)
    u21 = load_frame(frames_ptr, r, inside, 2, 1)
    u22 = load_frame(frames_ptr, r, inside, 2, 2)
    gp, gq, gt = gradient_terms(out_norm_ptr, out_sums_ptr, h, inverse, HP)
    dw0 = tl.zeros((HB, CVP), tl.float32)
    dw1 = tl.zeros((HB, CVP), tl.float32)
    dw2 = tl.zeros((HB, CVP), tl.float32)
    total = tl.zeros((ROWS, HB), tl.float32)
    # four columns at a time, for vectorised additions
    wanted = inside[:, None] & (c < (CV + 3) // 4 * 4)[None, :]
    for n in range(k):
        s = load_gradient(out_dz_ptr, out_ptr, gp, gq, gt, r * k + n, h, HP, inside)
        total += s
        j = tl.load(index_ptr + r * k + n, mask=inside, other=0).to(tl.int64)
        # the vectors of r come from the cache: three more tiles would not fit the registers
        x0 = load_rows(v_ptr, j, c, 3 * CVP, inside)
        x0 -= load_rows(reference_ptr, r, c, 3 * CVP, inside)
        x1 = load_rows(v_ptr + CVP, j, c, 3 * CVP, inside)
        x1 -= load_rows(reference_ptr + CVP, r, c, 3 * CVP, inside)
        x2 = load_rows(v_ptr + 2 * CVP, j, c, 3 * CVP, inside)
        x2 -= load_rows(reference_ptr + 2 * CVP, r, c, 3 * CVP, inside)
        st = tl.trans(s)
        dw0 += dot(st, u00 * x0 + u10 * x1 + u20 * x2, PRECISION)
        dw1 += dot(st, u01 * x0 + u11 * x1 + u21 * x2, PRECISION)
        dw2 += dot(st, u02 * x0 + u12 * x1 + u22 * x2, PRECISION)
        if VECTORS:
            f0 = dot(s, w0, PRECISION)
            f1 = dot(s, w1, PRECISION)
            f2 = dot(s, w2, PRECISION)
            at = dv_ptr + j[:, None] * (3 * CVP) + c[None, :]
            tl.atomic_add(at, u00 * f0 + u01 * f1 + u02 * f2, mask=wanted, sem="relaxed")
            tl.atomic_add(at + CVP, u10 * f0 + u11 * f1 + u12 * f2, mask=wanted, sem="relaxed")
            tl.atomic_add(at + 2 * CVP, u20 * f0 + u21 * f1 + u22 * f2, mask=wanted, sem="relaxed")
    store_matrix(dweight_ptr, program * 3, h, c, HB, CVP, dw0)
    store_matrix(dweight_ptr, program * 3 + 1, h, c, HB, CVP, dw1)
    store_matrix(dweight_ptr, program * 3 + 2, h, c, HB, CVP, dw2)
    if VECTORS:
        f0 = dot(total, w0, PRECISION)
        f1 = dot(total, w1, PRECISION)
        f2 = dot(total, w2, PRECISION)
        at = dreference_ptr + r.to(tl.int64)[:, None] * (3 * CVP) + c[None, :]
        tl.atomic_add(at, -(u00 * f0 + u01 * f1 + u02 * f2), mask=wanted, sem="relaxed")
        tl.atomic_add(at + CVP, -(u10 * f0 + u11 * f1 + u12 * f2), mask=wanted, sem="relaxed")
        tl.atomic_add(at + 2 * CVP, -(u20 * f0 + u21 * f1 + u22 * f2), mask=wanted, sem="relaxed")
