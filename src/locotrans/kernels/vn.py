r"""Fused vector-neuron layers: length, batch norm of the length, leaky ReLU, mean over neighbours.

`vn_edge_conv` is what `locotrans.nn.vn.VNEdgeConv` does after its two products per point,
`vn_norm_act` what `VNLayer` does after its one. No edge tensor exists in memory: every pass gathers
again, and the backward pass recomputes instead of reading what the forward pass might have stored.

Forward, per edge (r, j) and channel, with vectors p = u_j + w_r and q likewise::

    l = |p| + eps                               length
    x = (l - mean) / sqrt(var + bn_eps)         normalised length
    f = (gamma x + beta) / l                    p' = f p has the length that batch norm gave
    z = |q|^2 + eps,  a = f <p, q>
    t = (1 - slope) min(0, a) / z
    o = f p - t q                               out_r = mean of o over the neighbours

Backward, with g = dL/do (that of out_r, over k), h = <g, q> / z and n = [a <= 0], which is torch's
subgradient of clamp at 0::

    alpha = (1 - slope) n h                     dL/dp' = g - alpha q
    dy = <g - alpha q, p> / l                   of the output of batch norm, y = gamma x + beta
    dbeta = sum dy,  dgamma = sum dy x          over all edges
    dl = gamma rstd (dy - [training] (dbeta + x dgamma) / edges) - f dy
    dp = f (g - alpha q) + dl p / |p|           the last term is 0 at p = 0
    dq = -t g - alpha f p + 2 t h q             from q itself, from <p', q>, from z
    dw_r = sum over j of (dp, dq),  du_j = sum over r of (dp, dq)

Bytes that each pass must move, s bytes an entry. From and to device memory, with V = 3 d s N (one
vector a point and channel: 33 MB for 32 clouds of 1,024 points, d = 85, float32) and du = 24 d N
(float32 always, written as zeros, then read and written)::

            statistics   output   reductions   gradients
    edge       2 V        5 V         5 V       7 V + 3 du     and 4 k N of indices each
    point        V        3 V         3 V       5 V            (a shared q: V, 2 V, 2 V, 3 V)

The gathers come on top, from the L2 cache, where the rows of the clouds at work stay (2 MB each):
3 d s k N for the statistics, 6 d s k N for every other pass, and 24 d k N for the atomic additions
to du. They set the floor of the edge passes: at that size 0.67 GB for the statistics and 1.34 GB
each for the others, twice that for the gradients.

A width may be padded, so that products and rows are aligned: channels beyond those of the batch
norm must be zero, give zero, and get a zero gradient.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

# A program's tile is rows x channels, 2 (edges) or 4 (points) vectors a thread: an edge's gradient
# keeps about 40 numbers a vector in registers.
CHANNELS = 32
EDGE_ROWS = 8
POINT_ROWS = 16
WARPS = 4
PROGRAMS = 132 * 16  # of a reduction, at most: each strides over the rows and keeps one partial sum


@triton.jit
@no_type_check
def _load(base, rows, stride, c, mask, REAL: tl.constexpr):
    """Load the vectors of some rows and channels of an (n, 3, stride) tensor."""
    pointer = base + rows.to(tl.int64)[:, None] * (3 * stride) + c[None, :]
    x = tl.load(pointer, mask=mask, other=0.0).to(REAL)
    y = tl.load(pointer + stride, mask=mask, other=0.0).to(REAL)
    z = tl.load(pointer + 2 * stride, mask=mask, other=0.0).to(REAL)
    return x, y, z


@triton.jit
@no_type_check
def _load_direction(
    q, r, stride, c, n, WIDTH: tl.constexpr, SHARED: tl.constexpr, REAL: tl.constexpr
):  # fmt: skip
    """Load the directions of some rows: one a channel, or one column (rows, 1) for all."""
    if SHARED:
        return _load(q, r, stride, tl.arange(0, 1), (r < n)[:, None], REAL)
    else:
        return _load(q, r, stride, c, (r < n)[:, None] & (c < WIDTH)[None, :], REAL)


@triton.jit
@no_type_check
def _store(base, rows, stride, c, mask, x, y, z):
    """Store the vectors of some rows and channels of an (n, 3, stride) tensor."""
    pointer = base + rows.to(tl.int64)[:, None] * (3 * stride) + c[None, :]
    tl.store(pointer, x, mask=mask)
    tl.store(pointer + stride, y, mask=mask)
    tl.store(pointer + 2 * stride, z, mask=mask)


@triton.jit
@no_type_check
def _scatter(base, rows, stride, c, mask, x, y, z):
    """Add vectors to some rows, which may repeat, of an (n, 3, stride) tensor."""
    pointer = base + rows.to(tl.int64)[:, None] * (3 * stride) + c[None, :]
    tl.atomic_add(pointer, x, mask=mask, sem="relaxed")
    tl.atomic_add(pointer + stride, y, mask=mask, sem="relaxed")
    tl.atomic_add(pointer + 2 * stride, z, mask=mask, sem="relaxed")


@triton.jit
@no_type_check
def _channel(pointer, c, channels, REAL: tl.constexpr):
    """Load one number a channel, as a row (1, c)."""
    return tl.load(pointer + c, mask=c < channels, other=0.0).to(REAL)[None, :]


@triton.jit
@no_type_check
def _norm(mean, var, weight, bias, c, channels, BN_EPS: tl.constexpr, REAL: tl.constexpr):
    """Load what batch norm needs: the mean, 1 / deviation, gamma and beta of every channel."""
    rstd = 1 / tl.sqrt(_channel(var, c, channels, REAL) + BN_EPS)
    gamma = _channel(weight, c, channels, REAL)
    return _channel(mean, c, channels, REAL), rstd, gamma, _channel(bias, c, channels, REAL)


@triton.jit
@no_type_check
def _means(sums, c, channels, count, TRAINING: tl.constexpr, REAL: tl.constexpr):
    """Return the means of dy and dy x, from dbeta and dgamma in `sums`; 0 in evaluation."""
    if TRAINING:
        mean_dy = _channel(sums, c, channels, REAL) / count
        mean_dyx = _channel(sums + channels, c, channels, REAL) / count
    else:
        mean_dy = tl.zeros((1, c.shape[0]), dtype=REAL)
        mean_dyx = mean_dy
    return mean_dy, mean_dyx


@triton.jit
@no_type_check
def _length(x, y, z, EPS: tl.constexpr):
    return tl.sqrt(x * x + y * y + z * z) + EPS


@triton.jit
@no_type_check
def _activate(
    px, py, pz, qx, qy, qz, mean, rstd, gamma, beta, EPS: tl.constexpr, SLOPE: tl.constexpr
):  # fmt: skip
    """Return f and t, for the output f p - t q."""
    length = _length(px, py, pz, EPS)
    f = ((length - mean) * rstd * gamma + beta) / length
    along = tl.minimum(f * (px * qx + py * qy + pz * qz), 0.0)
    t = (1 - SLOPE) * along / (qx * qx + qy * qy + qz * qz + EPS)
    return f, t


@triton.jit
@no_type_check
def _adjoint(
    px, py, pz, qx, qy, qz, gx, gy, gz, mean, rstd, gamma, beta,
    EPS: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Return |p|, x, f, t, alpha, h and dy of the formulas above."""
    norm = _length(px, py, pz, 0.0)
    length = norm + EPS
    x = (length - mean) * rstd
    f = (x * gamma + beta) / length
    pq = px * qx + py * qy + pz * qz
    z = qx * qx + qy * qy + qz * qz + EPS
    h = (gx * qx + gy * qy + gz * qz) / z
    t = (1 - SLOPE) * tl.minimum(f * pq, 0.0) / z
    alpha = tl.where(f * pq <= 0, (1 - SLOPE) * h, 0.0)
    dy = (gx * px + gy * py + gz * pz - alpha * pq) / length
    return norm, x, f, t, alpha, h, dy


@triton.jit
@no_type_check
def _gradient(
    px, py, pz, qx, qy, qz, gx, gy, gz, mean, rstd, gamma, beta, mean_dy, mean_dyx,
    EPS: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Return dp and dq."""
    norm, x, f, t, alpha, h, dy = _adjoint(
        px, py, pz, qx, qy, qz, gx, gy, gz, mean, rstd, gamma, beta, EPS, SLOPE
    )
    dl = gamma * rstd * (dy - mean_dy - x * mean_dyx) - f * dy
    s = dl / tl.where(norm > 0, norm, 1.0)  # at p = 0 anything finite will do: it multiplies p
    dpx = f * (gx - alpha * qx) + s * px
    dpy = f * (gy - alpha * qy) + s * py
    dpz = f * (gz - alpha * qz) + s * pz
    dqx = 2 * t * h * qx - t * gx - alpha * f * px
    dqy = 2 * t * h * qy - t * gy - alpha * f * py
    dqz = 2 * t * h * qz - t * gz - alpha * f * pz
    return dpx, dpy, dpz, dqx, dqy, dqz


# ---------------------------------------------------------------------------------- statistics


@triton.jit
@no_type_check
def _store_partial(partial, program, c, channels, first, second):
    """Store the sums of a program's two tiles over their rows; `partial` is (programs, 2, c)."""
    pointer = partial + program * 2 * channels + c
    tl.store(pointer, tl.sum(first, axis=0), mask=c < channels)
    tl.store(pointer + channels, tl.sum(second, axis=0), mask=c < channels)


@triton.jit
@no_type_check
def _finish_statistics(
    partial, shift, moments, running_mean, running_var, momentum, programs, channels, count,
    ROWS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Turn the partial sums of l - shift and its square into mean and variance, in float64.

    Shifting by one of the lengths keeps the digits of a variance that is small beside the mean.
    """
    c = tl.program_id(0) * C + tl.arange(0, C)
    inside = c < channels
    first = tl.zeros((ROWS, C), dtype=tl.float64)
    second = tl.zeros((ROWS, C), dtype=tl.float64)
    for start in range(0, programs, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < programs)[:, None] & inside[None, :]
        pointer = partial + rows[:, None] * 2 * channels + c[None, :]
        first += tl.load(pointer, mask=mask, other=0.0).to(tl.float64)
        second += tl.load(pointer + channels, mask=mask, other=0.0).to(tl.float64)
    offset = tl.sum(first, axis=0) / count
    mean = tl.load(shift + c, mask=inside, other=0.0).to(tl.float64) + offset
    var = tl.maximum(tl.sum(second, axis=0) / count - offset * offset, 0.0)
    tl.store(moments + c, mean, mask=inside)
    tl.store(moments + channels + c, var, mask=inside)
    # running statistics take the unbiased variance
    old_mean = tl.load(running_mean + c, mask=inside, other=0.0)
    old_var = tl.load(running_var + c, mask=inside, other=0.0)
    tl.store(running_mean + c, old_mean + momentum * (mean - old_mean), mask=inside)
    unbiased = var * count / (count - 1)
    tl.store(running_var + c, old_var + momentum * (unbiased - old_var), mask=inside)


# --------------------------------------------------------------------------------------- edges
# u, w (n, 3, 2 WIDTH): p, then q, in each row; index (n, k); out (n, 3, WIDTH).
# A program has a tile of ROWS points r x C channels, and goes through the neighbours j one by one.


@triton.jit
@no_type_check
def _edge_statistics(
    u, w, index, partial, shift_out, n, k, channels, programs,
    EPS: tl.constexpr, REAL: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum l - shift and its square, over the edges of every programs-th tile."""
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    # the shift is the length of edge 0, the same for all programs
    zero = tl.arange(0, 1)
    x1, y1, z1 = _load(u, tl.load(index + zero), 2 * WIDTH, c, (c < WIDTH)[None, :], REAL)
    x2, y2, z2 = _load(w, zero, 2 * WIDTH, c, (c < WIDTH)[None, :], REAL)
    shift = _length(x1 + x2, y1 + y2, z1 + z2, EPS)  # (1, C)
    if program == 0:
        tl.store(shift_out + c[None, :], shift, mask=(c < channels)[None, :])

    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        rx, ry, rz = _load(w, r, 2 * WIDTH, c, mask, REAL)
        edge = index + r.to(tl.int64) * k
        for i in range(k):
            j = tl.load(edge + i, mask=r < n, other=0)
            jx, jy, jz = _load(u, j, 2 * WIDTH, c, mask, REAL)
            length = tl.where(mask, _length(jx + rx, jy + ry, jz + rz, EPS) - shift, 0.0)
            first += length
            second += length * length
    _store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def _edge_output(
    u, w, index, out, mean, var, weight, bias, n, k, channels,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store the mean of o = f p - t q over the neighbours."""
    blocks = tl.cdiv(WIDTH, C)
    r = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    px_r, py_r, pz_r = _load(w, r, 2 * WIDTH, c, mask, REAL)
    qx_r, qy_r, qz_r = _load(w + WIDTH, r, 2 * WIDTH, c, mask, REAL)
    ox = tl.zeros((ROWS, C), dtype=REAL)
    oy = tl.zeros((ROWS, C), dtype=REAL)
    oz = tl.zeros((ROWS, C), dtype=REAL)
    edge = index + r.to(tl.int64) * k
    for i in range(k):
        j = tl.load(edge + i, mask=r < n, other=0)
        px, py, pz = _load(u, j, 2 * WIDTH, c, mask, REAL)
        qx, qy, qz = _load(u + WIDTH, j, 2 * WIDTH, c, mask, REAL)
        px, py, pz = px + px_r, py + py_r, pz + pz_r
        qx, qy, qz = qx + qx_r, qy + qy_r, qz + qz_r
        f, t = _activate(px, py, pz, qx, qy, qz, m, rstd, gamma, beta, EPS, SLOPE)
        ox += f * px - t * qx
        oy += f * py - t * qy
        oz += f * pz - t * qz
    _store(out, r, WIDTH, c, mask, ox / k, oy / k, oz / k)


@triton.jit
@no_type_check
def _edge_reductions(
    u, w, index, grad, partial, mean, var, weight, bias, n, k, channels, programs,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum dy and dy x, over the edges of every programs-th tile."""
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        gx, gy, gz = _load(grad, r, WIDTH, c, mask, REAL)
        gx, gy, gz = gx / k, gy / k, gz / k
        px_r, py_r, pz_r = _load(w, r, 2 * WIDTH, c, mask, REAL)
        qx_r, qy_r, qz_r = _load(w + WIDTH, r, 2 * WIDTH, c, mask, REAL)
        edge = index + r.to(tl.int64) * k
        for i in range(k):
            j = tl.load(edge + i, mask=r < n, other=0)
            px, py, pz = _load(u, j, 2 * WIDTH, c, mask, REAL)
            qx, qy, qz = _load(u + WIDTH, j, 2 * WIDTH, c, mask, REAL)
            px, py, pz = px + px_r, py + py_r, pz + pz_r
            qx, qy, qz = qx + qx_r, qy + qy_r, qz + qz_r
            _, x, _, _, _, _, dy = _adjoint(
                px, py, pz, qx, qy, qz, gx, gy, gz, m, rstd, gamma, beta, EPS, SLOPE
            )
            first += dy  # 0 outside the mask, where g is 0
            second += dy * x
    _store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def _edge_gradients(
    u, w, index, grad, sums, du, dw, mean, var, weight, bias, n, k, channels, count,
    TRAINING: tl.constexpr,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add (dp, dq) of every edge to du_j, in memory, and to dw_r, in registers."""
    blocks = tl.cdiv(WIDTH, C)
    r = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    mean_dy, mean_dyx = _means(sums, c, channels, count, TRAINING, REAL)
    gx, gy, gz = _load(grad, r, WIDTH, c, mask, REAL)
    gx, gy, gz = gx / k, gy / k, gz / k
    px_r, py_r, pz_r = _load(w, r, 2 * WIDTH, c, mask, REAL)
    qx_r, qy_r, qz_r = _load(w + WIDTH, r, 2 * WIDTH, c, mask, REAL)
    dpx_r = tl.zeros((ROWS, C), dtype=REAL)
    dpy_r = tl.zeros((ROWS, C), dtype=REAL)
    dpz_r = tl.zeros((ROWS, C), dtype=REAL)
    dqx_r = tl.zeros((ROWS, C), dtype=REAL)
    dqy_r = tl.zeros((ROWS, C), dtype=REAL)
    dqz_r = tl.zeros((ROWS, C), dtype=REAL)
    edge = index + r.to(tl.int64) * k
    for i in range(k):
        j = tl.load(edge + i, mask=r < n, other=0)
        px, py, pz = _load(u, j, 2 * WIDTH, c, mask, REAL)
        qx, qy, qz = _load(u + WIDTH, j, 2 * WIDTH, c, mask, REAL)
        px, py, pz = px + px_r, py + py_r, pz + pz_r
        qx, qy, qz = qx + qx_r, qy + qy_r, qz + qz_r
        dpx, dpy, dpz, dqx, dqy, dqz = _gradient(
            px, py, pz, qx, qy, qz, gx, gy, gz, m, rstd, gamma, beta, mean_dy, mean_dyx, EPS, SLOPE
        )
        _scatter(du, j, 2 * WIDTH, c, mask, dpx, dpy, dpz)
        _scatter(du + WIDTH, j, 2 * WIDTH, c, mask, dqx, dqy, dqz)
        dpx_r, dpy_r, dpz_r = dpx_r + dpx, dpy_r + dpy, dpz_r + dpz
        dqx_r, dqy_r, dqz_r = dqx_r + dqx, dqy_r + dqy, dqz_r + dqz
    _store(dw, r, 2 * WIDTH, c, mask, dpx_r, dpy_r, dpz_r)
    _store(dw + WIDTH, r, 2 * WIDTH, c, mask, dqx_r, dqy_r, dqz_r)


# -------------------------------------------------------------------------------------- points
# p (n, 3, WIDTH) and q (n, 3, WIDTH), or (n, 3, 1) when SHARED, with distances p_row and q_row from
# one axis of a point to the next, so that p and q may be the halves of one tensor.


@triton.jit
@no_type_check
def _point_statistics(
    p, partial, shift_out, n, channels, p_row, programs,
    EPS: tl.constexpr, REAL: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum l - shift and its square, over every programs-th tile."""
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    x0, y0, z0 = _load(p, tl.arange(0, 1), p_row, c, (c < WIDTH)[None, :], REAL)
    shift = _length(x0, y0, z0, EPS)  # (1, C), that of point 0
    if program == 0:
        tl.store(shift_out + c[None, :], shift, mask=(c < channels)[None, :])

    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        px, py, pz = _load(p, r, p_row, c, mask, REAL)
        length = tl.where(mask, _length(px, py, pz, EPS) - shift, 0.0)
        first += length
        second += length * length
    _store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def _point_output(
    p, q, out, mean, var, weight, bias, n, channels, p_row, q_row,
    SHARED: tl.constexpr,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store o = f p - t q."""
    blocks = tl.cdiv(WIDTH, C)
    r = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    px, py, pz = _load(p, r, p_row, c, mask, REAL)
    qx, qy, qz = _load_direction(q, r, q_row, c, n, WIDTH, SHARED, REAL)
    f, t = _activate(px, py, pz, qx, qy, qz, m, rstd, gamma, beta, EPS, SLOPE)
    _store(out, r, WIDTH, c, mask, f * px - t * qx, f * py - t * qy, f * pz - t * qz)


@triton.jit
@no_type_check
def _point_reductions(
    p, q, grad, partial, mean, var, weight, bias, n, channels, p_row, q_row, g_row, programs,
    SHARED: tl.constexpr,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum dy and dy x, over every programs-th tile."""
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        gx, gy, gz = _load(grad, r, g_row, c, mask, REAL)
        px, py, pz = _load(p, r, p_row, c, mask, REAL)
        qx, qy, qz = _load_direction(q, r, q_row, c, n, WIDTH, SHARED, REAL)
        _, x, _, _, _, _, dy = _adjoint(
            px, py, pz, qx, qy, qz, gx, gy, gz, m, rstd, gamma, beta, EPS, SLOPE
        )
        first += dy  # 0 outside the mask, where g is 0
        second += dy * x
    _store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def _point_gradients(
    p, q, grad, sums, dp, dq, mean, var, weight, bias,
    n, channels, p_row, q_row, g_row, dp_row, dq_row,
    SHARED: tl.constexpr, TRAINING: tl.constexpr,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store dp and dq; a shared q gets the sum over each block of channels: dq (blocks, n, 3)."""
    blocks = tl.cdiv(WIDTH, C)
    block = tl.program_id(0) % blocks
    r = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    c = block * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    mean_dy, mean_dyx = _means(sums, c, channels, n, TRAINING, REAL)
    gx, gy, gz = _load(grad, r, g_row, c, mask, REAL)
    px, py, pz = _load(p, r, p_row, c, mask, REAL)
    qx, qy, qz = _load_direction(q, r, q_row, c, n, WIDTH, SHARED, REAL)
    dpx, dpy, dpz, dqx, dqy, dqz = _gradient(
        px, py, pz, qx, qy, qz, gx, gy, gz, m, rstd, gamma, beta, mean_dy, mean_dyx, EPS, SLOPE
    )
    _store(dp, r, dp_row, c, mask, dpx, dpy, dpz)
    if SHARED:
        pointer = dq + (block.to(tl.int64) * n + r) * 3
        tl.store(pointer, tl.sum(dqx, axis=1), mask=r < n)
        tl.store(pointer + 1, tl.sum(dqy, axis=1), mask=r < n)
        tl.store(pointer + 2, tl.sum(dqz, axis=1), mask=r < n)
    else:
        _store(dq, r, dq_row, c, mask, dqx, dqy, dqz)


# -------------------------------------------------------------------------------- torch's side


def _real(x: Tensor) -> tuple[torch.dtype, Any]:
    """Return the type of all arithmetic on x, for torch and for Triton."""
    if x.dtype == torch.float64:
        return torch.float64, tl.float64
    return torch.float32, tl.float32


def _programs(n: int, rows: int, blocks: int) -> int:
    """Return how many programs share the tiles of one block of channels."""
    return min(triton.cdiv(n, rows), max(1, PROGRAMS // blocks))


def _moments(
    partial: Float[Tensor, "programs 2 c"],
    shift: Float[Tensor, " c"],
    running_mean: Float[Tensor, " c"],
    running_var: Float[Tensor, " c"],
    momentum: float,
    count: int,
) -> Float[Tensor, "2 c"]:
    """Return mean and biased variance, and update the running statistics in place."""
    if count < 2:
        raise ValueError("batch norm in training needs more than one vector a channel; got 1")
    programs, _, channels = partial.shape
    moments = torch.empty_like(partial[0])
    _finish_statistics[(triton.cdiv(channels, 8),)](
        partial, shift, moments, running_mean, running_var, momentum, programs, channels, count,
        ROWS=256, C=8,
    )  # fmt: skip
    return moments


def _rows(x: Float[Tensor, "n 3 c"]) -> Float[Tensor, "n 3 c"]:
    """Return x with channels side by side and axes at one distance, copied only if it must be."""
    dense = x.stride(2) == 1 or x.shape[2] == 1
    return x if dense and x.stride(0) == 3 * x.stride(1) else x.contiguous()


class _EdgeConv(torch.autograd.Function):
    """`vn_edge_conv` and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, w: Tensor, index: Tensor, weight: Tensor, bias: Tensor,
        running_mean: Tensor, running_var: Tensor, training: bool, momentum: float,
        bn_eps: float, slope: float, eps: float,
    ) -> Tensor:  # fmt: skip
        u, w, index = u.contiguous(), w.contiguous(), index.contiguous()
        n, k, width, channels = len(u), index.shape[1], u.shape[2] // 2, len(weight)
        dtype, real = _real(u)
        blocks = triton.cdiv(width, CHANNELS)
        tile = {"REAL": real, "ROWS": EDGE_ROWS, "C": CHANNELS, "WIDTH": width, "num_warps": WARPS}
        mean, var = running_mean, running_var
        if training:
            programs = _programs(n, EDGE_ROWS, blocks)
            partial = u.new_empty(programs, 2, channels, dtype=dtype)
            shift = u.new_empty(channels, dtype=dtype)
            _edge_statistics[(programs * blocks,)](
                u, w, index, partial, shift, n, k, channels, programs, EPS=eps, **tile
            )
            mean, var = _moments(
                partial, shift, running_mean, running_var, momentum, n * k
            ).unbind()
        out = u.new_empty(n, 3, width)
        constants = {"EPS": eps, "BN_EPS": bn_eps, "SLOPE": slope, **tile}
        _edge_output[(triton.cdiv(n, EDGE_ROWS) * blocks,)](
            u, w, index, out, mean, var, weight, bias, n, k, channels, **constants
        )
        ctx.save_for_backward(u, w, index, weight, bias, mean, var)
        ctx.training, ctx.constants = training, constants
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, w, index, weight, bias, mean, var = ctx.saved_tensors
        grad = grad.contiguous()
        n, k, width, channels = len(u), index.shape[1], u.shape[2] // 2, len(weight)
        dtype, _ = _real(u)
        blocks = triton.cdiv(width, CHANNELS)
        programs = _programs(n, EDGE_ROWS, blocks)
        partial = u.new_empty(programs, 2, channels, dtype=dtype)
        _edge_reductions[(programs * blocks,)](
            u, w, index, grad, partial, mean, var, weight, bias, n, k, channels, programs,
            **ctx.constants,
        )  # fmt: skip
        sums = partial.sum(0)
        dbeta, dgamma = sums.to(weight.dtype).unbind()
        du = torch.zeros_like(u, dtype=dtype)
        dw = torch.empty_like(w)
        _edge_gradients[(triton.cdiv(n, EDGE_ROWS) * blocks,)](
            u, w, index, grad, sums, du, dw, mean, var, weight, bias, n, k, channels, n * k,
            TRAINING=ctx.training, **ctx.constants,
        )  # fmt: skip
        return du.to(u.dtype), dw, None, dgamma, dbeta, *[None] * 7


class _NormAct(torch.autograd.Function):
    """`vn_norm_act` and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, p: Tensor, q: Tensor | None, weight: Tensor, bias: Tensor,
        running_mean: Tensor, running_var: Tensor, training: bool, momentum: float,
        bn_eps: float, slope: float, eps: float,
    ) -> Tensor:  # fmt: skip
        p = _rows(p)
        q = None if q is None else _rows(q)
        saved = (p, q, weight, bias)
        if q is None:
            p, q = p.chunk(2, dim=2)
        (n, _, width), channels = p.shape, len(weight)
        dtype, real = _real(p)
        blocks = triton.cdiv(width, CHANNELS)
        tile = {"REAL": real, "ROWS": POINT_ROWS, "C": CHANNELS, "WIDTH": width, "num_warps": WARPS}
        mean, var = running_mean, running_var
        if training:
            programs = _programs(n, POINT_ROWS, blocks)
            partial = p.new_empty(programs, 2, channels, dtype=dtype)
            shift = p.new_empty(channels, dtype=dtype)
            _point_statistics[(programs * blocks,)](
                p, partial, shift, n, channels, p.stride(1), programs, EPS=eps, **tile
            )
            mean, var = _moments(partial, shift, running_mean, running_var, momentum, n).unbind()
        out = p.new_empty(n, 3, width)
        shared = q.shape[2] == 1 and width > 1
        constants = {"SHARED": shared, "EPS": eps, "BN_EPS": bn_eps, "SLOPE": slope, **tile}
        _point_output[(triton.cdiv(n, POINT_ROWS) * blocks,)](
            p, q, out, mean, var, weight, bias, n, channels, p.stride(1), q.stride(1),
            **constants,
        )  # fmt: skip
        ctx.save_for_backward(*saved, mean, var)
        ctx.training, ctx.constants = training, constants
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, q, weight, bias, mean, var = ctx.saved_tensors
        grad, dq = _rows(grad), None
        dp = torch.empty(p.shape, dtype=p.dtype, device=p.device)
        result = [dp, None]
        if q is None:
            p, q = p.chunk(2, dim=2)
            dp, dq = dp.chunk(2, dim=2)
        (n, _, width), channels = p.shape, len(weight)
        dtype, _ = _real(p)
        blocks = triton.cdiv(width, CHANNELS)
        if ctx.constants["SHARED"]:
            dq = p.new_empty(blocks, n, 3, dtype=dtype)
        elif dq is None:
            dq = result[1] = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        programs = _programs(n, POINT_ROWS, blocks)
        partial = p.new_empty(programs, 2, channels, dtype=dtype)
        rows = (p.stride(1), q.stride(1), grad.stride(1))
        _point_reductions[(programs * blocks,)](
            p, q, grad, partial, mean, var, weight, bias, n, channels, *rows, programs,
            **ctx.constants,
        )  # fmt: skip
        sums = partial.sum(0)
        dbeta, dgamma = sums.to(weight.dtype).unbind()
        _point_gradients[(triton.cdiv(n, POINT_ROWS) * blocks,)](
            p, q, grad, sums, dp, dq, mean, var, weight, bias,
            n, channels, *rows, dp.stride(1), dq.stride(1),
            TRAINING=ctx.training, **ctx.constants,
        )  # fmt: skip
        if ctx.constants["SHARED"]:
            result[1] = dq.sum(0).unsqueeze(2).to(q.dtype)
        return *result, dgamma, dbeta, *[None] * 7


def vn_edge_conv(
    u: Float[Tensor, "n 3 d2"],
    w: Float[Tensor, "n 3 d2"],
    index: Int[Tensor, "n k"],
    weight: Float[Tensor, " c"],
    bias: Float[Tensor, " c"],
    running_mean: Float[Tensor, " c"],
    running_var: Float[Tensor, " c"],
    training: bool,
    momentum: float,
    bn_eps: float = 1e-5,
    slope: float = 0.2,
    eps: float = 1e-6,
) -> Float[Tensor, "n 3 d"]:
    """Apply batch norm of lengths and leaky ReLU to the edges u_j + w_r, and average over j.

    Args:
        u: what a point gives as a neighbour: p and q, side by side; d >= c channels each.
        w: what a point gives as the reference point, likewise.
        index: the neighbours j of every r, as rows of u.
        weight: gamma of the batch norm.
        bias: beta of the batch norm.
        running_mean: updated in place in training, used in evaluation.
        running_var: likewise.
        training: normalise by the statistics of these edges.
        momentum: of the running statistics.
        bn_eps: of the batch norm.
        slope: of the leaky ReLU.
        eps: added to lengths and squared lengths.

    Returns:
        The mean over the neighbours, in the type of u; arithmetic is float32 at least.

    Symmetry: SO(3)- and O(3)-equivariant.
    Gradient: as of the plain code, at zero vectors too. That of u is summed by atomic additions, in
        no fixed order. In evaluation the backward pass reads the running statistics again.
    """
    width = u.shape[2] // 2
    if u.shape != w.shape or len(index) != len(u) or len(weight) > width:
        raise ValueError(
            f"u {tuple(u.shape)}, w {tuple(w.shape)}, index {tuple(index.shape)} and a batch norm "
            f"of {len(weight)} channels do not belong together"
        )
    return _EdgeConv.apply(
        u, w, index, weight, bias, running_mean, running_var, training, momentum,
        bn_eps, slope, eps,
    )  # fmt: skip


def vn_norm_act(
    p: Float[Tensor, "*batch 3 d"],
    q: Float[Tensor, "*batch 3 e"] | None,
    weight: Float[Tensor, " c"],
    bias: Float[Tensor, " c"],
    running_mean: Float[Tensor, " c"],
    running_var: Float[Tensor, " c"],
    training: bool,
    momentum: float,
    bn_eps: float = 1e-5,
    slope: float = 0.2,
    eps: float = 1e-6,
) -> Float[Tensor, "*batch 3 f"]:
    """Apply batch norm of lengths and leaky ReLU to the vectors p, with the directions q.

    Args:
        p: the vectors; d >= c channels.
        q: one direction a channel, or one for all (e = 1); None when p holds both, side by side, as
            the product with both weight matrices gives them.
        weight: gamma of the batch norm.
        bias: beta of the batch norm.
        running_mean: updated in place in training, used in evaluation.
        running_var: likewise.
        training: normalise by the statistics of these vectors.
        momentum: of the running statistics.
        bn_eps: of the batch norm.
        slope: of the leaky ReLU.
        eps: added to lengths and squared lengths.

    Returns:
        The new vectors, in the type of p; arithmetic is float32 at least.

    Symmetry: SO(3)- and O(3)-equivariant.
    """
    width = p.shape[-1] if q is not None else p.shape[-1] // 2
    if (q is not None and q.shape[-1] not in (1, width)) or len(weight) > width:
        raise ValueError(
            f"p of {width} channels, q {None if q is None else tuple(q.shape)} and a batch norm of "
            f"{len(weight)} channels do not belong together"
        )
    out = _NormAct.apply(
        p.flatten(0, -3), None if q is None else q.flatten(0, -3), weight, bias,
        running_mean, running_var, training, momentum, bn_eps, slope, eps,
    )  # fmt: skip
    return out.reshape(*p.shape[:-1], -1)
