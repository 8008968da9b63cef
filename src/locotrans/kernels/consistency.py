r"""The fused consistency loss of the two vectors of a point (Eq. 12).

`consistency` is `locotrans.losses.consistency_loss` after the vectors were normalised. The k x k
cosines of a neighbourhood exist in registers only, and the backward pass computes them again. With
c1, c2 the cosines of the first and of the second vectors of the neighbours a, b of one point::

    e[a, b] = c2[a, b] - c1[a, b]
    row a is taught by the first vectors where sum_b c1 > sum_b c2, else by the second
    loss = mean of e^2 over the rows taught by the first + over those taught by the second

Backward, with w2[a] = 2 dloss / (k rows taught by the first) where row a is one of them, else 0,
and w1[a] likewise::

    dv2_a = sum over b of (w2[a] + w2[b]) e[a, b] v2_b
    dv1_a = -sum over b of (w1[a] + w1[b]) e[a, b] v1_b

Bytes that each pass must move: 4 k N of indices and 24 N of vectors, from the L2 cache 24 k N; for
the gradients as many atomic additions again. 3 us of device memory for 32 clouds of 1,024 points at
k = 20; the 16 k^2 N operations, 0.2 G, take as long.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

POINTS = 4  # that a program works on, one after the other


@triton.jit
@no_type_check
def _cosines(v, index, r, k, K: tl.constexpr):
    """Load the vectors of the neighbours of a point and return them, e, and who is taught."""
    a = tl.arange(0, K)
    inside = a < k
    j = tl.load(index + r.to(tl.int64) * k + a, mask=inside, other=0)
    row = v + j.to(tl.int64) * 6
    x1 = tl.load(row, mask=inside, other=0.0)
    y1 = tl.load(row + 1, mask=inside, other=0.0)
    z1 = tl.load(row + 2, mask=inside, other=0.0)
    x2 = tl.load(row + 3, mask=inside, other=0.0)
    y2 = tl.load(row + 4, mask=inside, other=0.0)
    z2 = tl.load(row + 5, mask=inside, other=0.0)
    c1 = x1[:, None] * x1[None, :] + y1[:, None] * y1[None, :] + z1[:, None] * z1[None, :]
    c2 = x2[:, None] * x2[None, :] + y2[:, None] * y2[None, :] + z2[:, None] * z2[None, :]
    first = inside & (tl.sum(c1, axis=1) > tl.sum(c2, axis=1))
    return j, inside, first, c2 - c1, x1, y1, z1, x2, y2, z2


@triton.jit
@no_type_check
def _loss_kernel(v, index, out, n, k, K: tl.constexpr, POINTS: tl.constexpr):
    """Write, for some points each: the sums of the rows taught by either, and how many are."""
    by_first, by_second, rows = 0.0, 0.0, 0.0
    for i in range(POINTS):
        r = tl.program_id(0) * POINTS + i
        if r < n:
            _, inside, first, e, _, _, _, _, _, _ = _cosines(v, index, r, k, K)
            squares = tl.sum(e * e, axis=1) / k
            by_first += tl.sum(tl.where(first, squares, 0.0))
            by_second += tl.sum(tl.where(inside & (first == 0), squares, 0.0))
            rows += tl.sum(first.to(tl.float32))
    place = out + tl.program_id(0) * 3
    tl.store(place, by_first)
    tl.store(place + 1, by_second)
    tl.store(place + 2, rows)


@triton.jit
@no_type_check
def _gradient_kernel(v, index, weights, out, n, k, K: tl.constexpr, POINTS: tl.constexpr):
    """Add the gradients of all vectors; ``weights`` are those of rows taught by either."""
    weight2, weight1 = tl.load(weights), tl.load(weights + 1)
    for i in range(POINTS):
        r = tl.program_id(0) * POINTS + i
        if r < n:
            j, inside, first, e, x1, y1, z1, x2, y2, z2 = _cosines(v, index, r, k, K)
            w2 = tl.where(first, weight2, 0.0)
            w1 = tl.where(inside & (first == 0), -weight1, 0.0)
            e2 = (w2[:, None] + w2[None, :]) * e
            e1 = (w1[:, None] + w1[None, :]) * e
            row = out + j.to(tl.int64) * 6
            tl.atomic_add(row, tl.sum(e1 * x1[None, :], axis=1), mask=inside)
            tl.atomic_add(row + 1, tl.sum(e1 * y1[None, :], axis=1), mask=inside)
            tl.atomic_add(row + 2, tl.sum(e1 * z1[None, :], axis=1), mask=inside)
            tl.atomic_add(row + 3, tl.sum(e2 * x2[None, :], axis=1), mask=inside)
            tl.atomic_add(row + 4, tl.sum(e2 * y2[None, :], axis=1), mask=inside)
            tl.atomic_add(row + 5, tl.sum(e2 * z2[None, :], axis=1), mask=inside)


class _Consistency(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Float[Tensor, "n 6"], index: Int[Tensor, "n k"]) -> Tensor:
        n, k = index.shape
        programs = triton.cdiv(n, POINTS)
        sums = v.new_empty(programs, 3)
        _loss_kernel[(programs,)](v, index, sums, n, k, triton.next_power_of_2(k), POINTS,
                                  num_warps=1)  # fmt: skip
        by_first, by_second, rows = sums.double().sum(0)  # counts beyond 2^24 stay exact
        counts = torch.stack([rows, n * k - rows]).clamp_min(1)
        ctx.save_for_backward(v, index, counts)
        return (by_first / counts[0] + by_second / counts[1]).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None]:
        v, index, counts = ctx.saved_tensors
        n, k = index.shape
        weights = (2 * dloss / (k * counts)).to(v.dtype)
        dv = torch.zeros_like(v)
        _gradient_kernel[(triton.cdiv(n, POINTS),)](v, index, weights, dv, n, k,
                                                    triton.next_power_of_2(k), POINTS,
                                                    num_warps=1)  # fmt: skip
        return dv, None


def consistency(v: Float[Tensor, "n 3 2"], index: Int[Tensor, "n k"]) -> Float[Tensor, ""]:
    """Return the loss of unit vectors over neighbourhoods.

    Args:
        v: the two vectors of every point of the batch, of length one.
        index: neighbours as rows of the whole batch, int32.
    """
    return _Consistency.apply(v.mT.reshape(-1, 6).float(), index)
