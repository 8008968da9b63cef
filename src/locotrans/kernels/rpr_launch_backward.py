"""Launches of the backward kernels of the relative-pose edge convolution; see `rpr`."""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from locotrans.kernels import rpr_backward as backward
from locotrans.kernels import rpr_backward_max as backward_max
from locotrans.kernels import rpr_launch as launches
from locotrans.kernels.rpr_launch import SLOPE, Plan, Saved, pad

Points = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def run_backward(
    plan: Plan, saved: Saved, parameters: Sequence[Tensor], grad: Tensor, vectors: bool
) -> tuple[Points, list[Tensor]]:
    """Return the gradients of x_basis, z, v and v_reference, padded, and of the parameters."""
    weight, *rest = parameters
    stages = [rest[2 + 4 * i : 5 + 4 * i] for i in range(len(saved.edges))]
    dz, dx, sums, last = _max_backward(plan, saved, weight, pad(grad))
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
    rounded = weight.to(plan.store).contiguous()
    gram_weight = base = None
    if plan.training:
        w1 = rounded.to(torch.float32)
        coefficient = table[0, :d] * table[3, :d] * sums[1, :d] * plan.inverse  # w of the formulas
        gram_weight = (-(w1.T * coefficient) @ w1).to(plan.store)
        base = pad(dense[:, :d] @ rounded)
    launch = plan.launch("max_backward")
    programs = triton.cdiv(plan.points, launch.rows)
    dx = torch.empty_like(x)
    dx_sums = sums.new_empty(programs, 2, cp)
    columns = min(launch.columns, cp)
    backward_max.max_backward_kernel[(cp // columns, programs)](
        x, norm, rounded, gram_weight, chosen, saved.arg, base, dx, dx_sums,
        plan.points, plan.k,
        C=c, D=d, CP=cp, DP=dp, ROWS=launch.rows, COLS=min(launch.columns, dp), WIDTH=columns,
        TRAINING=plan.training, PRECISION=plan.precision, **launch.options(),
    )  # fmt: skip
    out = _max_weight(plan, saved, chosen, dense)
    dw = out[:d, :c]
    if plan.training:
        dw = dw - coefficient[:, None] * (w1 @ out[dp : dp + c, :c])
    return dz, dx, dx_sums.sum(0), [dw, sums[1, :d], sums[0, :d]]


def _max_weight(plan: Plan, saved: Saved, chosen: Tensor, dense: Tensor) -> Tensor:
    """Return S^T a and, in training, below it a^T a."""
    x, norm, launch = saved.edges[-1], saved.norms[-2], plan.launch("max_weight")
    dp, cp = chosen.shape[1], x.shape[1]
    height = dp + cp if plan.training else dp
    columns = min(launch.columns, dp, cp)
    blocks, groups = height // columns, triton.cdiv(plan.points, launch.rows)
    tiles = triton.cdiv(groups, max(launches.BACKWARD_PROGRAMS // blocks, 1))
    programs = triton.cdiv(groups, tiles)
    out = norm.new_empty(programs, height, cp)
    backward_max.max_weight_kernel[(blocks, programs)](
        x, norm, chosen, dense, saved.arg, out, plan.points, plan.k, tiles,
        CP=cp, DP=dp, HEIGHT=height, ROWS=launch.rows, COLS=columns,
        TRAINING=plan.training, PRECISION=plan.precision, **launch.options(),
    )  # fmt: skip
    return out.sum(0)


def _point_sums(plan: Plan, saved: Saved, grad: Tensor) -> Tensor:
    """Return the gradients of beta and of gamma of the last batch norm, (2, d)."""
    width, launch = grad.shape[1], plan.launch("points")
    columns = min(launch.columns, width)
    programs = triton.cdiv(plan.points, launch.rows)
    sums = grad.new_empty(programs, 2, width, dtype=torch.float32)
    backward_max.point_sums_kernel[(programs, width // columns)](
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
    backward_max.point_terms_kernel[(triton.cdiv(plan.points, launch.rows), width // columns)](
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
    launch = plan.launch("linear_backward" if factor is None else "multiply_backward")
    columns = cip if factor is not None else min(launch.columns, cip)
    programs, tiles = plan.tiles(launch.rows, launches.BACKWARD_PROGRAMS // (cip // columns))
    dx = torch.empty_like(x)
    dx_sums = sums.new_empty(programs, 2, cip)
    dweight = sums.new_empty(programs, cop, cip)
    dbias = sums.new_empty(programs, cop)
    backward.linear_backward_kernel[(cip // columns, programs)](
        y, saved.norms[i], sums, dy, x, saved.norms[i - 1], weight, bias, factor, saved.neighbors,
        dx, dx_sums, dweight, dbias, dfactor, plan.edges, tiles, plan.inverse,
        CI=ci, CO=co, CIP=cip, COP=cop, ROWS=launch.rows, COLS=columns,
        MULTIPLY=factor is not None, PRECISION=plan.precision,
        **launch.options(),
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
