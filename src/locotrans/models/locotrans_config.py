"""The choices of LocoTrans (`locotrans.models.locotrans`): the full network and the light one."""

from dataclasses import dataclass
from typing import Literal

from locotrans.geometry.frames import FrameKind
from locotrans.models.options import check_options

RelativePose = Literal["none", "coordinates", "handcrafted", "equivariant", "invariant"]


@dataclass(frozen=True)
class BranchesConfig:
    """What LocoTrans can choose on any backbone: equivariant branch, frames, fusion and heads."""

    k: int = 20
    """Neighbours of a point, itself included (Tab. 10)."""
    frames: FrameKind = "symmetric"
    """How two vectors become a frame (Tab. 5)."""
    fusion: bool = True
    """A third head on both branches, fused by attention (Tab. 4)."""
    vector_widths: tuple[int, ...] = (21, 21, 42, 85)
    """Vector channels of the equivariant edge convolutions (a third of DGCNN's; 3 numbers each)."""
    vector_embedding: int = 341
    """Vector channels of the equivariant embedding."""
    append_mean: bool = True
    """Append the mean vectors of the cloud to those of every point."""
    head_widths: tuple[int, ...] = (512, 256)
    """Channels of the hidden layers of every head; the first is what fusion takes."""
    dropout: float = 0.5
    """Dropout in the heads."""
    center: bool = True
    """Move the cloud's mean to the origin first, so that a translation changes nothing."""

    def __post_init__(self) -> None:
        check_options(self, at_least=4)  # some layers have a quarter of the channels


@dataclass(frozen=True)
class LocoTransConfig(BranchesConfig):
    """Every choice that the paper makes or ablates; the defaults are the paper's full network."""

    relative_pose: RelativePose = "equivariant"
    """What tells the pose of a neighbour relative to its reference point (Tab. 6)."""
    widths: tuple[int, ...] = (64, 64, 128, 256)
    """Channels of the invariant edge convolutions (DGCNN's)."""
    embedding: int = 1024
    """Channels of the invariant embedding."""
    refine: bool = True
    """One more layer on the neighbours' features in RPR."""
    shared_graphs: bool = True
    """The invariant branch uses the graphs of the equivariant one, instead of its own."""
    reference_point: bool = False
    """Layer 1 of the invariant branch sees U_r^T p_r too, as Eq. 13 is printed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.vector_widths) != len(self.widths):
            raise ValueError(
                f"vector_widths and widths must name as many layers: "
                f"{self.vector_widths} and {self.widths}"
            )


LIGHT = LocoTransConfig(
    fusion=False,
    vector_widths=(21, 21, 21, 21),
    vector_embedding=85,
    append_mean=False,
    refine=False,
    shared_graphs=False,
)
"""The light network of the paper's Post-CVPR section ("Ours*")."""
