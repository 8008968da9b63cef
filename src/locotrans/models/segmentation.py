r"""LocoTrans for segmentation: the classifier's branches, read out for every point.

What a branch knows of a point is the output of all its edge convolutions at that point; what it
knows of the shape is what it would classify by, and the category where that is given. Both go
into the branch's hidden layer, one vector a point; fusion and heads follow as for classification.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from locotrans.backbones.vn_dgcnn import VNFeatures
from locotrans.models.locotrans import EquivariantBranch, InvariantBranch, LocoTrans
from locotrans.models.locotrans_config import BranchesConfig, LocoTransConfig
from locotrans.models.output import (
    SegmenterOutput,
    check_category,
    check_colors,
    check_points,
)
from locotrans.nn.edge import PointLayer
from locotrans.nn.heads import make_head
from locotrans.nn.invariants import VNPooledInvariants
from locotrans.nn.vn import narrow

CATEGORY = 64
"""Channels that the category of a shape is mapped to, as in DGCNN."""


@dataclass(frozen=True)
class LocoTransSegmenterConfig(LocoTransConfig):
    """LocoTrans on the widths of DGCNN's network for part segmentation."""

    k: int = 40
    """Neighbours of a point, itself included."""
    vector_widths: tuple[int, ...] = (21, 21, 21)
    """Vector channels of the equivariant edge convolutions."""
    widths: tuple[int, ...] = (64, 64, 64)
    """Channels of the invariant edge convolutions."""
    reference_point: bool = True
    """Layer 1 of the invariant branch sees U_r^T p_r too, as Eq. 13 is printed."""
    head_widths: tuple[int, ...] = (256, 256, 128)
    """Channels of the hidden layers of every head; the first is what fusion takes."""
    categories: int = 16
    """Categories of shapes, one of which each cloud comes with; 0: none."""
    colors: bool = False
    """Each point comes with a colour, which a rotation leaves alone."""


LIGHT_PARTS = LocoTransSegmenterConfig(
    fusion=False, vector_embedding=85, refine=False, shared_graphs=False
)
"""The same with the savings of the paper's light network, all but the mean vectors."""


def point_invariants(
    invariants: VNPooledInvariants, features: VNFeatures, widths: Sequence[int]
) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b e"]]:
    """Return what an equivariant branch knows of every point and of the shape, as invariants.

    The vectors of all its layers are multiplied with the same 3 x 3 matrix of the point as those of
    the embedding, ``Z^T v``.

    Args:
        invariants: gives the matrix, and pools.
        features: what the branch knows, its vectors wide or not.
        widths: how many vectors each layer has.

    Symmetry: invariant under O(3).
    """
    z = invariants.projection(features.vectors, features.mean)
    layers = [narrow(v, width) for v, width in zip(features.layers, widths, strict=True)]
    points = (z.mT @ torch.cat(layers, dim=-1)).flatten(-2)
    return points, invariants(features.vectors, features.mean, z)


def join(*features: Float[Tensor, "b _"] | None) -> Float[Tensor, "b e"]:
    """Concatenate what is known of the shapes."""
    return torch.cat([x for x in features if x is not None], dim=-1)


class PointwiseEquivariantBranch(EquivariantBranch):
    """The equivariant branch with a hidden vector for every point."""

    def known_channels(self, config: BranchesConfig) -> int:
        """Return how many features the hidden layer takes."""
        own = 3 * sum(config.vector_widths)
        return own + super().known_channels(config) + category_channels(config)

    def describe(
        self, features: VNFeatures, shape: Float[Tensor, "b e"] | None
    ) -> Float[Tensor, "b n h"]:
        """Return the hidden vector of every point."""
        own, pooled = point_invariants(self.invariants, features, self.backbone.widths)
        return self.hidden(own, join(pooled, shape))


class PointwiseInvariantBranch(InvariantBranch):
    """The invariant branch with a hidden vector for every point."""

    def known_channels(self, config: LocoTransConfig) -> int:
        """Return how many features the hidden layer takes."""
        return sum(config.widths) + super().known_channels(config) + category_channels(config)

    def describe(
        self,
        layers: Float[Tensor, "b n d"],
        pooled: Float[Tensor, "b c2"],
        shape: Float[Tensor, "b e"] | None,
    ) -> Float[Tensor, "b n h"]:
        """Return the hidden vector of every point."""
        return self.hidden(layers, join(pooled, shape))


def category_channels(config: object) -> int:
    """Return how many features of a shape its category gives."""
    return CATEGORY if getattr(config, "categories", 0) else 0


class CategoryLayer(nn.Module):
    """The category of a shape as features: one number a category, mapped by one layer."""

    def __init__(self, categories: int) -> None:
        super().__init__()
        self.layer = PointLayer(categories, CATEGORY)

    def forward(self, category: Int[Tensor, "b"]) -> Float[Tensor, "b c"]:
        """Map the categories."""
        weight = self.layer.linear.weight
        # not one_hot, which looks at the numbers and stalls a GPU
        numbers = torch.arange(weight.shape[1], device=category.device)
        return self.layer((category.unsqueeze(-1) == numbers).to(weight.dtype))


class LocoTransSegmenter(LocoTrans):
    """The LocoTrans segmenter: a class, or a part of the shape's category, for every point.

    Symmetry: logits and features of every point are SO(3)-invariant, frames and vectors
        SO(3)-equivariant; all follow a permutation of the points.
    Differs: the paper names the three classifiers and no more; widths, k and what a head sees of a
        point and of its shape are those of DGCNN's segmentation networks.
    """

    equivariant_type = PointwiseEquivariantBranch
    invariant_type = PointwiseInvariantBranch

    def __init__(self, num_classes: int, config: LocoTransSegmenterConfig) -> None:
        super().__init__(num_classes, config)
        self.categories, self.takes_colors = config.categories, config.colors
        self.category = CategoryLayer(config.categories) if config.categories else None
        self.colors = PointLayer(3, config.widths[0]) if config.colors else None

    def _head(self, hidden: int, widths: list[int]) -> nn.Module:
        return make_head(hidden, widths, self.num_classes, self.config.dropout, drop_last=False)

    def forward(  # type: ignore[override]
        self,
        points: Float[Tensor, "b n 3"],
        category: Int[Tensor, "b"] | None = None,
        colors: Float[Tensor, "b n 3"] | None = None,
        *,
        placed: bool = False,
    ) -> SegmenterOutput:
        """Segment clouds.

        Args:
            points: the clouds.
            category: the category of each, as a number, if the network was built with categories.
            colors: of every point, from 0 to 1, if the network was built with colours.
            placed: as in `LocoTrans`.
        """
        check_points(points, self.config.k, self)
        check_category(category, self.categories, points)
        check_colors(colors, self.takes_colors, points)
        shape = None if self.category is None else self.category(category)
        start = None if self.colors is None else self.colors(colors)
        output = self.answer(points, shape, start, placed=placed)
        fields = {**output._asdict(), "point_features": output.embedding}
        del fields["embedding"]
        return SegmenterOutput(**fields)
