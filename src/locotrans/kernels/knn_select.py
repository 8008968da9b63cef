"""Kernels that select the k nearest of every row of distances.

One warp owns a row. The columns are cut into groups. A bound that holds k of the minima of groups,
found by bisection, holds k distances, and not many more: these are listed, and the k-th smallest of
them is found in the same way. Those that tie with it come in the order of their indices. Where the
list has no place for all that the bound holds, since many stand in few groups or are equal, or
where there are not k numbers, all distances are counted instead.

A warp holds a row of some columns (`select_kernel`). A longer one it runs through: once for the
minima, once for the list, and 34 times where all distances are counted (`select_large_kernel`).
"""

import triton
import triton.language as tl

from locotrans.kernels.knn_rows import (
    bound_row,
    distances,
    find_kth,
    largest,
    open_row,
    ordered,
    read_row,
    select_listed,
    tie,
    total,
    write_nearest,
)


@triton.jit
def _select_all(d, columns, out, absolute, relative, n, k, ROUNDS: tl.constexpr):
    """Write the k nearest of a row, whatever it holds, by counting all its distances."""
    d = tl.where(d < 3e38, d, float("inf"))  # what is no number comes last
    low = -largest(-d, d == d)
    high = largest(d, d < float("inf"))
    count = total(d <= high)
    kth = find_kth(d, low, high, count, k, ROUNDS)
    if count < k:
        kth = float("inf")
    slack = tie(kth, absolute, relative)
    write_nearest(d, columns, out, kth, slack, k - total(d < kth - slack), 0, 0, n)


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
    number = tl.program_id(0)
    row = open_row(source_ptr, cloud, number, rows, first_row, n, COORDINATES)
    first = tl.arange(0, GROUPS)[:, None]
    offsets = tl.arange(0, BLOCKS)[None, :] * GROUPS
    columns = first + offsets
    d = distances(read_row(row, first, offsets, n, COORDINATES, False), COORDINATES)
    absolute = tl.load(slack_ptr + cloud * n + first_row + number)
    out = out_ptr + (cloud * n + first_row + number) * k
    # the k-th smallest minimum of a group is a bound of the k-th smallest distance
    minima = tl.min(d, axis=1)[:, None]
    low, bound, holds = bound_row(minima, absolute, relative, k, ROUNDS)
    # what may be nearest or tied with it: a list of it, from lane to lane
    inside = d <= bound
    each = tl.sum(inside.to(tl.int32), axis=1)[:, None]
    count = total(each)
    if holds & (count >= k) & (count <= NEAR):
        near = near_ptr + (cloud * rows + number) * NEAR
        place = tl.cumsum(inside.to(tl.int32), axis=1) + tl.cumsum(each, axis=0) - each - 1
        tl.store(near + place, columns, mask=inside)
        select_listed(
            row, near, count, out, low, bound, absolute, relative, n, k, COORDINATES, NEAR, ROUNDS
        )
    else:
        _select_all(d, columns, out, absolute, relative, n, k, ROUNDS)


@triton.jit
def _read_step(row, start, n, COORDINATES: tl.constexpr, LANES: tl.constexpr, BLOCKS: tl.constexpr):
    """Columns of one step, and `read_row` of them."""
    first = start + tl.arange(0, LANES)[:, None]
    offsets = tl.arange(0, BLOCKS)[None, :] * LANES
    if start + LANES * BLOCKS <= n:
        numbers = read_row(row, first, offsets, n, COORDINATES, True)
    else:
        numbers = read_row(row, first, offsets, n, COORDINATES, False)
    return first + offsets, numbers


@triton.jit
def _list_row(
    row, limit, near, n, COORDINATES: tl.constexpr, LANES: tl.constexpr, BLOCKS: tl.constexpr,
    NEAR: tl.constexpr,
):  # fmt: skip
    """List the columns up to a limit, from lane to lane of every step; their number.

    Where it exceeds the list, it is that of the steps so far.
    """
    count = 0
    start = 0
    while (start < n) & (count <= NEAR):
        columns, numbers = _read_step(row, start, n, COORDINATES, LANES, BLOCKS)
        if total((tl.min(numbers, axis=1) <= limit)[:, None]) > 0:
            inside = numbers <= limit
            each = tl.sum(inside.to(tl.int32), axis=1)[:, None]
            before = count + tl.cumsum(each, axis=0) - each
            count += total(each)
            if count <= NEAR:
                place = before + tl.cumsum(inside.to(tl.int32), axis=1) - 1
                tl.store(near + place, columns, mask=inside)
        start += LANES * BLOCKS
    return count


@triton.jit
def _read_far(row, start, n, COORDINATES: tl.constexpr, LANES: tl.constexpr, BLOCKS: tl.constexpr):
    """Columns of one step, and their distances. What is no number is far, nearer than nothing."""
    columns, numbers = _read_step(row, start, n, COORDINATES, LANES, BLOCKS)
    numbers = distances(tl.where(numbers < 3e38, numbers, 3e38), COORDINATES)
    return columns, tl.where(columns < n, numbers, float("inf"))


@triton.jit
def _count_row(
    row, out, absolute, relative, n, k, COORDINATES: tl.constexpr, LANES: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write the k nearest of a row, whatever it holds, by counting all its distances."""
    # the k-th smallest number, by bisection of all 32 bits
    low = -(2**31)
    high = ordered(tl.full((), 3e38, tl.float32))
    while low + 1 < high:
        middle = (low & high) + ((low ^ high) >> 1)  # half their sum
        limit = ordered(middle.to(tl.float32, bitcast=True)).to(tl.float32, bitcast=True)
        counts = tl.zeros((LANES, BLOCKS), tl.int32)
        for start in range(0, n, LANES * BLOCKS):
            _, numbers = _read_step(row, start, n, COORDINATES, LANES, BLOCKS)
            counts += (numbers <= limit).to(tl.int32)
        enough = total(counts) >= k
        low = tl.where(enough, low, middle)
        high = tl.where(enough, middle, high)
    kth = ordered(high.to(tl.float32, bitcast=True)).to(tl.float32, bitcast=True)
    kth = distances(kth, COORDINATES)
    slack = tie(kth, absolute, relative)
    counts = tl.zeros((LANES, BLOCKS), tl.int32)
    for start in range(0, n, LANES * BLOCKS):
        _, d = _read_far(row, start, n, COORDINATES, LANES, BLOCKS)
        counts += (d < kth - slack).to(tl.int32)
    places = k - total(counts)
    nearer = 0
    tied = 0
    for start in range(0, n, LANES * BLOCKS):
        columns, d = _read_far(row, start, n, COORDINATES, LANES, BLOCKS)
        nearer, tied = write_nearest(d, columns, out, kth, slack, places, nearer, tied, n)


@triton.jit(do_not_specialize=["n"])
def select_large_kernel(
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
    LANES: tl.constexpr,
    GROUPS: tl.constexpr,
    NEAR: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    """Write the neighbours of one row, of any number of columns, LANES x BLOCKS at a time."""
    cloud = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0)
    row = open_row(source_ptr, cloud, number, rows, first_row, n, COORDINATES)
    absolute = tl.load(slack_ptr + cloud * n + first_row + number)
    out = out_ptr + (cloud * n + first_row + number) * k
    # columns that are GROUPS apart are a group; what a step reads beyond these, the next reads, too
    minima = tl.full((LANES, BLOCKS), float("inf"), tl.float32)
    for start in range(0, n, GROUPS):
        _, numbers = _read_step(row, start, n, COORDINATES, LANES, BLOCKS)
        minima = tl.minimum(minima, numbers)
    group = tl.arange(0, LANES)[:, None] + tl.arange(0, BLOCKS)[None, :] * LANES
    minima = tl.where(group < GROUPS, distances(minima, COORDINATES), float("inf"))
    low, bound, holds = bound_row(minima, absolute, relative, k, ROUNDS)
    # of squares, all whose root is within the bound, and perhaps more
    limit = bound * bound * (1 + 2**-20) if COORDINATES else bound
    near = near_ptr + (cloud * rows + number) * NEAR
    count = 0
    if holds & (limit < 3e38):
        count = _list_row(row, limit, near, n, COORDINATES, LANES, BLOCKS, NEAR)
    if (count >= k) & (count <= NEAR):
        select_listed(
            row, near, count, out, low, bound, absolute, relative, n, k, COORDINATES, NEAR, ROUNDS
        )
    else:
        _count_row(row, out, absolute, relative, n, k, COORDINATES, LANES, BLOCKS)
