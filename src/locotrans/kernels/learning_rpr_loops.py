"""Loops over edges of features for training on the CPU, compiled by Numba; see `learning_rpr`.

They are as those of `loops`; most are given the edges of a few points. What is summed over edges is
summed for every cloud, in ``sums``, so that no result depends on the number of threads.
"""

import numpy as np

from locotrans.kernels.loops import loop

ZERO = np.float32(0)
SOME = 32  # rows that are added up in float32, before float64


@loop
def add_moments(x, sums):
    """Add up x - shift and its square over rows; the shift is in ``sums``, (3, c), before them."""
    shift, total, squares = sums[0], sums[1], sums[2]
    c = x.shape[1]
    first, second = np.empty(c, np.float32), np.empty(c, np.float32)
    for start in range(0, len(x), SOME):
        first[:] = 0
        second[:] = 0
        for r in range(start, min(start + SOME, len(x))):
            row = x[r]
            for i in range(c):
                y = row[i] - np.float32(shift[i])
                first[i] += y
                second[i] += y * y
        for i in range(c):
            total[i] += first[i]
            squares[i] += second[i]


@loop
def rectify(x, scale, shift, out):
    """Write ``relu(scale x + shift)``."""
    for r in range(len(x)):
        row, to = x[r], out[r]
        for c in range(len(row)):
            to[c] = max(row[c] * scale[c] + shift[c], ZERO)


@loop
def multiply_neighbors(edges, basis, index, start, stop):
    """Multiply every edge by the features of its neighbour, in place.

    Args:
        edges: ((stop - start) k, c).
        basis: (m, c).
        index: (m, k).
        start: first reference point.
        stop: one behind the last.
    """
    k = index.shape[1]
    for r in range(start, stop):
        for e in range(k):
            row, x_j = edges[(r - start) * k + e], basis[index[r, e]]
            for c in range(len(row)):
                row[c] *= x_j[c]


@loop
def choose_edges(edges, z, sign, best, chosen, total, sums, start, stop):
    """Find the edge of each point that batch norm makes the largest, and add up moments.

    Args:
        edges: ((stop - start) k, d), to which that of its point in ``z`` is to be added.
        z: (m, d).
        sign: (d,), of what batch norm multiplies with; of 0, the first edge is chosen.
        best: (m, d), is filled with the values of these edges.
        chosen: (m, d), and with which of the k they are.
        total: (m, d), and with the sums over the edges.
        sums: (3, d), float64, as of `add_moments`.
        start: first reference point.
        stop: one behind the last.
    """
    d, k = z.shape[1], len(edges) // (stop - start)
    first, second, shift = np.empty(d, np.float32), np.empty(d, np.float32), np.empty(d, np.float32)
    for c in range(d):
        shift[c] = sums[0, c]
    for r in range(start, stop):
        highest, which, added, own = best[r], chosen[r], total[r], z[r]
        first[:] = 0
        second[:] = 0
        highest[:] = -np.inf
        which[:] = 0  # where nothing is larger: no numbers
        for e in range(k):
            row = edges[(r - start) * k + e]
            for c in range(d):
                x = row[c] + own[c] - shift[c]
                first[c] += x
                second[c] += x * x
            for c in range(d):
                x = sign[c] * row[c]
                which[c] = e if x > highest[c] else which[c]
                highest[c] = max(x, highest[c])
        for c in range(d):
            highest[c] = edges[(r - start) * k + which[c], c] + own[c]
            added[c] = first[c] + np.float32(k) * shift[c]
            sums[1, c] += first[c]
            sums[2, c] += second[c]


@loop
def chosen_gradients(a, chosen, gradient, weight, base, da, dweight, total, start, stop):
    """Send the gradient of each point's chosen edges back through the last product.

    Args:
        a: ((stop - start) k, c), what was multiplied.
        chosen: (m, d), which of the k.
        gradient: (m, d), of these.
        weight: (d, c).
        base: (m, c), the gradient that all edges of a point have.
        da: ((stop - start) k, c), is added to.
        dweight: (d, c), is added to.
        total: (m, c), is filled with the sums of ``a`` over the edges.
        start: first reference point.
        stop: one behind the last.
    """
    (d, c), k = weight.shape, len(a) // (stop - start)
    for r in range(start, stop):
        first, added, own = (r - start) * k, total[r], base[r]
        added[:] = 0
        for e in range(first, first + k):
            row, to = a[e], da[e]
            for i in range(c):
                added[i] += row[i]
                to[i] += own[i]
        for o in range(d):
            g, e = gradient[r, o], first + chosen[r, o]
            row, to, w, dw = a[e], da[e], weight[o], dweight[o]
            for i in range(c):
                to[i] += g * w[i]
            for i in range(c):
                dw[i] += g * row[i]


@loop
def rectify_backward(da, a, x, mean, sums):
    """Turn the gradient behind a ReLU into that before it, in place, and add it up.

    Args:
        da: (rows, c), the gradient.
        a: (rows, c), what came out of it.
        x: (rows, c), what went into batch norm.
        mean: (c,).
        sums: (2, c), float64: of it, and of it times x - mean.
    """
    c = x.shape[1]
    first, second = np.empty(c, np.float32), np.empty(c, np.float32)
    for start in range(0, len(x), SOME):
        first[:] = 0
        second[:] = 0
        for r in range(start, min(start + SOME, len(x))):
            g, row, before = da[r], a[r], x[r]
            for i in range(c):
                y = g[i] if row[i] > ZERO else ZERO
                g[i] = y
                first[i] += y
                second[i] += y * (before[i] - mean[i])
        for i in range(c):
            sums[0, i] += first[i]
            sums[1, i] += second[i]


@loop
def norm_backward(dy, x, p, q, t):
    """Turn the gradient behind a batch norm into that before it, ``p dy - q x - t``, in place."""
    for r in range(len(x)):
        g, row = dy[r], x[r]
        for c in range(len(row)):
            g[c] = p[c] * g[c] - q[c] * row[c] - t[c]


@loop
def multiply_neighbors_backward(gradient, kernel, basis, index, dbasis, dbias, start, stop):
    """Turn the gradient of a product with neighbours' features into that of the kernel, in place.

    Args:
        gradient: ((stop - start) k, c).
        kernel: ((stop - start) k, c).
        basis: (m, c).
        index: (m, k); neighbours are of the same cloud.
        dbasis: (m, c), is added to.
        dbias: (c,), is added to.
        start: first reference point.
        stop: one behind the last.
    """
    k = index.shape[1]
    for r in range(start, stop):
        for e in range(k):
            j = index[r, e]
            g, row, x_j, to = (
                gradient[(r - start) * k + e],
                kernel[(r - start) * k + e],
                basis[j],
                dbasis[j],
            )
            for c in range(len(g)):
                to[c] += g[c] * row[c]
            for c in range(len(g)):
                g[c] *= x_j[c]
                dbias[c] += g[c]


@loop
def pose_gradients(gradient, frames, index, dv, start, stop):
    """Send the gradient of ``U_r^T (v_j - v_r)`` back to the vectors.

    Args:
        gradient: ((stop - start) k, 3 c).
        frames: (m, 3, 3).
        index: (m, k); neighbours are of the same cloud.
        dv: (m, 3, c), is added to.
        start: first reference point.
        stop: one behind the last.
    """
    c, k = dv.shape[2], index.shape[1]
    for r in range(start, stop):
        U = frames[r]
        for e in range(k):
            j, row = index[r, e], gradient[(r - start) * k + e]
            x, y, z = row[:c], row[c : 2 * c], row[2 * c :]
            for a in range(3):
                ux, uy, uz, to, back = U[a, 0], U[a, 1], U[a, 2], dv[j, a], dv[r, a]
                for i in range(c):
                    g = ux * x[i] + uy * y[i] + uz * z[i]
                    to[i] += g
                for i in range(c):
                    back[i] -= ux * x[i] + uy * y[i] + uz * z[i]
