"""Launches of the backward kernels of the relative-pose edge convolution; see `rpr`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from locotrans.distributed import processes, sum_over_processes
from locotrans.kernels import rpr_backward as backward
from locotrans.kernels import rpr_backward_max as backward_max
from locotrans.kernels import rpr_plan
from locotrans.kernels.rpr_plan import SLOPE, Plan, Saved, pad, width

Points = tuple[Tensor, Tensor, Tensor | None]


class Sums(NamedTuple):
    """Those of the gradient of a batch norm's output."""

    totals: Tensor
    """Of dz and of dz xhat, (2, c): the gradients of beta and gamma."""
    terms: Tensor
    """The rows p, q and t that give the gradient of its input, (3, c)."""


def run_backward(
    plan: Plan, saved: Saved, parameters: Sequence[Tensor], grad: Tensor, vectors: bool
) -> tuple[Points, list[Tensor]]:
    """Return the gradients of x_basis and z (padded), v, and of the parameters."""
    weight, *rest = parameters
    stages = [rest[2 + 4 * i : 5 + 4 * i] for i in range(len(saved.edges))]
    dz, dx, sums, last = _max_backward(plan, saved, weight, pad(grad))
    gradients: list[Tensor] = []
    for i in range(len(saved.edges) - 1, 0, -1):
        factor = saved.x_basis if i == 1 else None
        dfactor = torch.zeros_like(saved.x_basis, dtype=torch.float32) if i == 1 else None
        dx, sums, new = _linear_backward(plan, saved, i, stages[i], factor, dfactor, dx, sums)
        gradients = new + gradients
    dv, new = _pose_backward(plan, saved, stages[0][0], dx, sums, vectors)
    assert dfactor is not None  # i ended at 1
    return (dfactor, dz, dv), last + new + gradients


def _max_backward(
    plan: Plan, saved: Saved, weight: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Sums, list[Tensor]]:
    """Return the gradients of z, of the batch norm before, its sums, and of the parameters."""
    x, norm, z = saved.edges[-1], saved.norms[-2], saved.z
    (d, c), dp, cp = weight.shape, z.shape[1], x.shape[1]
    sums = _point_sums(plan, saved, grad)
    chosen, dense, dz = _point_terms(plan, saved, grad, sums)
    rounded = weight.to(plan.store).contiguous()
    gram_weight = base = None
    if plan.training:
        w1 = rounded.to(torch.float32)
        coefficient = sums.terms[1, :d]  # w of the formulas
        gram_weight = (-(w1.T * coefficient) @ w1).to(plan.store)
        base = pad(dense[:, :d] @ rounded)
    launch = plan.launch("max_backward")
    programs = triton.cdiv(plan.points, launch.rows)
    dx = torch.empty_like(x)
    parts = norm.new_empty(programs, 2 * cp)
    columns = min(launch.columns, cp)
    backward_max.max_backward_kernel[(cp // columns, programs)](
        x, norm, rounded, gram_weight, chosen, saved.arg, base, dx, parts,
        plan.points, plan.k,
        C=c, D=d, CP=cp, DP=dp, ROWS=launch.rows, COLS=min(launch.columns, dp), WIDTH=columns,
        TRAINING=plan.training, PRECISION=plan.precision, **launch.options(),
    )  # fmt: skip
    out = _max_weight(plan, saved, chosen, dense)
    dw = out[:d, :c]
    if plan.training:
        dw = dw - coefficient[:, None] * (w1 @ out[dp : dp + c, :c])
    return dz, dx, _finish(plan, parts, norm)[0], [dw, sums.totals[1, :d], sums.totals[0, :d]]


def _max_weight(plan: Plan, saved: Saved, chosen: Tensor, dense: Tensor) -> Tensor:
    """Return S^T a and, in training, below it a^T a."""
    x, norm, launch = saved.edges[-1], saved.norms[-2], plan.launch("max_weight")
    dp, cp = chosen.shape[1], x.shape[1]
    height = dp + cp if plan.training else dp
    columns = min(launch.columns, dp, cp)
    blocks, groups = height // columns, triton.cdiv(plan.points, launch.rows)
    tiles = triton.cdiv(groups, max(rpr_plan.BACKWARD_PROGRAMS // blocks, 1))
    programs = triton.cdiv(groups, tiles)
    parts = norm.new_empty(programs, height * cp)
    backward_max.max_weight_kernel[(blocks, programs)](
        x, norm, chosen, dense, saved.arg, parts, plan.points, plan.k, tiles,
        CP=cp, DP=dp, HEIGHT=height, ROWS=launch.rows, COLS=columns,
        TRAINING=plan.training, PRECISION=plan.precision, **launch.options(),
    )  # fmt: skip
    return _finish(plan, parts)[1].view(height, cp)


def _point_sums(plan: Plan, saved: Saved, grad: Tensor) -> Sums:
    """Return the sums of the last batch norm."""
    dp, launch = grad.shape[1], plan.launch("points")
    columns = min(launch.columns, dp)
    programs = triton.cdiv(plan.points, launch.rows)
    parts = grad.new_empty(programs, 2 * dp, dtype=torch.float32)
    backward_max.point_sums_kernel[(programs, dp // columns)](
        grad, saved.best, saved.norms[-1], parts, plan.points,
        DP=dp, ROWS=launch.rows, COLS=columns, SLOPE=SLOPE,
    )  # fmt: skip
    return _finish(plan, parts, saved.norms[-1])[0]


def _point_terms(
    plan: Plan, saved: Saved, grad: Tensor, sums: Sums
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `chosen` and `dense`, of which S is made, and the gradient of z."""
    dp, launch = grad.shape[1], plan.launch("points")
    columns = min(launch.columns, dp)
    chosen = torch.empty_like(grad, dtype=plan.store)
    dense = torch.empty_like(chosen)
    dz = torch.empty_like(grad, dtype=saved.z.dtype)
    backward_max.point_terms_kernel[(triton.cdiv(plan.points, launch.rows), dp // columns)](
        grad, saved.best, saved.total, saved.z, saved.norms[-1], sums.terms, chosen, dense,
        dz, plan.points, plan.k,
        DP=dp, ROWS=launch.rows, COLS=columns, SLOPE=SLOPE,
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
    sums: Sums,
) -> tuple[Tensor, Sums, list[Tensor]]:
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
    programs, tiles = plan.tiles(launch.rows, rpr_plan.BACKWARD_PROGRAMS // (cip // columns))
    dx = torch.empty_like(x)
    sizes = [2 * cip, cop * cip, 0 if factor is None else cop]
    parts = sums.terms.new_empty(programs, sum(sizes))
    backward.linear_backward_kernel[(cip // columns, programs)](
        y, sums.terms, dy, x, saved.norms[i - 1], weight, bias, factor, saved.neighbors,
        dx, parts, dfactor, plan.edges, tiles,
        CI=ci, CO=co, CIP=cip, COP=cop, ROWS=launch.rows, COLS=columns,
        BLOCK=min(launch.columns, cop), MULTIPLY=factor is not None, PRECISION=plan.precision,
        **launch.options(),
    )  # fmt: skip
    new_sums, total = _finish(plan, parts, saved.norms[i - 1])
    _, dweight, dbias = total.split(sizes)
    db = _dbias(plan, sums) if factor is None else dbias
    dbeta, dgamma = sums.totals[:, :co]
    return dx, new_sums, [dweight.view(cop, cip)[:co, :ci], db[:co], dgamma, dbeta]


def _pose_backward(
    plan: Plan, saved: Saved, weight: Tensor, dy: Tensor, sums: Sums, vectors: bool
) -> tuple[Tensor | None, list[Tensor]]:
    """Return the gradients of the vectors, if they are wanted, and of the parameters."""
    v, h, launch = saved.v, weight.shape[0], plan.launch("pose_backward")
    cv, hp, cvp = weight.shape[1] // 3, dy.shape[1], width(weight.shape[1] // 3)
    programs = triton.cdiv(plan.points, launch.rows)
    dv = torch.zeros_like(v, dtype=torch.float32) if vectors else None
    hb = max(hp, 64)
    parts = sums.terms.new_empty(programs, 3 * hb * cvp)
    backward.pose_backward_kernel[(programs,)](
        saved.edges[0], sums.terms, dy, v, saved.frames, saved.neighbors, weight, dv, parts,
        plan.points, plan.k,
        CV=cv, H=h, CVP=cvp, HP=hp, HB=hb, WIDTH=v.shape[-1], ROWS=launch.rows, VECTORS=vectors,
        PRECISION=plan.precision, **launch.options(),
    )  # fmt: skip
    dw = _finish(plan, parts)[1].view(3, hb, cvp)[:, :h, :cv].transpose(0, 1).reshape(h, 3 * cv)
    dbeta, dgamma = sums.totals[:, :h]
    return dv, [dw, _dbias(plan, sums)[:h], dgamma, dbeta]


def _finish(plan: Plan, parts: Tensor, norm: Tensor | None = None) -> tuple[Sums, Tensor]:
    """Add the parts of all programs; with the table of a batch norm, its sums come first in them.

    Returns:
        sums: those of the batch norm; empty without one.
        total: all that was added, (n).
    """
    total, terms = _add_parts(plan, parts, norm)
    cp = terms.shape[1]
    if norm is not None and plan.training and processes() > 1:
        # totals are gradients of this process; terms are made of those of the whole batch
        terms = _add_parts(plan, sum_over_processes(total[: 2 * cp]).unsqueeze(0), norm)[1]
    return Sums(total[: 2 * cp].view(2, cp), terms), total


def _add_parts(plan: Plan, parts: Tensor, norm: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the total of the parts, and the terms of the sums that come first in it."""
    programs, n = parts.shape
    cp = 0 if norm is None else norm.shape[1]
    total, terms = parts.new_empty(n), parts.new_empty(3, cp)
    columns = min(rpr_plan.FINISH_COLUMNS, cp or rpr_plan.FINISH_COLUMNS)
    backward.finish_kernel[(triton.cdiv(n - cp, columns),)](
        parts, parts if norm is None else norm, total, terms, programs, plan.inverse,
        TOTAL=n, CP=cp, ROWS=128, COLS=columns, num_warps=8,
    )  # fmt: skip
    return total, terms


def _dbias(plan: Plan, sums: Sums) -> Tensor:
    """Return the gradient of a bias just before a batch norm, which batch statistics cancel."""
    dbeta, scale = sums.totals[0], sums.terms[0]
    return torch.zeros_like(dbeta) if plan.training else scale * dbeta
