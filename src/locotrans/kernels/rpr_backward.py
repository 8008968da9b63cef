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

from locotrans.kernels.rpr_tiles import (
    dot,
    fold,
    load_frame,
    load_matrix,
    load_rows,
    load_vector,
    store_matrix,
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
    dw = tl.zeros((COP, COLS), tl.float32)
    db = tl.zeros((ROWS, COP), tl.float32)
    s1 = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    s2 = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    for t in range(tiles):
        rows = (program * tiles + t) * ROWS + tl.arange(0, ROWS)
        inside = rows < edges
        if MULTIPLY:
            j = tl.load(index_ptr + rows, mask=inside, other=0).to(tl.int64)
            factor = load_rows(factor_ptr, j, co, COP, inside)
        # vectors are loaded here and not before: fewer registers, more programs at a time
        gp, gq, gt = gradient_terms(out_norm_ptr, out_sums_ptr, co, inverse, COP)
        scale = load_vector(norm_ptr, b, CIP)
        shift = load_vector(norm_ptr + CIP, b, CIP)
        s = load_gradient(out_dz_ptr, out_ptr, gp, gq, gt, rows, co, COP, inside)
        x = load_rows(x_ptr, rows, b, CIP, inside)
        a = tl.maximum(x * scale + shift, 0.0)
        if MULTIPLY:
            # out = kernel factor_j
            kernel = dot(a, tl.trans(w), PRECISION) + load_vector(bias_ptr, co, CO)
            at = dfactor_ptr + j[:, None] * COP + co[None, :]
            tl.atomic_add(at, s * kernel, mask=inside[:, None], sem="relaxed")
            s *= factor
            db += s
        da = dot(s, w, PRECISION)
        dw += dot(tl.trans(s), a, PRECISION)
        dz = tl.where(a > 0, da, 0.0)
        store_rows(dz_ptr, rows, b, CIP, inside, dz)
        s1 += fold(dz)
        s2 += fold(dz * (x - load_vector(norm_ptr + 2 * CIP, b, CIP)))
    rstd = load_vector(norm_ptr + 3 * CIP, b, CIP)
    store_sums(sums_ptr, program, b, CIP, tl.sum(s1, axis=0), tl.sum(s2, axis=0) * rstd)
    store_matrix(dweight_ptr, program, co, b, COP, CIP, dw)
    if MULTIPLY:
        tl.store(dbias_ptr + program * COP + co, tl.sum(db, axis=0))


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
