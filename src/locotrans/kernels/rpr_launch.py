"""Launches of the forward kernels of the relative-pose edge convolution; see `rpr`."""

import torch
import triton
from torch import Tensor, nn

from locotrans.distributed import processes, sum_over_processes
from locotrans.kernels import rpr_forward as forward
from locotrans.kernels import rpr_forward_max as forward_max
from locotrans.kernels import rpr_plan
from locotrans.kernels.batch_norm import Norm
from locotrans.kernels.rpr_last import last_kernel
from locotrans.kernels.rpr_plan import OUTPUT_ROWS, SLOPE, Plan, Saved, pad, width


def run_forward(
    plan: Plan,
    x_basis: Tensor,
    z: Tensor,
    v: Tensor,
    frames: Tensor,
    index: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Saved | None]:
    """Return the output, and what the backward pass reads if the plan is to save it."""
    x_basis, z, v = pad(x_basis), pad(z), v.contiguous()
    frames, index = frames.contiguous(), index.contiguous()
    edges: list[Tensor] = []
    norms: list[Tensor] = []
    x = _pose(plan, v, frames, index, norms)
    stages = plan.layers.stages()[1:]
    if plan.joins:
        for linear, norm in stages[:-1]:
            x = _linear(plan, linear, norm, x, x_basis, index, norms)
        return _last(plan, *stages[-1], weight, x, x_basis, z, index), None
    for stage, (linear, norm) in enumerate(stages):
        edges.append(x)
        x = _linear(plan, linear, norm, x, x_basis if stage == 0 else None, index, norms)
    edges.append(x)
    best, arg, total = _max(plan, weight, x, z, norms)
    out = best.new_empty(plan.points, weight.shape[0])
    forward_max.output_kernel[(triton.cdiv(plan.points, OUTPUT_ROWS),)](
        best, norms[-1], out, plan.points,
        D=weight.shape[0], DP=best.shape[1], ROWS=OUTPUT_ROWS, SLOPE=SLOPE,
    )  # fmt: skip
    if not plan.save:
        return out, None
    return out, Saved(x_basis, z, v, frames, index, best, arg, total, edges, norms)


def _pose(plan: Plan, v: Tensor, frames: Tensor, index: Tensor, norms: list[Tensor]) -> Tensor:
    linear, norm = plan.layers.kernel1, plan.layers.kernel_norm
    h, hp = linear.out_features, width(linear.out_features)
    launch = plan.launch("pose")
    columns, programs = min(launch.columns, hp), triton.cdiv(plan.points, launch.rows)
    out = v.new_empty(plan.edges, hp, dtype=plan.edge_dtype)
    sums = v.new_empty(programs, 2, hp, dtype=torch.float32)
    table = _norm(plan, norm, sums) if plan.joins else None
    forward.pose_kernel[(hp // columns, programs)](
        v, frames, index, linear.weight, linear.bias, norm.running_mean, table, out, sums,
        plan.points, plan.k,
        CV=linear.in_features // 3, H=h, CVP=width(linear.in_features // 3), HP=hp,
        WIDTH=v.shape[-1], ROWS=launch.rows, COLS=columns, STATISTICS=plan.training,
        ACTIVATE=plan.joins, PRECISION=plan.precision, **launch.options(),
    )  # fmt: skip
    norms.append(_norm(plan, norm, sums) if table is None else table)
    return out


def _linear(
    plan: Plan,
    linear: nn.Linear,
    norm: Norm,
    x: Tensor,
    factor: Tensor | None,
    index: Tensor,
    norms: list[Tensor],
) -> Tensor:
    cop = width(linear.out_features)
    launch = plan.launch("linear")
    columns = min(launch.columns, cop)
    programs, tiles = plan.tiles(launch.rows, rpr_plan.FORWARD_PROGRAMS)
    out = x.new_empty(plan.edges, cop)
    sums = x.new_empty(programs, 2, cop, dtype=torch.float32)
    table = _norm(plan, norm, sums, linear.bias) if plan.joins else None
    forward.linear_kernel[(cop // columns, programs)](
        x, norms[-1], linear.weight, linear.bias, factor, index, norm.running_mean, table, out,
        sums, plan.edges, tiles,
        CI=linear.in_features, CO=linear.out_features, CIP=x.shape[1], COP=cop, ROWS=launch.rows,
        COLS=columns, MULTIPLY=factor is not None, STATISTICS=plan.training, ACTIVATE=plan.joins,
        PRECISION=plan.activated_precision if plan.joins else plan.precision, **launch.options(),
    )  # fmt: skip
    norms.append(_norm(plan, norm, sums) if table is None else table)
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
    forward_max.max_kernel[(z.shape[1] // columns, programs)](
        x, norms[-1], weight, z, norm.weight, norm.running_mean, best, arg, total, sums,
        plan.points, plan.k, weight.stride(0),
        C=weight.shape[1], D=weight.shape[0], CP=x.shape[1], DP=z.shape[1], ROWS=launch.rows,
        COLS=columns, SAVE=plan.save, STATISTICS=plan.training, PRECISION=plan.precision,
        **launch.options(),
    )  # fmt: skip
    norms.append(_norm(plan, norm, sums))
    return best, arg, total


def _last(
    plan: Plan,
    linear: nn.Linear,
    norm: Norm,
    weight: Tensor,
    x: Tensor,
    x_basis: Tensor,
    z: Tensor,
    index: Tensor,
) -> Tensor:
    """Return the output from the input of the last two products, in evaluation."""
    launch, cop, dp = plan.launch("last"), width(linear.out_features), z.shape[1]
    columns = min(launch.columns, dp)
    out = torch.empty_like(z, dtype=torch.float32)
    inner_norm = _norm(plan, norm, out.new_empty(0, 2, cop), linear.bias)
    out_norm = _norm(plan, plan.layers.norm, out.new_empty(0, 2, dp))
    multiply = linear is plan.layers.kernel2
    last_kernel[(dp // columns, triton.cdiv(plan.points, launch.rows))](
        x, linear.weight, inner_norm, x_basis, index, weight, z, out_norm, out,
        plan.points, plan.k, weight.stride(0),
        CI=linear.in_features, CO=linear.out_features, D=weight.shape[0], CIP=x.shape[1], COP=cop,
        DP=dp, ROWS=launch.rows, COLS=columns, CHANNELS=min(64, cop),
        MULTIPLY=multiply, SLOPE=SLOPE, PRECISION=plan.activated_precision, **launch.options(),
    )  # fmt: skip
    return out[:, : weight.shape[0]]


def _norm(plan: Plan, norm: Norm, sums: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the table of a batch norm, (4, c): scale, shift, mean, 1 / deviation.

    Given the bias of the layer before, its third row is scale * bias instead. In evaluation the
    sums, (programs, 2, c), tell the width and no more.
    """
    out = sums.new_empty(4, sums.shape[2])
    if plan.training and processes() > 1:
        # their centre, the running mean, is the same in all processes
        sums = sum_over_processes(sums.sum(0, keepdim=True, dtype=torch.float64))
    programs, _, cp = sums.shape
    forward.norm_kernel[(cp // 16,)](
        sums, norm.weight, norm.bias, norm.running_mean, norm.running_var,
        bias, out, programs, float(plan.batch_edges), norm.eps, norm.momentum,
        C=norm.channels, CP=cp, ROWS=256, COLS=16, TRAINING=plan.training, num_warps=8,
    )  # fmt: skip
    return out
