r"""Backward kernels of the relative-pose edge convolution; the formulas are in `rpr`.

The gradient of a stage ``y = W a``, ``a = relu(bn(x))``, with S = dL/dy formed on load::

    da = S W,   dW = S^T a,   dz = da [a > 0]

``dz``, the gradient of bn(x), is stored, with its partial sums ``sum dz`` and ``sum dz xhat``: they
are the gradients of beta and gamma, and what the next stage needs to form its own S::

    S = scale (dz - [training] (sum dz + xhat sum dz xhat) / edges) = p dz - q x - t

Weight gradients are accumulated in registers over the tiles of a program, which writes its own
part, next to its sums; `finish_kernel` adds the parts, and makes the rows p, q and t of S.
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
from locotrans.kernels.tiles import add_vectors, load_vectors


@triton.jit
@no_type_check
def add_parts(pointer, cols, programs, TOTAL: tl.constexpr, ROWS: tl.constexpr):
    """Add some columns of a (programs, TOTAL) tensor."""
    total = tl.zeros((ROWS, cols.shape[0]), tl.float32)
    for first in range(0, programs, ROWS):
        rows = first + tl.arange(0, ROWS)
        mask = (rows < programs)[:, None] & (cols < TOTAL)[None, :]
        at = pointer + rows.to(tl.int64)[:, None] * TOTAL + cols[None, :]
        total += tl.load(at, mask=mask, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
@no_type_check
def finish_kernel(
    parts_ptr,  # (programs, TOTAL)
    norm_ptr,  # (4, CP), if there are sums
    out_ptr,  # (TOTAL)
    terms_ptr,  # (3, CP)
    programs,
    inverse,  # 1 / edges, 0 in evaluation
    TOTAL: tl.constexpr,
    CP: tl.constexpr,  # 0 if there are no such sums
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Add the parts of all programs, whose first 2 CP numbers are sums of dz and dz xhat."""
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    if tl.program_id(0) * COLS < CP:
        s1 = add_parts(parts_ptr, cols, programs, TOTAL, ROWS)
        s2 = add_parts(parts_ptr, CP + cols, programs, TOTAL, ROWS)
        tl.store(out_ptr + cols, s1)
        tl.store(out_ptr + CP + cols, s2)
        scale = tl.load(norm_ptr + cols)
        q = scale * tl.load(norm_ptr + 3 * CP + cols) * s2 * inverse
        tl.store(terms_ptr + cols, scale)
        tl.store(terms_ptr + CP + cols, q)
        t = scale * s1 * inverse - q * tl.load(norm_ptr + 2 * CP + cols)
        tl.store(terms_ptr + 2 * CP + cols, t)
    else:
        total = add_parts(parts_ptr, CP + cols, programs, TOTAL, ROWS)
        tl.store(out_ptr + CP + cols, total, mask=CP + cols < TOTAL)


@triton.jit
@no_type_check
def load_gradient(dz_ptr, x_ptr, terms_ptr, rows, cols, WIDTH: tl.constexpr, inside):
    """Form S, the gradient of x, from that of bn(x); zero where outside."""
    at = rows.to(tl.int64)[:, None] * WIDTH + cols[None, :]
    mask = inside[:, None] & (cols < WIDTH)[None, :]
    dz = tl.load(dz_ptr + at, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    p = load_vector(terms_ptr, cols, WIDTH)
    q = load_vector(terms_ptr + WIDTH, cols, WIDTH)
    t = load_vector(terms_ptr + 2 * WIDTH, cols, WIDTH)
    return tl.where(inside[:, None], p * dz - q * x - t, 0.0)


@triton.jit
@no_type_check
def linear_backward_kernel(
    out_ptr,  # (edges, COP), before its batch norm
    terms_ptr,  # (3, COP)
    out_dz_ptr,  # (edges, COP)
    x_ptr,  # (edges, CIP), before its batch norm
    norm_ptr,  # (4, CIP)
    weight_ptr,  # (CO, CI)
    bias_ptr,  # (CO)
    factor_ptr,  # (n, COP), if MULTIPLY
    index_ptr,  # (edges), if MULTIPLY
    dz_ptr,  # (edges, CIP)
    parts_ptr,  # (programs, SIZE): sums of dz, 2 CIP, dW, COP CIP, and db, COP, if MULTIPLY
    dfactor_ptr,  # (n, COP) float32 zeros, if MULTIPLY
    edges,
    tiles,  # of a program
    CI: tl.constexpr,
    CO: tl.constexpr,
    CIP: tl.constexpr,
    COP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    MULTIPLY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Backward of `linear_kernel`, for COLS of the columns of a (all of them if MULTIPLY).

    The columns of y follow one another in blocks, whose tiles are smaller.
    """
    program = tl.program_id(1)
    b = tl.program_id(0) * COLS + tl.arange(0, COLS)
    # one thread holds rows i and i + 16 of s, unless products without tensor cores shape its tile
    HEIGHT: tl.constexpr = ROWS if PRECISION == "ieee" else 16
    weights = ()
    dweights = ()
    dbiases = ()
    for block in tl.static_range(COP // BLOCK):
        co = block * BLOCK + tl.arange(0, BLOCK)
        w = load_matrix(weight_ptr, co, b, CI, 1, CO, CI, PRECISION)  # (BLOCK, COLS)
        weights = weights + (w,)  # noqa: RUF005 (Triton has no unpacking)
        dweights = dweights + (tl.zeros((BLOCK, COLS), tl.float32),)  # noqa: RUF005
        dbiases = dbiases + (tl.zeros((HEIGHT, BLOCK), tl.float32),)  # noqa: RUF005
    s1 = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    s2 = tl.zeros((ROWS // 16, 8, COLS), tl.float32)
    for t in range(tiles):
        rows = (program * tiles + t) * ROWS + tl.arange(0, ROWS)
        inside = rows < edges
        if MULTIPLY:
            j = tl.load(index_ptr + rows, mask=inside, other=0).to(tl.int64)
        # vectors are loaded here and not before: fewer registers, more programs at a time
        scale = load_vector(norm_ptr, b, CIP)
        shift = load_vector(norm_ptr + CIP, b, CIP)
        x = load_rows(x_ptr, rows, b, CIP, inside)
        a = tl.maximum(x * scale + shift, 0.0)
        da = tl.zeros((ROWS, COLS), tl.float32)
        new_dweights = ()
        new_dbiases = ()
        for block in tl.static_range(COP // BLOCK):
            co = block * BLOCK + tl.arange(0, BLOCK)
            s = load_gradient(out_dz_ptr, out_ptr, terms_ptr, rows, co, COP, inside)
            db = dbiases[block]
            if MULTIPLY:
                # out = kernel factor_j
                kernel = dot(a, tl.trans(weights[block]), PRECISION) + load_vector(bias_ptr, co, CO)
                at = dfactor_ptr + j[:, None] * COP + co[None, :]
                tl.atomic_add(at, s * kernel, mask=inside[:, None], sem="relaxed")
                s *= load_rows(factor_ptr, j, co, COP, inside)
                if PRECISION == "ieee":
                    db += s
                else:
                    db += tl.sum(tl.reshape(s, (ROWS // 16, 16, BLOCK)), axis=0)
            da += dot(s, weights[block], PRECISION)
            dw = dweights[block] + dot(tl.trans(s), a, PRECISION)
            new_dweights = new_dweights + (dw,)  # noqa: RUF005
            new_dbiases = new_dbiases + (db,)  # noqa: RUF005
        dweights = new_dweights
        dbiases = new_dbiases
        dz = tl.where(a > 0, da, 0.0)
        store_rows(dz_ptr, rows, b, CIP, inside, dz)
        s1 += fold(dz)
        s2 += fold(dz * (x - load_vector(norm_ptr + 2 * CIP, b, CIP)))
    rstd = load_vector(norm_ptr + 3 * CIP, b, CIP)
    SIZE: tl.constexpr = 2 * CIP + COP * CIP + (COP if MULTIPLY else 0)
    part = parts_ptr + program.to(tl.int64) * SIZE
    store_sums(part, 0, b, CIP, tl.sum(s1, axis=0), tl.sum(s2, axis=0) * rstd)
    for block in tl.static_range(COP // BLOCK):
        co = block * BLOCK + tl.arange(0, BLOCK)
        store_matrix(part + 2 * CIP, co, b, CIP, dweights[block])
        if MULTIPLY:
            tl.store(part + 2 * CIP + COP * CIP + co, tl.sum(dbiases[block], axis=0))


@triton.jit
@no_type_check
def pose_backward_kernel(
    out_ptr,  # (n k, HP), before its batch norm
    terms_ptr,  # (3, HP)
    out_dz_ptr,  # (n k, HP)
    v_ptr,  # (n, 3, WIDTH)
    frames_ptr,  # (n, 3, 3)
    index_ptr,  # (n, k)
    weight_ptr,  # (H, 3 CV)
    dv_ptr,  # (n, 3, WIDTH) float32 zeros, if VECTORS
    parts_ptr,  # (programs, 3, HB, CVP): dW
    points,
    k,
    CV: tl.constexpr,
    H: tl.constexpr,
    CVP: tl.constexpr,
    HP: tl.constexpr,
    HB: tl.constexpr,  # HP, or 64 if that is more: a narrower product has no fast instruction
    WIDTH: tl.constexpr,
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
    dw0 = tl.zeros((HB, CVP), tl.float32)
    dw1 = tl.zeros((HB, CVP), tl.float32)
    dw2 = tl.zeros((HB, CVP), tl.float32)
    total = tl.zeros((ROWS, HB), tl.float32)
    mask = inside[:, None] & (c < WIDTH)[None, :]
    # four columns at a time, for vectorised additions
    wanted = inside[:, None] & (c < min((CV + 3) // 4 * 4, WIDTH))[None, :]
    for n in range(k):
        s = load_gradient(out_dz_ptr, out_ptr, terms_ptr, r * k + n, h, HP, inside)
        total += s
        j = tl.load(index_ptr + r * k + n, mask=inside, other=0).to(tl.int64)
        # the vectors of r come from the cache: three more tiles would not fit the registers
        x0, x1, x2 = load_vectors(v_ptr, j, WIDTH, c, mask, tl.float32)
        p0, p1, p2 = load_vectors(v_ptr, r, WIDTH, c, mask, tl.float32)
        x0, x1, x2 = x0 - p0, x1 - p1, x2 - p2
        st = tl.trans(s)
        dw0 += dot(st, u00 * x0 + u10 * x1 + u20 * x2, PRECISION)
        dw1 += dot(st, u01 * x0 + u11 * x1 + u21 * x2, PRECISION)
        dw2 += dot(st, u02 * x0 + u12 * x1 + u22 * x2, PRECISION)
        if VECTORS:
            f0 = dot(s, w0, PRECISION)
            f1 = dot(s, w1, PRECISION)
            f2 = dot(s, w2, PRECISION)
            add_vectors(
                dv_ptr, j, WIDTH, c, wanted, u00 * f0 + u01 * f1 + u02 * f2,
                u10 * f0 + u11 * f1 + u12 * f2, u20 * f0 + u21 * f1 + u22 * f2,
            )  # fmt: skip
    part = parts_ptr + program.to(tl.int64) * (3 * HB * CVP)
    store_matrix(part, h, c, CVP, dw0)
    store_matrix(part + HB * CVP, h, c, CVP, dw1)
    store_matrix(part + 2 * HB * CVP, h, c, CVP, dw2)
    if VECTORS:
        f0 = dot(total, w0, PRECISION)
        f1 = dot(total, w1, PRECISION)
        f2 = dot(total, w2, PRECISION)
        add_vectors(
            dv_ptr, r, WIDTH, c, wanted, -(u00 * f0 + u01 * f1 + u02 * f2),
            -(u10 * f0 + u11 * f1 + u12 * f2), -(u20 * f0 + u21 * f1 + u22 * f2),
        )  # fmt: skip
