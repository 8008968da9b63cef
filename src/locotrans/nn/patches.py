"""Patches of a cloud: some of its points, and what each of them sees of the points around it.

Backbones that keep ever fewer points see a cloud in patches. Here they see it either as it stands,
or as LocoTrans does: coordinates through the frames (Eq. 13), and the features of neighbours turned
into the pose of the centre (Eqs. 15 and 17).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from locotrans.geometry.neighbors import gather
from locotrans.nn.dense import Dense
from locotrans.nn.graph import farthest, point_graph
from locotrans.nn.lcrf import to_frame
from locotrans.nn.rpr import FrameConv, PoseRecovery


class Cloud(NamedTuple):
    """Points, and what they are seen through; without frames, as they stand."""

    points: Float[Tensor, "b n 3"]
    frames: Float[Tensor, "b n 3 3"] | None = None
    vectors: tuple[Float[Tensor, "b n 3 _"], ...] = ()
    """Equivariant features, layer by layer."""
    neighbors: Int[Tensor, "b n k"] | None = None
    """The graph of the points, where frames see them first."""

    @property
    def seen_from_itself(self) -> Float[Tensor, "b n 3"]:
        """The coordinates of each point, seen from itself: ``U_r^T p_r``."""
        if self.frames is None:
            return self.points
        return seen(self.frames, self.points.unsqueeze(2)).squeeze(2)

    def detached(self) -> "Cloud":
        """Return the same, with frames that no gradient reaches."""
        return self._replace(frames=None if self.frames is None else self.frames.detach())


class Sight(NamedTuple):
    """How a backbone is to see clouds; as they stand, unless LocoTrans shows them."""

    through_frames: bool = False
    """Coordinates are seen through frames."""
    vector_widths: tuple[int, ...] = ()
    """Vectors of each equivariant layer that neighbours are turned by; none if they are not."""


PLAIN = Sight()


class Patches(NamedTuple):
    """Some points of a cloud, and their neighbours in it."""

    centers: Int[Tensor, "b m"]
    neighbors: Int[Tensor, "b m k"]
    cloud: Cloud
    """The centres."""


def make_patches(cloud: Cloud, reduce: int, k: int) -> Patches:
    """Choose one point of ``reduce`` by farthest points, and their k nearest (all, if too few).

    Symmetry: invariant under O(3), translation and permutation where no distances tie.
    """
    n = cloud.points.shape[1]
    centers = farthest(cloud.points, max(1, n // reduce))
    graph = point_graph(cloud.points, min(k, n))
    frames = None if cloud.frames is None else rows(cloud.frames, centers)
    vectors = tuple(rows(v, centers) for v in cloud.vectors)
    chosen = Cloud(rows(cloud.points, centers), frames, vectors)
    return Patches(centers, rows(graph, centers), chosen)


def rows(x: Shaped[Tensor, "b n *f"], index: Int[Tensor, "b m"]) -> Shaped[Tensor, "b m *f"]:
    """Return some rows of every cloud."""
    return gather(x, index.unsqueeze(-1)).squeeze(2)


def seen(frames: Float[Tensor, "b m 3 3"], p: Float[Tensor, "b m k 3"]) -> Float[Tensor, "b m k 3"]:
    """Return ``U_r^T p`` in float32, even under autocast."""
    with torch.autocast(p.device.type, enabled=False):
        return p @ frames


def offsets(cloud: Cloud, patches: Patches) -> Float[Tensor, "b m k 3"]:
    """Return where neighbours lie from their centre: ``p_j - p_r``, or ``U_r^T (p_j - p_r)``."""
    centers = patches.cloud
    p = gather(cloud.points, patches.neighbors) - centers.points.unsqueeze(2)
    return p if centers.frames is None else seen(centers.frames, p)


class PatchFeatures(nn.Module):
    """The features of the neighbours of every centre, turned into its pose if there are vectors.

    Args:
        channels: features.
        sight: how clouds are seen.
        layer: the equivariant layer that gives the relative poses; or the last, if there are fewer.
    """

    def __init__(self, channels: int, sight: Sight, layer: int) -> None:
        super().__init__()
        widths = sight.vector_widths
        self.layer = min(layer, len(widths) - 1)
        self.recovery = PoseRecovery(3 * widths[self.layer], channels) if widths else None

    def forward(
        self, x: Float[Tensor, "b n c"], cloud: Cloud, patches: Patches
    ) -> Float[Tensor, "b m k c"]:
        """Gather, and turn, the features of a cloud's points."""
        if self.recovery is None:
            return gather(x, patches.neighbors)
        v, v_r = cloud.vectors[self.layer], patches.cloud.vectors[self.layer]
        frames = patches.cloud.frames
        assert frames is not None
        pose = to_frame(frames.detach(), gather(v, patches.neighbors) - v_r.unsqueeze(2))  # Eq. 17
        return self.recovery.turn(gather(self.recovery.basis(x), patches.neighbors), pose)


class Stem(nn.Module):
    """The first layer: of the coordinates of each point, or of its neighbourhood through its frame.

    Gradient: reaches the frames.
    """

    def __init__(self, channels: int, sight: Sight) -> None:
        super().__init__()
        self.layer = FrameConv(channels) if sight.through_frames else Dense(3, channels)

    def forward(self, cloud: Cloud) -> Float[Tensor, "b n c"]:
        """Return the features of every point."""
        if cloud.frames is None or cloud.neighbors is None:
            return self.layer(cloud.points)
        with torch.autocast(cloud.points.device.type, enabled=False):
            return self.layer(cloud.points, cloud.neighbors, cloud.frames)
