"""Loops over edges of vectors for training on the CPU, compiled by Numba; see `learning_vn`.

They are as those of `loops`. What is summed over edges, such as the moments that a batch norm
needs, is summed for every cloud in the order of its points: no result depends on the number of
threads.
"""

import numpy as np

from locotrans.kernels.loops import EPS, SLOPE, loop

ZERO, ONE = np.float32(0), np.float32(1)
WIDEST = 128  # layer, of channels, that the gradients of edges have room for


@loop
def vn_edge_moments(u, w, index, n, sums, start, stop):
    """Add up l - shift and its square, l the lengths of the vectors of all edges.

    Args:
        u: W1 v of all points, (m, 3, 2 d): the vectors, then their directions.
        w: (W2 - W1) v of all points.
        index: (m, k).
        n: points of a cloud.
        sums: (clouds, 3, d), float64, a shift, and both sums.
        start: first reference point.
        stop: one behind the last.
    """
    d, k = sums.shape[2], index.shape[1]
    first, second, shift = np.empty(d, np.float32), np.empty(d, np.float32), np.empty(d, np.float32)
    for r in range(start, stop):
        for c in range(d):
            shift[c] = sums[r // n, 0, c]
        px_r, py_r, pz_r = w[r, 0, :d], w[r, 1, :d], w[r, 2, :d]
        first[:] = 0
        second[:] = 0
        for e in range(k):
            j = index[r, e]
            px_j, py_j, pz_j = u[j, 0, :d], u[j, 1, :d], u[j, 2, :d]
            for c in range(d):
                px, py, pz = px_j[c] + px_r[c], py_j[c] + py_r[c], pz_j[c] + pz_r[c]
                x = np.sqrt(px * px + py * py + pz * pz) + EPS - shift[c]
                first[c] += x
                second[c] += x * x
        total = sums[r // n]
        for c in range(d):
            total[1, c] += first[c]
            total[2, c] += second[c]


@loop
def vn_edge_reductions(u, w, index, grad, norm, n, sums, start, stop):
    """Add up dy and dy x: y the new length of a vector, x the length normalised.

    Args:
        u: as of `vn_edge_moments`.
        w: likewise.
        index: (m, k).
        grad: (m, 3, d), of the mean over the neighbours.
        norm: (4, d): mean and 1 / deviation of the lengths, gamma and beta.
        n: points of a cloud.
        sums: (clouds, 2, d), float64.
        start: first reference point.
        stop: one behind the last.
    """
    d, k = grad.shape[2], index.shape[1]
    mean, rstd, gamma, beta = norm[0], norm[1], norm[2], norm[3]
    first, second = np.empty(d, np.float32), np.empty(d, np.float32)
    share = ONE / np.float32(k)
    for r in range(start, stop):
        gx_r, gy_r, gz_r = grad[r, 0], grad[r, 1], grad[r, 2]
        px_r, py_r, pz_r = w[r, 0, :d], w[r, 1, :d], w[r, 2, :d]
        qx_r, qy_r, qz_r = w[r, 0, d:], w[r, 1, d:], w[r, 2, d:]
        first[:] = 0
        second[:] = 0
        for e in range(k):
            j = index[r, e]
            px_j, py_j, pz_j = u[j, 0, :d], u[j, 1, :d], u[j, 2, :d]
            qx_j, qy_j, qz_j = u[j, 0, d:], u[j, 1, d:], u[j, 2, d:]
            for c in range(d):
                px, py, pz = px_j[c] + px_r[c], py_j[c] + py_r[c], pz_j[c] + pz_r[c]
                qx, qy, qz = qx_j[c] + qx_r[c], qy_j[c] + qy_r[c], qz_j[c] + qz_r[c]
                length = np.sqrt(px * px + py * py + pz * pz) + EPS
                x = (length - mean[c]) * rstd[c]
                f = (gamma[c] * x + beta[c]) / length
                pq = px * qx + py * qy + pz * qz
                gp = gx_r[c] * px + gy_r[c] * py + gz_r[c] * pz
                gq = gx_r[c] * qx + gy_r[c] * qy + gz_r[c] * qz
                squared = qx * qx + qy * qy + qz * qz + EPS
                turned = (ONE - SLOPE) / squared if f * pq <= ZERO else ZERO
                dy = (gp - turned * gq * pq) / length
                first[c] += dy
                second[c] += dy * x
        total = sums[r // n]
        for c in range(d):
            total[0, c] += share * first[c]
            total[1, c] += share * second[c]


@loop
def vn_edge_gradients(u, w, index, grad, norm, means, du, dw, start, stop):
    """Add the gradient of every edge to that of its neighbour and of its reference point.

    Args:
        u: as of `vn_edge_moments`.
        w: likewise.
        index: (m, k); neighbours are from start to stop, too.
        grad: (m, 3, d), of the mean over the neighbours.
        norm: (4, d): mean and 1 / deviation of the lengths, gamma and beta.
        means: (2, d): of dy and dy x over all edges.
        du: (m, 3, 2 d), zeros.
        dw: (m, 3, 2 d).
        start: first reference point.
        stop: one behind the last.
    """
    channels, k = grad.shape[2], index.shape[1]
    share = ONE / np.float32(k)
    # in rows whose distance is known, which lets the innermost loop become vector instructions
    rows = np.empty((12, WIDEST), np.float32)
    ax, ay, az, bx, by, bz = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5]
    dpx, dpy, dpz, dqx, dqy, dqz = rows[6], rows[7], rows[8], rows[9], rows[10], rows[11]
    for low in range(0, channels, WIDEST):
        high = min(low + WIDEST, channels)
        d, of_p, of_q = high - low, slice(low, high), slice(channels + low, channels + high)
        mean, rstd, gamma, beta = norm[0, of_p], norm[1, of_p], norm[2, of_p], norm[3, of_p]
        mean_dy, mean_dyx = means[0, of_p], means[1, of_p]
        for r in range(start, stop):
            gx_r, gy_r, gz_r = grad[r, 0, of_p], grad[r, 1, of_p], grad[r, 2, of_p]
            px_r, py_r, pz_r = w[r, 0, of_p], w[r, 1, of_p], w[r, 2, of_p]
            qx_r, qy_r, qz_r = w[r, 0, of_q], w[r, 1, of_q], w[r, 2, of_q]
            rows[:6] = 0
            for e in range(k):
                j = index[r, e]
                px_j, py_j, pz_j = u[j, 0, of_p], u[j, 1, of_p], u[j, 2, of_p]
                qx_j, qy_j, qz_j = u[j, 0, of_q], u[j, 1, of_q], u[j, 2, of_q]
                for c in range(d):
                    px, py, pz = px_j[c] + px_r[c], py_j[c] + py_r[c], pz_j[c] + pz_r[c]
                    qx, qy, qz = qx_j[c] + qx_r[c], qy_j[c] + qy_r[c], qz_j[c] + qz_r[c]
                    gx, gy, gz = share * gx_r[c], share * gy_r[c], share * gz_r[c]
                    root = np.sqrt(px * px + py * py + pz * pz)
                    length = root + EPS
                    x = (length - mean[c]) * rstd[c]
                    f = (gamma[c] * x + beta[c]) / length
                    pq = px * qx + py * qy + pz * qz
                    gq = gx * qx + gy * qy + gz * qz
                    squared = qx * qx + qy * qy + qz * qz + EPS
                    turned = (ONE - SLOPE) / squared if f * pq <= ZERO else ZERO
                    # the output is f (p - turned pq q); its gradient in terms of g, p and q:
                    dy = (gx * px + gy * py + gz * pz - turned * gq * pq) / length
                    dx = dy - mean_dy[c] - x * mean_dyx[c]
                    dl = (gamma[c] * rstd[c] * dx - f * dy) / root if root > ZERO else ZERO
                    across, back = -turned * f * gq, -turned * f * pq
                    dz = np.float32(-2) * back * gq / squared
                    dpx[c] = f * gx + across * qx + dl * px
                    dpy[c] = f * gy + across * qy + dl * py
                    dpz[c] = f * gz + across * qz + dl * pz
                    dqx[c] = back * gx + across * px + dz * qx
                    dqy[c] = back * gy + across * py + dz * qy
                    dqz[c] = back * gz + across * pz + dz * qz
                    ax[c] += dpx[c]
                    ay[c] += dpy[c]
                    az[c] += dpz[c]
                    bx[c] += dqx[c]
                    by[c] += dqy[c]
                    bz[c] += dqz[c]
                for a in range(3):
                    to_p, to_q, dp, dq = du[j, a, of_p], du[j, a, of_q], rows[6 + a], rows[9 + a]
                    for c in range(d):
                        to_p[c] += dp[c]
                    for c in range(d):
                        to_q[c] += dq[c]
            for a in range(3):
                dw[r, a, of_p] = rows[a, :d]
                dw[r, a, of_q] = rows[3 + a, :d]
