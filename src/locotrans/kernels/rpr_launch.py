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

FORWARD_PROGRAMS = 132 * 4  # of an H200, where a program walks through consecutive edges
BACKWARD_PROGRAMS = 132 * 2  # each holds a weight gradient in registers and writes it once
INTERPRETED = triton.knobs.runtime.interpret if hasattr(triton, "knobs") else False


class Launch(NamedTuple):
    """How a kernel is cut into tiles and programs."""

    rows: int
    """Points or edges of a tile."""
    columns: int
    """Output channels (max), input channels (linear backward), at most, of a program."""
    num_warps: int
    num_stages: int
    """Depth of the software pipeline over the tiles of a program."""

    def options(self) -> dict[str, int]:
        """Return what Triton wants to know at a launch."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


# For an H200: what fits the registers and the shared memory of a multiprocessor.
LAUNCHES = {
    "pose": Launch(64, 64, 8, 2),
    "linear": Launch(64, 128, 8, 3),
    "max": Launch(64, 64, 8, 3),
    "points": Launch(64, 64, 4, 1),
    "max_backward": Launch(64, 64, 8, 2),
    "max_weight": Launch(64, 128, 8, 2),
    "linear_backward": Launch(64, 64, 8, 2),
    "pose_backward": Launch(64, 64, 8, 2),
}
FLOAT32_LAUNCHES = {
    "pose": Launch(64, 64, 8, 1),
    "linear": Launch(64, 128, 8, 1),
    "max": Launch(64, 64, 8, 1),
    "points": Launch(64, 64, 4, 1),
    "max_backward": Launch(64, 32, 8, 1),
    "max_weight": Launch(32, 64, 8, 1),
    "linear_backward": Launch(32, 64, 8, 1),
    "pose_backward": Launch(32, 64, 8, 1),
}


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
        """Return how many there are."""
        return self.points * self.k

    @property
    def inverse(self) -> float:
        """Return 1 / edges, which turns sums into means; 0 in evaluation, which has none."""
        return 1 / self.edges if self.training else 0.0

    def launch(self, kernel: str) -> Launch:
        """Return the sizes of a kernel."""
        return (LAUNCHES if self.store == torch.bfloat16 else FLOAT32_LAUNCHES)[kernel]

    def tiles(self, rows: int, programs: int) -> tuple[int, int]:
        """Share the tiles of edges among programs: how many programs, and tiles of each."""
        tiles = triton.cdiv(self.edges, rows)
        each = triton.cdiv(tiles, max(programs, 1))
        return triton.cdiv(tiles, each), each


class Saved(NamedTuple):
    """Tensors of the forward pass, padded, that the backward pass reads."""

    x_basis: Tensor
    z: Tensor
    v: Tensor
    reference: Tensor | None
    frames: Tensor
    neighbors: Tensor
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
    """Return the output, and what the backward pass reads if the plan is to save it."""
    x_basis, z, v = _pad(x_basis), _pad(z), _pad(v)
    reference = None if reference is None else _pad(reference)
    frames, index = frames.contiguous(), index.contiguous()
    edges: list[Tensor] = []
    norms: list[Tensor] = []
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
    launch = plan.launch("pose")
    programs = triton.cdiv(plan.points, launch.rows)
    out = v.new_empty(plan.edges, width, dtype=plan.store)
    sums = v.new_empty(programs, 2, width, dtype=torch.float32)
    forward.pose_kernel[(programs,)](
        v, v if reference is None else reference, frames, index, linear.weight, linear.bias,
        norm.running_mean, out, sums, plan.points, plan.k,
        CV=linear.in_features // 3, H=h, CVP=v.shape[-1], HP=width, ROWS=launch.rows,
        STATISTICS=plan.training, PRECISION=plan.precision, **launch.options(),
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
    launch = plan.launch("linear")
    programs, tiles = plan.tiles(launch.rows, FORWARD_PROGRAMS)
    out = x.new_empty(plan.edges, width)
    sums = x.new_empty(programs, 2, width, dtype=torch.float32)
    forward.linear_kernel[(programs,)](
        x, norms[-1], linear.weight, linear.bias, factor, index, norm.running_mean, out, sums,
        plan.edges, tiles,
        CI=linear.in_features, CO=linear.out_features, CIP=x.shape[1], COP=width, ROWS=launch.rows,
        MULTIPLY=factor is not None, STATISTICS=plan.training, PRECISION=plan.precision,
        **launch.options(),
    )  # fmt: skip
    norms.append(_norm(plan, norm, sums))
    return out


def _max(
    plan: Plan, weight: Tensor, x: Tensor, z: Tensor, norms: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    norm, launch = plan.layers.norm, plan.launch("max")
    programs = triton.cdiv(plan.points, launch.rows)
    best = torch.empty_like(z, dtype=torch.float32)
    arg = torch.empty_like(z, dtype=torch.int8) if plan.save else best
    total = torch.empty_like(best) if plan.save else best
    sums = best.new_empty(programs, 2, z.shape[1])
    columns = min(launch.columns, z.shape[1])
    forward.max_kernel[(z.shape[1] // columns, programs)](
        x, norms[-1], weight, z, norm.weight, norm.running_mean, best, arg, total, sums,
        plan.points, plan.k, weight.stride(0),
        C=weight.shape[1], D=weight.shape[0], CP=x.shape[1], DP=z.shape[1], ROWS=launch.rows,
        COLS=columns, SAVE=plan.save, STATISTICS=plan.training, PRECISION=plan.precision,
        **launch.options(),
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
    rounded = weight.to(plan.store).contiguous()
    w1 = rounded.to(torch.float32)
    gram_weight = (-(w1.T * coefficient) @ w1).to(plan.store)
    launch = plan.launch("max_backward")
    programs = triton.cdiv(plan.edges, launch.rows)
    dx = torch.empty_like(x)
    dx_sums = sums.new_empty(programs, 2, cp)
    backward.max_backward_kernel[(programs,)](
        x, norm, rounded, gram_weight, chosen, dense, saved.arg, dx, dx_sums, plan.edges,
        K=plan.k, C=c, D=d, CP=cp, DP=dp, ROWS=launch.rows, COLS=min(launch.columns, dp),
        TRAINING=plan.training, PRECISION=plan.precision, **launch.options(),
    )  # fmt: skip
    dw = _max_weight(plan, saved, chosen, dense, gram=False)[:d, :c]
    if plan.training:
        gram = _max_weight(plan, saved, chosen, dense, gram=True)[:c, :c]
        dw = dw - coefficient[:, None] * (w1 @ gram)
    return dz, dx, dx_sums.sum(0), [dw, sums[1, :d], sums[0, :d]]


def _max_weight(plan: Plan, saved: Saved, chosen: Tensor, dense: Tensor, gram: bool) -> Tensor:
    """Return S^T a, or a^T a."""
    x, norm, launch = saved.edges[-1], saved.norms[-2], plan.launch("max_weight")
    dp, cp = chosen.shape[1], x.shape[1]
    rows = cp if gram else dp
    columns = min(launch.columns, rows)
    programs, tiles = plan.tiles(launch.rows, BACKWARD_PROGRAMS // (rows // columns))
    out = norm.new_empty(programs, rows, cp)
    backward.max_weight_kernel[(rows // columns, programs)](
        x, norm, chosen, dense, saved.arg, out, plan.edges, tiles,
        K=plan.k, CP=cp, DP=dp, ROWS=launch.rows, COLS=columns, GRAM=gram,
        TRAINING=plan.training, PRECISION=plan.precision, **launch.options(),
    )  # fmt: skip
    return out.sum(0)


def _point_sums(plan: Plan, saved: Saved, grad: Tensor) -> Tensor:
    """Return the gradients of beta and of gamma of the last batch norm, (2, d)."""
    width, launch = grad.shape[1], plan.launch("points")
    columns = min(launch.columns, width)
    programs = triton.cdiv(plan.points, launch.rows)
    sums = grad.new_empty(programs, 2, width, dtype=torch.float32)
    backward.point_sums_kernel[(programs, width // columns)](
        grad, saved.best, saved.norms[-1], sums, plan.points,
        DP=width, ROWS=launch.rows, COLS=columns, SLOPE=SLOPE,
    )  # fmt: skip
    return sums.sum(0)


def _point_terms(
    plan: Plan, saved: Saved, grad: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `chosen` and `dense`, of which S is made, and the gradient of z."""
    width, launch = grad.shape[1], plan.launch("points")
    columns = min(launch.columns, width)
    chosen = torch.empty_like(grad, dtype=plan.store)
    dense = torch.empty_like(chosen)
    dz = torch.empty_like(grad, dtype=torch.float32)
    backward.point_terms_kernel[(triton.cdiv(plan.points, launch.rows), width // columns)](
        grad, saved.best, saved.total, saved.z, saved.norms[-1], sums, chosen, dense, dz,
        plan.points, plan.k, plan.inverse,
        DP=width, ROWS=launch.rows, COLS=columns, SLOPE=SLOPE,
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
    launch = plan.launch("linear_backward")
    columns = cip if factor is not None else min(launch.columns, cip)
    programs, tiles = plan.tiles(launch.rows, BACKWARD_PROGRAMS // (cip // columns))
    dx = torch.empty_like(x)
    dx_sums = sums.new_empty(programs, 2, cip)
    dweight = sums.new_empty(programs, cop, cip)
    dbias = sums.new_empty(programs, cop)
    backward.linear_backward_kernel[(cip // columns, programs)](
        y, saved.norms[i], sums, dy, x, saved.norms[i - 1], weight, bias, factor, saved.neighbors,
        dx, dx_sums, dweight, dbias, dfactor, plan.edges, tiles, plan.inverse,
        CI=ci, CO=co, CIP=cip, COP=cop, ROWS=launch.rows, COLS=columns,
        MULTIPLY=factor is not None, PRECISION=plan.precision, **launch.options(),
    )  # fmt: skip
    db = _dbias(plan, saved.norms[i], sums) if factor is None else dbias.sum(0)
    gradients = [dweight.sum(0)[:co, :ci], db[:co], sums[1, :co], sums[0, :co]]
    return dx, dx_sums.sum(0), gradients


def _pose_backward(
    plan: Plan, saved: Saved, weight: Tensor, dy: Tensor, sums: Tensor, vectors: bool
) -> tuple[Tensor | None, Tensor | None, list[Tensor]]:
    """Return the gradients of the vectors, if they are wanted, and of the parameters."""
    v, h, launch = saved.v, weight.shape[0], plan.launch("pose_backward")
    cv, hp, cvp = weight.shape[1] // 3, dy.shape[1], v.shape[-1]
    programs = triton.cdiv(plan.points, launch.rows)
    dv = torch.zeros_like(v, dtype=torch.float32) if vectors else None
    dreference = dv
    if vectors and saved.reference is not None:
        dreference = torch.zeros_like(saved.reference, dtype=torch.float32)
    hb = max(hp, 64)
    dweight = sums.new_empty(programs, 3, hb, cvp)
    backward.pose_backward_kernel[(programs,)](
        saved.edges[0], saved.norms[0], sums, dy, v, v if saved.reference is None else
        saved.reference, saved.frames, saved.neighbors, weight, dv, dreference, dweight,
        plan.points, plan.k, plan.inverse,
        CV=cv, H=h, CVP=cvp, HP=hp, HB=hb, ROWS=launch.rows, VECTORS=vectors,
        PRECISION=plan.precision, **launch.options(),
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
