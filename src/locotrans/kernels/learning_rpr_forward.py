"""The stages of `learning_rpr`, forward."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from locotrans.kernels import learning_rpr_loops, loops
from locotrans.kernels.batch_norm import Norm
from locotrans.kernels.cpu import LANES, as_arrays
from locotrans.kernels.learning_stages import Edges, Part, Stage


class Chosen(NamedTuple):
    """The edge of each point and channel that is the largest behind batch norm."""

    e: Float[Tensor, "m d"]
    which: Int[Tensor, "m d"]
    """Which of its k neighbours."""
    total: Float[Tensor, "m d"]
    """Sum of e over all k."""


def poses(
    v: Tensor, frames: Tensor, edges: Edges, weight: Tensor, bias: Tensor, norm: Norm
) -> Stage:
    """Return h."""
    v, weight = filled(v, weight)
    h, sums = v.new_empty(edges.count, len(weight)), edges.sums(3, len(weight))
    arrays, add = as_arrays(v, frames, edges.index), _adds_moments(h, sums)

    def begin(most: int) -> Part:
        buffer = v.new_empty(most, weight.shape[1])

        def part(cloud: int, rows: slice, here: tuple[int, int]) -> None:
            pose = buffer[: rows.stop - rows.start]
            loops.poses(*arrays, pose.numpy(), *here)
            torch.addmm(bias, pose, weight.mT, out=h[rows])
            add(cloud, rows)

        return part

    edges.in_parts(begin)
    return Stage.of(h, sums, norm, edges.count)


def product(
    stage: Stage, edges: Edges, weight: Tensor, bias: Tensor, norm: Norm, basis: Tensor | None
) -> Stage:
    """Return m, if the features of all points are given, or y."""
    out, sums = stage.x.new_empty(edges.count, len(weight)), edges.sums(3, len(weight))
    rectified, add = stage.rectified(), _adds_moments(out, sums)
    factors = None if basis is None else as_arrays(basis, edges.index)

    def begin(most: int) -> Part:
        buffer = out.new_empty(most, weight.shape[1])

        def part(cloud: int, rows: slice, here: tuple[int, int]) -> None:
            torch.addmm(bias, rectified(rows, buffer), weight.mT, out=out[rows])
            if factors is not None:
                learning_rpr_loops.multiply_neighbors(out[rows].numpy(), *factors, *here)
            add(cloud, rows)

        return part

    edges.in_parts(begin)
    return Stage.of(out, sums, norm, edges.count)


def choose(
    stage: Stage, edges: Edges, weight: Tensor, z: Tensor, sign: Tensor
) -> tuple[Chosen, Tensor]:
    """Return the chosen edges, and the moments of e over all."""
    which = torch.empty_like(z, dtype=torch.int32)
    chosen = Chosen(torch.empty_like(z), which, torch.empty_like(z))
    moments, rectified = edges.sums(3, z.shape[1]), stage.rectified()
    z_, moments_, sign_, *outputs = as_arrays(z, moments, sign, *chosen)

    def begin(most: int) -> Part:
        buffer, products = z.new_empty(most, weight.shape[1]), z.new_empty(most, len(weight))

        def part(cloud: int, rows: slice, here: tuple[int, int]) -> None:
            e = products[: rows.stop - rows.start]
            e_ = torch.mm(rectified(rows, buffer), weight.mT, out=e).numpy()
            if here[0] == cloud * edges.n:
                moments_[cloud, 0] = e_[0] + z_[here[0]]
            learning_rpr_loops.choose_edges(e_, z_, sign_, *outputs, moments_[cloud], *here)

        return part

    edges.in_parts(begin)
    return chosen, moments


def filled(v: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Let zero vectors follow those of every point, for whole vector instructions."""
    fill = -v.shape[-1] % LANES
    return F.pad(v, (0, fill)), F.pad(weight.unflatten(1, (3, -1)), (0, fill)).flatten(1)


def _adds_moments(x: Tensor, sums: Tensor) -> Callable[[int, slice], None]:
    """Return what adds up moments of a cloud's edges, the first of which is the shift."""
    x_, sums_ = as_arrays(x, sums)
    edges = len(x) // len(sums)

    def add(cloud: int, rows: slice) -> None:
        if rows.start == cloud * edges:
            sums_[cloud, 0] = x_[rows.start]
        learning_rpr_loops.add_moments(x_[rows], sums_[cloud])

    return add
