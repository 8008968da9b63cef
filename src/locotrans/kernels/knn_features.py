"""Distances between features on the GPU, by a product of their parts.

Features are centred, scaled, and split into two numbers of half precision, 11 bits each. Three of
the four products of the parts, on tensor cores, are a product of 22 bits: sums of many are better
than those of float32, as long as no feature of a cloud is more than 1,000 times the others. With
the parts side by side, and those of squared lengths behind them, torch's product of two matrices is
one of distances.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from locotrans.geometry.neighbors import feature_rounding
from locotrans.geometry.products import float32_products
from locotrans.kernels.tiles import INTERPRETED

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
