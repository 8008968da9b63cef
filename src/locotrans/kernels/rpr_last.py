"""The last two products of the relative-pose edge convolution in one kernel, for evaluation.

Where nothing is to be kept for a backward pass and batch norms are known, the edge tensor between
the last two products (see `rpr`) need not exist: its channels are made some at a time, and go into
the last product, and that into the maximum over the neighbours, from registers.

Where torch allows products in TF32, these are of half precision, with sums in float32: it has as
many digits, and tensor cores are twice as fast. Its range is smaller. It suffices for what comes
from a batch norm and a ReLU, cut at the largest number; matrices are divided by their largest.
"""

from typing import no_type_check

import triton
import triton.language as tl

from locotrans.kernels.rpr_tiles import (
    dot,
    load_matrix,
    load_rows,
    load_vector,
    operand,
    store_rows,
)


@triton.jit
@no_type_check
def _factor(w, largest, PRECISION: tl.constexpr):
    """Convert a matrix to what a product multiplies, divided by ``largest``."""
    if PRECISION == "half":
        return (w / largest).to(tl.float16)
    else:
        return operand(w, PRECISION)


@triton.jit
@no_type_check
def _largest(w, PRECISION: tl.constexpr):
    """What a matrix is to be divided by: its largest entry for half precision, else one."""
    if PRECISION == "half":
        return tl.maximum(tl.max(tl.max(tl.abs(w), axis=1), axis=0), 1e-30)
    else:
        return 1.0


@triton.jit
@no_type_check
def _product(a, w, PRECISION: tl.constexpr):
    """Multiply what a ReLU gave with a matrix."""
    if PRECISION == "half":
        return tl.dot(tl.minimum(a, 65504.0).to(tl.float16), w)
    else:
        return dot(a, w, PRECISION)


@triton.jit
@no_type_check
def _again(pointer, cols, COLS: tl.constexpr):
    """Load one number a channel as a row, every time: kept, the rows would fill the registers."""
    return tl.load(pointer + cols, mask=cols < COLS, other=0.0, volatile=True)[None, :]


@triton.jit
@no_type_check
def _channels(
    a, inner, largest, outer, bias_ptr, norm_ptr, factor_ptr, j, inside, c, CO: tl.constexpr,
    COP: tl.constexpr, MULTIPLY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What the channels c between the products add to the last one."""
    if MULTIPLY:  # loaded first: the product then keeps its layout
        factor = load_rows(factor_ptr, j, c, COP, inside)
    y = _product(a, inner, PRECISION) * largest + _again(bias_ptr, c, CO)
    if MULTIPLY:
        y *= factor
    scale = _again(norm_ptr, c, COP)
    shift = _again(norm_ptr + COP, c, COP)
    return _product(tl.maximum(y * scale + shift, 0.0), outer, PRECISION)


@triton.jit
@no_type_check
def last_kernel(
    x_ptr,  # (m k, CIP), before its batch norm
    norm_ptr,  # (4, CIP)
    inner_ptr,  # (CO, CI)
    bias_ptr,  # (CO)
    factor_ptr,  # (n, COP), if MULTIPLY
    index_ptr,  # (m, k), if MULTIPLY
    inner_norm_ptr,  # (4, COP)
    weight_ptr,  # (D, CO), its rows `stride` apart
    z_ptr,  # (m, DP)
    out_norm_ptr,  # (4, DP)
    out_ptr,  # (m, DP)
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
    """y = inner relu(bn(x)) + bias, times the factor of the neighbour j if MULTIPLY; then
    out = leaky_relu(max over j of bn(W1 relu(bn(y)) + z_r)).
    """
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = r < points
    ci = tl.arange(0, CIP)
    c0 = tl.arange(0, CHANNELS)
    c1 = CHANNELS + c0
    d = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inner0 = load_matrix(inner_ptr, ci, c0, 1, CI, CI, CO, "ieee")  # (CIP, CHANNELS)
    outer0 = load_matrix(weight_ptr, c0, d, 1, stride, CO, D, "ieee")  # (CHANNELS, COLS)
    inner_largest = _largest(inner0, PRECISION)
    outer_largest = _largest(outer0, PRECISION)
    if COP > CHANNELS:
        inner1 = load_matrix(inner_ptr, ci, c1, 1, CI, CI, CO, "ieee")
        outer1 = load_matrix(weight_ptr, c1, d, 1, stride, CO, D, "ieee")
        inner_largest = tl.maximum(inner_largest, _largest(inner1, PRECISION))
        outer_largest = tl.maximum(outer_largest, _largest(outer1, PRECISION))
        inner1 = _factor(inner1, inner_largest, PRECISION)
        outer1 = _factor(outer1, outer_largest, PRECISION)
    inner0 = _factor(inner0, inner_largest, PRECISION)
    outer0 = _factor(outer0, outer_largest, PRECISION)
    best = tl.full((ROWS, COLS), float("-inf"), tl.float32)
    for n in range(k):
        scale = _again(norm_ptr, ci, CIP)
        shift = _again(norm_ptr + CIP, ci, CIP)
        j = tl.load(index_ptr + r * k + n, mask=inside, other=0).to(tl.int64)
        x = load_rows(x_ptr, r * k + n, ci, CIP, inside)
        a = tl.maximum(x * scale + shift, 0.0)
        e = _channels(
            a, inner0, inner_largest, outer0, bias_ptr, inner_norm_ptr, factor_ptr, j, inside, c0,
            CO, COP, MULTIPLY, PRECISION,
        )  # fmt: skip
        if COP > CHANNELS:
            e += _channels(
                a, inner1, inner_largest, outer1, bias_ptr, inner_norm_ptr, factor_ptr, j, inside,
                c1, CO, COP, MULTIPLY, PRECISION,
            )  # fmt: skip
        best = tl.maximum(best, e * _again(out_norm_ptr, d, DP))
    scale = load_vector(out_norm_ptr, d, DP)
    shift = load_vector(out_norm_ptr + DP, d, DP)
    best = best * outer_largest + load_rows(z_ptr, r, d, DP, inside) * scale + shift
    store_rows(out_ptr, r, d, DP, inside, tl.where(best > 0, best, best * SLOPE))
