"""What the kernels that select neighbours (`knn_select`) do with a row of distances.

A tile of numbers has two axes, and belongs to one warp.
"""

import triton
import triton.language as tl


@triton.jit
def open_row(source_ptr, cloud, row, rows, first_row, n, COORDINATES: tl.constexpr):
    """Where a row reads: coordinates of the cloud, and its own; or distances, and nothing."""
    if COORDINATES:
        source_ptr += cloud * n * 3
        own = source_ptr + first_row + row
        x = tl.load(own)
        y = tl.load(own + n)
        z = tl.load(own + 2 * n)
    else:
        source_ptr += (cloud * rows + row) * n
        x = 0.0
        y = 0.0
        z = 0.0
    return source_ptr, x, y, z


@triton.jit
def _load(at, first, offsets, n, WHOLE: tl.constexpr):
    if WHOLE:
        numbers = tl.load(at + first + offsets)
    else:
        numbers = tl.load(at + first + offsets, mask=first + offsets < n, other=float("inf"))
    return numbers


@triton.jit
def read_row(row, first, offsets, n, COORDINATES: tl.constexpr, WHOLE: tl.constexpr):
    """Numbers in the order of distances: the squares of those of points, those of features.

    Columns are ``first + offsets``, apart so that a lane has one address. Beyond the last one
    numbers are infinite, or none; WHOLE: there is nothing beyond.
    """
    source_ptr, x, y, z = row
    if COORDINATES:
        x = x - _load(source_ptr, first, offsets, n, WHOLE)
        numbers = x * x
        y = y - _load(source_ptr + n, first, offsets, n, WHOLE)
        numbers = tl.fma(y, y, numbers)  # said, so that all runs through a row round alike
        z = z - _load(source_ptr + 2 * n, first, offsets, n, WHOLE)
        numbers = tl.fma(z, z, numbers)
    else:
        numbers = _load(source_ptr, first, offsets, n, WHOLE)
    return numbers


@triton.jit
def distances(numbers, COORDINATES: tl.constexpr):
    """Distances, of the numbers in their order."""
    if COORDINATES:
        numbers = tl.sqrt_rn(numbers)
    return numbers


@triton.jit
def total(x):
    """The sum over a tile of numbers or truth values, as an integer."""
    return tl.sum(tl.sum(x.to(tl.int32), axis=1), axis=0)


@triton.jit
def ordered(x):
    """Integers in the order of numbers, or back: a warp reduces integers in one instruction."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def largest(values, chosen):
    """The largest of the chosen values; -inf where there is none."""
    found = tl.max(tl.where(chosen, values, float("-inf")), axis=1)
    found = tl.max(ordered(found), axis=0).to(tl.float32, bitcast=True)
    return ordered(found).to(tl.float32, bitcast=True)


@triton.jit
def _bisected(values, low, high, count, k, spare, ROUNDS: tl.constexpr):
    """A bound that k values do not exceed, and k + spare at most; and their number.

    ``count`` values, k at least, do not exceed ``high``, fewer than k are below ``low``. Where the
    rounds do not suffice, or where values are equal, there are more.
    """
    rounds = 0
    while (count > k + spare) & (rounds < ROUNDS):
        middle = 0.5 * low + 0.5 * high
        below = total(values <= middle)
        low = tl.where(below >= k, low, middle)
        high = tl.where(below >= k, middle, high)
        count = tl.where(below >= k, below, count)
        rounds += 1
    return high, count


@triton.jit
def bound_row(minima, absolute, relative, k, ROUNDS: tl.constexpr):
    """Of the minima of groups: the least, a bound that k of them and ties hold, and whether.

    The bound holds the k nearest of all, too, and all that may be tied with them.
    """
    low = -largest(-minima, minima == minima)
    high = largest(minima, minima < float("inf"))
    bound, count = _bisected(minima, low, high, total(minima <= high), k, k // 2, ROUNDS)
    return low, bound + (absolute + relative * bound), count >= k


@triton.jit
def find_kth(values, low, high, count, k, ROUNDS: tl.constexpr):
    """The k-th smallest of values, of which ``count`` do not exceed ``high``, as in `_bisected`."""
    bound, count = _bisected(values, low, high, count, k, 0, ROUNDS)
    kth = largest(values, values <= bound)
    while count > k:  # equal values, or nearly so: go down from one to the next
        below = total(values < kth)
        if below >= k:
            kth = largest(values, values < kth)
            count = below
        else:
            count = k
    return kth


@triton.jit
def tie(kth, absolute, relative):
    """How far others may be from the k-th distance to be tied with it."""
    slack = absolute + relative * kth
    return tl.where((slack > 0) & (slack < float("inf")), slack, 0.0)


@triton.jit
def select_listed(
    row,
    near,  # (NEAR) columns of all distances up to the bound
    count,  # how many, k at least
    out,  # (k)
    low,
    bound,
    absolute,
    relative,
    n,
    k,
    COORDINATES: tl.constexpr,
    NEAR: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    """Write the k nearest of a list."""
    tl.debug_barrier()  # other lanes wrote it
    slots = tl.arange(0, NEAR)[:, None]
    columns = tl.load(near + slots, mask=slots < count, other=n)
    d = distances(read_row(row, columns, 0, n, COORDINATES, False), COORDINATES)
    kth = find_kth(d, low, bound, count, k, ROUNDS)
    slack = tie(kth, absolute, relative)
    chosen = d <= kth + slack
    if total(chosen) > k:  # more ties than places: up to which column do they have one?
        nearer = d < kth - slack
        places = k - total(nearer)
        tied = chosen & (d >= kth - slack)
        before = -1
        last = n - 1
        while before + 1 < last:
            middle = (before + last) // 2
            enough = total(tied & (columns <= middle)) >= places
            before = tl.where(enough, before, middle)
            last = tl.where(enough, middle, last)
        chosen = nearer | (tied & (columns <= last))
    rank = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(out + rank, columns, mask=chosen)


@triton.jit
def write_nearest(d, columns, out, kth, slack, places, nearer, tied, n):
    """Write what is nearer than the tied ones, and of these what has a place, in order.

    ``nearer`` and ``tied`` are how many there were in tiles before; returned with those of this.
    """
    is_nearer = d < kth - slack
    is_tied = (columns < n) & (d <= kth + slack) & (d >= kth - slack)
    counts = is_nearer.to(tl.int32) + is_tied.to(tl.int32) * 65536
    blocks = tl.sum(counts, axis=0)[None, :]
    both = tl.cumsum(counts, axis=0) + tl.cumsum(blocks, axis=1) - blocks
    number = tied + (both >> 16)
    place = nearer + (both & 65535) + tl.minimum(number, places) - 1
    tl.store(out + place, columns, mask=is_nearer | (is_tied & (number <= places)))
    counts = total(blocks)
    return nearer + (counts & 65535), tied + (counts >> 16)
