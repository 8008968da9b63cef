r"""LocoTrans (Chen et al., CVPR 2024), from the points to the logits.

An equivariant branch (`EquivariantBranch`) turns points p into vectors v that rotate along,
h(R p) = R h(p). From them come the invariants that it classifies by, the local-consistent reference
frame U_r of every point (LCRF), and the relative pose of neighbouring patches (RPR). An invariant
branch (`InvariantBranch`) sees the cloud through the frames. Attention fuses both.
What can be chosen is in `locotrans_config`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from locotrans.backbones.vn_dgcnn import VNDGCNN, VNFeatures
from locotrans.geometry.frames import handcrafted_frame
from locotrans.geometry.neighbors import gather
from locotrans.geometry.vectors import center
from locotrans.kernels import stored_dtype, use_kernels
from locotrans.kernels.threads import undivided
from locotrans.models.locotrans_config import BranchesConfig, LocoTransConfig
from locotrans.models.output import ClassifierOutput, check_points
from locotrans.nn.edge import EdgeConv, PointLayer
from locotrans.nn.fusion import AttentionFusion
from locotrans.nn.graph import feature_graph
from locotrans.nn.heads import HeadLayer, make_head
from locotrans.nn.invariants import VNPooledInvariants
from locotrans.nn.lcrf import LCRF
from locotrans.nn.poses import point_pair_pose
from locotrans.nn.rpr import FrameConv, RelativePoseConv


class EquivariantOutput(NamedTuple):
    """What the equivariant branch gives to the rest of the network."""

    features: VNFeatures
    hidden: Float[Tensor, "b *n h"]
    vectors: Float[Tensor, "b n 3 2"] | None
    frames: Float[Tensor, "b n 3 3"]


FROM_VECTORS = ("equivariant", "coordinates")  # poses that kernels make


class EquivariantBranch(nn.Module):
    """VN-DGCNN, its invariants, and the frames learned from it.

    Symmetry: vectors and frames turn with the cloud, ``hidden`` does not change.
    """

    def __init__(self, config: BranchesConfig) -> None:
        super().__init__()
        self.backbone = VNDGCNN(
            config.vector_widths,
            config.vector_embedding,
            config.k,
            append_mean=config.append_mean,
        )
        channels = self.backbone.channels
        self.invariants = VNPooledInvariants(channels)
        self.hidden = HeadLayer(self.known_channels(config), config.head_widths[0], config.dropout)
        self.lcrf = None if config.frames == "handcrafted" else LCRF(channels, config.frames)

    def known_channels(self, config: BranchesConfig) -> int:
        """Return how many features the hidden layer takes."""
        return 6 * self.backbone.channels

    def describe(
        self, features: VNFeatures, shape: Float[Tensor, "b e"] | None
    ) -> Float[Tensor, "b *n h"]:
        """Return the hidden vector: here one a shape, of the invariants pooled over the points."""
        return self.hidden(self.invariants(features.vectors, features.mean))

    def forward(
        self,
        points: Float[Tensor, "b n 3"],
        shape: Float[Tensor, "b e"] | None = None,
        *,
        bfloat16: bool = False,
    ) -> EquivariantOutput:
        """Return the vectors of every layer, the hidden vector, and the frames.

        Args:
            points: the clouds.
            shape: what else is known of each shape.
            bfloat16: take the layers for every point alone so, by kernels.
        """
        features = self.backbone(points, wide=True, bfloat16=bfloat16)
        hidden = self.describe(features, shape)
        if self.lcrf is None:
            frames = handcrafted_frame(points, features.neighbors[0])
            return EquivariantOutput(features, hidden, None, frames)
        return EquivariantOutput(features, hidden, *self.lcrf(features.vectors, features.mean))


class InvariantBranch(nn.Module):
    """DGCNN on the cloud as the frames see it, with relative pose recovery in layers 2 and up.

    Symmetry: SO(3)-invariant.
    Gradient: reaches the frames through layer 1 only; RPR takes them detached.
    """

    def __init__(self, config: LocoTransConfig) -> None:
        super().__init__()
        self.config = config
        self.first = FrameConv(config.widths[0], reference_point=config.reference_point)
        self.convs = nn.ModuleList(
            EdgeConv(c, d)
            if config.relative_pose == "none"
            else RelativePoseConv(self._pose_channels(i), c, d, refine=config.refine)
            for i, (c, d) in enumerate(zip(config.widths[:-1], config.widths[1:], strict=True))
        )
        self.embed = PointLayer(sum(config.widths), config.embedding)
        self.hidden = HeadLayer(
            self.known_channels(config), config.head_widths[0], config.dropout, bias=False
        )

    def known_channels(self, config: LocoTransConfig) -> int:
        """Return how many features the hidden layer takes."""
        return 2 * config.embedding

    def describe(
        self,
        layers: Float[Tensor, "b n d"],
        pooled: Float[Tensor, "b c2"],
        shape: Float[Tensor, "b e"] | None,
    ) -> Float[Tensor, "b *n h"]:
        """Return the hidden vector: here one a shape, of the embedding pooled over the points."""
        return self.hidden(pooled)

    def forward(
        self,
        points: Float[Tensor, "b n 3"],
        equivariant: EquivariantOutput,
        shape: Float[Tensor, "b e"] | None = None,
        start: Float[Tensor, "b n c1"] | None = None,
    ) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b *n h"]]:
        """Return the embedding of every point, and the hidden vector.

        Args:
            points: the clouds.
            equivariant: what the other branch says of them.
            shape: what else is known of each shape.
            start: what else is known of each point, added to the features of layer 1.
        """
        graph = equivariant.features.neighbors[0]
        with torch.autocast(points.device.type, enabled=False):
            layers = [self.first(points, graph, equivariant.frames)]
        if start is not None:
            layers = [layers[0] + start]
        # the kernels' products take what is rounded once, here, neighbours are found by what is not
        stored = stored_dtype() if use_kernels(points) else points.dtype
        rounded = [layers[0].to(stored)]
        for i, conv in enumerate(self.convs):
            neighbors = self._graph(i + 1, layers[-1], equivariant)
            x = rounded[-1] if self.config.relative_pose in FROM_VECTORS else layers[-1]
            layers.append(self._convolve(i, conv, points, x, neighbors, equivariant))
            rounded.append(layers[-1].to(stored))
        features = torch.cat(rounded, dim=-1)
        embedding, pooled = self.embed.pooled(features)
        return embedding, self.describe(features, pooled, shape)

    def _graph(
        self, layer: int, x: Float[Tensor, "b n c"], equivariant: EquivariantOutput
    ) -> Int[Tensor, "b n k"]:
        if self.config.shared_graphs:
            return equivariant.features.neighbors[layer]
        return feature_graph(x, self.config.k)

    def _pose_channels(self, layer: int) -> int:
        """Return the size of the relative pose of an edge."""
        return {
            "equivariant": 3 * self.config.vector_widths[layer],
            "coordinates": 3,
            "handcrafted": 4,
            "invariant": self.config.widths[layer],
        }[self.config.relative_pose]

    def _convolve(
        self,
        layer: int,
        conv: Any,  # EdgeConv or RelativePoseConv
        points: Float[Tensor, "b n 3"],
        x: Float[Tensor, "b n c"],
        neighbors: Int[Tensor, "b n k"],
        equivariant: EquivariantOutput,
    ) -> Float[Tensor, "b n d"]:
        """Convolve with the relative pose F of every edge (Eq. 17, and its rivals in Tab. 6)."""
        frames = equivariant.frames.detach()
        match self.config.relative_pose:
            case "equivariant":
                v = equivariant.features.layers[layer]
                return conv(x, v, neighbors, frames)
            case "coordinates":
                return conv(x, points.unsqueeze(-1), neighbors, frames)
            case "handcrafted":
                return conv(x, point_pair_pose(points, neighbors, frames), neighbors)
            case "invariant":
                return conv(x, gather(x, neighbors) - x.unsqueeze(2), neighbors)
            case _:
                return conv(x, neighbors)


class LocoTrans(nn.Module):
    """The LocoTrans classifier.

    Symmetry: logits, embedding and point features are SO(3)-invariant, frames and vectors
        SO(3)-equivariant; nothing depends on the batch-mates (in evaluation) or, where no distances
        tie, on the order of the points. A reflection changes the answer: the third axis of a frame
        is a cross product.
    Degenerate: where neighbours are equally far, as on a regular grid, the order of the points
        chooses among them: another order moves the logits, by several percent and more, a rotation
        does not. In float32 features of the light network tie nearly on symmetric clouds, and a
        rotation can move its logits by percents. `docs/differences.md` has the figures.
    """

    equivariant_type: type[EquivariantBranch] = EquivariantBranch
    invariant_type: Callable[[Any], nn.Module] = InvariantBranch

    def __init__(self, num_classes: int, config: BranchesConfig) -> None:
        super().__init__()
        self.config = config
        self.num_classes = num_classes
        hidden, *widths = config.head_widths
        self.equivariant_branch = self.equivariant_type(config)
        self.invariant_branch = self.invariant_type(config)
        self.equivariant_head = self._head(hidden, widths)
        self.invariant_head = self._head(hidden, widths)
        self.fusion = AttentionFusion(hidden) if config.fusion else None
        self.fused_head = self._head(hidden, widths) if config.fusion else None

    def _head(self, hidden: int, widths: list[int]) -> nn.Module:
        return make_head(hidden, widths, self.num_classes, self.config.dropout)

    @undivided
    def forward(self, points: Float[Tensor, "b n 3"], *, placed: bool = False) -> ClassifierOutput:
        """Classify clouds; the combined logits are the sum that the paper reports.

        Args:
            points: the clouds.
            placed: take them where they stand, which in training is near the origin, instead of
                moving their means there (option ``center``).
        """
        check_points(points, self.config.k, self)
        return self.answer(points, placed=placed)

    def answer(
        self,
        points: Float[Tensor, "b n 3"],
        shape: Float[Tensor, "b e"] | None = None,
        start: Float[Tensor, "b n c1"] | None = None,
        *,
        placed: bool,
    ) -> ClassifierOutput:
        """Send clouds, and what else is known of them, through branches, fusion and heads."""
        if self.config.center and not placed:
            points = center(points)
        bfloat16 = use_kernels(points) and stored_dtype() == torch.bfloat16
        with torch.autocast(points.device.type, enabled=False):  # lengths and frames: float32
            shape32 = None if shape is None else shape.to(points.dtype)
            vn = self.equivariant_branch(points, shape32, bfloat16=bfloat16)
        point_features, hidden = self.invariant_branch(points, vn, shape, start)
        equivariant = self.equivariant_head(vn.hidden)
        invariant = self.invariant_head(hidden)
        fused = None
        if self.fusion is not None and self.fused_head is not None:
            fused = self.fused_head(self.fusion(hidden, vn.hidden))
        return ClassifierOutput(
            logits=equivariant + (invariant if fused is None else fused),
            invariant=invariant,
            equivariant=equivariant,
            fused=fused,
            vectors=vn.vectors,
            frames=vn.frames,
            embedding=torch.cat([hidden, vn.hidden], dim=-1),
            point_features=point_features,
            neighbors=vn.features.neighbors[0],
        )
