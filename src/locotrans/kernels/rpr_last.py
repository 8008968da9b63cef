"""The last two products of the relative-pose edge convolution in one kernel, for evaluation.

Where nothing is to be kept for a backward pass and batch norms are known, the edge tensor between
the last two products (see `rpr`) need not exist: its channels are made some at a time, and go into
the last product, and that into the maximum over the neighbours, from registers. The tensors before
it are written as the products take them, behind batch norm and ReLU.

Where torch allows products in TF32, these are of half precision, with sums in float32: it has as
many digits, and tensor cores are twice as fast. Its range is smaller: one factor comes from a
batch norm, the other is a matrix times the scale of one, so both are neither large nor small unless
the parameters of a batch norm are (10,000 is too much). What lies beyond the range is cut.
"""

from typing import no_type_check

import triton
import triton.language as tl

from locotrans.kernels.rpr_tiles import (
    dot,
    load_matrix,
    load_rows,
    load_stored,
    load_vector,
    operand,
    store_rows,
)


@triton.jit
@no_type_check
def _again(pointer, n, cols, COLS: tl.constexpr):
    """Load one number a channel as a row, for every neighbour n anew, from the nearest cache.

    Kept, the rows would fill the registers, and more: the kernel would use local memory. What is
    added to the address is 0, which the compiler does not know. (A volatile load would pass by the
    cache, and all programs wait for one place.)
    """
    return tl.load(pointer + (n >> 31) + cols, mask=cols < COLS, other=0.0)[None, :]


@triton.jit
@no_type_check
def _scaled(
    pointer, rows, cols, stride, ROWS: tl.constexpr, COLS: tl.constexpr, norm_ptr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Load a block of a matrix, times the scale of the batch norm behind it, as a factor."""
    w = load_matrix(pointer, rows, cols, 1, stride, ROWS, COLS, "ieee")
    return operand(w * load_vector(norm_ptr, cols, WIDTH), PRECISION)


@triton.jit
@no_type_check
def _channels(
    a, inner, outer, norm_ptr, factor_ptr, j, inside, n, c,
    COP: tl.constexpr, MULTIPLY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What the channels c between the products add to the last one."""
    if MULTIPLY:  # loaded first: the product then keeps its layout
        factor = load_rows(factor_ptr, j, c, COP, inside)
    y = dot(a, inner, PRECISION) + _again(norm_ptr + 2 * COP, n, c, COP)
    if MULTIPLY:
        y *= factor
    y += _again(norm_ptr + COP, n, c, COP)
    return dot(tl.maximum(y, 0.0), outer, PRECISION)


@triton.jit
@no_type_check
def last_kernel(
    x_ptr,  # (n k, CIP), behind its batch norm and ReLU
    inner_ptr,  # (CO, CI)
    inner_norm_ptr,  # (4, COP), with scale * bias in its third row
    factor_ptr,  # (n, COP), if MULTIPLY
    index_ptr,  # (n, k), if MULTIPLY
    weight_ptr,  # (D, CO), its rows `stride` apart
    z_ptr,  # (n, DP)
    out_norm_ptr,  # (4, DP)
    out_ptr,  # (n, DP)
    points,
    k,
    stride,
    CI: tl.constexpr,
    CO: tl.constexpr,
    D: tl.constexpr,
    CIP: tl.constexpr,
    COP: tl.constexpr,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    CHANNELS: tl.constexpr,  # between the products, at a time: all of them, or half
    MULTIPLY: tl.constexpr,
    SLOPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """y = inner x + bias, times the factor of the neighbour j if MULTIPLY; then
    out = leaky_relu(max over j of bn(W1 relu(bn(y)) + z_r)).

    The scales of both batch norms go into the matrices before them.
    """
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = r < points
    ci = tl.arange(0, CIP)
    c0 = tl.arange(0, CHANNELS)
    c1 = CHANNELS + c0
    d = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inner0 = _scaled(inner_ptr, ci, c0, CI, CI, CO, inner_norm_ptr, COP, PRECISION)
    outer0 = _scaled(weight_ptr, c0, d, stride, CO, D, out_norm_ptr, DP, PRECISION)
    if COP > CHANNELS:
        inner1 = _scaled(inner_ptr, ci, c1, CI, CI, CO, inner_norm_ptr, COP, PRECISION)
        outer1 = _scaled(weight_ptr, c1, d, stride, CO, D, out_norm_ptr, DP, PRECISION)
    best = tl.full((ROWS, COLS), float("-inf"), tl.float32)
    for n in range(k):
        j = tl.load(index_ptr + r * k + n, mask=inside, other=0).to(tl.int64)
        a = load_stored(x_ptr, r * k + n, ci, CIP, inside)
        e = _channels(
            a, inner0, outer0, inner_norm_ptr, factor_ptr, j, inside, n, c0,
            COP, MULTIPLY, PRECISION,
        )  # fmt: skip
        if COP > CHANNELS:
            e += _channels(
                a, inner1, outer1, inner_norm_ptr, factor_ptr, j, inside, n, c1,
                COP, MULTIPLY, PRECISION,
            )  # fmt: skip
        best = tl.maximum(best, e)
    shift = load_vector(out_norm_ptr + DP, d, DP)
    scale = load_vector(out_norm_ptr, d, DP)
    best += load_rows(z_ptr, r, d, DP, inside) * scale + shift
    store_rows(out_ptr, r, d, DP, inside, tl.where(best > 0, best, best * SLOPE))
