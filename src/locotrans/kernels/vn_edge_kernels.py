"""Kernels of the vector-neuron edge convolution; the formulas are in `vn_activation`.

uw (n, 3, 4 WIDTH): p and q of u, then those of w, in each row; index (n, k); out (n, 3, WIDTH). A
program has a tile of ROWS points r x C channels, and goes through the neighbours j one by one.
"""

from typing import no_type_check

import triton
import triton.language as tl

from locotrans.kernels.statistics import load_means, load_norm, store_partial
from locotrans.kernels.tiles import add_vectors, load_vectors, store_vectors
from locotrans.kernels.vn_activation import activate, adjoint, gradient, vector_length


@triton.jit
@no_type_check
def vn_edge_statistics(
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
    x1, y1, z1 = load_vectors(u, tl.load(index + zero), 4 * WIDTH, c, (c < WIDTH)[None, :], REAL)
    x2, y2, z2 = load_vectors(w, zero, 4 * WIDTH, c, (c < WIDTH)[None, :], REAL)
    shift = vector_length(x1 + x2, y1 + y2, z1 + z2, EPS)  # (1, C)
    if program == 0:
        tl.store(shift_out + c[None, :], shift, mask=(c < channels)[None, :])

    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        rx, ry, rz = load_vectors(w, r, 4 * WIDTH, c, mask, REAL)
        edge = index + r.to(tl.int64) * k
        for i in range(k):
            j = tl.load(edge + i, mask=r < n, other=0)
            jx, jy, jz = load_vectors(u, j, 4 * WIDTH, c, mask, REAL)
            length = tl.where(mask, vector_length(jx + rx, jy + ry, jz + rz, EPS) - shift, 0.0)
            first += length
            second += length * length
    store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def vn_edge_output(
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
    m, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    px_r, py_r, pz_r = load_vectors(w, r, 4 * WIDTH, c, mask, REAL)
    qx_r, qy_r, qz_r = load_vectors(w + WIDTH, r, 4 * WIDTH, c, mask, REAL)
    ox = tl.zeros((ROWS, C), dtype=REAL)
    oy = tl.zeros((ROWS, C), dtype=REAL)
    oz = tl.zeros((ROWS, C), dtype=REAL)
    edge = index + r.to(tl.int64) * k
    for i in range(k):
        j = tl.load(edge + i, mask=r < n, other=0)
        px, py, pz = load_vectors(u, j, 4 * WIDTH, c, mask, REAL)
        qx, qy, qz = load_vectors(u + WIDTH, j, 4 * WIDTH, c, mask, REAL)
        px, py, pz = px + px_r, py + py_r, pz + pz_r
        qx, qy, qz = qx + qx_r, qy + qy_r, qz + qz_r
        f, t = activate(px, py, pz, qx, qy, qz, m, rstd, gamma, beta, EPS, SLOPE)
        ox += f * px - t * qx
        oy += f * py - t * qy
        oz += f * pz - t * qz
    store_vectors(out, r, WIDTH, c, mask, ox / k, oy / k, oz / k)


@triton.jit
@no_type_check
def vn_edge_reductions(
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
    m, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        zero = tl.zeros((ROWS, C), dtype=REAL)
        store_vectors(duw, r, 4 * WIDTH, c, mask, zero, zero, zero)
        store_vectors(duw + WIDTH, r, 4 * WIDTH, c, mask, zero, zero, zero)
        gx, gy, gz = load_vectors(grad, r, G_ROW, c, mask, REAL)
        gx, gy, gz = gx / k, gy / k, gz / k
        px_r, py_r, pz_r = load_vectors(w, r, 4 * WIDTH, c, mask, REAL)
        qx_r, qy_r, qz_r = load_vectors(w + WIDTH, r, 4 * WIDTH, c, mask, REAL)
        edge = index + r.to(tl.int64) * k
        for i in range(k):
            j = tl.load(edge + i, mask=r < n, other=0)
            px, py, pz = load_vectors(u, j, 4 * WIDTH, c, mask, REAL)
            qx, qy, qz = load_vectors(u + WIDTH, j, 4 * WIDTH, c, mask, REAL)
            px, py, pz = px + px_r, py + py_r, pz + pz_r
            qx, qy, qz = qx + qx_r, qy + qy_r, qz + qz_r
            _, x, _, _, _, _, dy = adjoint(
                px, py, pz, qx, qy, qz, gx, gy, gz, m, rstd, gamma, beta, EPS, SLOPE
            )
            first += dy  # 0 outside the mask, where g is 0
            second += dy * x
    store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def vn_edge_gradients(
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
    m, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    mean_dy, mean_dyx = load_means(sums, c, channels, count, TRAINING, REAL)
    gx, gy, gz = load_vectors(grad, r, G_ROW, c, mask, REAL)
    gx, gy, gz = gx / k, gy / k, gz / k
    px_r, py_r, pz_r = load_vectors(w, r, 4 * WIDTH, c, mask, REAL)
    qx_r, qy_r, qz_r = load_vectors(w + WIDTH, r, 4 * WIDTH, c, mask, REAL)
    dpx_r = tl.zeros((ROWS, C), dtype=REAL)
    dpy_r = tl.zeros((ROWS, C), dtype=REAL)
    dpz_r = tl.zeros((ROWS, C), dtype=REAL)
    dqx_r = tl.zeros((ROWS, C), dtype=REAL)
    dqy_r = tl.zeros((ROWS, C), dtype=REAL)
    dqz_r = tl.zeros((ROWS, C), dtype=REAL)
    edge = index + r.to(tl.int64) * k
    for i in range(k):
        j = tl.load(edge + i, mask=r < n, other=0)
        px, py, pz = load_vectors(u, j, 4 * WIDTH, c, mask, REAL)
        qx, qy, qz = load_vectors(u + WIDTH, j, 4 * WIDTH, c, mask, REAL)
        px, py, pz = px + px_r, py + py_r, pz + pz_r
        qx, qy, qz = qx + qx_r, qy + qy_r, qz + qz_r
        dpx, dpy, dpz, dqx, dqy, dqz = gradient(
            px, py, pz, qx, qy, qz, gx, gy, gz, m, rstd, gamma, beta, mean_dy, mean_dyx, EPS, SLOPE
        )
        add_vectors(duw, j, 4 * WIDTH, c, mask, dpx, dpy, dpz)
        add_vectors(duw + WIDTH, j, 4 * WIDTH, c, mask, dqx, dqy, dqz)
        dpx_r, dpy_r, dpz_r = dpx_r + dpx, dpy_r + dpy, dpz_r + dpz
        dqx_r, dqy_r, dqz_r = dqx_r + dqx, dqy_r + dqy, dqz_r + dqz
    store_vectors(duw + 2 * WIDTH, r, 4 * WIDTH, c, mask, dpx_r, dpy_r, dpz_r)
    store_vectors(duw + 3 * WIDTH, r, 4 * WIDTH, c, mask, dqx_r, dqy_r, dqz_r)
