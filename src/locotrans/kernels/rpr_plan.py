"""Plan of the relative-pose edge convolution: its layers, and the sizes of launches; see `rpr`."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.distributed import processes
from locotrans.kernels.batch_norm import Norm
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
# Bytes of shared memory that a program may have: an A100 gives it the second, or more, a GeForce of
# its time the first. Where there is less than the second, what would need more has smaller tiles.
SMALL, LARGE = 99 * 1024, 163 * 1024
SMALL_LAUNCHES = LAUNCHES | {
    "max_backward": Launch(64, 64, 4, 1),
    "pose_backward": Launch(64, 64, 8, 1),
}
SMALL_FLOAT32_LAUNCHES = FLOAT32_LAUNCHES | {
    "pose": Launch(32, 32, 4, 2),
    "pose wide": Launch(32, 32, 4, 2),
    "max wide": Launch(64, 32, 8, 2),
    "last": Launch(64, 64, 4, 2),
}


class RPRLayers(NamedTuple):
    """The layers of a `RelativePoseConv` between the basis and the last product."""

    kernel1: nn.Linear
    kernel_norm: Norm
    kernel2: nn.Linear
    pose_norm: Norm
    refine: nn.Linear | None
    refine_norm: Norm | None
    norm: Norm

    def stages(self) -> list[tuple[nn.Linear, Norm]]:
        """Return each product with the batch norm behind it, the last product left out."""
        stages = [(self.kernel1, self.kernel_norm), (self.kernel2, self.pose_norm)]
        if self.refine is not None and self.refine_norm is not None:
            stages.append((self.refine, self.refine_norm))
        return stages


def layers_of(conv: Any) -> RPRLayers:
    """Return the layers of a `RelativePoseConv`."""
    refine_norm = None if conv.refine_norm is None else conv.refine_norm.statistics()
    return RPRLayers(
        conv.kernel1, conv.kernel_norm.statistics(), conv.kernel2, conv.pose_norm.statistics(),
        conv.refine, refine_norm, conv.norm.statistics(),
    )  # fmt: skip


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
    shared_memory: float = math.inf
    """Bytes of it that a program may have."""

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
        if self.shared_memory >= LARGE:
            tables = LAUNCHES, FLOAT32_LAUNCHES
        else:
            tables = SMALL_LAUNCHES, SMALL_FLOAT32_LAUNCHES
        table = tables[self.store != torch.bfloat16]
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
    frames: Tensor
    neighbors: Tensor
    best: Tensor
    arg: Tensor
    total: Tensor
    edges: Sequence[Tensor]
    """The input of every batch norm but the last."""
    norms: Sequence[Tensor]
    """The table of every batch norm."""


@cache
def shared_memory(device: torch.device) -> float:
    """Return the bytes of shared memory that a program may have on a device.

    Triton's own figure, since torch 2.6 has none; the interpreter has no limit.
    """
    if device.type != "cuda":
        return math.inf
    return triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]


def width(channels: int) -> int:
    """Return the padded width: a power of two, for `tl.arange`, of at least 16, for `tl.dot`."""
    return max(16, triton.next_power_of_2(channels))


def pad(x: Tensor) -> Tensor:
    """Widen the last axis to a power of two, with zeros."""
    extra = width(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, extra)) if extra else x.contiguous()
