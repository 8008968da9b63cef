"""The vector-neuron edge convolution in training on the CPU; see `learning`.

The formulas are those of `vn_activation`, which the kernels of a GPU share.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.distributed import processes, sum_over_processes
from locotrans.kernels import learning_vn_loops, loops
from locotrans.kernels.batch_norm import Norm
from locotrans.kernels.cpu import as_arrays
from locotrans.kernels.learning import batch_moments, check_edges
from locotrans.kernels.threads import share_out


class _VNEdges(torch.autograd.Function):
    """`vn_edge_conv` and its derivative."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, index: Tensor, n: int, *flat: Any) -> Tensor:
        norm = Norm(*flat)
        u, w, index = u.contiguous(), w.contiguous(), index.contiguous()
        (m, k), d = index.shape, norm.channels
        sums = u.new_zeros(m // n, 3, d, dtype=torch.float64)
        sums[:, 0] = (u[index[::n, 0], :, :d] + w[::n, :, :d]).norm(dim=1)  # lengths of edges
        arrays = as_arrays(u, w, index)
        (sums_,) = as_arrays(sums)
        share_out(
            lambda *rows: learning_vn_loops.vn_edge_moments(*arrays, n, sums_, *rows), m, unit=n
        )
        mean, rstd = batch_moments(sums, norm, m * k)
        scale = norm.weight * rstd
        out = u.new_empty(m, 3, d)
        outputs = as_arrays(u, w, index, scale, norm.bias - scale * mean, out)
        share_out(lambda *rows: loops.vn_edges(*outputs, *rows), m, unit=n)
        ctx.save_for_backward(u, w, index, torch.stack([mean, rstd, norm.weight, norm.bias]))
        ctx.n = n
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast("cpu", enabled=False):  # as the forward pass was
            return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of what ``forward`` takes."""
    u, w, index, norm = ctx.saved_tensors
    (m, k), n = index.shape, ctx.n
    sums = u.new_zeros(m // n, 2, norm.shape[1], dtype=torch.float64)
    arrays = as_arrays(u, w, index, grad, norm)
    (sums_,) = as_arrays(sums)
    share_out(
        lambda *rows: learning_vn_loops.vn_edge_reductions(*arrays, n, sums_, *rows), m, unit=n
    )
    total = sums.sum(0)
    dbeta, dgamma = total.to(u.dtype).unbind()
    means = sum_over_processes(total) / (m * k * processes())
    du, dw = torch.zeros_like(u), torch.empty_like(w)
    outputs = as_arrays(means.to(u.dtype), du, dw)
    share_out(
        lambda *rows: learning_vn_loops.vn_edge_gradients(*arrays, *outputs, *rows), m, unit=n
    )
    return du, dw, None, None, *Norm.gradients(dgamma, dbeta)


def vn_edge_conv(
    u: Float[Tensor, "m 3 d2"],
    w: Float[Tensor, "m 3 d2"],
    index: Int[Tensor, "m k"],
    n: int,
    norm: Norm,
) -> Float[Tensor, "m 3 d"]:
    """Return the mean over the neighbours of a VN layer on edges, given its products per point.

    Args:
        u: W1 v: the vectors, then their directions.
        w: (W2 - W1) v.
        index: the neighbours.
        n: points of a cloud.
        norm: of the lengths.
    """
    check_edges(index)
    return _VNEdges.apply(u, w, index, n, *norm)
