r"""Fused relative-pose edge convolution: `locotrans.nn.rpr.RelativePoseConv` of `equivariant_pose`.

For the edge (r, j), with a frame U_r, batch norms bn and weights K1, K2, R (optional) and W1::

    F = U_r^T (v_j - v_r)
    h = K1 F + b1                          stored
    m = (K2 relu(bn(h)) + b2) x_j          stored
    y = R relu(bn(m)) + b3                 stored
    e = W1 relu(bn(y)) + z_r               out_r = leaky_relu(max over j of bn(e))

A batch norm needs the statistics of all edges before its output exists, so one edge tensor is
stored for each but the last; whatever else an edge needs is recomputed from them. The maximum of
bn(e) is at the largest or the smallest e, by the sign of gamma, so e itself is never stored. In
evaluation the input of the last batch norm but one need not be stored either (`rpr_last`).

Backward of the last stage, with g = dL/dout leaky'(.), scale = gamma rstd, ehat at the chosen edge,
c1 = sum g / edges, c2 = sum g ehat / edges (both 0 in evaluation)::

    de = scale ([chosen edge] g_r - c1 - c2 rstd (W1 a + z_r - mean))
       = S - diag(w) W1 a,  S = [chosen edge] scale g_r - scale (c1 + c2 rstd (z_r - mean))

with w = scale c2 rstd: its dense part is linear in the activation a, and e is not needed again; and
what S has of it is the same for all edges of a point, and is multiplied by W1 once a point. The
other stages are in `rpr_backward`.

What the stages of a layer take, per edge, with s bytes an entry of an edge tensor (2 for bfloat16),
cv vector channels, c features in, h = c / 2, d out: bytes of device memory, multiply-adds, and what
the L2 cache serves besides::

    pose              s h              3 cv h         gathers 12 cv bytes
    kernel2           s (h + c)        h c            gathers 4 c
    refine            s 2 c            c c
    max               s c              c d
    max backward      s 2 c            c (c + d)
    max weight        s c              c (c + d)
    refine backward   s 4 c            2 c c
    kernel2 backward  s (2 c + 2 h)    3 h c          gathers 4 c, adds 4 c atomically
    pose backward     s 2 h            6 cv h         gathers 12 cv, adds 12 cv atomically

655,360 edges (batch 32, 1,024 points, k = 20), the three layers of the full network, bfloat16:
forward 1.7 GB (0.4 ms at 4.3 TB/s) and 0.12 TFLOP (0.3 ms at 400 TFLOP/s); backward 3.7 GB
(0.9 ms), 1.3 GB of atomic additions, and 0.33 TFLOP (0.8 ms). Tensors with one row a point, at most
34 MB, are small next to these.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.kernels import on_device
from locotrans.kernels.rpr_launch import run_forward
from locotrans.kernels.rpr_launch_backward import run_backward
from locotrans.kernels.rpr_plan import SMALL, Plan, RPRLayers, Saved, shared_memory
from locotrans.kernels.tiles import INTERPRETED


def supported(
    vector_channels: int, in_channels: int, out_channels: int, k: int, device: torch.device
) -> bool:
    """Say whether the tiles of such a layer fit a multiprocessor of the device."""
    narrow = vector_channels <= 64 and in_channels <= 128 and out_channels <= 256 and k <= 127
    return narrow and shared_memory(device) >= SMALL


@on_device
def rpr_conv(
    x_basis: Float[Tensor, "n c"],
    z: Float[Tensor, "n d"],
    v: Float[Tensor, "n 3 w"],
    frames: Float[Tensor, "n 3 3"],
    index: Int[Tensor, "n k"],
    weight: Float[Tensor, "d c"],
    layers: RPRLayers,
    *,
    store: torch.dtype = torch.float32,
    precision: str | None = None,
) -> Float[Tensor, "n d"]:
    """Convolve features over neighbourhoods whose neighbours are turned into the pose of the point.

    Batch norm does what `torch.nn.BatchNorm1d` does: batch statistics and an update of the running
    ones in training, running statistics in evaluation. The batch is that of all processes that
    train together.

    Args:
        x_basis: ``basis(x)`` of every point.
        z: ``(W2 - W1) x`` of every point.
        v: the vectors of every point; zero vectors may follow their channels, and rows of a
            multiple of 4 are read faster.
        frames: of every point.
        index: rows of ``x_basis`` and ``v`` that are the neighbours of every point.
        weight: W1, the first half of the last product.
        layers: everything between.
        store: type of the edge tensors, float32 or bfloat16.
        precision: of the products; "bf16" with bfloat16, otherwise "ieee", "tf32x3" or "tf32".

    Gradient: of everything but the frames; those that ask for one are refused. Those of x_basis
        and v are summed by atomic additions, in float32 and in no fixed order.
    Degenerate: needs two edges or more in training, as torch does.
    """
    training = layers.norm.training
    if training and index.numel() < 2:
        raise ValueError(f"batch statistics need at least two edges, not {index.numel()}")
    if any(norm.training != training for _, norm in layers.stages()):
        raise ValueError("the batch norms must be all in training or all in evaluation")
    if torch.is_grad_enabled() and frames.requires_grad:
        raise ValueError("rpr_conv has no gradient of the frames; use the plain code")
    if precision is None:
        precision = "bf16" if store == torch.bfloat16 else "ieee"
    if precision == "bf16" and INTERPRETED:
        precision = "bf16_rounded"
    parameters = [weight, layers.norm.weight, layers.norm.bias]
    for linear, norm in layers.stages():
        parameters += [linear.weight, linear.bias, norm.weight, norm.bias]
    inputs = (x_basis, z, v, *parameters)
    save = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    (points, k), memory = index.shape, shared_memory(x_basis.device)
    plan = Plan(layers, training, store, precision, points, k, save, memory)
    if not save:
        return run_forward(plan, x_basis, z, v, frames, index, weight)[0]
    return _RPRConv.apply(plan, x_basis, z, v, frames, index, *parameters)


class _RPRConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        x_basis: Tensor,
        z: Tensor,
        v: Tensor,
        frames: Tensor,
        index: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        points = (x_basis, z, v)
        out, saved = run_forward(plan, *points, frames, index, parameters[0])
        assert saved is not None
        ctx.plan = plan
        ctx.inputs = [(x.shape[-1], x.dtype) for x in points]
        ctx.save_for_backward(*saved[:8], *saved.edges, *saved.norms, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        norms = 8 + len(ctx.plan.layers.stages())  # where they begin: there is one more of them
        parameters = 2 * norms - 7
        saved = Saved._make([*tensors[:8], tensors[8:norms], tensors[norms:parameters]])
        vectors = ctx.needs_input_grad[3]
        plan = ctx.plan
        if plan.precision == "tf32x3":  # takes twice the time of plain float32 here
            plan = plan._replace(precision="ieee")
        points, weights = run_backward(plan, saved, tensors[parameters:], grad, vectors)
        unpadded = [
            None if x is None else x[..., :width].to(dtype)
            for x, (width, dtype) in zip(points, ctx.inputs, strict=True)
        ]
        return None, *unpadded, None, None, *weights
