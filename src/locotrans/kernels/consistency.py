r"""The fused losses of the two vectors of a point: orthogonality (Eq. 10), consistency (Eq. 12).

`vector_losses` is `locotrans.losses.orthogonality_loss` and `consistency_loss` in one. With u1, u2
the unit vectors of a point, and e[a, b] = <u2_a, u2_b> - <u1_a, u1_b> for the neighbours a, b of
one point::

    orthogonality = mean of <u1, u2>^2 over the points
    row a is taught by the first vectors where sum_b e[a, b] < 0, else by the second
    consistency = mean of e^2 over the rows taught by the first + over those taught by the second

The matrix e has rank six, and never exists: for any numbers w_b, one a neighbour::

    sum_b w_b e[a, b] = <u2_a, sum_b w_b u2_b> - <u1_a, sum_b w_b u1_b>

with w = 1 for who teaches, and w = each coordinate of u1 and u2 for the sum of the squares, which
is that of e[a, b] (<u2_a, u2_b> - <u1_a, u1_b>). That is O(k) a point instead of O(k^2). Its
rounding is that of cosines, 1e-7, and not relative to e, which may be 0.

Backward, with w2[a] = 2 dconsistency / (k rows taught by the first) where row a is one of them,
else 0, and w1[a] likewise; again coordinates of u1 and u2 make sums as above of it::

    du2_a = sum over b of (w2[a] + w2[b]) e[a, b] u2_b
    du1_a = -sum over b of (w1[a] + w1[b]) e[a, b] u1_b
    dv = (du - <du, u> u) / |v|        and du / eps where |v| < eps

The point itself gets the gradient of orthogonality, 2 <u1, u2> dorthogonality / N times the other
vector, before the neighbourhoods add theirs.

Bytes that each pass must move: 4 k N of indices and 24 N of vectors, from the L2 cache 24 k N; for
the gradients as many atomic additions again, two a neighbour since rows are padded to 32 bytes.
3 us of device memory for 32 clouds of 1,024 points at k = 20. Operations, some 300 k N forward and
900 k N backward, take 5 and 15 us.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.distributed import mean_over_processes, processes
from locotrans.kernels import on_device
from locotrans.kernels.vector_pairs import EPS, load_pair, through_unit

TILE = 512  # points x neighbours of a program, 4 a thread
ROWS = 256  # of points, or of partial sums, that a program without neighbours works on
WARPS = 4


@triton.jit
@no_type_check
def _unit(x, y, z):
    """Return a vector over its length (over EPS if that is more), 1 / length, and if it is not."""
    length = tl.sqrt(x * x + y * y + z * z)
    inverse = 1 / tl.maximum(length, EPS)
    return x * inverse, y * inverse, z * inverse, inverse, length >= EPS


@triton.jit
@no_type_check
def _sum(w, x1, y1, z1, x2, y2, z2):
    """Return the sum over b of w_b e[a, b], for every a."""
    first = (
        x1 * tl.sum(w * x1, axis=1)[:, None]
        + y1 * tl.sum(w * y1, axis=1)[:, None]
        + z1 * tl.sum(w * z1, axis=1)[:, None]
    )
    second = (
        x2 * tl.sum(w * x2, axis=1)[:, None]
        + y2 * tl.sum(w * y2, axis=1)[:, None]
        + z2 * tl.sum(w * z2, axis=1)[:, None]
    )
    return second - first


@triton.jit
@no_type_check
def _load_neighbours(index, n, K: tl.constexpr, COLUMNS: tl.constexpr, POINTS: tl.constexpr):
    """Load the neighbours of a program's points, (points, columns), and say which exist."""
    r = tl.program_id(0) * POINTS + tl.arange(0, POINTS)
    a = tl.arange(0, COLUMNS)[None, :]
    inside = (r < n)[:, None] & (a < K)
    return r, tl.load(index + r.to(tl.int64)[:, None] * K + a, mask=inside, other=0), inside


@triton.jit
@no_type_check
def _loss_kernel(
    v, index, out, n, K: tl.constexpr, COLUMNS: tl.constexpr, POINTS: tl.constexpr
):  # fmt: skip
    """Write, for some points each: sums of the rows taught by either, their numbers, <u1, u2>^2."""
    r, j, inside = _load_neighbours(index, n, K, COLUMNS, POINTS)
    x1, y1, z1, x2, y2, z2 = load_pair(v, j, inside)
    x1, y1, z1, _, _ = _unit(x1, y1, z1)
    x2, y2, z2, _, _ = _unit(x2, y2, z2)
    first = inside & (_sum(inside.to(tl.float32), x1, y1, z1, x2, y2, z2) < 0)
    squares = (
        x2 * _sum(x2, x1, y1, z1, x2, y2, z2)
        + y2 * _sum(y2, x1, y1, z1, x2, y2, z2)
        + z2 * _sum(z2, x1, y1, z1, x2, y2, z2)
        - x1 * _sum(x1, x1, y1, z1, x2, y2, z2)
        - y1 * _sum(y1, x1, y1, z1, x2, y2, z2)
        - z1 * _sum(z1, x1, y1, z1, x2, y2, z2)
    )
    squares = tl.maximum(squares, 0.0) / K  # not below 0 by rounding
    ax, ay, az, bx, by, bz = load_pair(v, r, r < n)
    ax, ay, az, _, _ = _unit(ax, ay, az)
    bx, by, bz, _, _ = _unit(bx, by, bz)
    cosine = ax * bx + ay * by + az * bz
    second = inside & (first == 0)
    place = out + tl.program_id(0) * 5
    tl.store(place, tl.sum(tl.sum(tl.where(first, squares, 0.0), axis=1), axis=0))
    tl.store(place + 1, tl.sum(tl.sum(tl.where(second, squares, 0.0), axis=1), axis=0))
    tl.store(place + 2, tl.sum(tl.sum(first.to(tl.float32), axis=1), axis=0))
    tl.store(place + 3, tl.sum(tl.sum(second.to(tl.float32), axis=1), axis=0))
    tl.store(place + 4, tl.sum(cosine * cosine, axis=0))


@triton.jit
@no_type_check
def _finish_kernel(sums, losses, counts, programs, n, ROWS: tl.constexpr):
    """Turn the sums of all programs into both losses and the numbers of rows, in float64."""
    by_first = tl.zeros((ROWS,), dtype=tl.float64)
    by_second = tl.zeros((ROWS,), dtype=tl.float64)
    first = tl.zeros((ROWS,), dtype=tl.float64)
    second = tl.zeros((ROWS,), dtype=tl.float64)
    cosines = tl.zeros((ROWS,), dtype=tl.float64)
    for start in range(0, programs, ROWS):
        p = start + tl.arange(0, ROWS)
        place = sums + p * 5
        by_first += tl.load(place, mask=p < programs, other=0.0).to(tl.float64)
        by_second += tl.load(place + 1, mask=p < programs, other=0.0).to(tl.float64)
        first += tl.load(place + 2, mask=p < programs, other=0.0).to(tl.float64)
        second += tl.load(place + 3, mask=p < programs, other=0.0).to(tl.float64)
        cosines += tl.load(place + 4, mask=p < programs, other=0.0).to(tl.float64)
    rows1, rows2 = tl.sum(first, axis=0), tl.sum(second, axis=0)
    rows1 = tl.where(rows1 > 0, rows1, 1.0)  # a mean over processes may be less than 1
    rows2 = tl.where(rows2 > 0, rows2, 1.0)
    tl.store(losses, tl.sum(cosines, axis=0) / n)
    tl.store(losses + 1, tl.sum(by_first, axis=0) / rows1 + tl.sum(by_second, axis=0) / rows2)
    tl.store(counts, rows1)
    tl.store(counts + 1, rows2)


@triton.jit
@no_type_check
def _orthogonality_gradient(v, dloss, out, n, ROWS: tl.constexpr):
    """Store the gradient of orthogonality, in rows of eight: x1, x2, y1, y2, z1, z2, 0, 0."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    x1, y1, z1, x2, y2, z2 = load_pair(v, r, r < n)
    x1, y1, z1, inverse1, regular1 = _unit(x1, y1, z1)
    x2, y2, z2, inverse2, regular2 = _unit(x2, y2, z2)
    g = 2 * tl.load(dloss).to(tl.float32) / n * (x1 * x2 + y1 * y2 + z1 * z2)
    dx1, dy1, dz1 = through_unit(g * x2, g * y2, g * z2, x1, y1, z1, inverse1, regular1)
    dx2, dy2, dz2 = through_unit(g * x1, g * y1, g * z1, x2, y2, z2, inverse2, regular2)
    row = out + r.to(tl.int64) * 8
    tl.store(row, dx1, mask=r < n)
    tl.store(row + 1, dx2, mask=r < n)
    tl.store(row + 2, dy1, mask=r < n)
    tl.store(row + 3, dy2, mask=r < n)
    tl.store(row + 4, dz1, mask=r < n)
    tl.store(row + 5, dz2, mask=r < n)


@triton.jit
@no_type_check
def _consistency_gradient(
    v, index, dloss, counts, out, n, K: tl.constexpr, COLUMNS: tl.constexpr, POINTS: tl.constexpr
):  # fmt: skip
    """Add the gradients of consistency to all neighbours, in rows of eight."""
    weight = 2 * tl.load(dloss).to(tl.float32) / K
    weight2, weight1 = weight / tl.load(counts), -weight / tl.load(counts + 1)
    _, j, inside = _load_neighbours(index, n, K, COLUMNS, POINTS)
    x1, y1, z1, x2, y2, z2 = load_pair(v, j, inside)
    x1, y1, z1, inverse1, regular1 = _unit(x1, y1, z1)
    x2, y2, z2, inverse2, regular2 = _unit(x2, y2, z2)
    first = inside & (_sum(inside.to(tl.float32), x1, y1, z1, x2, y2, z2) < 0)
    w2 = tl.where(first, weight2, 0.0)
    w1 = tl.where(first, 0.0, weight1)
    gx1 = w1 * _sum(x1, x1, y1, z1, x2, y2, z2) + _sum(w1 * x1, x1, y1, z1, x2, y2, z2)
    gy1 = w1 * _sum(y1, x1, y1, z1, x2, y2, z2) + _sum(w1 * y1, x1, y1, z1, x2, y2, z2)
    gz1 = w1 * _sum(z1, x1, y1, z1, x2, y2, z2) + _sum(w1 * z1, x1, y1, z1, x2, y2, z2)
    gx2 = w2 * _sum(x2, x1, y1, z1, x2, y2, z2) + _sum(w2 * x2, x1, y1, z1, x2, y2, z2)
    gy2 = w2 * _sum(y2, x1, y1, z1, x2, y2, z2) + _sum(w2 * y2, x1, y1, z1, x2, y2, z2)
    gz2 = w2 * _sum(z2, x1, y1, z1, x2, y2, z2) + _sum(w2 * z2, x1, y1, z1, x2, y2, z2)
    dx1, dy1, dz1 = through_unit(gx1, gy1, gz1, x1, y1, z1, inverse1, regular1)
    dx2, dy2, dz2 = through_unit(gx2, gy2, gz2, x2, y2, z2, inverse2, regular2)
    # side by side, so that one instruction adds four numbers, or two
    row = (out + j.to(tl.int64) * 8)[:, :, None]
    four = tl.join(tl.join(dx1, dy1), tl.join(dx2, dy2)).reshape(POINTS, COLUMNS, 4)
    masks = inside[:, :, None]
    tl.atomic_add(row + tl.arange(0, 4)[None, None, :], four, mask=masks, sem="relaxed")
    two = row + 4 + tl.arange(0, 2)[None, None, :]
    tl.atomic_add(two, tl.join(dz1, dz2), mask=masks, sem="relaxed")


class _VectorLosses(torch.autograd.Function):
    """`vector_losses` and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, v: Float[Tensor, "n 3 2"], index: Int[Tensor, "n k"]
    ) -> tuple[Tensor, Tensor]:
        n, k = index.shape
        v, index = v.contiguous(), index.contiguous()
        columns = triton.next_power_of_2(k)
        points = max(1, TILE // columns)
        tile = {"K": k, "COLUMNS": columns, "POINTS": points, "num_warps": WARPS}
        programs = triton.cdiv(n, points)
        sums = v.new_empty(programs, 5)
        _loss_kernel[(programs,)](v, index, sums, n, **tile)
        if processes() > 1:  # the average of their losses is the mean over all rows
            sums[:, 2:4] = mean_over_processes(sums[:, 2:4])
        losses, counts = v.new_empty(2), v.new_empty(2)
        _finish_kernel[(1,)](sums, losses, counts, programs, n, ROWS=ROWS, num_warps=WARPS)
        ctx.save_for_backward(v, index, counts)
        ctx.tile = tile
        orthogonality, consistency = losses.unbind()
        return orthogonality, consistency

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dorthogonality: Tensor, dconsistency: Tensor) -> tuple[Tensor, None]:
        v, index, counts = ctx.saved_tensors
        n = len(index)
        dv = v.new_empty(n, 4, 2)
        _orthogonality_gradient[(triton.cdiv(n, ROWS),)](
            v, dorthogonality, dv, n, ROWS=ROWS, num_warps=WARPS
        )
        _consistency_gradient[(triton.cdiv(n, ctx.tile["POINTS"]),)](
            v, index, dconsistency, counts, dv, n, **ctx.tile
        )
        return dv[:, :3], None


@on_device
def vector_losses(
    v: Float[Tensor, "n 3 2"], index: Int[Tensor, "n k"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return orthogonality and consistency of the two vectors of every point.

    Args:
        v: the vectors of every point of the batch, of any length.
        index: neighbours as rows of the whole batch, int32.

    Gradient: that of the vectors is summed by atomic additions, in no fixed order.
    """
    return _VectorLosses.apply(v.float(), index)
