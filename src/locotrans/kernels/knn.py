"""k nearest neighbours on the GPU: distances of features by products, and a selection kernel.

The specification is `locotrans.geometry.neighbors`, tie rule included.

Features are centred, scaled, and split into two numbers of half precision, 11 bits each. Three of
the four products of the parts, on tensor cores, are a product of 22 bits: sums of many are better
than those of float32, as long as no feature of a cloud is more than 1,000 times the others. With
the parts side by side, and those of squared lengths behind them, torch's product of two matrices is
one of distances. They are written to memory, some rows at a time; those of coordinates are made
where they are needed.

In the selection one warp owns a row, in registers. The columns are cut into groups. A bound that
holds k of the minima of groups, found by bisection, holds k distances, and not many more: these are
listed, and the k-th smallest of them is found in the same way. Where more distances are tied than
there are places, or where too many stand in few groups, all distances are counted instead, and ties
come in the order of their indices. Neighbours have no order. Clouds of more points than a warp can
hold are taken block by block, with a list of the nearest so far.

Floor, 32 clouds of 1,024 points, 64 features, k = 20: 8 MB read, 3 MB written (3 us), the factors
written and read (0.01 ms), 13 GFLOP of products in half precision (0.02 ms), the distances written
and read (0.06 ms), about 1,000 instructions a row for the selection, by its machine code (0.04 ms).
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry.neighbors import CHUNK, SPARE, feature_rounding, point_rounding
from locotrans.kernels import float32_products
from locotrans.kernels.tiles import INTERPRETED

COLUMNS = 2048  # distances that a warp holds
GROUPS = 128  # of columns, at most
ROUNDS = 24  # of a bisection, at most
ROWS = 2  # that a warp owns in clouds that do not fit
CENTER_ROWS, CENTER_CHANNELS = 512, 8  # of a program that centres features
PART_ROWS = 8  # of a program that splits features
# whether torch multiplies half precision into float32
WIDE_PRODUCTS = "dtype" in torch.ops.aten.bmm.overloads()
ABSOLUTE, RELATIVE = (float(x) for x in feature_rounding(torch.ones(1, 1)))  # where |x| = 1


@triton.jit
def _center_kernel(
    x_ptr,  # (b, n, C) features
    center_ptr,  # (b, C) their means, written
    largest_ptr,  # (b, BLOCKS) the largest difference of them from the first point, written
    n,
    C: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    cloud = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    x0 = tl.load(x_ptr + cloud * n * C + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    largest = tl.zeros((ROWS, CHANNELS), tl.float32)
    for first in range(0, n, ROWS):
        rows = first + tl.arange(0, ROWS)
        mask = (rows < n)[:, None] & (c < C)[None, :]
        at = x_ptr + (cloud * n + rows)[:, None] * C + c[None, :]
        x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        total += x
        largest = tl.maximum(largest, tl.where(mask, tl.abs(x - x0), 0.0))
    tl.store(center_ptr + cloud * C + c, tl.sum(total, axis=0) / n, mask=c < C)
    largest = tl.max(tl.max(largest, axis=0), axis=0)
    tl.store(largest_ptr + cloud * BLOCKS + tl.program_id(0), largest)


@triton.jit
def _split(x):
    """Two numbers of half precision that add up to one of float32, nearly."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def _parts_kernel(
    x_ptr,  # (b, n, C) features
    center_ptr,  # (b, C) their means
    largest_ptr,  # (b, BLOCKS) the largest difference of them from the first point
    slack_ptr,  # (b, n) what counts as rounding of a distance, written
    left_ptr,  # (b, n, WIDTH) written
    right_ptr,  # (b, n, WIDTH) written
    n,
    absolute,  # what counts as rounding where |x| = 1
    C: tl.constexpr,
    STEP: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Write factors of half precision whose product is ``|y|^2 - 2 x.y`` of scaled features.

    WIDTH is 3 STEP + 8: three pairs of parts, and, behind them, three powers of two and the parts
    of ``|y|^2`` over them. Centred features reach 2 SCALE at most: all parts fit half precision,
    and the lower ones have digits. Tensor cores cut their sums, they do not round: the small
    products come first.
    """
    WIDTH: tl.constexpr = 3 * STEP + 8
    cloud = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    center = tl.load(center_ptr + cloud * C + c, mask=c < C, other=0.0)
    blocks = tl.arange(0, CHANNELS)
    largest = tl.load(largest_ptr + cloud * BLOCKS + blocks, mask=blocks < BLOCKS, other=0.0)
    # a power of two: scaling is exact
    exponent = tl.max(largest, axis=0).to(tl.int32, bitcast=True) >> 23
    scale = SCALE * ((253 - tl.maximum(exponent, 32)) << 23).to(tl.float32, bitcast=True)
    mask = (rows < n)[:, None] & (c < C)[None, :]
    x = tl.load(x_ptr + (cloud * n + rows)[:, None] * C + c[None, :], mask=mask, other=0.0)
    x = tl.where(mask, x.to(tl.float32) - center[None, :], 0.0) * scale
    squares = tl.sum(x * x, axis=1)
    tl.store(slack_ptr + cloud * n + rows, absolute * squares, mask=rows < n)
    at = (cloud * n + rows)[:, None] * WIDTH + c[None, :]
    mask = (rows < n)[:, None] & (c < STEP)[None, :]
    high, low = _split(x)
    left, right = left_ptr + at, right_ptr + at
    tl.store(left, -2 * high, mask=mask)
    tl.store(right, low, mask=mask)
    tl.store(left + STEP, -2 * low, mask=mask)
    tl.store(right + STEP, high, mask=mask)
    tl.store(left + 2 * STEP, -2 * high, mask=mask)
    tl.store(right + 2 * STEP, high, mask=mask)
    high = (squares * 2.0**-15).to(tl.float16).to(tl.float32)
    rest = squares - high * 2.0**15
    middle = (rest * 2.0**-4).to(tl.float16).to(tl.float32)
    low = (rest - middle * 2.0**4) * 2.0**7
    last = tl.arange(0, 8)[None, :]
    at = (cloud * n + rows)[:, None] * WIDTH + 3 * STEP + last
    mask = (rows < n)[:, None]
    parts = tl.where(last == 0, low[:, None], tl.where(last == 1, middle[:, None], high[:, None]))
    units = tl.where(last == 0, 2.0**-7, tl.where(last == 1, 2.0**4, 2.0**15))
    tl.store(left_ptr + at, units + tl.zeros_like(parts), mask=mask)
    tl.store(right_ptr + at, tl.where(last < 3, parts, 0.0), mask=mask)


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
def _select_kernel(
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
def _select_blocks_kernel(
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


def feature_centers(
    x: Float[Tensor, "b n c"],
) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b blocks"]]:
    """Return the means of the features of a cloud, and largest differences from its first point."""
    b, n, c = x.shape
    blocks = triton.cdiv(c, CENTER_CHANNELS)
    center, largest = (torch.empty(b, m, device=x.device) for m in (c, blocks))
    _center_kernel[(blocks, b)](
        x, center, largest, n,
        C=c, BLOCKS=blocks, ROWS=CENTER_ROWS, CHANNELS=CENTER_CHANNELS, num_warps=8,
    )  # fmt: skip
    return center, largest


def feature_factors(
    x: Float[Tensor, "b n c"],
) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b n d"], Float[Tensor, "b n"]]:
    """Return factors whose product is ``|y|^2 - 2 x.y`` of centred features, and its rounding.

    The factors are of half precision, and of features scaled by a power of two, a cloud, where
    torch multiplies such into float32; else they are float32.
    """
    b, n, c = x.shape
    if not (INTERPRETED or WIDE_PRODUCTS):
        x = x - x.mean(-2, keepdim=True, dtype=torch.float32)
        squares = x.square().sum(-1, keepdim=True)
        left = torch.cat([-2 * x, torch.ones_like(squares)], dim=-1)
        return left, torch.cat([x, squares], dim=-1), ABSOLUTE * squares.squeeze(-1)
    center, largest = feature_centers(x)
    step = c + -c % 8
    left = torch.empty(b, n, 3 * step + 8, dtype=torch.float16, device=x.device)
    right = torch.empty_like(left)
    slack = torch.empty(b, n, device=x.device)
    # largest squared length, over 2**15: at most 4 c scale**2 / 2**15 <= 2**15
    scale = 2.0 ** (11 - max(0, (c - 1).bit_length() - 5) // 2)
    _parts_kernel[(triton.cdiv(n, PART_ROWS), b)](
        x, center, largest, slack, left, right, n, ABSOLUTE,
        C=c, STEP=step, SCALE=scale, BLOCKS=largest.shape[1],
        ROWS=PART_ROWS, CHANNELS=triton.next_power_of_2(step),
    )  # fmt: skip
    return left, right, slack


def feature_distances(
    left: Float[Tensor, "b rows d"], right: Float[Tensor, "b n d"]
) -> Float[Tensor, "b rows n"]:
    """Return ``|y|^2 - 2 x.y`` of some rows and all columns, in float32."""
    with torch.autocast(left.device.type, enabled=False):
        if left.dtype == torch.float16 and left.is_cuda:
            return torch.bmm(left, right.mT, out_dtype=torch.float32)
        with float32_products("highest"):  # TF32 errors would exceed what is compared
            return torch.bmm(left.float(), right.float().mT)


def nearest(x: Float[Tensor, "b n c"], k: int, *, coordinates: bool) -> Int[Tensor, "b n k"]:
    """Return the k nearest neighbours of every point, as int32.

    Args:
        x: coordinates, or features.
        k: how many neighbours.
        coordinates: take distances by differences, not by products.
    """
    b, n, _ = x.shape
    x = x.contiguous()
    out = torch.empty(b, n, k, dtype=torch.int32, device=x.device)
    if coordinates:
        x = x.float()
        slack, relative = point_rounding(x)
        _select(x.mT.contiguous(), slack.contiguous(), relative, out, 0, n, coordinates=True)
        return out
    left, right, slack = feature_factors(x)
    chunk = max(1, min(n, 2 * CHUNK // (b * n)))
    for first in range(0, n, chunk):
        rows = min(chunk, n - first)
        distances = feature_distances(left[:, first : first + rows], right)
        _select(distances, slack, RELATIVE, out, first, rows, coordinates=False)
    return out


def _select(
    source: Tensor,
    slack: Float[Tensor, "b n"],
    relative: float,
    out: Int[Tensor, "b n k"],
    first: int,
    rows: int,
    *,
    coordinates: bool,
) -> None:
    """Write the neighbours of some rows; the arguments are those of the kernels."""
    b, n, k = out.shape
    if n <= COLUMNS:
        groups = min(GROUPS, triton.next_power_of_2(n))
        blocks = triton.next_power_of_2(triton.cdiv(n, groups))
        near = out.new_empty(b, rows, triton.next_power_of_2(2 * k))
        _select_kernel[(rows, b)](
            source, slack, relative, near, out, first, rows, n, k,
            COORDINATES=coordinates, BLOCKS=blocks, GROUPS=groups, NEAR=near.shape[-1],
            ROUNDS=ROUNDS, num_warps=1, maxnreg=80 if blocks <= 8 else None,
        )  # fmt: skip
    else:
        candidates = min(k + SPARE, n)
        _select_blocks_kernel[(triton.cdiv(rows, ROWS), b)](
            source, slack, relative, out, first, rows, n, k, candidates,
            COORDINATES=coordinates, ROWS=ROWS, COLUMNS=COLUMNS,
            SLOTS=triton.next_power_of_2(candidates), num_warps=1,
        )  # fmt: skip
