"""k nearest neighbours on the GPU: distances of features by products, and a selection kernel.

The specification is `locotrans.geometry.neighbors`, tie rule included.

Features are centred and split into three numbers of bfloat16, 8 bits each. Six of the nine products
of the parts, on tensor cores, are a product of float32 accuracy; with the parts side by side, and
those of squared lengths behind them, torch's product of two matrices is one of distances. They are
written to memory, some rows at a time; those of coordinates are made where they are needed.

In the selection one warp owns two rows: what one waits for, the other hides. The columns are cut
into groups. A bound that holds k of the minima of groups holds k distances, and not many more; it
is found by bisection. The few columns below it, the candidates, become bits of words, are counted
and written side by side, in order, and their k-th smallest distance is found by bisection. Where
they are too many, the bound is bisected among all columns; where that does not help (equal points),
the whole row is searched. Neighbours come in the order of their indices. Clouds of more points than
a warp can hold are taken block by block, with a list of the nearest so far.

Floor, 32 clouds of 1,024 points, 64 features, k = 20: 8 MB read, 3 MB written (3 us), the factors
written and read (0.02 ms), 26 GFLOP of products in bfloat16 (0.03 ms), the distances written and
read (0.06 ms), about 30 instructions a
column of a lane, 1,000 a row, for the selection (0.04 ms).
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry.neighbors import CHUNK, SPARE, feature_rounding, point_rounding
from locotrans.kernels import float32_products
from locotrans.kernels.rpr_launch import INTERPRETED

COLUMNS = 2048  # distances that a warp holds
GROUPS = 128  # of columns, at least
SLOTS = 64  # candidates, at least
ROUNDS = 24  # of a bisection, at most
WARP_ROWS = 2  # of 1,024 columns that a warp owns
ROWS = 2  # that a warp owns in clouds that do not fit
PART_ROWS = 8  # of a program that splits features
# whether torch multiplies bfloat16 into float32
WIDE_PRODUCTS = "dtype" in torch.ops.aten.bmm.overloads()
ABSOLUTE, RELATIVE = (float(x) for x in feature_rounding(torch.ones(1, 1)))  # where |x| = 1


@triton.jit
def _centered(x_ptr, center, rows, channels, n, C: tl.constexpr):
    """Some channels of some points, less the centre of the cloud; zero beyond the last."""
    mask = (rows < n)[:, None] & (channels < C)[None, :]
    x = tl.load(x_ptr + rows[:, None] * C + channels[None, :], mask=mask, other=0.0)
    return tl.where(mask, x.to(tl.float32) - center[None, :], 0.0)


@triton.jit
def _rounded(x):
    """The number of 8 bits next to x, by its bits: conversions are slow."""
    bits = (x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _split(x, PART: tl.constexpr):
    """Three numbers of 8 bits each, as bfloat16, that add up to one of float32."""
    high = _rounded(x)
    middle = _rounded(x - high)
    low = x - high - middle
    return high.to(PART), middle.to(PART), low.to(PART)


@triton.jit
def _parts_kernel(
    x_ptr,  # (b, n, C) features
    center_ptr,  # (b, C) their means
    slack_ptr,  # (b, n) what counts as rounding of a distance, written
    left_ptr,  # (b, n, WIDTH) written
    right_ptr,  # (b, n, WIDTH) written
    n,
    absolute,  # what counts as rounding where |x| = 1
    C: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Write factors of bfloat16 whose product is ``|y|^2 - 2 x.y``.

    WIDTH is 6 STEP + 8: six pairs of parts, and, behind them, ones and the parts of ``|y|^2``.
    Tensor cores cut their sums, they do not round: the small products come first.
    """
    WIDTH: tl.constexpr = 6 * STEP + 8
    cloud = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    center = tl.load(center_ptr + cloud * C + c, mask=c < C, other=0.0)
    x = _centered(x_ptr + cloud * n * C, center, rows, c, n, C)
    squares = tl.sum(x * x, axis=1)
    tl.store(slack_ptr + cloud * n + rows, absolute * squares, mask=rows < n)
    at = (cloud * n + rows)[:, None] * WIDTH + c[None, :]
    mask = (rows < n)[:, None] & (c < STEP)[None, :]
    high, middle, low = _split(x, tl.float32)
    left, right = left_ptr + at, right_ptr + at
    tl.store(left, -2 * high, mask=mask)
    tl.store(right, low, mask=mask)
    tl.store(left + STEP, -2 * low, mask=mask)
    tl.store(right + STEP, high, mask=mask)
    tl.store(left + 2 * STEP, -2 * middle, mask=mask)
    tl.store(right + 2 * STEP, middle, mask=mask)
    tl.store(left + 3 * STEP, -2 * high, mask=mask)
    tl.store(right + 3 * STEP, middle, mask=mask)
    tl.store(left + 4 * STEP, -2 * middle, mask=mask)
    tl.store(right + 4 * STEP, high, mask=mask)
    tl.store(left + 5 * STEP, -2 * high, mask=mask)
    tl.store(right + 5 * STEP, high, mask=mask)
    high, middle, low = _split(squares, tl.float32)
    last = tl.arange(0, 8)[None, :]
    at = (cloud * n + rows)[:, None] * WIDTH + 6 * STEP + last
    mask = (rows < n)[:, None] & (last < 8)
    parts = tl.where(last == 0, low[:, None], tl.where(last == 1, middle[:, None], high[:, None]))
    tl.store(left_ptr + at, tl.where(last < 3, 1.0, 0.0) + tl.zeros_like(parts), mask=mask)
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
    else:
        source_ptr += (cloud * rows + row) * n
        d = tl.load(source_ptr + columns, mask=columns < n, other=float("inf"))
    return d


@triton.jit
def _ordered(x):
    """Integers in the order of numbers, or back: a warp reduces integers in one instruction."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _least(values):
    """The smallest value of every row."""
    least = tl.min(_ordered(values), axis=1).to(tl.float32, bitcast=True)
    return _ordered(least).to(tl.float32, bitcast=True)


@triton.jit
def _largest(values, chosen):
    """The largest of the chosen values of every row; -inf where there is none."""
    largest = tl.max(_ordered(tl.where(chosen, values, float("-inf"))), axis=1)
    return _ordered(largest.to(tl.float32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def _bisected(values, low, high, count, k, spare, ROUNDS: tl.constexpr):
    """A bound that k of the values of a row do not exceed, k + spare at most, and their number.

    ``count`` values, k at least, do not exceed ``high``. Where the rounds do not suffice, or where
    values are equal, there are more.
    """
    rounds = 0
    while (tl.max(count, axis=0) > k + spare) & (rounds < ROUNDS):
        middle = 0.5 * low + 0.5 * high
        below = tl.sum((values <= middle[:, None]).to(tl.int32), axis=1)
        enough = below >= k
        low = tl.where(enough, low, middle)
        high = tl.where(enough, middle, high)
        count = tl.where(enough, below, count)
        rounds += 1
    # a compiler fails where a loop gives what nobody reads (Triton 3.6): low never exceeds high
    return tl.where((low > high) | (count < 0), low, high), count


@triton.jit
def _kth_smallest(values, low, high, count, k, ROUNDS: tl.constexpr):
    """The k-th smallest value: by bisection, and from there down to the next where need be."""
    high, count = _bisected(values, low, high, count, k, 0, ROUNDS)
    kth = _largest(values, values <= high[:, None])
    while tl.max(count, axis=0) > k:
        below = tl.sum((values < kth[:, None]).to(tl.int32), axis=1)
        kth = tl.where(below >= k, _largest(values, values < kth[:, None]), kth)
        count = tl.where(below >= k, below, k)
    return tl.where(count < 0, low, kth)


@triton.jit
def _write(out, values, columns, n, low, high, places):
    """Write the columns below the tied ones, and so many of these as there are places, in order."""
    nearer = (columns < n) & (values < low)
    tied = (columns < n) & (values >= low) & (values <= high)
    chosen = nearer | (tied & (tl.cumsum(tied.to(tl.int32), axis=0) <= places))
    tl.store(out + tl.cumsum(chosen.to(tl.int32), axis=0) - 1, columns, mask=chosen)
    return tl.sum(chosen.to(tl.int32), axis=0), tl.sum(tied.to(tl.int32), axis=0)


@triton.jit
def _select_slowly(
    out, source_ptr, cloud, row, rows, first_row, absolute, relative, n, k,
    COORDINATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Select from a whole row, block by block: where many are equal, or are no numbers (the last).

    The k-th smallest is found by going from one distance to the next larger.
    """
    kth, count = float("-inf"), 0
    while (count < k) & (kth < float("inf")):
        least = tl.full((BLOCK,), float("inf"), tl.float32)
        times = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, n, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            d = _distances(source_ptr, cloud, row, rows, first_row, columns, n, COORDINATES)
            d = tl.where(d > kth, d, float("inf"))
            times = tl.where(d < least, 1, times + (d == least).to(tl.int32))
            least = tl.minimum(least, d)
        kth = tl.min(least, axis=0)
        count += tl.sum(tl.where(least == kth, times, 0), axis=0)
    if COORDINATES:
        kth = tl.sqrt_rn(kth)
    slack = absolute + relative * kth
    slack = tl.where(slack < float("inf"), slack, 0.0)
    places = k
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        d = _distances(source_ptr, cloud, row, rows, first_row, columns, n, COORDINATES)
        if COORDINATES:
            d = tl.sqrt_rn(d)
        places -= tl.sum(((columns < n) & (d < kth - slack)).to(tl.int32), axis=0)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        d = _distances(source_ptr, cloud, row, rows, first_row, columns, n, COORDINATES)
        if COORDINATES:
            d = tl.sqrt_rn(d)
        d = tl.where(d == d, d, float("inf"))
        chosen, tied = _write(out, d, columns, n, kth - slack, kth + slack, places)
        out += chosen
        places -= tied


@triton.jit
def _candidates(d, bound, bit):
    """The columns of every row that do not exceed its bound, as bits of words; their places.

    A word has four columns of each of eight blocks. Where its candidates begin in the order of
    columns are eight bytes, those of even blocks apart from those of odd ones; they hold where
    there are fewer than 256 in all.
    """
    bits = tl.where(d <= bound[:, None, None, None], bit, 0)
    bits = tl.sum(tl.sum(bits, axis=1), axis=2).to(tl.uint32)
    pairs = bits - ((bits >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    even, odd = fours & 0x0F0F0F0F, (fours >> 4) & 0x0F0F0F0F
    count = tl.sum((((even + odd) * 0x01010101) >> 24).to(tl.int32), axis=1)
    all_even, all_odd = tl.sum(even, axis=1), tl.sum(odd, axis=1)
    before = (all_even + all_odd) * 0x01010100  # in the pairs of blocks before
    even = before[:, None] + tl.cumsum(even, axis=1) - even
    odd = (before + all_even)[:, None] + tl.cumsum(odd, axis=1) - odd
    return bits, even, odd, count


@triton.jit
def _with_slack(bound, absolute, relative, COORDINATES: tl.constexpr):
    """What a squared distance may be that is tied with the bound, or a little more."""
    if COORDINATES:
        bound = tl.sqrt_rn(bound) + absolute
        bound *= bound * (1 + 1e-6)
    else:
        bound += absolute + relative * bound
    return tl.where(bound > 3e38, 3e38, bound)  # infinite distances stay out


@triton.jit
def _select_kernel(
    source_ptr,  # coordinates (b, 3, n), or distances of features (b, rows, n)
    slack_ptr,  # (b, n) what counts as rounding of a distance,
    relative,  # and, times the distance, in addition
    scratch_ptr,  # (b, rows, SLOTS)
    out_ptr,  # (b, n, k)
    first_row,
    rows,
    n,
    k,
    COORDINATES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUPS: tl.constexpr,
    SLOTS: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    cloud = tl.program_id(1).to(tl.int64)
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)
    absolute = tl.load(slack_ptr + cloud * n + first_row + row)
    out = out_ptr + (cloud * n + first_row + row) * k
    BLOCKS: tl.constexpr = COLUMNS // GROUPS
    WORDS: tl.constexpr = GROUPS // 4
    block = tl.arange(0, BLOCKS)[None, :, None, None]
    word = tl.arange(0, WORDS)[None, None, :, None]
    part = tl.arange(0, 4)[None, None, None, :]
    columns = block * GROUPS + word * 4 + part
    one_row = row[:, None, None, None]
    d = _distances(source_ptr, cloud, one_row, rows, first_row, columns, n, COORDINATES)
    minima = tl.reshape(tl.min(d, axis=1), (ROWS, GROUPS))
    low = _least(minima)
    high = _largest(minima, minima < float("inf"))
    count = tl.sum((minima <= high[:, None]).to(tl.int32), axis=1)
    few = count < k
    high, _ = _bisected(minima, low, high, count, k, k // 2, ROUNDS)
    high = tl.where(few, 3e38, high)
    bound = _with_slack(high, absolute, relative, COORDINATES)
    bit = 1 << (block * 4 + part)
    bits, even, odd, count = _candidates(d, bound, bit)
    if tl.max(count, axis=0) >= SLOTS:  # near columns share groups: all columns are looked at
        whole = tl.reshape(d, (ROWS, COLUMNS))
        high, _ = _bisected(whole, low, high, count, k, k // 2, ROUNDS)
        bound = _with_slack(high, absolute, relative, COORDINATES)
        bits, even, odd, count = _candidates(d, bound, bit)
    good = (count >= k) & (count < SLOTS)
    if tl.max(good.to(tl.int32), axis=0) > 0:
        scratch = scratch_ptr + ((cloud * rows + row) * SLOTS)[:, None]
        words = tl.arange(0, WORDS)[None, :] * 4
        bits = tl.where(good[:, None], bits, 0)
        while tl.max(tl.max((bits != 0).to(tl.int32), axis=1), axis=0) > 0:
            lowest = bits & (~bits + 1)
            bit_of = (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
            is_odd, byte = (bit_of & 4) != 0, (bit_of & 24).to(tl.uint32)
            place = (tl.where(is_odd, odd, even) >> byte) & 255
            column = (bit_of >> 2) * GROUPS + words + (bit_of & 3)
            tl.store(scratch + place, column, mask=bits != 0)
            one = tl.full((ROWS, WORDS), 1, tl.uint32) << byte
            even += tl.where(is_odd, 0, one)
            odd += tl.where(is_odd, one, 0)
            bits ^= lowest
        tl.debug_barrier()
        count += tl.sum((bits | (bits & even) | (bits & odd)).to(tl.int32), axis=1)  # 0
        slots = tl.arange(0, SLOTS)[None, :]
        there = good[:, None] & (slots < count[:, None])
        found = tl.load(scratch + slots, mask=there, other=n)
        near = _distances(source_ptr, cloud, row[:, None], rows, first_row, found, n, COORDINATES)
        if COORDINATES:
            near, low, bound = tl.sqrt_rn(near), tl.sqrt_rn(low), tl.sqrt_rn(bound)
        kth = _kth_smallest(near, low, bound, tl.where(good, count, k), k, ROUNDS)
        slack = absolute + relative * kth
        # those below the tied ones, and so many of these as there are places, in order
        nearer = near < (kth - slack)[:, None]
        tied = there & (near <= (kth + slack)[:, None]) & ~nearer
        both = tl.cumsum(nearer.to(tl.int32) + tied.to(tl.int32) * 65536, axis=1)
        places = (k - tl.sum(nearer.to(tl.int32), axis=1))[:, None]
        chosen = there & (nearer | (tied & ((both >> 16) <= places)))
        place = (both & 65535) + tl.minimum(both >> 16, places) - 1
        tl.store(out[:, None] + place, found, mask=chosen)
    if tl.min(good.to(tl.int32), axis=0) == 0:
        for i in range(ROWS):
            bad = (tl.arange(0, ROWS) == i) & ~good
            if tl.max(bad.to(tl.int32), axis=0) > 0:
                one = tl.minimum(tl.program_id(0) * ROWS + i, rows - 1)
                point = cloud * n + first_row + one
                _select_slowly(
                    out_ptr + point * k, source_ptr, cloud, one, rows, first_row,
                    tl.load(slack_ptr + point), relative, n, k, COORDINATES, GROUPS,
                )  # fmt: skip


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
        if COORDINATES:
            d = tl.sqrt_rn(d)
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


def feature_factors(
    x: Float[Tensor, "b n c"],
) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b n d"], Float[Tensor, "b n"]]:
    """Return factors whose product is ``|y|^2 - 2 x.y`` of centred features, and its rounding.

    The factors are bfloat16 where torch multiplies such into float32, else float32.
    """
    b, n, c = x.shape
    center = x.mean(-2, dtype=torch.float32)
    if not (INTERPRETED or WIDE_PRODUCTS):
        x = x - center.unsqueeze(1)
        squares = x.square().sum(-1, keepdim=True)
        left = torch.cat([-2 * x, torch.ones_like(squares)], dim=-1)
        return left, torch.cat([x, squares], dim=-1), ABSOLUTE * squares.squeeze(-1)
    step = c + -c % 8
    left = torch.empty(b, n, 6 * step + 8, dtype=torch.bfloat16, device=x.device)
    right = torch.empty_like(left)
    slack = torch.empty(b, n, device=x.device)
    _parts_kernel[(triton.cdiv(n, PART_ROWS), b)](
        x, center, slack, left, right, n, ABSOLUTE,
        C=c, STEP=step, ROWS=PART_ROWS, CHANNELS=triton.next_power_of_2(step),
    )  # fmt: skip
    return left, right, slack


def feature_distances(
    left: Float[Tensor, "b rows d"], right: Float[Tensor, "b n d"]
) -> Float[Tensor, "b rows n"]:
    """Return ``|y|^2 - 2 x.y`` of some rows and all columns, in float32."""
    with torch.autocast(left.device.type, enabled=False):
        if left.dtype == torch.bfloat16 and left.is_cuda:
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
        width = triton.next_power_of_2(n)
        groups = max(GROUPS, width // 8, triton.next_power_of_2(4 * k))
        slots = max(SLOTS, min(256, triton.next_power_of_2(2 * k)))
        scratch = torch.empty(b, rows, slots, dtype=torch.int32, device=out.device)
        owned = max(1, min(WARP_ROWS, 1024 * WARP_ROWS // width))  # as registers allow
        _select_kernel[(triton.cdiv(rows, owned), b)](
            source, slack, relative, scratch, out, first, rows, n, k,
            COORDINATES=coordinates, ROWS=owned, COLUMNS=max(groups, width), GROUPS=groups,
            SLOTS=slots, ROUNDS=ROUNDS, num_warps=1,
        )  # fmt: skip
    else:
        candidates = min(k + SPARE, n)
        _select_blocks_kernel[(triton.cdiv(rows, ROWS), b)](
            source, slack, relative, out, first, rows, n, k, candidates,
            COORDINATES=coordinates, ROWS=ROWS, COLUMNS=COLUMNS,
            SLOTS=triton.next_power_of_2(candidates), num_warps=1,
        )  # fmt: skip
