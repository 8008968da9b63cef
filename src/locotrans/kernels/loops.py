"""Loops over edges for the CPU, compiled by Numba; `locotrans.kernels.cpu` calls them.

Each works on a range of reference points, keeps what belongs to one of them in the nearest cache
and writes its rows of ``out``. The innermost loop runs over channels, which lie side by side, so
that it becomes vector instructions. All arrays are float32, ``index`` is int32.
"""

from typing import Any

import numpy as np
from numba import njit

SLOPE = np.float32(0.2)
EPS = np.float32(1e-6)
# rounding may be saved, and there are no nans; the order of sums stays
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nnan", "nsz", "arcp"},
}


def loop(function, **options):
    """Compile a function when it is first called, and keep the result on disk for later."""
    options = OPTIONS | options
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder can be written to
        return njit(**options)(function)


def exact_loop(function):
    """Do as `loop`, but round where the plain code rounds."""
    return loop(function, fastmath={"nnan", "nsz"})


@loop
def vn_edges(u, w, index, scale, shift, out, start, stop):
    """Write the mean over the neighbours of a VN layer on edges, given its products per point.

    Args:
        u: W1 v of all points, (m, 3, 2 d): the vectors, then their directions.
        w: (W2 - W1) v of all points.
        index: (m, k).
        scale: of the batch norm of the lengths,
        shift: and what it adds.
        out: (m, 3, d).
        start: first reference point.
        stop: one behind the last.
    """
    d, k = out.shape[2], index.shape[1]
    for r in range(start, stop):
        x, y, z = out[r, 0], out[r, 1], out[r, 2]
        x[:] = 0
        y[:] = 0
        z[:] = 0
        px_r, py_r, pz_r = w[r, 0, :d], w[r, 1, :d], w[r, 2, :d]
        qx_r, qy_r, qz_r = w[r, 0, d:], w[r, 1, d:], w[r, 2, d:]
        for e in range(k):
            j = index[r, e]
            px_j, py_j, pz_j = u[j, 0, :d], u[j, 1, :d], u[j, 2, :d]
            qx_j, qy_j, qz_j = u[j, 0, d:], u[j, 1, d:], u[j, 2, d:]
            for c in range(d):
                px, py, pz = px_j[c] + px_r[c], py_j[c] + py_r[c], pz_j[c] + pz_r[c]
                qx, qy, qz = qx_j[c] + qx_r[c], qy_j[c] + qy_r[c], qz_j[c] + qz_r[c]
                length = np.sqrt(px * px + py * py + pz * pz) + EPS
                factor = scale[c] + shift[c] / length
                along = factor * (px * qx + py * qy + pz * qz)
                squared = qx * qx + qy * qy + qz * qz + EPS
                back = (np.float32(1) - SLOPE) * min(along, np.float32(0)) / squared
                x[c] += factor * px - back * qx
                y[c] += factor * py - back * qy
                z[c] += factor * pz - back * qz
        share = np.float32(1) / np.float32(k)
        for c in range(d):
            x[c] *= share
            y[c] *= share
            z[c] *= share


@loop
def vn_points(pq, offset, n, scale, shift, out, start, stop):
    """Write batch norm of the lengths and leaky ReLU of vectors, for every point alone.

    Args:
        pq: (3, d + e) of each point from the first on: the vectors, then their directions; e is d,
            or 1 for one direction.
        offset: (clouds, 3, d + e), what is added to them all over a cloud.
        n: points of a cloud.
        scale: of the batch norm of the lengths,
        shift: and what it adds.
        out: (m, 3, d).
        start: first point.
        stop: one behind the last.
    """
    d = out.shape[2]
    step = 0 if pq.shape[2] == d + 1 else 1
    for r in range(start, stop):
        own = pq[r - start]
        x, y, z = own[0], own[1], own[2]
        out_x, out_y, out_z = out[r, 0], out[r, 1], out[r, 2]
        base = offset[r // n]
        x_0, y_0, z_0 = base[0], base[1], base[2]
        for c in range(d):
            i = d + step * c
            px, py, pz = x[c] + x_0[c], y[c] + y_0[c], z[c] + z_0[c]
            qx, qy, qz = x[i] + x_0[i], y[i] + y_0[i], z[i] + z_0[i]
            length = np.sqrt(px * px + py * py + pz * pz) + EPS
            factor = scale[c] + shift[c] / length
            along = factor * (px * qx + py * qy + pz * qz)
            squared = qx * qx + qy * qy + qz * qz + EPS
            back = (np.float32(1) - SLOPE) * min(along, np.float32(0)) / squared
            out_x[c] = factor * px - back * qx
            out_y[c] = factor * py - back * qy
            out_z[c] = factor * pz - back * qz


@loop
def edge_max(u, w, index, out, start, stop):
    """Write the leaky ReLU of ``max_j u_j + w_r``."""
    d, k = out.shape[1], index.shape[1]
    for r in range(start, stop):
        best, offset = out[r], w[r]
        best[:] = u[index[r, 0]]
        for e in range(1, k):
            row = u[index[r, e]]
            for c in range(d):
                best[c] = max(best[c], row[c])
        for c in range(d):
            x = best[c] + offset[c]
            best[c] = max(x, SLOPE * x)


@loop
def frame_max(points, matrix, w, index, out, start, stop):
    """Write the leaky ReLU of ``max_j matrix_r (p_j - p_r) + w_r``.

    Args:
        points: (m, 3).
        matrix: (m, 3, d).
        w: (m, d).
        index: (m, k).
        out: (m, d).
        start: first reference point.
        stop: one behind the last.
    """
    d, k = out.shape[1], index.shape[1]
    for r in range(start, stop):
        best, offset, mx, my, mz = out[r], w[r], matrix[r, 0], matrix[r, 1], matrix[r, 2]
        best[:] = -np.inf
        for e in range(k):
            j = index[r, e]
            x = points[j, 0] - points[r, 0]
            y = points[j, 1] - points[r, 1]
            z = points[j, 2] - points[r, 2]
            for c in range(d):
                best[c] = max(best[c], x * mx[c] + y * my[c] + z * mz[c])
        for c in range(d):
            x = best[c] + offset[c]
            best[c] = max(x, SLOPE * x)


@loop
def poses(v, frames, index, out, start, stop):
    """Write ``U_r^T (v_j - v_r)`` of the edges of some points.

    Args:
        v: (m, 3, c).
        frames: (m, 3, 3).
        index: (m, k).
        out: (at least (stop - start) k, 3 c).
        start: first reference point.
        stop: one behind the last.
    """
    c, k = v.shape[2], index.shape[1]
    for r in range(start, stop):
        x_r, y_r, z_r, U = v[r, 0], v[r, 1], v[r, 2], frames[r]
        for e in range(k):
            j = index[r, e]
            x_j, y_j, z_j = v[j, 0], v[j, 1], v[j, 2]
            row = out[(r - start) * k + e]
            for a in range(3):
                ux, uy, uz, part = U[0, a], U[1, a], U[2, a], row[a * c : (a + 1) * c]
                for i in range(c):
                    x, y, z = x_j[i] - x_r[i], y_j[i] - y_r[i], z_j[i] - z_r[i]
                    part[i] = ux * x + uy * y + uz * z


@loop
def bias_relu(x, bias):
    """Add a bias to every row and take the ReLU, in place."""
    for r in range(len(x)):
        row = x[r]
        for c in range(len(row)):
            row[c] = max(row[c] + bias[c], np.float32(0))


@loop
def bias_leaky(x, bias):
    """Add a bias to every row and take the leaky ReLU, in place."""
    for r in range(len(x)):
        row = x[r]
        for c in range(len(row)):
            y = row[c] + bias[c]
            row[c] = max(y, SLOPE * y)


@loop
def modulate(kernel, bias, basis, shift, index, start, stop):
    """Turn the kernel of every edge into ``relu((kernel + bias) * basis_j + shift)``, in place.

    Args:
        kernel: (at least (stop - start) k, c).
        bias: (c,).
        basis: (m, c).
        shift: (c,).
        index: (m, k).
        start: first reference point.
        stop: one behind the last.
    """
    c, k = basis.shape[1], index.shape[1]
    for r in range(start, stop):
        for e in range(k):
            row, x_j = kernel[(r - start) * k + e], basis[index[r, e]]
            for i in range(c):
                row[i] = max((row[i] + bias[i]) * x_j[i] + shift[i], np.float32(0))


@loop
def max_rows(edges, w, k, out, start, stop):
    """Write the leaky ReLU of the maximum over every k rows of ``edges`` plus ``w_r``."""
    d = out.shape[1]
    for r in range(start, stop):
        best, offset, first = out[r], w[r], (r - start) * k
        best[:] = edges[first]
        for e in range(1, k):
            row = edges[first + e]
            for c in range(d):
                best[c] = max(best[c], row[c])
        for c in range(d):
            x = best[c] + offset[c]
            best[c] = max(x, SLOPE * x)


@loop
def max_sum(x, largest, total):
    """Write maximum and sum over the points of one cloud: of (n, c), (c,) each."""
    largest[:] = x[0]
    total[:] = x[0]
    for r in range(1, len(x)):
        row = x[r]
        for c in range(len(row)):
            largest[c] = max(largest[c], row[c])
            total[c] += row[c]


@loop
def pool(v, z, largest, total):
    """Write maximum and sum over the points of the inner products of v with z_1, z_2, z_3.

    Args:
        v: (n, 3, c), vectors of one cloud.
        z: (n, 3, 3), the axis of size 3 of the vectors first.
        largest: (3, c).
        total: (3, c).
    """
    largest[:] = -np.inf
    total[:] = 0
    for r in range(len(v)):
        x, y, z_ = v[r, 0], v[r, 1], v[r, 2]
        for a in range(3):
            zx, zy, zz, best, add = z[r, 0, a], z[r, 1, a], z[r, 2, a], largest[a], total[a]
            for c in range(v.shape[2]):
                inner = zx * x[c] + zy * y[c] + zz * z_[c]
                best[c] = max(best[c], inner)
                add[c] += inner
