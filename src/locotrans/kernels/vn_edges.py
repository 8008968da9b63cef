r"""The fused vector-neuron edge convolution: batch norm, leaky ReLU, mean over neighbours.

`vn_edge_conv` is what `locotrans.nn.vn.VNEdgeConv` does after its two products per point. No edge
tensor exists in memory: every pass gathers again, and the backward pass recomputes instead of
reading what the forward pass might have stored. With the o of `vn_activation`, per edge (r, j) and
channel::

    p = u_j + w_r, q likewise                   out_r = mean of o over the neighbours
    g = dL/dout_r / k                           for every one of them
    dw_r = sum over j of (dp, dq),  du_j = sum over r of (dp, dq)

Bytes that each pass must move, s bytes an entry. From and to device memory, with V = 3 d s N (one
vector a point and channel: 33 MB for 32 clouds of 1,024 points, d = 85, float32) and du = 24 d N
(float32 always, written as zeros, then read and written)::

    statistics   output   reductions   gradients
       2 V        5 V         5 V       7 V + 3 du     and 4 k N of indices each

The gathers come on top, from the L2 cache, where the rows of the clouds at work stay (2 MB each):
3 d s k N for the statistics, 6 d s k N for every other pass, and 24 d k N for the atomic additions
to du. They are the most of all: at that size 0.67 GB for the statistics and 1.34 GB each for the
others, twice that for the gradients.

A width may be padded, so that products and rows are aligned: channels beyond those of the batch
norm must be zero, give zero, and get a zero gradient.
"""

from typing import Any

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.kernels import on_device
from locotrans.kernels.batch_norm import Norm
from locotrans.kernels.statistics import add_partial, batch_moments, share_tiles, sums_of_batch
from locotrans.kernels.tiles import arithmetic, dense_vectors
from locotrans.kernels.vn_edge_kernels import (
    vn_edge_gradients,
    vn_edge_output,
    vn_edge_reductions,
    vn_edge_statistics,
)

# A program's tile is rows x channels, 2 vectors a thread: the gradient keeps about 40 numbers a
# vector in registers.
ROWS = 8
CHANNELS = 32
WARPS = 4


class _EdgeConv(torch.autograd.Function):
    """`vn_edge_conv` and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, uw: Tensor, index: Tensor, slope: float, eps: float, *flat: Any
    ) -> Tensor:
        norm = Norm(*flat)
        uw, index = uw.contiguous(), index.contiguous()
        n, k, width, channels = len(uw), index.shape[1], uw.shape[2] // 4, norm.channels
        dtype, real = arithmetic(uw)
        blocks = triton.cdiv(width, CHANNELS)
        tile = {"REAL": real, "ROWS": ROWS, "C": CHANNELS, "WIDTH": width, "num_warps": WARPS}
        mean, var = norm.running_mean, norm.running_var
        if norm.training:
            programs = share_tiles(triton.cdiv(n, ROWS), blocks)
            partial = uw.new_empty(programs, 2, channels, dtype=dtype)
            shift = uw.new_empty(channels, dtype=dtype)
            vn_edge_statistics[(programs * blocks,)](
                uw, index, partial, shift, n, k, channels, programs, EPS=eps, **tile
            )
            mean, var = batch_moments(partial, shift, norm, n * k)
        out = uw.new_empty(n, 3, width)
        constants = {"EPS": eps, "BN_EPS": norm.eps, "SLOPE": slope, **tile}
        vn_edge_output[(triton.cdiv(n, ROWS) * blocks,)](
            uw, index, out, mean, var, norm.weight, norm.bias, n, k, channels, **constants
        )
        ctx.save_for_backward(uw, index, norm.weight, norm.bias, mean, var)
        ctx.training, ctx.constants = norm.training, constants
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        uw, index, weight, bias, mean, var = ctx.saved_tensors
        grad = dense_vectors(grad)
        n, k, width, channels = len(uw), index.shape[1], uw.shape[2] // 4, len(weight)
        dtype, _ = arithmetic(uw)
        blocks = triton.cdiv(width, CHANNELS)
        programs = share_tiles(triton.cdiv(n, ROWS), blocks)
        partial = uw.new_empty(programs, 2, channels, dtype=dtype)
        duw = torch.empty_like(uw, dtype=dtype)
        vn_edge_reductions[(programs * blocks,)](
            uw, index, grad, partial, duw, mean, var, weight, bias,
            n, k, channels, programs, G_ROW=grad.stride(1), **ctx.constants,
        )  # fmt: skip
        sums = add_partial(partial)
        dbeta, dgamma = sums.to(weight.dtype).unbind()
        sums, count = sums_of_batch(sums, n * k, ctx.training)
        vn_edge_gradients[(triton.cdiv(n, ROWS) * blocks,)](
            uw, index, grad, sums, duw, mean, var, weight, bias,
            n, k, channels, count,
            G_ROW=grad.stride(1), TRAINING=ctx.training, **ctx.constants,
        )  # fmt: skip
        return duw.to(uw.dtype), None, None, None, *Norm.gradients(dgamma, dbeta)


@on_device
def vn_edge_conv(
    uw: Float[Tensor, "n 3 d4"],
    index: Int[Tensor, "n k"],
    norm: Norm,
    slope: float = 0.2,
    eps: float = 1e-6,
) -> Float[Tensor, "n 3 d"]:
    """Apply batch norm of lengths and leaky ReLU to the edges u_j + w_r, and average over j.

    Args:
        uw: what a point gives as a neighbour, u, and as the reference point, w, side by side; in
            each p and q, side by side, of d channels, at least those of the batch norm.
        index: the neighbours j of every r, as rows of uw.
        norm: the batch norm; in training by the statistics of these edges.
        slope: of the leaky ReLU.
        eps: added to lengths and squared lengths.

    Returns:
        The mean over the neighbours, in the type of uw; arithmetic is float32 at least.

    Symmetry: SO(3)- and O(3)-equivariant.
    Gradient: as of the plain code, at zero vectors too. That of u is summed by atomic additions, in
        no fixed order. In evaluation the backward pass reads the running statistics again.
    """
    if uw.shape[2] % 4 or len(index) != len(uw) or norm.channels > uw.shape[2] // 4:
        raise ValueError(
            f"uw {tuple(uw.shape)}, index {tuple(index.shape)} and a batch norm of "
            f"{norm.channels} channels do not belong together"
        )
    return _EdgeConv.apply(uw, index, slope, eps, *norm)
