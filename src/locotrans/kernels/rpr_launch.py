"""Launches of the kernels of the relative-pose edge convolution; see `locotrans.kernels.rpr`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.kernels import rpr_backward as backward
from locotrans.kernels import rpr_forward as forward

SLOPE = 0.2  # as in `locotrans.nn.edge`

# Sizes for an H200.
POINT_ROWS = 64  # of a tile, where a program walks through the neighbours of its points
EDGE_ROWS = 64  # of a tile, where a program walks through consecutive edges
COLUMNS = 64  # of a block of output channels (max), of input channels (backward)
FORWARD_PROGRAMS = 132 * 4
BACKWARD_PROGRAMS = 132 * 2  # each holds a weight gradient in registers and writes it once
WARPS = {"pose": 4, "linear": 8, "max": 8, "max_backward": 8, "linear_backward": 8, "pose_backward": 8}
STAGES = {"pose": 2, "linear": 3, "max": 3, "max_backward": 2, "linear_backward": 2, "pose_backward": 2}
INTERPRETED = triton.knobs.runtime.interpret if hasattr(triton, "knobs") else False


class RPRLayers(NamedTuple):
    """The layers of a `RelativePoseConv` between the basis and the last product."""

    kernel1: nn.Linear
    kernel_norm: nn.BatchNorm1d
    kernel2: nn.Linear
    pose_norm: nn.BatchNorm1d
    refine: nn.Linear | None
    refine_norm: nn.BatchNorm1d | None
    norm: nn.BatchNorm1d

    def stages(self) -> list[tuple[nn.Linear, nn.BatchNorm1d]]:
        """Return each product with the batch norm behind it, the last product left out."""
        stages = [(self.kernel1, self.kernel_norm), (self.kernel2, self.pose_norm)]
        if self.refine is not None and self.refine_norm is not None:
            stages.append((self.refine, self.refine_norm))
        return stages


class Plan(NamedTuple):
    """What does not change between forward and backward."""

    layers: RPRLayers
    training: bool
    store: torch.dtype
    precision: str
    points: int
    k: int
    save: bool
    """Keep what the backward pass needs."""

    @property
    def edges(self) -> int:
        return self.points * self.k

    @property
    def inverse(self) -> float:
        return 1 / self.edges if self.training else 0.0

    def tiles(self, programs: int) -> tuple[int, int]:
        """Share the tiles of edges among programs: how many programs, and tiles of each."""
        tiles = triton.cdiv(self.edges, EDGE_ROWS)
        each = triton.cdiv(tiles, max(programs, 1))
        return triton.cdiv(tiles, each), each


class Saved(NamedTuple):
    """Tensors of the forward pass, padded, that the backward pass reads."""

    x_basis: Tensor
    z: Tensor
    v: Tensor
    reference: Tensor | None
    frames: Tensor
    index: Tensor
    best: Tensor
    arg: Tensor
    total: Tensor
    edges: Sequence[Tensor]
    """The input of every batch norm but the last."""
    norms: Sequence[Tensor]
    """The table of every batch norm."""


def run_forward(
    plan: Plan,
    x_basis: Tensor,
    z: Tensor,
    v: Tensor,
    reference: Tensor | None,
    frames: Tensor,
    index: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Saved | None]:
    x_basis, z, v = _pad(x_basis), _pad(z), _pad(v)
    reference = None if reference is None else _pad(reference)
    frames, index = frames.contiguous(), index.contiguous()
    edges, norms = [], []
    x = _pose(plan, v, reference, frames, index, norms)
    for stage, (linear, norm) in enumerate(plan.layers.stages()[1:]):
        edges.append(x)
        x = _linear(plan, linear, norm, x, x_basis if stage == 0 else None, index, norms)
        if not plan.save:
            edges.clear()
    edges.append(x)
    best, arg, total = _max(plan, weight, x, z, norms)
    scale, shift, _, _ = norms[-1]
    out = F.leaky_relu(torch.addcmul(shift, best, scale), SLOPE)[:, : weight.shape[0]]
    if not plan.save:
        return out, None
    return out, Saved(x_basis, z, v, reference, frames, index, best, arg, total, edges, norms)


def _pose(
    plan: Plan,
    v: Tensor,
    reference: Tensor | None,
    frames: Tensor,
    index: Tensor,
    norms: list[Tensor],
) -> Tensor:
    linear, norm = plan.layers.kernel1, plan.layers.kernel_norm
    h, width = linear.out_features, _width(linear.out_features)
    programs = triton.cdiv(plan.points, POINT_ROWS)
    out = v.new_empty(plan.edges, width, dtype=plan.store)
    sums = v.new_empty(programs, 2, width, dtype=torch.float32)
    forward.pose_kernel[(programs,)](
        v, v if reference is None else reference, frames, index, linear.weight, linear.bias, norm.running_mean, out, sums,
        plan.points, plan.k,
        CV=linear.in_features // 3, H=h, CVP=v.shape[-1], HP=width, ROWS=POINT_ROWS,
        STATISTICS=plan.training, PRECISION=plan.precision, **_launch("pose"),
    )  # fmt: skip
    norms.append(_norm(plan, norm, sums))
    return out


def _linear(
    plan: Plan,
    linear: nn.Linear,
    norm: nn.BatchNorm1d,
    x: Tensor,
    factor: Tensor | None,
    index: Tensor,
    norms: list[Tensor],
) -> Tensor:
    width = _width(linear.out_features)
    programs, tiles = plan.tiles(FORWARD_PROGRAMS)
    out = x.new_empty(plan.edges, width)
    sums = x.new_empty(programs, 2, width, dtype=torch.float32)
    forward.linear_kernel[(programs,)](
        x, norms[-1], linear.weight, linear.bias, factor, index, norm.running_mean, out, sums,
        plan.edges, tiles,
        CI=linear.in_features, CO=linear.out_features, CIP=x.shape[1], COP=width, ROWS=EDGE_ROWS,
        MULTIPLY=factor is not None, STATISTICS=plan.training, PRECISION=plan.precision,
        **_launch("linear"),
    )  # fmt: skip
    norms.append(_norm(plan, norm, sums))
    return out


def _max(
    plan: Plan, weight: Tensor, x: Tensor, z: Tensor, norms: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    norm = plan.layers.norm
    programs = triton.cdiv(plan.points, POINT_ROWS)
    best = torch.empty_like(z, dtype=torch.float32)
    arg = torch.empty_like(z, dtype=torch.int8) if plan.save else best
    total = torch.empty_like(best) if plan.save else best
    sums = best.new_empty(programs, 2, z.shape[1])
    columns = min(COLUMNS, z.shape[1])
    forward.max_kernel[(z.shape[1] // columns, programs)](
        x, norms[-1], weight, z, norm.weight, norm.running_mean, best, arg, total, sums,
        plan.points, plan.k, weight.stride(0),
        C=weight.shape[1], D=weight.shape[0], CP=x.shape[1], DP=z.shape[1], ROWS=POINT_ROWS,
        COLS=columns, SAVE=plan.save, STATISTICS=plan.training, PRECISION=plan.precision,
        **_launch("max"),
    )  # fmt: skip
    norms.append(_norm(plan, norm, sums))
    return best, arg, total


Points = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def run_backward(
    plan: Plan, saved: Saved, parameters: Sequence[Tensor], grad: Tensor, vectors: bool
) -> tuple[Points, list[Tensor]]:
    """Return the gradients of x_basis, z, v and v_reference, padded, and of the parameters."""
    weight, *rest = parameters
    stages = [rest[2 + 4 * i : 5 + 4 * i] for i in range(len(saved.edges))]
    dz, dx, sums, last = _max_backward(plan, saved, weight, _pad(grad))
    gradients: list[Tensor] = []
    for i in range(len(saved.edges) - 1, 0, -1):
        factor = saved.x_basis if i == 1 else None
        dfactor = torch.zeros_like(saved.x_basis, dtype=torch.float32) if i == 1 else None
        dx, sums, new = _linear_backward(plan, saved, i, stages[i], factor, dfactor, dx, sums)
        gradients = new + gradients
    dv, dreference, new = _pose_backward(plan, saved, stages[0][0], dx, sums, vectors)
    assert dfactor is not None  # i ended at 1
    return (dfactor, dz, dv, dreference), last + new + gradients


def _max_backward(
    plan: Plan, saved: Saved, weight: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Return the gradients of z, of the batch norm before, its sums, and of the parameters."""
    x, norm, z, table = saved.edges[-1], saved.norms[-2], saved.z, saved.norms[-1]
    (d, c), dp, cp = weight.shape, z.shape[1], x.shape[1]
    sums = _point_sums(plan, saved, grad)
    chosen, dense, dz = _point_terms(plan, saved, grad, sums)
    scale, _, _, rstd = table[:, :d]
    coefficient = scale * rstd * sums[1, :d] * plan.inverse  # w of the formulas
    rounded = weight.to(plan.store).to(torch.float32)
    gram_weight = -(rounded.T * coefficient) @ rounded
    gram_weight = F.pad(gram_weight, (0, cp - c, 0, cp - c))
    columns = min(COLUMNS, cp)
    programs, tiles = plan.tiles(BACKWARD_PROGRAMS // (cp // columns))
    dx = torch.empty_like(x)
    dx_sums = grad.new_empty(programs, 2, cp, dtype=torch.float32)
    dweight = dx_sums.new_empty(programs, dp, cp)
    gram = dx_sums.new_empty(programs if plan.training else 0, cp, cp)
    backward.max_backward_kernel[(cp // columns, programs)](
        x, norm, weight, gram_weight, chosen, dense, saved.arg, dx, dx_sums, dweight, gram,
        plan.edges, plan.k, tiles, weight.stride(0),
        C=c, D=d, CP=cp, DP=dp, ROWS=EDGE_ROWS, COLS=columns, TRAINING=plan.training,
        PRECISION=plan.precision, **_launch("max_backward"),
    )  # fmt: skip
    dw = dweight.sum(0)[:d, :c]
    if plan.training:
        dw = dw - coefficient[:, None] * (rounded @ gram.sum(0)[:c, :c])
    return dz, dx, dx_sums.sum(0), [dw, sums[1, :d], sums[0, :d]]


def _point_sums(plan: Plan, saved: Saved, grad: Tensor) -> Tensor:
    """Return the gradients of beta and of gamma of the last batch norm, (2, d)."""
    width = grad.shape[1]
    columns = min(COLUMNS, width)
    programs = triton.cdiv(plan.points, POINT_ROWS)
    sums = grad.new_empty(programs, 2, width, dtype=torch.float32)
    backward.point_sums_kernel[(programs, width // columns)](
        grad, saved.best, saved.norms[-1], sums, plan.points,
        DP=width, ROWS=POINT_ROWS, COLS=columns, SLOPE=SLOPE,
    )  # fmt: skip
    return sums.sum(0)


def _point_terms(
    plan: Plan, saved: Saved, grad: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `chosen` and `dense`, of which S is made, and the gradient of z."""
    width = grad.shape[1]
    columns = min(COLUMNS, width)
    chosen = torch.empty_like(grad, dtype=plan.store)
    dense = torch.empty_like(chosen)
    dz = torch.empty_like(grad, dtype=torch.float32)
    backward.point_terms_kernel[(triton.cdiv(plan.points, POINT_ROWS), width // columns)](
        grad, saved.best, saved.total, saved.z, saved.norms[-1], sums, chosen, dense, dz,
        plan.points, plan.k, plan.inverse,
        DP=width, ROWS=POINT_ROWS, COLS=columns, SLOPE=SLOPE,
    )  # fmt: skip
    return chosen, dense, dz


def _linear_backward(
    plan: Plan,
    saved: Saved,
    i: int,
    parameters: Sequence[Tensor],
    factor: Tensor | None,
    dfactor: Tensor | None,
    dy: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the gradient of the batch norm before stage i, its sums, and of the parameters.

    Args:
        plan: sizes and types.
        saved: tensors of the forward pass.
        i: the stage.
        parameters: weight, bias and gamma.
        factor: what the product is multiplied with, if it is.
        dfactor: zeros, to which the gradient of the factor is added.
        dy: gradient of the batch norm behind.
        sums: those of ``dy``.
    """
    weight, bias, _ = parameters
    x, y = saved.edges[i - 1], saved.edges[i]
    (co, ci), cop, cip = weight.shape, y.shape[1], x.shape[1]
    columns = cip if factor is not None else min(COLUMNS, cip)
    programs, tiles = plan.tiles(BACKWARD_PROGRAMS // (cip // columns))
    dx = torch.empty_like(x)
    dx_sums = sums.new_empty(programs, 2, cip)
    dweight = sums.new_empty(programs, cop, cip)
    dbias = sums.new_empty(programs, cop)
    backward.linear_backward_kernel[(cip // columns, programs)](
        y, saved.norms[i], sums, dy, x, saved.norms[i - 1], weight, bias, factor, saved.index,
        dx, dx_sums, dweight, dbias, dfactor, plan.edges, tiles, plan.inverse,
        CI=ci, CO=co, CIP=cip, COP=cop, ROWS=EDGE_ROWS, COLS=columns,
        MULTIPLY=factor is not None, PRECISION=plan.precision, **_launch("linear_backward"),
    )  # fmt: skip
    db = _dbias(plan, saved.norms[i], sums) if factor is None else dbias.sum(0)
    gradients = [dweight.sum(0)[:co, :ci], db[:co], sums[1, :co], sums[0, :co]]
    return dx, dx_sums.sum(0), gradients


def _pose_backward(
    plan: Plan, saved: Saved, weight: Tensor, dy: Tensor, sums: Tensor, vectors: bool
) -> tuple[Tensor | None, Tensor | None, list[Tensor]]:
    """Return the gradients of the vectors, if they are wanted, and of the parameters."""
    v, h = saved.v, weight.shape[0]
    cv, hp, cvp = weight.shape[1] // 3, dy.shape[1], v.shape[-1]
    programs = triton.cdiv(plan.points, POINT_ROWS)
    dv = torch.zeros_like(v, dtype=torch.float32) if vectors else None
    dreference = dv
    if vectors and saved.reference is not None:
        dreference = torch.zeros_like(saved.reference, dtype=torch.float32)
    dweight = sums.new_empty(programs, 3, hp, cvp)
    backward.pose_backward_kernel[(programs,)](
        saved.edges[0], saved.norms[0], sums, dy, v, v if saved.reference is None else
        saved.reference, saved.frames, saved.index, weight, dv, dreference, dweight,
        plan.points, plan.k, plan.inverse,
        CV=cv, H=h, CVP=cvp, HP=hp, ROWS=POINT_ROWS, VECTORS=vectors,
        PRECISION=plan.precision, **_launch("pose_backward"),
    )  # fmt: skip
    dw = dweight.sum(0)[:, :h, :cv].transpose(0, 1).reshape(h, 3 * cv)
    db = _dbias(plan, saved.norms[0], sums)
    gradients = [dw, db[:h], sums[1, :h], sums[0, :h]]
    return dv, None if saved.reference is None else dreference, gradients


def _dbias(plan: Plan, table: Tensor, sums: Tensor) -> Tensor:
    """Return the gradient of a bias just before a batch norm, which batch statistics cancel."""
    return torch.zeros_like(sums[0]) if plan.training else table[0] * sums[0]


def _norm(plan: Plan, norm: nn.BatchNorm1d, sums: Tensor) -> Tensor:
    """Return the table of a batch norm, (4, c): scale, shift, mean, 1 / deviation."""
    programs, _, width = sums.shape
    out = sums.new_empty(4, width)
    forward.norm_kernel[(width // 16,)](
        sums, norm.weight, norm.bias, norm.running_mean, norm.running_var,
        norm.num_batches_tracked, out, programs, float(plan.edges), norm.eps, norm.momentum,
        C=norm.num_features, CP=width, ROWS=64, COLS=16, TRAINING=plan.training,
    )  # fmt: skip
    return out


def _width(channels: int) -> int:
    return max(16, triton.next_power_of_2(channels))


def _pad(x: Tensor) -> Tensor:
    """Widen the last axis to a power of two, with zeros."""
    extra = _width(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, extra)) if extra else x.contiguous()


def _launch(kernel: str) -> dict[str, int]:
    return {"num_warps": WARPS[kernel], "num_stages": STAGES[kernel]}
