r"""Weights of vector-neuron layers, packed so that one aligned product gives all a layer needs.

A layer has the weights P of its vectors and Q of its directions, (d, c) and (d or 1, c). Their rows
lie below one another in the packed weight, each of the two filled up with zero rows to a multiple
of 8; its columns are those of an input whose parts were filled up with zero vectors in the same
way. Where the weights have two halves of columns::

    edges [v_j - v_r, v_r]            [P1; Q1; P2 - P1; Q2 - Q1]    products u_j and w_r, as
                                                                   W1 v_j + (W2 - W1) v_r
    vectors v, and those of a cloud   [P1; Q1] and [P2; Q2]

One launch each way replaces a dozen operations of torch on small tensors.
"""

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.kernels import on_device


def aligned(channels: int) -> int:
    """Return the next multiple of 8: the fast products of a GPU take no other widths."""
    return channels + -channels % 8


@triton.jit
@no_type_check
def _columns(c, WIDTHS: tl.constexpr):
    """Return the columns of a weight that belong to filled-up columns c, or -1."""
    source = tl.full(c.shape, -1, tl.int32)
    start = 0
    wide = 0
    for i in tl.static_range(len(WIDTHS)):
        inside = (c >= wide) & (c < wide + WIDTHS[i])
        source = tl.where(inside, c - wide + start, source)
        start += WIDTHS[i]
        wide += (WIDTHS[i] + 7) // 8 * 8
    return source


# A program has 8 rows; the halves of the packed weight (or of its gradient) are two tensors.


@triton.jit
@no_type_check
def _places(
    linear, direction, block, d, e, columns, rows, high,
    WIDTHS: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Return where a tile lies: in both weights (and which of it they have), and packed."""
    r = block * 8 + tl.arange(0, 8)[:, None]
    c = tl.arange(0, C)[None, :]
    source = _columns(c, WIDTHS)
    upper = (r < d) & (source >= 0)
    lower = (r >= high) & (r < high + e) & (source >= 0)
    p = linear + r * columns + source
    q = direction + (r - high) * columns + source
    return p, upper, q, lower, r * WIDE + c, (r < rows) & (c < WIDE)


@triton.jit
@no_type_check
def _pack(
    linear, direction, first, second, d, e, columns, rows, high,
    WIDTHS: tl.constexpr, HALVES: tl.constexpr, DIFFERENCE: tl.constexpr,
    WIDE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Write the halves of the packed weight."""
    p, upper, q, lower, place, mask = _places(
        linear, direction, tl.program_id(0), d, e, columns, rows, high, WIDTHS, WIDE, C
    )
    x = tl.load(p, mask=upper, other=0.0) + tl.load(q, mask=lower, other=0.0)
    tl.store(first + place, x, mask=mask)
    if HALVES == 2:
        half = columns // 2
        y = tl.load(p + half, mask=upper, other=0.0) + tl.load(q + half, mask=lower, other=0.0)
        if DIFFERENCE:
            y -= x
        tl.store(second + place, y, mask=mask)


@triton.jit
@no_type_check
def _unpack(
    linear, direction, first, second, d, e, columns, rows, high,
    WIDTHS: tl.constexpr, HALVES: tl.constexpr, DIFFERENCE: tl.constexpr,
    WIDE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Write the gradients of linear and direction, given those of the halves."""
    p, upper, q, lower, place, mask = _places(
        linear, direction, tl.program_id(0), d, e, columns, rows, high, WIDTHS, WIDE, C
    )
    x = tl.load(first + place, mask=mask, other=0.0).to(linear.dtype.element_ty)
    if HALVES == 2:
        y = tl.load(second + place, mask=mask, other=0.0).to(linear.dtype.element_ty)
        tl.store(p + columns // 2, y, mask=upper)
        tl.store(q + columns // 2, y, mask=lower)
        if DIFFERENCE:
            x -= y
    tl.store(p, x, mask=upper)
    tl.store(q, x, mask=lower)


class _Pack(torch.autograd.Function):
    """The packed weight, its halves below one another (edges) or apart, and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, linear: Tensor, direction: Tensor | None, widths: tuple[int, ...],
        dtypes: tuple[torch.dtype, ...], edges: bool,
    ) -> Any:  # fmt: skip
        linear = linear.contiguous()
        direction = None if direction is None else direction.contiguous()
        d, columns = linear.shape
        e = 0 if direction is None else len(direction)
        # without directions the products are final: their rows stay as many as they are
        high = aligned(d) if e else d
        rows, wide = high + aligned(e), sum(map(aligned, widths))
        ctx.arguments = (d, e, columns, rows, high)
        C = triton.next_power_of_2(wide)
        ctx.constants = {
            "WIDTHS": widths, "HALVES": len(dtypes), "DIFFERENCE": edges, "WIDE": wide, "C": C,
            "num_warps": max(1, min(16, C // 32)),
        }  # fmt: skip
        packed: Any = tuple(linear.new_empty(rows, wide, dtype=x) for x in dtypes)
        parts = packed
        if edges:
            packed = linear.new_empty(2 * rows, wide)
            parts = packed.split(rows)
        _pack[(triton.cdiv(rows, 8),)](
            linear, linear if direction is None else direction, parts[0], parts[-1],
            *ctx.arguments, **ctx.constants,
        )  # fmt: skip
        ctx.dtype = linear.dtype
        return packed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d, e, columns, rows, _ = ctx.arguments
        parts = [x.contiguous() for x in grads]
        if len(parts) == 1:
            parts = list(parts[0].split(rows))
        linear, direction = (
            parts[0].new_empty(height, columns, dtype=ctx.dtype) for height in (d, e)
        )
        _unpack[(triton.cdiv(rows, 8),)](
            linear, direction, parts[0], parts[-1], *ctx.arguments, **ctx.constants
        )
        return linear, direction if e else None, None, None, None


@on_device
def pack_edges(
    linear: Float[Tensor, "d c2"], direction: Float[Tensor, "d c2"]
) -> Float[Tensor, "e c8"]:
    """Pack the weights of an edge convolution: ``[P1; Q1; P2 - P1; Q2 - Q1]``."""
    half, dtypes = linear.shape[1] // 2, (linear.dtype, linear.dtype)
    return _Pack.apply(linear, direction, (half,), dtypes, True)


@on_device
def pack_layer(
    linear: Float[Tensor, "d c"],
    direction: Float[Tensor, "e c"] | None,
    widths: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "f c8"]:
    """Pack the weights of a layer for every point alone: ``[P; Q]``, or P with d rows.

    Args:
        linear: P.
        direction: Q, if the layer has one.
        widths: how many columns each filled-up part of the input has; one part if not given.
        dtype: type of the packed weight, if not that of P.
    """
    widths = (linear.shape[1],) if widths is None else tuple(widths)
    (packed,) = _Pack.apply(linear, direction, widths, (dtype or linear.dtype,), False)
    return packed


@on_device
def pack_halves(
    linear: Float[Tensor, "d c2"],
    direction: Float[Tensor, "e c2"],
    dtype: torch.dtype | None = None,
) -> tuple[Float[Tensor, "f c8"], Float[Tensor, "f c8"]]:
    """Pack the weights of a layer that takes the vectors of a cloud behind those of a point.

    Returns:
        ``[P1; Q1]`` for those of a point, of the given type or that of P, and ``[P2; Q2]`` for
        those of its cloud.
    """
    half, dtypes = linear.shape[1] // 2, (dtype or linear.dtype, linear.dtype)
    first, second = _Pack.apply(linear, direction, (half,), dtypes, False)
    return first, second
