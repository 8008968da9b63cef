"""What a classifier asks of a backbone."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from locotrans.nn.patches import Cloud


@runtime_checkable
class Backbone(Protocol):
    """Maps a cloud to features of its points; a pooling and a head make it a classifier."""

    channels: int
    """How many features a point has."""

    def __call__(self, points: Float[Tensor, "b n 3"]) -> Float[Tensor, "b m c"]:
        """Return the features of every point, or of some that stand for all."""
        ...


class PatchBackbone(nn.Module):
    """A backbone that sees a cloud in patches, and keeps ever fewer points.

    Args:
        channels: features of every point that is left, before they are pooled.
        patches: points of a patch in each stage.
        stages: how many stages there are.

    Backbones of this kind are built from ``widths``, the features of a centre behind each stage,
    ``channels``, ``patches``, and ``sight``: how they are to see clouds.

    Symmetry: none; SO(3)-invariant where the cloud is seen through frames.
    """

    def __init__(self, channels: int, patches: Sequence[int], stages: int) -> None:
        super().__init__()
        if len(patches) != stages:
            raise ValueError(
                f"patches must name the points of a patch in each of {stages} stages, got {patches}"
            )
        self.channels = channels
        self.patches = tuple(patches)

    def forward(self, points: Float[Tensor, "b n 3"]) -> Float[Tensor, "b m c"]:
        """Return the features of the points that are left, of a cloud as it stands."""
        return self.of_cloud(Cloud(points))

    @abstractmethod
    def of_cloud(self, cloud: Cloud) -> Float[Tensor, "b m c"]:
        """Return the features of the points that are left, of a cloud seen as `Sight` says."""
