r"""Fused pooling of invariants: inner products with three vectors, their maximum and mean.

`pool_projections` is what `locotrans.nn.invariants.VNPooledInvariants` does after its projection:
with ``inv[i, c] = sum over s of z[s, i] v[s, c]`` at every point, the maximum and the mean of inv
over the points of each cloud. The features of the points, (b, n, 3, c), never exist in memory.
Vectors that all points of a cloud share are channels behind those of v.

Backward, with G[i, c] = dmean[i, c] / n + dmaximum[i, c] at the point of the maximum, dmean / n at
any other::

    dv[s, c] = sum over i of z[s, i] G[i, c]
    dz[s, i] = sum over c of v[s, c] G[i, c]

Of shared vectors, the sum of dv over the points is, with the mean of z over them, Z, and z at the
place of the maximum, Y[s, i, c]: ``sum over i of Z[s, i] dmean[i, c] + Y[s, i, c] dmaximum[i, c]``.

Bytes that each pass must move, with V = 3 c s b n, the size of v at s bytes an entry (134 MB for 32
clouds of 1,024 points, c = 341, float32; z is 9 numbers a point, 36 b n, and all else is smaller)::

    forward   V          31 us at 4.3 TB/s
    backward  2 V        62 us
"""

from typing import Any

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.kernels import on_device
from locotrans.kernels.pool_kernels import (
    pool_clouds,
    pool_gradients,
    pool_segments,
    shared_gradients,
)
from locotrans.kernels.tiles import arithmetic

# A program's tile is points x channels, 4 vectors of v a thread. Forward, it keeps maximum, place
# and sum of 3 products for each; backward, 9 sums for dz.
POINTS, CHANNELS = 8, 64
BACK_POINTS, BACK_CHANNELS = 16, 32
WARPS = 4
PROGRAMS = 132 * 8  # at least, if there are points enough: clouds are cut into segments


def _dense(v: Float[Tensor, "b n 3 c"]) -> Float[Tensor, "b n 3 c"]:
    """Return v with channels side by side, copied only if it must be."""
    return v if v.stride(3) == 1 else v.contiguous()


class _Pool(torch.autograd.Function):
    """`pool_projections` and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, v: Tensor, z: Tensor, shared: Tensor | None, channels: int
    ) -> Tensor:  # fmt: skip
        v, z = _dense(v), z.contiguous()
        parts = [v]
        if shared is not None:
            shared = shared.contiguous()
            parts.append(shared.expand(-1, v.shape[1], -1, -1))
        row = len(parts) * channels
        pooled = v.new_empty(len(v), 2, 3, row, dtype=arithmetic(v)[0])
        places = []
        for i, part in enumerate(parts):
            places.append(_pool_part(part, z, pooled[..., i * channels :], channels, row))
        ctx.save_for_backward(v, z, shared, *places)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        v, z, shared, *places = ctx.saved_tensors
        b, n, _, wide = v.shape
        grad, width = grad.contiguous(), places[0].shape[2]
        _, real = arithmetic(v)
        dv, dz = v.new_empty(b, n, 3, wide), torch.empty_like(z)
        constants = {"REAL": real, "WIDTH": width, "ROW": grad.shape[3], "num_warps": WARPS}
        pool_gradients[(b * triton.cdiv(n, BACK_POINTS),)](
            v, shared, z, grad, places[0], places[-1], dv, dz, n, v.stride(0),
            N_STRIDE=v.stride(1), S_STRIDE=v.stride(2), SHARED=shared is not None,
            M_STRIDE=0 if shared is None else shared.shape[3],
            POINTS=BACK_POINTS, C=BACK_CHANNELS, WIDE=wide, **constants,
        )  # fmt: skip
        if shared is None:
            return dv, dz, None, None
        dshared = torch.empty_like(shared)
        wide = shared.shape[3]
        shared_gradients[(b * 3 * triton.cdiv(wide, CHANNELS),)](
            z, grad, places[1], dshared, n, POINTS=256, C=CHANNELS, WIDE=wide, **constants
        )
        return dv, dz, dshared, None


def _pool_part(
    v: Float[Tensor, "b n 3 c"],
    z: Float[Tensor, "b n 3 3"],
    pooled: Float[Tensor, "b 2 3 _"],
    channels: int,
    row: int,
) -> Int[Tensor, "b 3 d"]:
    """Pool the first channels of v into rows of `pooled`, and return the places of the maxima."""
    b, n = v.shape[:2]
    dtype, real = arithmetic(v)
    blocks = triton.cdiv(channels, CHANNELS)
    wanted = min(triton.cdiv(PROGRAMS, b * blocks), triton.cdiv(n, POINTS))
    length = POINTS * triton.cdiv(n, POINTS * wanted)
    segments = triton.cdiv(n, length)  # none is empty
    tops = v.new_empty(b, segments, 3, channels, dtype=dtype)
    places = torch.empty_like(tops, dtype=torch.int32)
    totals = torch.empty_like(tops)
    pool_segments[(b * segments * blocks,)](
        v, z, tops, places, totals, n, segments, length, v.stride(0),
        N_STRIDE=v.stride(1), S_STRIDE=v.stride(2), REAL=real,
        POINTS=POINTS, C=CHANNELS, WIDTH=channels, WIDE=v.shape[3], num_warps=WARPS,
    )  # fmt: skip
    argmax = places.new_empty(b, 3, channels)
    pool_clouds[(b * triton.cdiv(3 * channels, 128),)](
        tops, places, totals, pooled, argmax, n, segments,
        REAL=real, C=128, WIDTH=channels, ROW=row, num_warps=WARPS,
    )  # fmt: skip
    return argmax


@on_device
def pool_projections(
    v: Float[Tensor, "b n 3 d"],
    z: Float[Tensor, "b n 3 3"],
    shared: Float[Tensor, "b 1 3 d"] | None = None,
    channels: int | None = None,
) -> Float[Tensor, "b 2 3 c"]:
    """Return the maximum and the mean over the points of ``Z^T v``.

    Args:
        v: the vectors of every point. Read in place if channels lie side by side.
        z: three vectors of every point, its columns.
        shared: vectors that all points of a cloud share, which count as channels behind those of v.
        channels: how many channels v and `shared` have, if zero vectors follow them.

    Returns:
        Maximum and mean of each inner product over its cloud, in float32 at least.

    Symmetry: invariant under O(3), if v and z turn together.
    Gradient: that of a maximum goes to the first of equal points.
    """
    channels = v.shape[3] if channels is None else channels
    fits = v.shape[:3] == z.shape[:3] and z.shape[3] == 3 and channels <= v.shape[3]
    if shared is not None:
        fits &= shared.shape[:3] == (len(v), 1, 3) and channels <= shared.shape[3]
    if not fits:
        raise ValueError(
            f"v {tuple(v.shape)}, z {tuple(z.shape)} and shared vectors "
            f"{None if shared is None else tuple(shared.shape)} do not belong together"
        )
    return _Pool.apply(v, z, shared, channels)
