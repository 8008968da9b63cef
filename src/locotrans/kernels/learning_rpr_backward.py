r"""The stages of `learning_rpr`, backward; dx is the gradient behind a batch norm, before the ReLU.

The last stage does not need e again. With g = dL/dout leaky'(.), scale = gamma rstd, and the
means c1 of g and c2 of g ehat over all edges,

    de = [chosen edge] scale g_r - scale (c1 + c2 rstd (W1 a + z_r - mean))
       = [chosen edge] scale g_r - q (W1 a + z_r) - t,  q = scale c2 rstd,  t = scale c1 - q mean

is linear in its input a but for the chosen edges, which are one a point and channel.
"""

from typing import Any

import torch
from torch import Tensor

from locotrans.kernels import learning_rpr_loops, loops
from locotrans.kernels.cpu import as_arrays
from locotrans.kernels.learning_rpr_forward import Chosen, filled
from locotrans.kernels.learning_stages import Edges, Part, Stage, Turn


def choose(
    stage: Stage, edges: Edges, weight: Tensor, z: Tensor, g: Tensor, chosen: Chosen, last: Stage
) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[Any, ...]]:
    """Return dx of ``stage``, its sums, the gradients of z, of W1 and of the last batch norm."""
    sums = torch.stack([g.double().sum(0), (g * (last.x - last.mean)).double().sum(0)])
    of_last, c1, c2 = last.means(sums[None], edges.count)
    q = last.scale * c2 * last.rstd
    t = last.scale * c1 - q * last.mean
    at_chosen, dense = last.scale * g, -q * z - t
    dz = at_chosen - q * chosen.total - edges.index.shape[1] * t
    base, gram_weight = dense @ weight, -weight.mT @ (q[:, None] * weight)

    d, c = weight.shape
    dx, sums, total = torch.empty_like(stage.x), edges.sums(2, c), torch.empty_like(base)
    dweights, gram = edges.a_cloud(d, c), edges.a_cloud(c, c)
    inputs = as_arrays(chosen.which, at_chosen, weight, base)
    dweights_, total_ = as_arrays(dweights, total)
    dx_, x_, mean_, sums_ = as_arrays(dx, stage.x, stage.mean, sums)
    rectified = stage.rectified()

    def begin(most: int) -> Part:
        buffer = z.new_empty(most, c)

        def part(cloud: int, rows: slice, here: tuple[int, int]) -> None:
            a = rectified(rows, buffer)
            torch.mm(a, gram_weight, out=dx[rows])
            gram[cloud].addmm_(a.mT, a)
            outputs = (dx_[rows], dweights_[cloud], total_)
            learning_rpr_loops.chosen_gradients(a.numpy(), *inputs, *outputs, *here)
            learning_rpr_loops.rectify_backward(dx_[rows], a.numpy(), x_[rows], mean_, sums_[cloud])

        return part

    edges.in_parts(begin)
    dweight = dweights.sum(0) + dense.mT @ total - q[:, None] * (weight @ gram.sum(0))
    return dx, sums, dz, dweight, of_last


def product(
    stage: Stage, edges: Edges, weight: Tensor, turn: Turn, dx: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx of ``stage``, in the place of that of y, its sums, and the gradient of R."""
    sums, dweights = edges.sums(2, weight.shape[1]), edges.a_cloud(*weight.shape)
    dx_, x_, mean_, sums_ = as_arrays(dx, stage.x, stage.mean, sums)
    rectified = stage.rectified()

    def begin(most: int) -> Part:
        buffer, products = (dx.new_empty(most, weight.shape[1]) for _ in range(2))

        def part(cloud: int, rows: slice, here: tuple[int, int]) -> None:
            a, s = rectified(rows, buffer), turn(rows)
            dweights[cloud].addmm_(s.mT, a)
            s.copy_(torch.mm(s, weight, out=products[: rows.stop - rows.start]))
            learning_rpr_loops.rectify_backward(dx_[rows], a.numpy(), x_[rows], mean_, sums_[cloud])

        return part

    edges.in_parts(begin)
    return dx, sums, dweights.sum(0)


def turned(
    stage: Stage, edges: Edges, weight: Tensor, bias: Tensor, turn: Turn, basis: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return dx of h, its sums, and the gradients of K2, of b2 and of the features."""
    c, width = weight.shape
    dx, sums = torch.empty_like(stage.x), edges.sums(2, width)
    dweights, dbias, dbasis = edges.a_cloud(c, width), edges.a_cloud(c), torch.zeros_like(basis)
    inputs = as_arrays(basis, edges.index, dbasis)
    dbias_, dx_, x_, mean_, sums_ = as_arrays(dbias, dx, stage.x, stage.mean, sums)
    rectified = stage.rectified()

    def begin(most: int) -> Part:
        buffer, products = basis.new_empty(most, width), basis.new_empty(most, c)

        def part(cloud: int, rows: slice, here: tuple[int, int]) -> None:
            a, s = rectified(rows, buffer), turn(rows)
            kernel = torch.addmm(bias, a, weight.mT, out=products[: rows.stop - rows.start])
            learning_rpr_loops.multiply_neighbors_backward(
                s.numpy(), kernel.numpy(), *inputs, dbias_[cloud], *here
            )
            dweights[cloud].addmm_(s.mT, a)
            torch.mm(s, weight, out=dx[rows])
            learning_rpr_loops.rectify_backward(dx_[rows], a.numpy(), x_[rows], mean_, sums_[cloud])

        return part

    edges.in_parts(begin)
    return dx, sums, dweights.sum(0), dbias.sum(0), dbasis


def poses(
    v: Tensor, frames: Tensor, edges: Edges, weight: Tensor, turn: Turn, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of K1 and, if it is wanted, that of the vectors."""
    channels = v.shape[-1]
    v, weight = filled(v, weight)
    dweights, dv = edges.a_cloud(*weight.shape), torch.zeros_like(v)
    v_, frames_, index_, dv_ = as_arrays(v, frames, edges.index, dv)

    def begin(most: int) -> Part:
        buffer = v.new_empty(most, weight.shape[1])

        def part(cloud: int, rows: slice, here: tuple[int, int]) -> None:
            s, pose = turn(rows), buffer[: rows.stop - rows.start]
            loops.poses(v_, frames_, index_, pose.numpy(), *here)
            dweights[cloud].addmm_(s.mT, pose)
            if wanted:
                torch.mm(s, weight, out=pose)
                learning_rpr_loops.pose_gradients(pose.numpy(), frames_, index_, dv_, *here)

        return part

    edges.in_parts(begin)
    dweight = dweights.sum(0).unflatten(1, (3, -1))[..., :channels].flatten(1)
    return dweight, dv[..., :channels] if wanted else None
