"""Launches of the kernels of the relative-pose edge convolution; see `locotrans.kernels.rpr`."""

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
        each = triton.cdiv(tiles, programs)
        return triton.cdiv(tiles, each), each


class Saved(NamedTuple):
    """Tensors of the forward pass, padded, that the backward pass reads."""

    x_basis: Tensor
    z: Tensor
    v: Tensor
    reference: Tensor
    frames: Tensor
    index: Tensor
    best: Tensor
    arg: Tensor
    total: Tensor
    edges: list[Tensor]
    """The input of every batch norm but the last."""
    norms: list[Tensor]
    """The table of every batch norm."""


def run_forward(
    plan: Plan,
    x_basis: Tensor,
    z: Tensor,
    v: Tensor,
    reference: Tensor,
    frames: Tensor,
    index: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Saved | None]:
    same = reference is v
    x_basis, z, v = _pad(x_basis), _pad(z), _pad(v)
    reference = v if same else _pad(reference)
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
    plan: Plan, v: Tensor, reference: Tensor, frames: Tensor, index: Tensor, norms: list[Tensor]
) -> Tensor:
    linear, norm = plan.layers.kernel1, plan.layers.kernel_norm
    h, width = linear.out_features, _width(linear.out_features)
    programs = triton.cdiv(plan.points, POINT_ROWS)
    out = v.new_empty(plan.edges, width, dtype=plan.store)
    sums = v.new_empty(programs, 2, width, dtype=torch.float32)
    forward.pose_kernel[(programs,)](
        v, reference, frames, index, linear.weight, linear.bias, norm.running_mean, out, sums,
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
