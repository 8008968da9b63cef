r"""Fused scalar edge convolutions: batch norm over all edges, leaky ReLU, maximum over neighbours.

`edge_max` is what `locotrans.nn.edge.EdgeConv` does after its two products per point, `frame_conv`
what `locotrans.nn.rpr.FrameConv` does after its one. No edge tensor exists in memory: the backward
pass gathers and computes the edges again. For every edge (r, j) and channel::

    e = u_j + w_r                               edge_max
    e = <m_r, p_j - p_r> (+ w_r)                frame_conv, m_r = U_r W^T
    x = (e - mean) / sqrt(var + bn_eps)         mean and variance over all edges, in training
    out_r = leaky(max over j of gamma x + beta)

Batch norm is monotone in e, so the maximum is that of e sign(gamma), known before the statistics
are: one pass over the edges gives both, and one over the points normalises. In evaluation all of it
is one pass.

Backward, with g = dL/dout leaky' and the edges e* that were the maximum (`best`, and which of the k
in `slot`; the first of equals)::

    dbeta = sum g,  dgamma = sum g x*           over the points
    de = gamma rstd (g [e is e*] - [training] (dbeta + x dgamma) / edges)
    du_j = sum over r of de,  dw_r = sum over j of de,  dm_r = sum over j of de (p_j - p_r)

Bytes that each pass must move from and to device memory, a point and channel, with s bytes an entry
of u, w, m and out, and f = 4 for what is float32 always (16.8 MB at f, for 32 clouds of 1,024
points, d = 128)::

                edges          output    reductions    gradients
    edge_max    2 s + f + 1    f + s     f + s         4 s + f + 1, and 3 f + s for du
    frame_conv  3 s + f + 1    f + s     f + s         7 s + f + 1     (s for w, s for dw if asked)

and 4 k N of indices, for edges and gradients. du is written as zeros, then read and written, and
once more if it is to be bf16. The gathers of `edge_max` come on top, from the L2 cache: s d k N for
the edges, s d k N and f d k N of atomic additions for the gradients; the most of all: 335 MB,
then 670 MB at the size above, k = 20, float32. `frame_conv` gathers 12 bytes an edge.

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
from locotrans.kernels.edge_max_kernels import (
    edge_gradients,
    edge_maxima,
    edge_output,
    edge_reductions,
)
from locotrans.kernels.statistics import add_partial, batch_moments, share_tiles, sums_of_batch
from locotrans.kernels.tiles import arithmetic, dense_rows, dense_vectors

# A program's tile is points x channels, 8 (edge_max) or 4 (frame_conv) of them a thread.
EDGE_TILE = 1024
FRAME_TILE = 512
CHANNELS = 64
WARPS = 4


def _slot_type(k: int) -> torch.dtype:
    """Return the smallest type that holds the place of an edge among k."""
    return torch.uint8 if k <= 256 else torch.int32


class _EdgeMax(torch.autograd.Function):
    """`edge_max` (source u, no m), `frame_conv` (source the points) and their derivatives."""

    @staticmethod
    def forward(
        ctx: Any, source: Tensor, m: Tensor | None, w: Tensor | None, index: Tensor,
        slope: float, save: bool, *flat: Any,
    ) -> Tensor:  # fmt: skip
        norm = Norm(*flat)
        frame, offset = m is not None, w is not None
        index = index.contiguous()
        source = source.contiguous() if frame else dense_rows(source)
        m = None if m is None else dense_vectors(m)
        w = None if w is None else dense_rows(w)
        like = source if m is None else m
        (n, k), width, channels = index.shape, like.shape[-1], norm.channels
        dtype, real = arithmetic(like)
        columns = min(CHANNELS, max(16, triton.next_power_of_2(width)))
        rows = (FRAME_TILE if frame else EDGE_TILE) // columns
        blocks, tiles = triton.cdiv(width, columns), triton.cdiv(n, rows)
        constants = {"BN_EPS": norm.eps, "SLOPE": slope, "REAL": real}
        tile = {"ROWS": rows, "C": columns, "WIDTH": width, "num_warps": WARPS, **constants}
        flags = {"FRAME": frame, "OFFSET": offset, "TRAINING": norm.training}
        strides = (
            source.stride(0), 0 if m is None else m.stride(1), 0 if w is None else w.stride(0),
        )  # fmt: skip

        mean, var = norm.running_mean, norm.running_var
        out = like.new_empty(n, width)
        kept = n if save or norm.training else 0
        best = like.new_empty(kept, width, dtype=dtype)
        slot = like.new_empty(kept, width, dtype=_slot_type(k))
        programs = share_tiles(tiles, blocks) if norm.training else tiles
        partial = like.new_empty(programs if norm.training else 0, 2, channels, dtype=dtype)
        shift = like.new_empty(channels, dtype=dtype)
        edge_maxima[(programs * blocks,)](
            source, like if m is None else m, like if w is None else w, index,
            out, best, slot, partial, shift, mean, var, norm.weight, norm.bias,
            n, k, channels, programs, *strides, SAVE=save, **flags, **tile,
        )  # fmt: skip
        if norm.training:
            mean, var = batch_moments(partial, shift, norm, n * k)
            edge_output[(tiles * blocks,)](
                best, out, mean, var, norm.weight, norm.bias, n, channels, **tile
            )
        ctx.save_for_backward(source, m, w, index, best, slot, norm.weight, norm.bias, mean, var)
        ctx.flags, ctx.tile, ctx.strides = flags, tile, strides
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        source, m, w, index, best, slot, weight, bias, mean, var = ctx.saved_tensors
        grad = dense_rows(grad)
        (n, k), width, channels = index.shape, best.shape[1], len(weight)
        rows, columns = ctx.tile["ROWS"], ctx.tile["C"]
        blocks = triton.cdiv(width, columns)
        programs = share_tiles(triton.cdiv(n, rows), blocks)
        partial = best.new_empty(programs, 2, channels)
        edge_reductions[(programs * blocks,)](
            best, grad, partial, mean, var, weight, bias, n, channels, programs, grad.stride(0),
            **ctx.tile,
        )  # fmt: skip
        sums = add_partial(partial)
        dbeta, dgamma = sums.to(weight.dtype).unbind()
        sums, count = sums_of_batch(sums, n * k, ctx.flags["TRAINING"])
        du = None if m is not None else torch.zeros_like(best)
        dm = None if m is None else m.new_empty(n, 3, width)
        dw = None if w is None else w.new_empty(n, width)
        edge_gradients[(triton.cdiv(n, rows) * blocks,)](
            source, best if m is None else m, best if w is None else w, index, best, slot, grad,
            sums, best if du is None else du, best if dm is None else dm,
            best if dw is None else dw, mean, var, weight, bias,
            n, k, channels, count, *ctx.strides, grad.stride(0), **ctx.flags, **ctx.tile,
        )  # fmt: skip
        du = None if du is None else du.to(source.dtype)
        return du, dm, dw, None, None, None, *Norm.gradients(dgamma, dbeta)


@on_device
def edge_max(
    u: Float[Tensor, "n d"],
    w: Float[Tensor, "n d"],
    index: Int[Tensor, "n k"],
    norm: Norm,
    slope: float = 0.2,
) -> Float[Tensor, "n d"]:
    """Apply batch norm to the edges u_j + w_r, and leaky ReLU to their maximum over j.

    Args:
        u: what a point gives as a neighbour, in d channels, at least those of the batch norm.
        w: what a point gives as the reference point. It and u may be halves of one product.
        index: the neighbours j of every r, as rows of u.
        norm: the batch norm; in training by the statistics of these edges.
        slope: of the leaky ReLU.

    Returns:
        The new features, in the type of u; arithmetic is float32 at least.

    Gradient: that of a maximum goes to the first of equal edges. That of u is summed by atomic
        additions, in no fixed order. In evaluation the backward pass reads the running statistics
        again.
    """
    if u.shape != w.shape or len(index) != len(u) or norm.channels > u.shape[1]:
        raise ValueError(
            f"u {tuple(u.shape)}, w {tuple(w.shape)}, index {tuple(index.shape)} and a batch norm "
            f"of {norm.channels} channels do not belong together"
        )
    return _EdgeMax.apply(u, None, w, index, slope, torch.is_grad_enabled(), *norm)


@on_device
def frame_conv(
    points: Float[Tensor, "n 3"],
    index: Int[Tensor, "n k"],
    m: Float[Tensor, "n 3 d"],
    norm: Norm,
    slope: float = 0.2,
    w: Float[Tensor, "n d"] | None = None,
) -> Float[Tensor, "n d"]:
    """Apply batch norm to the edges <m_r, p_j - p_r> + w_r, and leaky ReLU to their maximum over j.

    Args:
        points: the coordinates p.
        index: the neighbours j of every r, as rows of the points.
        m: ``U_r W^T``, the columns of the frame mapped by the layer, in d channels, at least those
            of the batch norm.
        norm: the batch norm; in training by the statistics of these edges.
        slope: of the leaky ReLU.
        w: what a point adds to all its edges, if anything.

    Returns:
        The new features, in the type of m; arithmetic is float32 at least.

    Symmetry: SO(3)-invariant, if m and the points turn together, and w does not change.
    Gradient: of m, w and the batch norm; points that ask for one are refused. That of a maximum
        goes to the first of equal edges. In evaluation the backward pass reads the running
        statistics again.
    """
    fits = points.shape == (len(index), 3) and m.shape[:2] == points.shape
    if not fits or (w is not None and w.shape != m[:, 0].shape) or norm.channels > m.shape[2]:
        raise ValueError(
            f"points {tuple(points.shape)}, index {tuple(index.shape)}, m {tuple(m.shape)}, "
            f"w {None if w is None else tuple(w.shape)} and a batch norm of {norm.channels} "
            "channels do not belong together"
        )
    if points.requires_grad:
        raise ValueError("frame_conv has no gradient of the points; use the plain code")
    return _EdgeMax.apply(points, m, w, index, slope, torch.is_grad_enabled(), *norm)
