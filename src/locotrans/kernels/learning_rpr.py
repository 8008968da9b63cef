r"""The relative pose convolution in training on the CPU; see `learning`.

The formulas are those of `locotrans.kernels.rpr`. For the edge (r, j), with batch norms bn and
weights K1, K2, R (optional) and W1::

    F = U_r^T (v_j - v_r)
    h = K1 F + b1                          stored
    m = (K2 relu(bn(h)) + b2) x_j          stored
    y = R relu(bn(m)) + b3                 stored
    e = W1 relu(bn(y)) + z_r               out_r = leaky_relu(max over j of bn(e))

The maximum of bn(e) is at the largest or the smallest e, by the sign of gamma.

Multiply-adds of the products, per edge, with cv vectors, c features in, h = c / 2 and d out:
forward 3 cv h + h c + c d, backward 6 cv h + 3 h c + 2 c c; for R another c c and 2 c c. In the
three layers of the light network these are 167,000, and most of the time.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from locotrans.kernels import learning_rpr_backward as backward
from locotrans.kernels import learning_rpr_forward as forward
from locotrans.kernels.batch_norm import Norm
from locotrans.kernels.learning import check_edges
from locotrans.kernels.learning_stages import Edges, Stage

SLOPE = 0.2  # as in `locotrans.nn.edge`


class _RPR(torch.autograd.Function):
    """`rpr_conv` and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, basis: Tensor, z: Tensor, v: Tensor, frames: Tensor, edges: Edges, *flat: Any
    ) -> Tensor:
        weight, norm = flat[0], Norm(*flat[1:8])
        # weight, bias and batch norm of every layer before
        layers = [
            (flat[i], flat[i + 1], Norm(*flat[i + 2 : i + 9])) for i in range(8, len(flat), 9)
        ]
        stages = [forward.poses(v, frames, edges, *layers[0])]
        for factors, layer in zip((basis, None), layers[1:], strict=False):
            stages.append(forward.product(stages[-1], edges, *layer, factors))
        chosen, moments = forward.choose(stages[-1], edges, weight, z, norm.weight.sign())
        stages.append(Stage.of(chosen.e, moments, norm, edges.count))
        ctx.edges, ctx.layers = edges, len(layers)
        ctx.save_for_backward(
            *(basis, z, v, frames, weight, layers[1][1]),
            *(layer[0] for layer in layers),
            *chosen,
            *(x for stage in stages for x in stage),
        )
        return F.leaky_relu(chosen.e * stages[-1].scale + stages[-1].shift, SLOPE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast("cpu", enabled=False):  # as the forward pass was
            return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of what ``forward`` takes."""
    (basis, z, v, frames, weight, bias), tensors = (saved := ctx.saved_tensors)[:6], saved[6:]
    products, tensors = tensors[: ctx.layers], tensors[ctx.layers :]
    chosen, tensors = forward.Chosen(*tensors[:3]), tensors[3:]
    *stages, last = (Stage(*tensors[i : i + 5]) for i in range(0, len(tensors), 5))
    edges, gradients = ctx.edges, []
    g = torch.where(chosen.e * last.scale + last.shift > 0, grad, SLOPE * grad)
    dx, sums, dz, dweight, of_last = backward.choose(stages[-1], edges, weight, z, g, chosen, last)
    if len(stages) == 3:
        turn, of_norm = stages[2].before(dx, sums, edges.count)
        dx, sums, dproduct = backward.product(stages[1], edges, products[2], turn, dx)
        gradients = [dproduct, torch.zeros_like(dproduct[:, 0]), *of_norm]
    turn, of_norm = stages[1].before(dx, sums, edges.count)
    dx, sums, dproduct, dbias, dbasis = backward.turned(
        stages[0], edges, products[1], bias, turn, basis
    )
    gradients = [dproduct, dbias, *of_norm, *gradients]
    turn, of_norm = stages[0].before(dx, sums, edges.count)
    dproduct, dv = backward.poses(v, frames, edges, products[0], turn, ctx.needs_input_grad[2])
    gradients = [dproduct, torch.zeros_like(dproduct[:, 0]), *of_norm, *gradients]
    return dbasis, dz, dv, None, None, dweight, *of_last, *gradients


def rpr_conv(
    basis: Float[Tensor, "m c"],
    z: Float[Tensor, "m d"],
    v: Float[Tensor, "m 3 cv"],
    frames: Float[Tensor, "m 3 3"],
    index: Int[Tensor, "m k"],
    n: int,
    weight: Float[Tensor, "d c"],
    norm: Norm,
    layers: list[tuple[nn.Linear, Norm]],
) -> Float[Tensor, "m d"]:
    """Return the relative pose convolution of Eqs. 15 to 17.

    Args:
        basis: of every point, x_j before its kernel.
        z: what the reference point adds to the last product.
        v: vectors of the points.
        frames: of the points.
        index: the neighbours.
        n: points of a cloud.
        weight: W1, of the last product.
        norm: behind the last product.
        layers: kernel1, kernel2 and, if there is one, refine, each with the batch norm behind it.

    Gradient: of everything but the frames; of a bias before a batch norm it is zero.
    """
    check_edges(index)
    basis, z, v, frames, index, weight = (
        x.contiguous() for x in (basis, z, v, frames, index, weight)
    )
    flat = [x for layer, of_layer in layers for x in (layer.weight, layer.bias, *of_layer)]
    edges = Edges(index, n, max(len(weight), *(layer.in_features for layer, _ in layers)))
    return _RPR.apply(basis, z, v, frames, edges, weight, *norm, *flat)
