"""Plan and launches of the forward kernels of the relative-pose edge convolution; see `rpr`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.distributed import processes, sum_over_processes
from locotrans.kernels import rpr_forward as forward
from locotrans.kernels.rpr_last import last_kernel
from locotrans.kernels.tiles import INTERPRETED

SLOPE = 0.2  # as in `locotrans.nn.edge`

FORWARD_PROGRAMS = 132 * 8  # of an H200, where a program walks through consecutive edges
BACKWARD_PROGRAMS = 132 * 2  # each holds a weight gradient in registers and writes it once
OUTPUT_ROWS = 16
FINISH_COLUMNS = 1024 if INTERPRETED else 32  # the interpreter takes programs one by one


class Launch(NamedTuple):
    """How a kernel is cut into tiles and programs."""

    rows: int
    """Points or edges of a tile."""
    columns: int
    """Channels, at most, of a program: of the output, or of the input (linear backward)."""
    num_warps: int
    num_stages: int
    """Depth of the software pipeline over the tiles of a program."""
    registers: int | None = None
    """Of a thread, at most; what does not fit goes to memory."""

    def options(self) -> dict[str, int]:
        """Return what Triton wants to know at a launch."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return options if self.registers is None else options | {"maxnreg": self.registers}


# For an H200, as `benchmarks/tune.py` found; "wide" where the features have more than 64 channels.
LAUNCHES = {
    "pose": Launch(64, 64, 4, 2),
    "pose wide": Launch(32, 64, 4, 2),
    "linear": Launch(64, 64, 4, 2),
    "max": Launch(64, 64, 4, 3),
    "max wide": Launch(64, 32, 4, 3),
    "last": Launch(64, 128, 4, 2),
    "points": Launch(64, 64, 4, 1),
    "max_backward": Launch(64, 64, 4, 2),
    "max_backward wide": Launch(64, 64, 4, 1),
    "max_weight": Launch(64, 64, 4, 3),
    "linear_backward": Launch(64, 64, 4, 2),
    "multiply_backward": Launch(64, 64, 4, 1),
    "multiply_backward wide": Launch(32, 64, 4, 1),
    "pose_backward": Launch(64, 64, 4, 2),
    "pose_backward wide": Launch(64, 64, 8, 1),
}
FLOAT32_LAUNCHES = {
    "pose": Launch(64, 64, 4, 2),
    "pose wide": Launch(32, 64, 4, 2),
    "linear": Launch(64, 64, 4, 2),
    "max": Launch(64, 64, 8, 3),
    "last": Launch(64, 128, 4, 2),
    "points": Launch(64, 64, 4, 1),
    "max_backward": Launch(32, 32, 8, 1),
    "max_weight": Launch(32, 64, 8, 1),
    "linear_backward": Launch(32, 64, 8, 1),
    "multiply_backward": Launch(32, 128, 8, 1),
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
    def batch_edges(self) -> int:
        """Return how many all processes have that train together."""
        return self.edges * processes()

    @property
    def inverse(self) -> float:
        """Return 1 / edges of the batch, turning sums into means; 0 in evaluation: it has none."""
        return 1 / self.batch_edges if self.training else 0.0

    @property
    def wide(self) -> bool:
        """Say whether the features have more than 64 channels."""
        return self.layers.kernel2.out_features > 64

    @property
    def joins(self) -> bool:
        """Say whether one kernel takes the last two products.

        In evaluation; but exact products of wide features do not fit its shared memory.
        """
        exact = self.precision in ("ieee", "tf32x3")
        return not (self.training or self.save or (self.wide and exact))

    @property
    def activated_precision(self) -> str:
        """Return that of products of what comes from a batch norm and a ReLU, in evaluation."""
        return "half" if self.precision == "tf32" else self.precision

    @property
    def edge_dtype(self) -> torch.dtype:
        """Return the type of edge tensors."""
        half = self.joins and self.activated_precision == "half"
        return torch.float16 if half else self.store

    def launch(self, kernel: str) -> Launch:
        """Return the sizes of a kernel."""
        table = LAUNCHES if self.store == torch.bfloat16 else FLOAT32_LAUNCHES
        launch = table.get(f"{kernel} wide", table[kernel]) if self.wide else table[kernel]
        # products without tensor cores need the registers of more threads
        return launch._replace(num_warps=8) if self.precision == "ieee" else launch

    def tiles(self, rows: int, programs: int) -> tuple[int, int]:
        """Share the tiles of edges among programs: how many programs, and tiles of each."""
        tiles = triton.cdiv(self.edges, rows)
        each = triton.cdiv(tiles, max(programs, 1))
        return triton.cdiv(tiles, each), each


class Saved(NamedTuple):
    """Tensors of the forward pass, all but the vectors padded, that the backward pass reads."""

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
    x_basis, z, v = pad(x_basis), pad(z), v.contiguous()
    reference = None if reference is None else reference.contiguous()
    frames, index = frames.contiguous(), index.contiguous()
    edges: list[Tensor] = []
    norms: list[Tensor] = []
    x = _pose(plan, v, reference, frames, index, norms)
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
    forward.output_kernel[(triton.cdiv(plan.points, OUTPUT_ROWS),)](
        best, norms[-1], out, plan.points,
        D=weight.shape[0], DP=best.shape[1], ROWS=OUTPUT_ROWS, SLOPE=SLOPE,
    )  # fmt: skip
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
    h, hp = linear.out_features, width(linear.out_features)
    launch = plan.launch("pose")
    programs = triton.cdiv(plan.points, launch.rows)
    out = v.new_empty(plan.edges, hp, dtype=plan.edge_dtype)
    sums = v.new_empty(programs, 2, hp, dtype=torch.float32)
    table = _norm(plan, norm, sums) if plan.joins else None
    forward.pose_kernel[(programs,)](
        v, v if reference is None else reference, frames, index, linear.weight, linear.bias,
        norm.running_mean, table, out, sums, plan.points, plan.k,
        CV=linear.in_features // 3, H=h, CVP=width(linear.in_features // 3), HP=hp,
        WIDTH=v.shape[-1], ROWS=launch.rows, STATISTICS=plan.training, ACTIVATE=plan.joins,
        PRECISION=plan.precision, **launch.options(),
    )  # fmt: skip
    norms.append(_norm(plan, norm, sums) if table is None else table)
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
    cop = width(linear.out_features)
    launch = plan.launch("linear")
    columns = min(launch.columns, cop)
    programs, tiles = plan.tiles(launch.rows, FORWARD_PROGRAMS)
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
    forward.max_kernel[(z.shape[1] // columns, programs)](
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
    norm: nn.BatchNorm1d,
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


def _norm(plan: Plan, norm: nn.BatchNorm1d, sums: Tensor, bias: Tensor | None = None) -> Tensor:
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
        norm.num_batches_tracked, bias, out, programs, float(plan.batch_edges), norm.eps,
        norm.momentum,
        C=norm.num_features, CP=cp, ROWS=256, COLS=16, TRAINING=plan.training, num_warps=8,
    )  # fmt: skip
    return out


def width(channels: int) -> int:
    """Return the padded width: a power of two, for `tl.arange`, of at least 16, for `tl.dot`."""
    return max(16, triton.next_power_of_2(channels))


def pad(x: Tensor) -> Tensor:
    """Widen the last axis to a power of two, with zeros."""
    extra = width(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, extra)) if extra else x.contiguous()
