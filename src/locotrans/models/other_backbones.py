"""LocoTrans on other backbones than DGCNN: PointNet++, PCT and PointMLP (Tab. 11).

The equivariant branch, the fusion and the heads are those of `locotrans.models.locotrans`. The
paper does not say how these backbones see the frames and the relative pose; here they do so as
DGCNN does: the first layer sees coordinates through the frames, and wherever a later one gathers
the features of neighbours, these are turned first (`locotrans.nn.patches`).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from locotrans.backbones import PCT, PointMLP, PointNet2
from locotrans.models.baselines import BackboneConfig
from locotrans.models.locotrans import EquivariantOutput, LocoTrans
from locotrans.models.locotrans_config import BranchesConfig
from locotrans.nn.edge import max_mean_pool
from locotrans.nn.heads import HeadLayer
from locotrans.nn.patches import Cloud, Sight
from locotrans.nn.vn import narrow


@dataclass(frozen=True)
class LocoTransBackboneConfig(BackboneConfig, BranchesConfig):
    """The branches of the full network, the invariant one on another backbone."""

    relative_pose: Literal["none", "equivariant"] = "equivariant"
    """Turn neighbours by the relative pose from equivariant features, or not at all."""


class BackboneBranch(nn.Module):
    """The invariant branch: a backbone on the cloud as frames and equivariant features show it.

    Symmetry: SO(3)-invariant.
    Gradient: reaches the frames through the first layer only; RPR takes them detached.
    """

    def __init__(self, kind: Any, config: LocoTransBackboneConfig) -> None:
        super().__init__()
        self.widths = config.vector_widths
        turned = self.widths if config.relative_pose == "equivariant" else ()
        sight = Sight(through_frames=True, vector_widths=turned)
        self.backbone = kind(config.widths, config.embedding, config.patches, sight)
        self.hidden = HeadLayer(
            2 * config.embedding, config.head_widths[0], config.dropout, bias=False
        )

    def forward(
        self,
        points: Float[Tensor, "b n 3"],
        equivariant: EquivariantOutput,
        *_: None,  # what segmenters know of a shape besides
    ) -> tuple[None, Float[Tensor, "b h"]]:
        """Return no features of all points, since few are left, and the hidden vector."""
        features = equivariant.features
        vectors = tuple(narrow(v, c) for v, c in zip(features.layers, self.widths, strict=True))
        cloud = Cloud(points, equivariant.frames, vectors, features.neighbors[0])
        return None, self.hidden(max_mean_pool(self.backbone.of_cloud(cloud)))


class LocoTransPointNet2(LocoTrans):
    """LocoTrans on PointNet++.

    Symmetry: as of `LocoTrans`.
    Degenerate: where several points are equally far from those chosen, the order of the points or,
        in float32, rounding decides which one becomes a centre.
    """

    invariant_type = partial(BackboneBranch, PointNet2)


class LocoTransPCT(LocoTrans):
    """LocoTrans on PCT, which has the properties of `LocoTransPointNet2`."""

    invariant_type = partial(BackboneBranch, PCT)


class LocoTransPointMLP(LocoTrans):
    """LocoTrans on PointMLP, which has the properties of `LocoTransPointNet2`."""

    invariant_type = partial(BackboneBranch, PointMLP)
