r"""Products once a point of a relative-pose edge convolution; one kernel makes their weights.

``x_j = B x`` and ``z_r = (W2 - W1) x`` (see `rpr`) need the weights B and W2 - W1 in the type of x,
the convolution needs W1; backward, all of their gradients come together. One launch each way
replaces a dozen operations of torch on small tensors.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.kernels import on_device

ENTRIES = 1024  # of a program


@triton.jit
@no_type_check
def _place(C: tl.constexpr, D: tl.constexpr, ENTRIES: tl.constexpr):
    """Return entries of [B; W2 - W1], which of them are in B and below it, and rows and columns."""
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    row, column = entry // C - C, entry % C
    return entry, row < 0, (row >= 0) & (row < D), row, column


@triton.jit
@no_type_check
def _pack(
    basis_ptr,  # (C, C) B
    weight_ptr,  # (D, 2 C) [W1 W2]
    packed_ptr,  # (C + D, C) [B; W2 - W1], written
    first_ptr,  # (D, C) W1, written
    C: tl.constexpr,
    D: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    entry, upper, lower, row, column = _place(C, D, ENTRIES)
    basis = tl.load(basis_ptr + entry, mask=upper, other=0.0)
    w1 = tl.load(weight_ptr + row * 2 * C + column, mask=lower, other=0.0)
    w2 = tl.load(weight_ptr + row * 2 * C + C + column, mask=lower, other=0.0)
    tl.store(packed_ptr + entry, tl.where(upper, basis, w2 - w1), mask=upper | lower)
    tl.store(first_ptr + row * C + column, w1, mask=lower)


@triton.jit
@no_type_check
def _unpack(
    packed_ptr,  # (C + D, C) gradient of [B; W2 - W1]
    first_ptr,  # (D, C) gradient of W1 as the convolution has it
    basis_ptr,  # (C, C) gradient of B, written
    weight_ptr,  # (D, 2 C) gradient of [W1 W2], written
    C: tl.constexpr,
    D: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    entry, upper, lower, row, column = _place(C, D, ENTRIES)
    packed = tl.load(packed_ptr + entry, mask=upper | lower, other=0.0)
    first = tl.load(first_ptr + row * C + column, mask=lower, other=0.0)
    tl.store(basis_ptr + entry, packed, mask=upper)
    w1 = weight_ptr + row * 2 * C + column
    tl.store(w1, first - packed.to(first.dtype), mask=lower)
    tl.store(w1 + C, packed, mask=lower)


class _PointProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, basis: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        c, d = len(basis), len(weight)
        packed, first = x.new_empty(c + d, c), weight.new_empty(d, c)
        ctx.constants = {"C": c, "D": d, "ENTRIES": ENTRIES}
        ctx.grid = (triton.cdiv(packed.numel(), ENTRIES),)
        _pack[ctx.grid](basis.contiguous(), weight.contiguous(), packed, first, **ctx.constants)
        ctx.save_for_backward(x, packed)
        return x @ packed[:c].mT, x @ packed[c:].mT, first

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dbasis: Tensor, dz: Tensor, dfirst: Tensor
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        x, packed = ctx.saved_tensors
        c, d = ctx.constants["C"], ctx.constants["D"]
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.addmm(dbasis @ packed[:c], dz, packed[c:])
        dpacked = torch.empty_like(packed)
        torch.mm(dbasis.mT, x, out=dpacked[:c])
        torch.mm(dz.mT, x, out=dpacked[c:])
        basis, weight = dfirst.new_empty(c, c), dfirst.new_empty(d, 2 * c)
        _unpack[ctx.grid](dpacked, dfirst.contiguous(), basis, weight, **ctx.constants)
        return dx, basis, weight


@on_device
def point_products(
    x: Float[Tensor, "n c"], basis: Float[Tensor, "c c"], weight: Float[Tensor, "d c2"]
) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n d"], Float[Tensor, "d c"]]:
    """Return ``B x``, ``(W2 - W1) x``, both in the type of x, and W1.

    Args:
        x: features of every point.
        basis: B.
        weight: ``[W1 W2]``, in the type of B.
    """
    x_basis, z, first = _PointProducts.apply(x, basis, weight)
    return x_basis, z, first
