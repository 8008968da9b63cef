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
def _join_partial(partial, c, channels, programs, ROWS: tl.constexpr, C: tl.constexpr):
    """Return both sums of some channels over all programs, in float64."""
    first = tl.zeros((ROWS, C), dtype=tl.float64)
    second = tl.zeros((ROWS, C), dtype=tl.float64)
    for start in range(0, programs, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < programs)[:, None] & (c < channels)[None, :]
        pointer = partial + rows[:, None] * 2 * channels + c[None, :]
        first += tl.load(pointer, mask=mask, other=0.0).to(tl.float64)
        second += tl.load(pointer + channels, mask=mask, other=0.0).to(tl.float64)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
@no_type_check
def _finish_sums(partial, sums, programs, channels, ROWS: tl.constexpr, C: tl.constexpr):
    """Add up the partial sums of all programs; `sums` is (2, c)."""
    c = tl.program_id(0) * C + tl.arange(0, C)
    first, second = _join_partial(partial, c, channels, programs, ROWS, C)
    tl.store(sums + c, first, mask=c < channels)
    tl.store(sums + channels + c, second, mask=c < channels)


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
    first, second = _join_partial(partial, c, channels, programs, ROWS, C)
    offset = first / count
    mean = tl.load(shift + c, mask=inside, other=0.0).to(tl.float64) + offset
    var = tl.maximum(second / count - offset * offset, 0.0)
    tl.store(moments + c, mean, mask=inside)
    tl.store(moments + channels + c, var, mask=inside)
    # running statistics take the unbiased variance
    old_mean = tl.load(running_mean + c, mask=inside, other=0.0)
    old_var = tl.load(running_var + c, mask=inside, other=0.0)
    tl.store(running_mean + c, old_mean + momentum * (mean - old_mean), mask=inside)
    unbiased = var * count / (count - 1)
    tl.store(running_var + c, old_var + momentum * (unbiased - old_var), mask=inside)


# --------------------------------------------------------------------------------------- edges
# uw (n, 3, 4 WIDTH): p and q of u, then those of w, in each row; index (n, k); out (n, 3, WIDTH).
# A program has a tile of ROWS points r x C channels, and goes through the neighbours j one by one.


@triton.jit
@no_type_check
def _edge_statistics(
    uw, index, partial, shift_out, n, k, channels, programs,
    EPS: tl.constexpr, REAL: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum l - shift and its square, over the edges of every programs-th tile."""
    u, w = uw, uw + 2 * WIDTH
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    # the shift is the length of edge 0, the same for all programs
    zero = tl.arange(0, 1)
    x1, y1, z1 = _load(u, tl.load(index + zero), 4 * WIDTH, c, (c < WIDTH)[None, :], REAL)
    x2, y2, z2 = _load(w, zero, 4 * WIDTH, c, (c < WIDTH)[None, :], REAL)
    shift = _length(x1 + x2, y1 + y2, z1 + z2, EPS)  # (1, C)
    if program == 0:
        tl.store(shift_out + c[None, :], shift, mask=(c < channels)[None, :])

    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        rx, ry, rz = _load(w, r, 4 * WIDTH, c, mask, REAL)
        edge = index + r.to(tl.int64) * k
        for i in range(k):
            j = tl.load(edge + i, mask=r < n, other=0)
            jx, jy, jz = _load(u, j, 4 * WIDTH, c, mask, REAL)
            length = tl.where(mask, _length(jx + rx, jy + ry, jz + rz, EPS) - shift, 0.0)
            first += length
            second += length * length
    _store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def _edge_output(
    uw, index, out, mean, var, weight, bias, n, k, channels,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store the mean of o = f p - t q over the neighbours."""
    u, w = uw, uw + 2 * WIDTH
    blocks = tl.cdiv(WIDTH, C)
    r = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    px_r, py_r, pz_r = _load(w, r, 4 * WIDTH, c, mask, REAL)
    qx_r, qy_r, qz_r = _load(w + WIDTH, r, 4 * WIDTH, c, mask, REAL)
    ox = tl.zeros((ROWS, C), dtype=REAL)
    oy = tl.zeros((ROWS, C), dtype=REAL)
    oz = tl.zeros((ROWS, C), dtype=REAL)
    edge = index + r.to(tl.int64) * k
    for i in range(k):
        j = tl.load(edge + i, mask=r < n, other=0)
        px, py, pz = _load(u, j, 4 * WIDTH, c, mask, REAL)
        qx, qy, qz = _load(u + WIDTH, j, 4 * WIDTH, c, mask, REAL)
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
    uw, index, grad, partial, duw, mean, var, weight, bias, n, k, channels, programs,
    G_ROW: tl.constexpr,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum dy and dy x, over the edges of every programs-th tile; make du of its points 0."""
    u, w = uw, uw + 2 * WIDTH
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        zero = tl.zeros((ROWS, C), dtype=REAL)
        _store(duw, r, 4 * WIDTH, c, mask, zero, zero, zero)
        _store(duw + WIDTH, r, 4 * WIDTH, c, mask, zero, zero, zero)
        gx, gy, gz = _load(grad, r, G_ROW, c, mask, REAL)
        gx, gy, gz = gx / k, gy / k, gz / k
        px_r, py_r, pz_r = _load(w, r, 4 * WIDTH, c, mask, REAL)
        qx_r, qy_r, qz_r = _load(w + WIDTH, r, 4 * WIDTH, c, mask, REAL)
        edge = index + r.to(tl.int64) * k
        for i in range(k):
            j = tl.load(edge + i, mask=r < n, other=0)
            px, py, pz = _load(u, j, 4 * WIDTH, c, mask, REAL)
            qx, qy, qz = _load(u + WIDTH, j, 4 * WIDTH, c, mask, REAL)
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
    uw, index, grad, sums, duw, mean, var, weight, bias, n, k, channels, count,
    G_ROW: tl.constexpr, TRAINING: tl.constexpr,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add (dp, dq) of every edge to du_j, in memory, and to dw_r, in registers."""
    u, w = uw, uw + 2 * WIDTH
    blocks = tl.cdiv(WIDTH, C)
    r = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    mean_dy, mean_dyx = _means(sums, c, channels, count, TRAINING, REAL)
    gx, gy, gz = _load(grad, r, G_ROW, c, mask, REAL)
    gx, gy, gz = gx / k, gy / k, gz / k
    px_r, py_r, pz_r = _load(w, r, 4 * WIDTH, c, mask, REAL)
    qx_r, qy_r, qz_r = _load(w + WIDTH, r, 4 * WIDTH, c, mask, REAL)
    dpx_r = tl.zeros((ROWS, C), dtype=REAL)
    dpy_r = tl.zeros((ROWS, C), dtype=REAL)
    dpz_r = tl.zeros((ROWS, C), dtype=REAL)
    dqx_r = tl.zeros((ROWS, C), dtype=REAL)
    dqy_r = tl.zeros((ROWS, C), dtype=REAL)
    dqz_r = tl.zeros((ROWS, C), dtype=REAL)
    edge = index + r.to(tl.int64) * k
    for i in range(k):
        j = tl.load(edge + i, mask=r < n, other=0)
        px, py, pz = _load(u, j, 4 * WIDTH, c, mask, REAL)
        qx, qy, qz = _load(u + WIDTH, j, 4 * WIDTH, c, mask, REAL)
        px, py, pz = px + px_r, py + py_r, pz + pz_r
        qx, qy, qz = qx + qx_r, qy + qy_r, qz + qz_r
        dpx, dpy, dpz, dqx, dqy, dqz = _gradient(
            px, py, pz, qx, qy, qz, gx, gy, gz, m, rstd, gamma, beta, mean_dy, mean_dyx, EPS, SLOPE
        )
        _scatter(duw, j, 4 * WIDTH, c, mask, dpx, dpy, dpz)
        _scatter(duw + WIDTH, j, 4 * WIDTH, c, mask, dqx, dqy, dqz)
        dpx_r, dpy_r, dpz_r = dpx_r + dpx, dpy_r + dpy, dpz_r + dpz
        dqx_r, dqy_r, dqz_r = dqx_r + dqx, dqy_r + dqy, dqz_r + dqz
    _store(duw + 2 * WIDTH, r, 4 * WIDTH, c, mask, dpx_r, dpy_r, dpz_r)
    _store(duw + 3 * WIDTH, r, 4 * WIDTH, c, mask, dqx_r, dqy_r, dqz_r)


# -------------------------------------------------------------------------------------- points
# pq (clouds points, 3, ROW): p, of WIDTH channels, then q, of as many or, when SHARED, of one.
# offset (clouds, 3, ROW), when OFFSET, is added to pq of all points of a cloud; and gmean (clouds,
# 3, WIDTH), when MEAN, to the gradient. No tile has points of two clouds.


@triton.jit
@no_type_check
def _tile_rows(tile, points, ROWS: tl.constexpr):
    """Return the cloud of a tile (as a row of its own), its points, and which of them exist."""
    tiles = tl.cdiv(points, ROWS)
    cloud = tile // tiles
    r = (tile % tiles) * ROWS + tl.arange(0, ROWS)
    return cloud + tl.arange(0, 1), cloud * points + r, (r < points)[:, None]


@triton.jit
@no_type_check
def _load_moved(
    pq, offset, cloud, r, inside, c, columns,
    ROW: tl.constexpr, OFFSET: tl.constexpr, REAL: tl.constexpr,
):  # fmt: skip
    """Load vectors of some points, with those of their cloud added; `columns` says which exist."""
    x, y, z = _load(pq, r, ROW, c, inside & columns, REAL)
    if OFFSET:
        ox, oy, oz = _load(offset, cloud, ROW, c, columns, REAL)
        x, y, z = x + ox, y + oy, z + oz
    return x, y, z


@triton.jit
@no_type_check
def _load_pair(
    pq, offset, cloud, r, inside, c,
    SHARED: tl.constexpr, OFFSET: tl.constexpr, REAL: tl.constexpr,
    WIDTH: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """Load p and q of some points; a shared q is one column (rows, 1) for all channels."""
    columns = (c < WIDTH)[None, :]
    px, py, pz = _load_moved(pq, offset, cloud, r, inside, c, columns, ROW, OFFSET, REAL)
    if SHARED:
        c = tl.arange(0, 1)
        columns = (c < 1)[None, :]
    qx, qy, qz = _load_moved(
        pq + WIDTH, offset + WIDTH if OFFSET else offset, cloud, r, inside, c, columns, ROW, OFFSET,
        REAL,
    )  # fmt: skip
    return px, py, pz, qx, qy, qz


@triton.jit
@no_type_check
def _load_gradient(
    grad, gmean, cloud, r, mask, c, points,
    G_ROW: tl.constexpr, MEAN: tl.constexpr, REAL: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Load the gradient of the output of some points, 0 outside the mask."""
    gx, gy, gz = _load(grad, r, G_ROW, c, mask, REAL)
    if MEAN:
        mx, my, mz = _load(gmean, cloud, WIDTH, c, (c < WIDTH)[None, :], REAL)
        gx = tl.where(mask, gx + mx / points, 0.0)
        gy = tl.where(mask, gy + my / points, 0.0)
        gz = tl.where(mask, gz + mz / points, 0.0)
    return gx, gy, gz


@triton.jit
@no_type_check
def _point_statistics(
    pq, offset, partial, shift_out, clouds, points, channels, programs,
    OFFSET: tl.constexpr, EPS: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """Sum l - shift and its square, over every programs-th tile."""
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    columns = (c < WIDTH)[None, :]
    zero = tl.arange(0, 1)
    x0, y0, z0 = _load_moved(pq, offset, zero, zero, columns, c, columns, ROW, OFFSET, REAL)
    shift = _length(x0, y0, z0, EPS)  # (1, C), that of point 0
    if program == 0:
        tl.store(shift_out + c[None, :], shift, mask=(c < channels)[None, :])

    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, clouds * tl.cdiv(points, ROWS), programs):
        cloud, r, inside = _tile_rows(tile, points, ROWS)
        px, py, pz = _load_moved(pq, offset, cloud, r, inside, c, columns, ROW, OFFSET, REAL)
        length = tl.where(inside & columns, _length(px, py, pz, EPS) - shift, 0.0)
        first += length
        second += length * length
    _store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def _point_output(
    pq, offset, out, mean, var, weight, bias, points, channels,
    SHARED: tl.constexpr, OFFSET: tl.constexpr,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """Store o = f p - t q."""
    blocks = tl.cdiv(WIDTH, C)
    cloud, r, inside = _tile_rows(tl.program_id(0) // blocks, points, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = inside & (c < WIDTH)[None, :]
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    px, py, pz, qx, qy, qz = _load_pair(
        pq, offset, cloud, r, inside, c, SHARED, OFFSET, REAL, WIDTH, ROW
    )
    f, t = _activate(px, py, pz, qx, qy, qz, m, rstd, gamma, beta, EPS, SLOPE)
    _store(out, r, WIDTH, c, mask, f * px - t * qx, f * py - t * qy, f * pz - t * qz)


@triton.jit
@no_type_check
def _point_reductions(
    pq, offset, grad, gmean, partial, mean, var, weight, bias,
    clouds, points, channels, programs,
    G_ROW: tl.constexpr, SHARED: tl.constexpr, OFFSET: tl.constexpr, MEAN: tl.constexpr,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """Sum dy and dy x, over every programs-th tile."""
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, clouds * tl.cdiv(points, ROWS), programs):
        cloud, r, inside = _tile_rows(tile, points, ROWS)
        mask = inside & (c < WIDTH)[None, :]
        gx, gy, gz = _load_gradient(
            grad, gmean, cloud, r, mask, c, points, G_ROW, MEAN, REAL, WIDTH
        )
        px, py, pz, qx, qy, qz = _load_pair(
            pq, offset, cloud, r, inside, c, SHARED, OFFSET, REAL, WIDTH, ROW
        )
        _, x, _, _, _, _, dy = _adjoint(
            px, py, pz, qx, qy, qz, gx, gy, gz, m, rstd, gamma, beta, EPS, SLOPE
        )
        first += dy  # 0 outside the mask, where g is 0
        second += dy * x
    _store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def _store_moved(
    dpq, doffset, cloud, r, inside, c, columns, x, y, z, ROW: tl.constexpr, OFFSET: tl.constexpr
):  # fmt: skip
    """Store the gradients of some points, and add their sum to that of their cloud."""
    mask = inside & columns
    _store(dpq, r, ROW, c, mask, x, y, z)
    if OFFSET:
        x = tl.sum(tl.where(mask, x, 0.0), axis=0, keep_dims=True)
        y = tl.sum(tl.where(mask, y, 0.0), axis=0, keep_dims=True)
        z = tl.sum(tl.where(mask, z, 0.0), axis=0, keep_dims=True)
        _scatter(doffset, cloud, ROW, c, columns, x, y, z)


@triton.jit
@no_type_check
def _point_gradients(
    pq, offset, grad, gmean, sums, dpq, doffset, mean, var, weight, bias,
    points, channels, count,
    G_ROW: tl.constexpr, TRAINING: tl.constexpr, SHARED: tl.constexpr, OFFSET: tl.constexpr,
    MEAN: tl.constexpr,
    EPS: tl.constexpr, BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    """Store dp and dq, and their sums over a cloud; a shared q needs all channels one by one."""
    blocks = tl.cdiv(WIDTH, C)
    if SHARED:
        cloud, r, inside = _tile_rows(tl.program_id(0), points, ROWS)
        start = 0
        stop = blocks
    else:
        cloud, r, inside = _tile_rows(tl.program_id(0) // blocks, points, ROWS)
        start = tl.program_id(0) % blocks
        stop = start + 1
    sx = tl.zeros((ROWS, 1), dtype=REAL)
    sy = tl.zeros((ROWS, 1), dtype=REAL)
    sz = tl.zeros((ROWS, 1), dtype=REAL)
    for block in range(start, stop):
        c = block * C + tl.arange(0, C)
        columns = (c < WIDTH)[None, :]
        m, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
        mean_dy, mean_dyx = _means(sums, c, channels, count, TRAINING, REAL)
        gx, gy, gz = _load_gradient(
            grad, gmean, cloud, r, inside & columns, c, points, G_ROW, MEAN, REAL, WIDTH
        )
        px, py, pz, qx, qy, qz = _load_pair(
            pq, offset, cloud, r, inside, c, SHARED, OFFSET, REAL, WIDTH, ROW
        )
        dpx, dpy, dpz, dqx, dqy, dqz = _gradient(
            px, py, pz, qx, qy, qz, gx, gy, gz, m, rstd, gamma, beta, mean_dy, mean_dyx, EPS, SLOPE
        )
        _store_moved(dpq, doffset, cloud, r, inside, c, columns, dpx, dpy, dpz, ROW, OFFSET)
        if SHARED:
            sx += tl.sum(dqx, axis=1, keep_dims=True)
            sy += tl.sum(dqy, axis=1, keep_dims=True)
            sz += tl.sum(dqz, axis=1, keep_dims=True)
        else:
            _store_moved(
                dpq + WIDTH, doffset + WIDTH if OFFSET else doffset, cloud, r, inside, c, columns,
                dqx, dqy, dqz, ROW, OFFSET,
            )  # fmt: skip
    if SHARED:
        c = tl.arange(0, ROW - WIDTH)  # q, and the channels that fill it up
        columns = (c < ROW - WIDTH)[None, :]
        sx = tl.where((c == 0)[None, :], sx, 0.0)
        sy = tl.where((c == 0)[None, :], sy, 0.0)
        sz = tl.where((c == 0)[None, :], sz, 0.0)
        _store_moved(
            dpq + WIDTH, doffset + WIDTH if OFFSET else doffset, cloud, r, inside, c, columns,
            sx, sy, sz, ROW, OFFSET,
        )  # fmt: skip


# -------------------------------------------------------------------------------- torch's side
# Distances in memory are constants of a kernel: Triton sees of no other that it is a multiple of 8,
# and reads and writes several numbers at once only where it knows.


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
        **_finish(programs),
    )  # fmt: skip
    return moments


def _sums(partial: Float[Tensor, "programs 2 c"]) -> Float[Tensor, "2 c"]:
    """Return the sums over the programs."""
    programs, _, channels = partial.shape
    sums = torch.empty_like(partial[0])
    _finish_sums[(triton.cdiv(channels, 8),)](
        partial, sums, programs, channels, **_finish(programs)
    )
    return sums


def _finish(programs: int) -> dict[str, int]:
    """Return the tile that adds up partial sums: few steps, since each waits for memory."""
    rows = min(1024, triton.next_power_of_2(programs))
    return {"ROWS": rows, "C": 8, "num_warps": max(1, rows // 64)}


def _rows(x: Float[Tensor, "n 3 c"]) -> Float[Tensor, "n 3 c"]:
    """Return x with channels side by side and axes at one distance, copied only if it must be."""
    dense = x.stride(2) == 1 or x.shape[2] == 1
    return x if dense and x.stride(0) == 3 * x.stride(1) else x.contiguous()


class _EdgeConv(torch.autograd.Function):
    """`vn_edge_conv` and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, uw: Tensor, index: Tensor, weight: Tensor, bias: Tensor,
        running_mean: Tensor, running_var: Tensor, training: bool, momentum: float,
        bn_eps: float, slope: float, eps: float,
    ) -> Tensor:  # fmt: skip
        uw, index = uw.contiguous(), index.contiguous()
        n, k, width, channels = len(uw), index.shape[1], uw.shape[2] // 4, len(weight)
        dtype, real = _real(uw)
        blocks = triton.cdiv(width, CHANNELS)
        tile = {"REAL": real, "ROWS": EDGE_ROWS, "C": CHANNELS, "WIDTH": width, "num_warps": WARPS}
        mean, var = running_mean, running_var
        if training:
            programs = _programs(n, EDGE_ROWS, blocks)
            partial = uw.new_empty(programs, 2, channels, dtype=dtype)
            shift = uw.new_empty(channels, dtype=dtype)
            _edge_statistics[(programs * blocks,)](
                uw, index, partial, shift, n, k, channels, programs, EPS=eps, **tile
            )
            mean, var = _moments(
                partial, shift, running_mean, running_var, momentum, n * k
            ).unbind()
        out = uw.new_empty(n, 3, width)
        constants = {"EPS": eps, "BN_EPS": bn_eps, "SLOPE": slope, **tile}
        _edge_output[(triton.cdiv(n, EDGE_ROWS) * blocks,)](
            uw, index, out, mean, var, weight, bias, n, k, channels, **constants
        )
        ctx.save_for_backward(uw, index, weight, bias, mean, var)
        ctx.training, ctx.constants = training, constants
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        uw, index, weight, bias, mean, var = ctx.saved_tensors
        grad = _rows(grad)
        n, k, width, channels = len(uw), index.shape[1], uw.shape[2] // 4, len(weight)
        dtype, _ = _real(uw)
        blocks = triton.cdiv(width, CHANNELS)
        programs = _programs(n, EDGE_ROWS, blocks)
        partial = uw.new_empty(programs, 2, channels, dtype=dtype)
        duw = torch.empty_like(uw, dtype=dtype)
        _edge_reductions[(programs * blocks,)](
            uw, index, grad, partial, duw, mean, var, weight, bias,
            n, k, channels, programs, G_ROW=grad.stride(1), **ctx.constants,
        )  # fmt: skip
        sums = _sums(partial)
        dbeta, dgamma = sums.to(weight.dtype).unbind()
        _edge_gradients[(triton.cdiv(n, EDGE_ROWS) * blocks,)](
            uw, index, grad, sums, duw, mean, var, weight, bias,
            n, k, channels, n * k,
            G_ROW=grad.stride(1), TRAINING=ctx.training, **ctx.constants,
        )  # fmt: skip
        return duw.to(uw.dtype), None, dgamma, dbeta, *[None] * 7


class _NormAct(torch.autograd.Function):
    """`vn_norm_act` and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, pq: Tensor, offset: Tensor | None, clouds: int, shared: bool, with_mean: bool,
        weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, training: bool,
        momentum: float, bn_eps: float, slope: float, eps: float,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        pq, offset = pq.contiguous(), None if offset is None else offset.contiguous()
        (n, _, row), channels = pq.shape, len(weight)
        width, points = _width(row, shared), n // clouds
        dtype, real = _real(pq)
        blocks, tiles = triton.cdiv(width, CHANNELS), clouds * triton.cdiv(points, POINT_ROWS)
        tile = {
            "REAL": real, "ROWS": POINT_ROWS, "C": CHANNELS, "WIDTH": width, "ROW": row,
            "OFFSET": offset is not None, "num_warps": WARPS,
        }  # fmt: skip
        mean, var = running_mean, running_var
        if training:
            programs = _programs(tiles, 1, blocks)
            partial = pq.new_empty(programs, 2, channels, dtype=dtype)
            shift = pq.new_empty(channels, dtype=dtype)
            _point_statistics[(programs * blocks,)](
                pq, offset, partial, shift, clouds, points, channels, programs, EPS=eps, **tile
            )
            mean, var = _moments(partial, shift, running_mean, running_var, momentum, n).unbind()
        out = pq.new_empty(n, 3, width)
        constants = {"SHARED": shared, "EPS": eps, "BN_EPS": bn_eps, "SLOPE": slope, **tile}
        _point_output[(tiles * blocks,)](
            pq, offset, out, mean, var, weight, bias, points, channels, **constants
        )
        ctx.save_for_backward(pq, offset, weight, bias, mean, var)
        ctx.set_materialize_grads(False)
        ctx.training, ctx.constants, ctx.clouds = training, constants, clouds
        return out, out.unflatten(0, (clouds, points)).mean(1) if with_mean else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, gmean: Tensor | None) -> tuple[Tensor | None, ...]:
        pq, offset, weight, bias, mean, var = ctx.saved_tensors
        n, channels, clouds = len(pq), len(weight), ctx.clouds
        width, points = ctx.constants["WIDTH"], n // clouds
        grad = pq.new_zeros(n, 3, width) if grad is None else _rows(grad)
        gmean = None if gmean is None else gmean.contiguous()
        dtype, _ = _real(pq)
        blocks, tiles = triton.cdiv(width, CHANNELS), clouds * triton.cdiv(points, POINT_ROWS)
        programs = _programs(tiles, 1, blocks)
        partial = pq.new_empty(programs, 2, channels, dtype=dtype)
        constants = {"MEAN": gmean is not None, "G_ROW": grad.stride(1), **ctx.constants}
        _point_reductions[(programs * blocks,)](
            pq, offset, grad, gmean, partial, mean, var, weight, bias,
            clouds, points, channels, programs, **constants,
        )  # fmt: skip
        sums = _sums(partial)
        dbeta, dgamma = sums.to(weight.dtype).unbind()
        dpq = torch.empty_like(pq)
        doffset = None if offset is None else torch.zeros_like(offset, dtype=dtype)
        _point_gradients[(tiles if constants["SHARED"] else tiles * blocks,)](
            pq, offset, grad, gmean, sums, dpq, doffset, mean, var, weight, bias,
            points, channels, n, TRAINING=ctx.training, **constants,
        )  # fmt: skip
        doffset = None if offset is None or doffset is None else doffset.to(offset.dtype)
        return dpq, doffset, None, None, None, dgamma, dbeta, *[None] * 7


def _width(row: int, shared: bool) -> int:
    """Return the channels of p, where rows hold p and q: a shared q has one column of 8."""
    return row - 8 if shared else row // 2


def vn_edge_conv(
    uw: Float[Tensor, "n 3 d4"],
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
        uw: what a point gives as a neighbour, u, and as the reference point, w, side by side; in
            each p and q, side by side; d >= c channels each.
        index: the neighbours j of every r, as rows of uw.
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
        The mean over the neighbours, in the type of uw; arithmetic is float32 at least.

    Symmetry: SO(3)- and O(3)-equivariant.
    Gradient: as of the plain code, at zero vectors too. That of u is summed by atomic additions, in
        no fixed order. In evaluation the backward pass reads the running statistics again.
    """
    if uw.shape[2] % 4 or len(index) != len(uw) or len(weight) > uw.shape[2] // 4:
        raise ValueError(
            f"uw {tuple(uw.shape)}, index {tuple(index.shape)} and a batch norm of "
            f"{len(weight)} channels do not belong together"
        )
    return _EdgeConv.apply(
        uw, index, weight, bias, running_mean, running_var, training, momentum,
        bn_eps, slope, eps,
    )  # fmt: skip


def vn_norm_act(
    pq: Float[Tensor, "*batch 3 e"],
    weight: Float[Tensor, " c"],
    bias: Float[Tensor, " c"],
    running_mean: Float[Tensor, " c"],
    running_var: Float[Tensor, " c"],
    training: bool,
    momentum: float,
    bn_eps: float = 1e-5,
    slope: float = 0.2,
    eps: float = 1e-6,
    *,
    shared: bool = False,
    offset: Float[Tensor, "*shape 1 3 e"] | None = None,
) -> Float[Tensor, "*batch 3 d"]:
    """Apply batch norm of lengths and leaky ReLU to the vectors p, with the directions q.

    Args:
        pq: the vectors p, of d >= c channels, and the directions q, side by side, as the product
            with both weight matrices gives them.
        weight: gamma of the batch norm.
        bias: beta of the batch norm.
        running_mean: updated in place in training, used in evaluation.
        running_var: likewise.
        training: normalise by the statistics of these vectors.
        momentum: of the running statistics.
        bn_eps: of the batch norm.
        slope: of the leaky ReLU.
        eps: added to lengths and squared lengths.
        shared: q is one direction for all channels, followed by 7 zero vectors.
        offset: what all points of a cloud have added to pq, whose batch is clouds x points then.

    Returns:
        The new vectors, in the type of pq; arithmetic is float32 at least.

    Symmetry: SO(3)- and O(3)-equivariant.
    Gradient: that of the offset is summed by atomic additions, in no fixed order.
    """
    norm = (weight, bias, running_mean, running_var, training, momentum, bn_eps, slope, eps)
    out, _ = _norm_act(pq, offset, 1, shared, False, *norm)
    return out


def vn_norm_act_mean(
    pq: Float[Tensor, "b n 3 e"], *norm: Any, shared: bool = False
) -> tuple[Float[Tensor, "b n 3 d"], Float[Tensor, "b 1 3 d"]]:
    """Do as `vn_norm_act`, and return the mean of the new vectors over each cloud besides.

    Args:
        pq: the vectors and the directions.
        *norm: what `vn_norm_act` takes of the batch norm, in its order.
        shared: q is one direction for all channels, followed by 7 zero vectors.

    Gradient: that of the mean joins that of the vectors on its way, without a tensor of its own.
    """
    out, mean = _norm_act(pq, None, len(pq), shared, True, *norm)
    assert mean is not None
    return out, mean.unsqueeze(1)


def _norm_act(
    pq: Float[Tensor, "*batch 3 e"],
    offset: Float[Tensor, "*shape 1 3 e"] | None,
    clouds: int,
    shared: bool,
    with_mean: bool,
    weight: Float[Tensor, " c"],
    bias: Float[Tensor, " c"],
    running_mean: Float[Tensor, " c"],
    running_var: Float[Tensor, " c"],
    training: bool,
    momentum: float,
    bn_eps: float = 1e-5,
    slope: float = 0.2,
    eps: float = 1e-6,
) -> tuple[Float[Tensor, "*batch 3 d"], Float[Tensor, "clouds 3 d"] | None]:
    row = pq.shape[-1]
    fits = row >= 9 if shared else row % 2 == 0
    if offset is not None:
        fits &= offset.shape == (*pq.shape[:-3], 1, 3, row)
        offset = offset.flatten(0, -3)
        clouds = len(offset)
    if not fits or len(weight) > _width(row, shared):
        raise ValueError(
            f"pq {tuple(pq.shape)}, offset {None if offset is None else tuple(offset.shape)} and a "
            f"batch norm of {len(weight)} channels do not belong together"
        )
    out, mean = _NormAct.apply(
        pq.flatten(0, -3), offset, clouds, shared, with_mean, weight, bias, running_mean,
        running_var, training, momentum, bn_eps, slope, eps,
    )  # fmt: skip
    return out.unflatten(0, pq.shape[:-2]), mean
