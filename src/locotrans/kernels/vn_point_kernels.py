"""Kernels of vector-neuron layers for every point alone; the formulas are in `vn_activation`.

pq (clouds points, 3, ROW): p, of WIDTH channels, then q, of as many or, when SHARED, of one. offset
(clouds, 3, ROW), when OFFSET, is added to pq of all points of a cloud; and gmean (clouds, 3,
WIDTH), when MEAN, to the gradient. No tile has points of two clouds.
"""

from typing import no_type_check

import triton
import triton.language as tl

from locotrans.kernels.statistics import load_means, load_norm, store_partial
from locotrans.kernels.tiles import add_vectors, load_vectors, store_vectors
from locotrans.kernels.vn_activation import activate, adjoint, gradient, vector_length


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
    x, y, z = load_vectors(pq, r, ROW, c, inside & columns, REAL)
    if OFFSET:
        ox, oy, oz = load_vectors(offset, cloud, ROW, c, columns, REAL)
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
    gx, gy, gz = load_vectors(grad, r, G_ROW, c, mask, REAL)
    if MEAN:
        mx, my, mz = load_vectors(gmean, cloud, WIDTH, c, (c < WIDTH)[None, :], REAL)
        gx = tl.where(mask, gx + mx / points, 0.0)
        gy = tl.where(mask, gy + my / points, 0.0)
        gz = tl.where(mask, gz + mz / points, 0.0)
    return gx, gy, gz


@triton.jit
@no_type_check
def vn_point_statistics(
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
    shift = vector_length(x0, y0, z0, EPS)  # (1, C), that of point 0
    if program == 0:
        tl.store(shift_out + c[None, :], shift, mask=(c < channels)[None, :])

    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, clouds * tl.cdiv(points, ROWS), programs):
        cloud, r, inside = _tile_rows(tile, points, ROWS)
        px, py, pz = _load_moved(pq, offset, cloud, r, inside, c, columns, ROW, OFFSET, REAL)
        length = tl.where(inside & columns, vector_length(px, py, pz, EPS) - shift, 0.0)
        first += length
        second += length * length
    store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def vn_point_output(
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
    m, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    px, py, pz, qx, qy, qz = _load_pair(
        pq, offset, cloud, r, inside, c, SHARED, OFFSET, REAL, WIDTH, ROW
    )
    f, t = activate(px, py, pz, qx, qy, qz, m, rstd, gamma, beta, EPS, SLOPE)
    store_vectors(out, r, WIDTH, c, mask, f * px - t * qx, f * py - t * qy, f * pz - t * qz)


@triton.jit
@no_type_check
def vn_point_reductions(
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
    m, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
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
        _, x, _, _, _, _, dy = adjoint(
            px, py, pz, qx, qy, qz, gx, gy, gz, m, rstd, gamma, beta, EPS, SLOPE
        )
        first += dy  # 0 outside the mask, where g is 0
        second += dy * x
    store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def _store_moved(
    dpq, doffset, cloud, r, inside, c, columns, x, y, z, ROW: tl.constexpr, OFFSET: tl.constexpr
):  # fmt: skip
    """Store the gradients of some points, and add their sum to that of their cloud."""
    mask = inside & columns
    store_vectors(dpq, r, ROW, c, mask, x, y, z)
    if OFFSET:
        x = tl.sum(tl.where(mask, x, 0.0), axis=0, keep_dims=True)
        y = tl.sum(tl.where(mask, y, 0.0), axis=0, keep_dims=True)
        z = tl.sum(tl.where(mask, z, 0.0), axis=0, keep_dims=True)
        add_vectors(doffset, cloud, ROW, c, columns, x, y, z)


@triton.jit
@no_type_check
def vn_point_gradients(
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
        m, rstd, gamma, beta = load_norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
        mean_dy, mean_dyx = load_means(sums, c, channels, count, TRAINING, REAL)
        gx, gy, gz = _load_gradient(
            grad, gmean, cloud, r, inside & columns, c, points, G_ROW, MEAN, REAL, WIDTH
        )
        px, py, pz, qx, qy, qz = _load_pair(
            pq, offset, cloud, r, inside, c, SHARED, OFFSET, REAL, WIDTH, ROW
        )
        dpx, dpy, dpz, dqx, dqy, dqz = gradient(
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
