r"""Fused vector-neuron layers for every point alone: batch norm of the length, leaky ReLU.

`vn_norm_act` is what `locotrans.nn.vn.VNLayer` does after its one product, the o of `vn_activation`
for every point and channel. The backward pass recomputes instead of reading what the forward pass
might have stored.

Bytes that each pass must move from and to device memory, with V = 3 d s N (one vector a point and
channel, s bytes an entry: 33 MB for 32 clouds of 1,024 points, d = 85, float32)::

    statistics   output   reductions   gradients
        V         3 V         3 V         5 V          (a shared q: V, 2 V, 2 V, 3 V)

A width may be padded, so that products and rows are aligned: channels beyond those of the batch
norm must be zero, give zero, and get a zero gradient.
"""

from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.kernels import on_device
from locotrans.kernels.batch_norm import Norm
from locotrans.kernels.statistics import add_partial, batch_moments, share_tiles, sums_of_batch
from locotrans.kernels.tiles import arithmetic, dense_vectors
from locotrans.kernels.vn_point_kernels import (
    vn_point_gradients,
    vn_point_output,
    vn_point_reductions,
    vn_point_statistics,
)

# A program's tile is rows x channels, 4 vectors a thread.
ROWS = 16
CHANNELS = 32
WARPS = 4


class _NormAct(torch.autograd.Function):
    """`vn_norm_act` and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, pq: Tensor, offset: Tensor | None, clouds: int, shared: bool, with_mean: bool,
        slope: float, eps: float, *flat: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        norm = Norm(*flat)
        pq, offset = pq.contiguous(), None if offset is None else offset.contiguous()
        (n, _, row), channels = pq.shape, norm.channels
        width, points = _width(row, shared), n // clouds
        dtype, real = arithmetic(pq)
        blocks, tiles = triton.cdiv(width, CHANNELS), clouds * triton.cdiv(points, ROWS)
        tile = {
            "REAL": real, "ROWS": ROWS, "C": CHANNELS, "WIDTH": width, "ROW": row,
            "OFFSET": offset is not None, "num_warps": WARPS,
        }  # fmt: skip
        mean, var = norm.running_mean, norm.running_var
        if norm.training:
            programs = share_tiles(tiles, blocks)
            partial = pq.new_empty(programs, 2, channels, dtype=dtype)
            shift = pq.new_empty(channels, dtype=dtype)
            vn_point_statistics[(programs * blocks,)](
                pq, offset, partial, shift, clouds, points, channels, programs, EPS=eps, **tile
            )
            mean, var = batch_moments(partial, shift, norm, n)
        out = pq.new_empty(n, 3, width)
        constants = {"SHARED": shared, "EPS": eps, "BN_EPS": norm.eps, "SLOPE": slope, **tile}
        vn_point_output[(tiles * blocks,)](
            pq, offset, out, mean, var, norm.weight, norm.bias, points, channels, **constants
        )
        ctx.save_for_backward(pq, offset, norm.weight, norm.bias, mean, var)
        ctx.set_materialize_grads(False)
        ctx.training, ctx.constants, ctx.clouds = norm.training, constants, clouds
        if not with_mean:
            return out, None
        return out, out.unflatten(0, (clouds, points)).mean(1, dtype=dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, gmean: Tensor | None) -> tuple[Tensor | None, ...]:
        pq, offset, weight, bias, mean, var = ctx.saved_tensors
        n, channels, clouds = len(pq), len(weight), ctx.clouds
        width, points = ctx.constants["WIDTH"], n // clouds
        grad = pq.new_zeros(n, 3, width) if grad is None else dense_vectors(grad)
        gmean = None if gmean is None else gmean.contiguous()
        dtype, _ = arithmetic(pq)
        blocks, tiles = triton.cdiv(width, CHANNELS), clouds * triton.cdiv(points, ROWS)
        programs = share_tiles(tiles, blocks)
        partial = pq.new_empty(programs, 2, channels, dtype=dtype)
        constants = {"MEAN": gmean is not None, "G_ROW": grad.stride(1), **ctx.constants}
        vn_point_reductions[(programs * blocks,)](
            pq, offset, grad, gmean, partial, mean, var, weight, bias,
            clouds, points, channels, programs, **constants,
        )  # fmt: skip
        sums = add_partial(partial)
        dbeta, dgamma = sums.to(weight.dtype).unbind()
        sums, count = sums_of_batch(sums, n, ctx.training)
        dpq = torch.empty_like(pq)
        doffset = None if offset is None else torch.zeros_like(offset, dtype=dtype)
        vn_point_gradients[(tiles if constants["SHARED"] else tiles * blocks,)](
            pq, offset, grad, gmean, sums, dpq, doffset, mean, var, weight, bias,
            points, channels, count, TRAINING=ctx.training, **constants,
        )  # fmt: skip
        doffset = None if offset is None or doffset is None else doffset.to(offset.dtype)
        return dpq, doffset, *[None] * 5, *Norm.gradients(dgamma, dbeta)


def _width(row: int, shared: bool) -> int:
    """Return the channels of p, where rows hold p and q: a shared q has one column of 8."""
    return row - 8 if shared else row // 2


@on_device
def vn_norm_act(
    pq: Float[Tensor, "*batch 3 e"],
    norm: Norm,
    slope: float = 0.2,
    eps: float = 1e-6,
    *,
    shared: bool = False,
    offset: Float[Tensor, "*shape 1 3 e"] | None = None,
) -> Float[Tensor, "*batch 3 d"]:
    """Apply batch norm of lengths and leaky ReLU to the vectors p, with the directions q.

    Args:
        pq: the vectors p, of d channels, at least those of the batch norm, and the directions q,
            side by side, as the product with both weight matrices gives them.
        norm: the batch norm; in training by the statistics of these vectors.
        slope: of the leaky ReLU.
        eps: added to lengths and squared lengths.
        shared: q is one direction for all channels, followed by 7 zero vectors.
        offset: what all points of a cloud have added to pq, whose batch is clouds x points then.

    Returns:
        The new vectors, in the type of pq; arithmetic is float32 at least.

    Symmetry: SO(3)- and O(3)-equivariant.
    Gradient: that of the offset is summed by atomic additions, in no fixed order.
    """
    out, _ = _norm_act(pq, offset, 1, shared, False, norm, slope, eps)
    return out


@on_device
def vn_norm_act_mean(
    pq: Float[Tensor, "b n 3 e"],
    norm: Norm,
    slope: float = 0.2,
    eps: float = 1e-6,
    *,
    shared: bool = False,
) -> tuple[Float[Tensor, "b n 3 d"], Float[Tensor, "b 1 3 d"]]:
    """Do as `vn_norm_act`, and return the mean of the new vectors over each cloud besides.

    The mean is float32 at least.

    Args:
        pq: the vectors and the directions.
        norm: the batch norm.
        slope: of the leaky ReLU.
        eps: added to lengths and squared lengths.
        shared: q is one direction for all channels, followed by 7 zero vectors.

    Gradient: that of the mean joins that of the vectors on its way, without a tensor of its own.
    """
    out, mean = _norm_act(pq, None, len(pq), shared, True, norm, slope, eps)
    assert mean is not None
    return out, mean.unsqueeze(1)


def _norm_act(
    pq: Float[Tensor, "*batch 3 e"],
    offset: Float[Tensor, "*shape 1 3 e"] | None,
    clouds: int,
    shared: bool,
    with_mean: bool,
    norm: Norm,
    slope: float,
    eps: float,
) -> tuple[Float[Tensor, "*batch 3 d"], Float[Tensor, "clouds 3 d"] | None]:
    row = pq.shape[-1]
    fits = row >= 9 if shared else row % 2 == 0
    if offset is not None:
        fits &= offset.shape == (*pq.shape[:-3], 1, 3, row)
        offset = offset.flatten(0, -3)
        clouds = len(offset)
    if not fits or norm.channels > _width(row, shared):
        raise ValueError(
            f"pq {tuple(pq.shape)}, offset {None if offset is None else tuple(offset.shape)} and a "
            f"batch norm of {norm.channels} channels do not belong together"
        )
    out, mean = _NormAct.apply(
        pq.flatten(0, -3), offset, clouds, shared, with_mean, slope, eps, *norm
    )
    return out.unflatten(0, pq.shape[:-2]), mean
