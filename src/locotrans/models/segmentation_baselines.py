"""DGCNN and VN-DGCNN for segmentation, read out for every point as LocoTrans is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from locotrans.backbones.dgcnn import DGCNN
from locotrans.backbones.vn_dgcnn import VNDGCNN
from locotrans.geometry.vectors import center
from locotrans.models.baselines import DGCNNConfig
from locotrans.models.options import check_options
from locotrans.models.output import (
    SegmenterOutput,
    check_category,
    check_colors,
    check_points,
)
from locotrans.models.segmentation import (
    CategoryLayer,
    category_channels,
    join,
    point_invariants,
)
from locotrans.nn.heads import HeadLayer, make_head
from locotrans.nn.invariants import VNPooledInvariants


@dataclass(frozen=True)
class DGCNNSegmenterConfig(DGCNNConfig):
    """DGCNN on the widths published for part segmentation."""

    k: int = 40
    """Neighbours of a point, itself included."""
    widths: tuple[int, ...] = (64, 64, 64)
    """Channels of the edge convolutions."""
    head_widths: tuple[int, ...] = (256, 256, 128)
    """Channels of the hidden layers of the head."""
    categories: int = 16
    """Categories of shapes, one of which each cloud comes with; 0: none."""
    colors: bool = False
    """Each point comes with a colour."""


@dataclass(frozen=True)
class VNDGCNNSegmenterConfig(DGCNNSegmenterConfig):
    """VN-DGCNN on the widths published for part segmentation, counted in vectors."""

    widths: tuple[int, ...] = (21, 21, 21)
    """Vector channels of the edge convolutions."""
    embedding: int = 341
    """Vector channels of the embedding, before the mean over the points doubles them."""

    def __post_init__(self) -> None:
        check_options(self, at_least=4)


class Segmenter(nn.Module, ABC):
    """A backbone, and a head on what it knows of a point, of the shape, and of its category."""

    def __init__(
        self, num_classes: int, config: DGCNNSegmenterConfig, own: int, pooled: int
    ) -> None:
        super().__init__()
        self.config = config
        self.num_classes = num_classes
        self.category = CategoryLayer(config.categories) if config.categories else None
        first, *widths = config.head_widths
        known = own + pooled + category_channels(config)
        self.hidden = HeadLayer(known, first, config.dropout, bias=False)
        self.head = make_head(first, widths, num_classes, config.dropout, drop_last=False)

    @abstractmethod
    def known(
        self, points: Float[Tensor, "b n 3"], colors: Float[Tensor, "b n 3"] | None
    ) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b e"]]:
        """Return the features of every point and those of the shape."""

    def forward(
        self,
        points: Float[Tensor, "b n 3"],
        category: Int[Tensor, "b"] | None = None,
        colors: Float[Tensor, "b n 3"] | None = None,
        *,
        placed: bool = False,
    ) -> SegmenterOutput:
        """Segment clouds, as `LocoTransSegmenter` does."""
        check_points(points, self.config.k, self)
        check_category(category, self.config.categories, points)
        check_colors(colors, self.config.colors, points)
        if self.config.center and not placed:
            points = center(points)
        own, pooled = self.known(points, colors)
        shape = None if self.category is None else self.category(category)
        hidden = self.hidden(own, join(pooled, shape))
        return SegmenterOutput(self.head(hidden), point_features=hidden)


class DGCNNSegmenter(Segmenter):
    """DGCNN for segmentation.

    Symmetry: none under rotation; equivariant under permutation of the points.
    Differs: DGCNN has two layers on the edges of its first two convolutions, a learned transform of
        the input, and the maximum alone of the embedding; here each convolution has one layer,
        there is no transform, and the pooling is that of the classifiers.
    """

    def __init__(self, num_classes: int, config: DGCNNSegmenterConfig) -> None:
        super().__init__(num_classes, config, sum(config.widths), 2 * config.embedding)
        extra = 3 if config.colors else 0
        self.backbone = DGCNN(config.widths, config.embedding, config.k, extra)

    def known(
        self, points: Float[Tensor, "b n 3"], colors: Float[Tensor, "b n 3"] | None
    ) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b e"]]:
        """Return the features of every point and those of the shape."""
        layers = self.backbone.layers(points, colors)
        return layers, self.backbone.embed.pooled(layers)[1]


class VNSegmenter(Segmenter):
    """VN-DGCNN for segmentation; colours join the features of a point at the head.

    Symmetry: invariant under SO(3) and under reflections.
    """

    def __init__(self, num_classes: int, config: VNDGCNNSegmenterConfig) -> None:
        own = 3 * sum(config.widths) + (3 if config.colors else 0)
        super().__init__(num_classes, config, own, 12 * config.embedding)
        self.backbone = VNDGCNN(config.widths, config.embedding, config.k)
        self.invariants = VNPooledInvariants(self.backbone.channels)

    def known(
        self, points: Float[Tensor, "b n 3"], colors: Float[Tensor, "b n 3"] | None
    ) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b e"]]:
        """Return the features of every point and those of the shape."""
        own, pooled = point_invariants(
            self.invariants, self.backbone(points, wide=True), self.backbone.widths
        )
        return own if colors is None else torch.cat([own, colors], dim=-1), pooled
