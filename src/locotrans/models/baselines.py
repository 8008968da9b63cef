"""The networks that the paper measures itself against, each with the same head.

DGCNN, VN-DGCNN, PointNet, and those that it builds LocoTrans on besides: PointNet++, PCT, PointMLP.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from locotrans.backbones.dgcnn import DGCNN
from locotrans.backbones.pointnet import PointNet
from locotrans.backbones.protocol import Backbone
from locotrans.backbones.vn_dgcnn import VNDGCNN
from locotrans.geometry.vectors import center
from locotrans.models.options import check_options
from locotrans.models.output import ClassifierOutput, check_points
from locotrans.nn.edge import max_mean_pool
from locotrans.nn.heads import HeadLayer, make_head
from locotrans.nn.invariants import VNInvariants


@dataclass(frozen=True)
class DGCNNConfig:
    """DGCNN as published for classification."""

    k: int = 20
    """Neighbours of a point, itself included."""
    widths: tuple[int, ...] = (64, 64, 128, 256)
    """Channels of the edge convolutions."""
    embedding: int = 1024
    """Channels of the embedding."""
    head_widths: tuple[int, ...] = (512, 256)
    """Channels of the hidden layers of the head."""
    dropout: float = 0.5
    """Dropout in the head."""
    center: bool = True
    """Move the cloud's mean to the origin first."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class VNDGCNNConfig(DGCNNConfig):
    """VN-DGCNN as published for classification; widths and embedding count vectors."""

    widths: tuple[int, ...] = (21, 21, 42, 85)
    """Vector channels of the edge convolutions."""
    embedding: int = 341
    """Vector channels of the embedding, before the mean over the points doubles them."""

    def __post_init__(self) -> None:
        check_options(self, at_least=4)


@dataclass(frozen=True)
class PointNetConfig:
    """PointNet for classification, with the pooling and the head of the other networks."""

    head_widths: tuple[int, int] = (512, 256)
    """Channels of the two layers of the head."""
    dropout: float = 0.3
    """Dropout in the head."""
    center: bool = True
    """Move the cloud's mean to the origin first."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class BackboneConfig:
    """PointNet++, PCT or PointMLP: backbones that keep ever fewer points."""

    patches: tuple[int, ...] = (32, 32)
    """Points of a patch in each stage, its centre included."""
    widths: tuple[int, ...] = (128, 256)
    """Features of a centre behind the stages (of PointMLP, each but the last)."""
    embedding: int = 1024
    """Features of every point that is left."""
    head_widths: tuple[int, ...] = (512, 256)
    """Channels of the hidden layers of the head."""
    dropout: float = 0.5
    """Dropout in the head."""
    center: bool = True
    """Move the cloud's mean to the origin first."""

    def __post_init__(self) -> None:
        check_options(self, at_least=4)  # some layers have a quarter of the channels


class PointClassifier(nn.Module):
    """A backbone, max and mean pooling, and a head.

    Symmetry: that of the backbone; none for DGCNN, PointNet and those of `BackboneConfig`.
    """

    def __init__(
        self,
        num_classes: int,
        config: DGCNNConfig | PointNetConfig | BackboneConfig,
        backbone: Backbone,
    ) -> None:
        super().__init__()
        self.config = config
        self.num_classes = num_classes
        self.backbone = backbone
        hidden, *widths = config.head_widths
        self.hidden = HeadLayer(2 * backbone.channels, hidden, config.dropout, bias=False)
        self.head = make_head(hidden, widths, num_classes, config.dropout)

    def forward(self, points: Float[Tensor, "b n 3"], *, placed: bool = False) -> ClassifierOutput:
        """Classify clouds, as `LocoTrans` does."""
        check_points(points, getattr(self.config, "k", 1), self)
        if self.config.center and not placed:
            points = center(points)
        features = self.backbone(points)
        hidden = self.hidden(max_mean_pool(features))
        of_all = features if features.shape[1] == points.shape[1] else None
        return ClassifierOutput(self.head(hidden), embedding=hidden, point_features=of_all)


class VNClassifier(nn.Module):
    """VN-DGCNN with invariants, max and mean pooling, and a head.

    Symmetry: invariant under SO(3) and under reflections.
    """

    def __init__(self, num_classes: int, config: VNDGCNNConfig) -> None:
        super().__init__()
        self.config = config
        self.num_classes = num_classes
        self.backbone = VNDGCNN(config.widths, config.embedding, config.k)
        self.invariants = VNInvariants(self.backbone.channels)
        hidden, *widths = config.head_widths
        self.hidden = HeadLayer(6 * self.backbone.channels, hidden, config.dropout)
        self.head = make_head(hidden, widths, num_classes, config.dropout)

    def forward(self, points: Float[Tensor, "b n 3"], *, placed: bool = False) -> ClassifierOutput:
        """Classify clouds, as `LocoTrans` does."""
        check_points(points, self.config.k, self)
        if self.config.center and not placed:
            points = center(points)
        vn = self.backbone(points, wide=True)
        features = self.invariants(vn.vectors, vn.mean)
        hidden = self.hidden(max_mean_pool(features))
        logits = self.head(hidden)
        return ClassifierOutput(
            logits, equivariant=logits, embedding=hidden, point_features=features
        )


def build_dgcnn(num_classes: int, config: DGCNNConfig) -> PointClassifier:
    """Build the DGCNN classifier."""
    return PointClassifier(num_classes, config, DGCNN(config.widths, config.embedding, config.k))


def build_pointnet(num_classes: int, config: PointNetConfig) -> PointClassifier:
    """Build the PointNet classifier."""
    return PointClassifier(num_classes, config, PointNet())


def build_backbone(kind: Any, num_classes: int, config: BackboneConfig) -> PointClassifier:
    """Build a classifier on PointNet++, PCT or PointMLP."""
    backbone = kind(config.widths, config.embedding, config.patches)
    return PointClassifier(num_classes, config, backbone)
