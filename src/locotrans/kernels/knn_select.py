"""Kernels that select the k nearest of every row of distances.

One warp owns a row, in registers. The columns are cut into groups. A bound that holds k of the
minima of groups, found by bisection, holds k distances, and not many more: these are listed, and
the k-th smallest of them is found in the same way. Where more distances are tied than there are
places, or where too many stand in few groups, all distances are counted instead, and ties come in
the order of their indices. Clouds of more points than a warp can hold are taken block by block,
with a list of the nearest so far.
"""

import triton
import triton.language as tl


@triton.jit
def _distances(source_ptr, cloud, row, rows, first_row, columns, n, COORDINATES: tl.constexpr):
    """Squared distances of a row, or some, to some columns, infinite beyond the last column."""
    if COORDINATES:
        source_ptr += cloud * n * 3
        d = tl.where(columns < n, 0.0, float("inf"))
        for axis in tl.static_range(3):
            x = tl.load(source_ptr + axis * n + first_row + row)
            y = tl.load(source_ptr + axis * n + columns, mask=columns < n, other=0.0)
            d = d + (x - y) * (x - y)
        d = tl.sqrt_rn(d)
    else:
        source_ptr += (cloud * rows + row) * n
        d = tl.load(source_ptr + columns, mask=columns < n, other=float("inf"))
    return d


@triton.jit
def _total(x):
    """The sum over a tile of numbers or truth values, as an integer."""
    return tl.sum(tl.sum(x.to(tl.int32), axis=1), axis=0)


@triton.jit
def _ordered(x):
    """Integers in the order of numbers, or back: a warp reduces integers in one instruction."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _largest(values, chosen):
    """The largest of the chosen values; -inf where there is none."""
    largest = tl.max(tl.where(chosen, values, float("-inf")), axis=1)
    largest = tl.max(_ordered(largest), axis=0).to(tl.float32, bitcast=True)
    return _ordered(largest).to(tl.float32, bitcast=True)


@triton.jit
def _bisected(values, low, high, count, k, spare, ROUNDS: tl.constexpr):
    """A bound that k values do not exceed, and k + spare at most; and their number.

    ``count`` values, k at least, do not exceed ``high``, fewer than k are below ``low``. Where the
    rounds do not suffice, or where values are equal, there are more.
    """
    rounds = 0
    while (count > k + spare) & (rounds < ROUNDS):
        middle = 0.5 * low + 0.5 * high
        below = _total(values <= middle)
        low = tl.where(below >= k, low, middle)
        high = tl.where(below >= k, middle, high)
        count = tl.where(below >= k, below, count)
        rounds += 1
    return high, count


@triton.jit
def _select_all(d, columns, out, absolute, relative, n, k, ROUNDS: tl.constexpr):
    """Write the k nearest of a row, whatever it holds, by counting all its distances."""
    d = tl.where(d < 3e38, d, float("inf"))  # what is no number comes last
    low = -_largest(-d, d == d)
    bound = _largest(d, d < float("inf"))
    bound, count = _bisected(d, low, bound, _total(d <= bound), k, 0, ROUNDS)
    kth = _largest(d, d <= bound)
    while count > k:  # equal distances, or nearly so: go down from one to the next
        below = _total(d < kth)
        if below >= k:
            kth = _largest(d, d < kth)
            count = below
        else:
            count = k
    if count < k:
        kth = float("inf")
    slack = absolute + relative * kth
    slack = tl.where(slack < float("inf"), slack, 0.0)
    # those below the tied ones, and so many of these as there are places, in order
    nearer = d < kth - slack
    tied = (columns < n) & (d <= kth + slack) & (d >= kth - slack)
    counts = nearer.to(tl.int32) + tied.to(tl.int32) * 65536
    blocks = tl.sum(counts, axis=0)[None, :]
    both = tl.cumsum(counts, axis=0) + tl.cumsum(blocks, axis=1) - blocks
    places = k - _total(nearer)
    chosen = nearer | (tied & ((both >> 16) <= places))
    place = (both & 65535) + tl.minimum(both >> 16, places) - 1
    tl.store(out + place, columns, mask=chosen)


@triton.jit(do_not_specialize=["n"])  # so that a lane loads one number at a time, as it stores them
def select_kernel(
    source_ptr,  # coordinates (b, 3, n), or distances of features (b, rows, n)
    slack_ptr,  # (b, n) what counts as rounding of a distance,
    relative,  # and, times the distance, in addition
    near_ptr,  # (b, rows, NEAR) columns of those that may be nearest, written and read
    out_ptr,  # (b, n, k)
    first_row,
    rows,
    n,
    k,
    COORDINATES: tl.constexpr,
    BLOCKS: tl.constexpr,
    GROUPS: tl.constexpr,
    NEAR: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    """Write the neighbours of one row, of as many columns as a warp holds."""
    cloud = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0)
    columns = tl.arange(0, GROUPS)[:, None] + tl.arange(0, BLOCKS)[None, :] * GROUPS
    d = _distances(source_ptr, cloud, row, rows, first_row, columns, n, COORDINATES)
    absolute = tl.load(slack_ptr + cloud * n + first_row + row)
    out = out_ptr + (cloud * n + first_row + row) * k
    # the k-th smallest minimum of a group is a bound of the k-th smallest distance
    minima = tl.min(d, axis=1)[:, None]
    low = -_largest(-minima, minima == minima)
    high = _largest(minima, minima < float("inf"))
    bound, found = _bisected(minima, low, high, _total(minima <= high), k, k // 2, ROUNDS)
    # what may be nearest or tied with it: a list of it, from lane to lane
    bound += absolute + relative * bound
    inside = d <= bound
    each = tl.sum(inside.to(tl.int32), axis=1)[:, None]
    count = _total(each)
    complete = 0
    if (found >= k) & (count <= NEAR):
        near = near_ptr + (cloud * rows + row) * NEAR
        place = tl.cumsum(inside.to(tl.int32), axis=1) + tl.cumsum(each, axis=0) - each - 1
        tl.store(near + place, columns, mask=inside)
        tl.debug_barrier()
        slots = tl.arange(0, NEAR)[:, None]
        column = tl.load(near + slots, mask=slots < count, other=n)
        t = _distances(source_ptr, cloud, row, rows, first_row, column, n, COORDINATES)
        bound, count = _bisected(t, low, bound, count, k, 0, ROUNDS)
        kth = _largest(t, t <= bound)
        chosen = t <= kth + (absolute + relative * kth)
        rank = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        if (count == k) & (_total(chosen) == k):
            tl.store(out + rank, column, mask=chosen)
            complete = 1
    if complete == 0:  # more ties than places, or too many in few groups
        _select_all(d, columns, out, absolute, relative, n, k, ROUNDS)


@triton.jit
def _kth(near, k, slots):
    """The k-th smallest of every row, by taking out the smallest k - 1 times."""
    for _ in range(k - 1):
        slot = tl.argmin(near, axis=1)
        near = tl.where(slots == slot[:, None], float("inf"), near)
    return tl.min(near, axis=1)


@triton.jit
def select_blocks_kernel(
    source_ptr,  # coordinates (b, 3, n), or distances of features (b, rows, n)
    slack_ptr,  # (b, n) what counts as rounding of a distance,
    relative,  # and, times the distance, in addition
    out_ptr,  # (b, n, k)
    first_row,
    rows,
    n,
    k,
    candidates,  # that ties are looked for among
    COORDINATES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Write the neighbours of some rows, of any number of columns, COLUMNS at a time."""
    cloud = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = tl.minimum(row, rows - 1)
    slots = tl.arange(0, SLOTS)[None, :]
    absolute = tl.load(slack_ptr + cloud * n + first_row + row, mask=row < rows, other=0.0)
    out = out_ptr + (cloud * n + first_row + row)[:, None] * k
    # slots beyond the candidates hold -inf: never the worst, never replaced
    near = tl.zeros((ROWS, SLOTS), tl.float32)
    near = tl.where(slots < candidates, near + float("inf"), near - float("inf"))
    index = tl.zeros((ROWS, SLOTS), tl.int32) + 3 * n
    for start in range(0, n, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        d = _distances(
            source_ptr, cloud, real[:, None], rows, first_row, columns[None, :], n, COORDINATES
        )
        # what is no number is far, but nearer than nothing: every slot gets a column
        d = tl.where((d < 3e38) | (columns >= n)[None, :], d, 3e38)
        value, column = tl.min(d, axis=1, return_indices=True)
        worst, slot = tl.max(near, axis=1, return_indices=True)
        while tl.max((value < worst).to(tl.int32), axis=0) > 0:
            place = (slots == slot[:, None]) & (value < worst)[:, None]
            near = tl.where(place, value[:, None], near)
            index = tl.where(place, (start + column)[:, None], index)
            d = tl.where(columns[None, :] == (start + column)[:, None], float("inf"), d)
            value, column = tl.min(d, axis=1, return_indices=True)
            worst, slot = tl.max(near, axis=1, return_indices=True)
    # nearer than the ties: all; tied: the lowest indices
    near = tl.where(slots < candidates, near, float("inf"))
    kth = _kth(near, k, slots)
    slack = absolute + relative * kth
    key = tl.where(near > (kth + slack)[:, None], 3 * n, index)
    key = tl.where(near < (kth - slack)[:, None], slots - SLOTS, key)
    for i in range(k):
        chosen = slots == tl.argmin(key, axis=1)[:, None]
        winner = tl.sum(tl.where(chosen, index, 0), axis=1)
        tl.store(out + i, winner[:, None], mask=(row < rows)[:, None])
        key = tl.where(chosen, 4 * n, key)
