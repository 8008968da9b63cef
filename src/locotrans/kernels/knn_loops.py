"""Loops of the neighbour search for the CPU, compiled as those of `locotrans.kernels.loops`."""

import numpy as np

from locotrans.kernels.loops import loop

BLOCK = 8  # distances whose minimum is taken before any of them is looked at
STEPS = 24  # of bisection at most: the digits of float32


@loop
def select(distances, absolute, relative, k, out):
    """Write the k nearest of each row of distances, by the tie rule of `geometry.neighbors`.

    They come in the order of their indices, so that the order of a sum over them does not depend on
    rounding. The k-th smallest of the minima of blocks is no less than the k-th smallest distance,
    and not much more: few distances have to be looked at one by one. It need not be exact.

    Args:
        distances: (rows, n).
        absolute: what counts as rounding, for every row,
        relative: and, times the distance, in addition.
        k: how many neighbours.
        out: (rows, k) indices.
    """
    rows, n = distances.shape
    whole = n // BLOCK
    minima = np.empty(whole, np.float32)
    values, places = np.empty(n, np.float32), np.empty(n, np.int32)
    for r in range(rows):
        row, chosen = distances[r], out[r]
        for block in range(whole):
            part = row[block * BLOCK : (block + 1) * BLOCK]
            least = part[0]
            for i in range(1, BLOCK):
                least = min(least, part[i])
            minima[block] = least
        bound = np.float32(np.inf)
        if whole >= k:
            bound = _about_kth(minima, whole, k)
            bound += max(absolute[r] + relative * bound, np.float32(0))
        count = 0
        for block in range(whole):
            if minima[block] <= bound:
                first = block * BLOCK
                for i in range(BLOCK):
                    values[count] = row[first + i]
                    places[count] = first + i
                    count += row[first + i] <= bound  # no branch, which could not be foreseen
        for i in range(whole * BLOCK, n):
            values[count] = row[i]
            places[count] = i
            count += row[i] <= bound
        kth = _kth(values, count, k)
        slack = absolute[r] + relative * kth
        low, high = kth - slack, kth + slack
        ties = k  # places for those that are tied
        for i in range(count):
            ties -= values[i] < low
        place = 0
        for i in range(count):
            tied = low <= values[i] <= high
            if place < k and (values[i] < low or (tied and ties > 0)):
                chosen[place] = places[i]
                place += 1
            ties -= tied
        other = 0
        while place < k:  # where there are not k numbers, any others that exist
            taken = False
            for i in range(place):
                taken |= chosen[i] == other
            if not taken:
                chosen[place] = other
                place += 1
            other += 1


@loop
def _about_kth(values, count, k):
    """Return no less than the k-th smallest of the first values, and little more, by bisection."""
    low, high = values[0], values[0]
    for i in range(1, count):
        low, high = min(low, values[i]), max(high, values[i])
    for _ in range(STEPS):
        middle = low + (high - low) * np.float32(0.5)
        no_larger = 0
        for i in range(count):
            no_larger += values[i] <= middle
        if no_larger < k:
            low = middle
        else:
            high = middle
            if no_larger <= k + 1:
                break
    return high


@loop
def _kth(values, count, k):
    """Return the k-th smallest of the first values, by counting how many are no larger."""
    best = np.float32(np.inf)
    for i in range(count):
        value = values[i]
        if value < best:
            no_larger = 0
            for j in range(count):
                no_larger += values[j] <= value
            if no_larger >= k:
                best = value
    return best


@loop
def point_distances(points, rows, out):
    """Write the distances of some points of a cloud to all, by differences.

    Args:
        points: (3, n), the coordinates.
        rows: index of the first point.
        out: (m, n), the distances of m points from there on.
    """
    x, y, z = points[0], points[1], points[2]
    for r in range(len(out)):
        x0, y0, z0, row = x[rows + r], y[rows + r], z[rows + r], out[r]
        for i in range(len(row)):
            dx, dy, dz = x[i] - x0, y[i] - y0, z[i] - z0
            row[i] = np.sqrt(dx * dx + dy * dy + dz * dz)
