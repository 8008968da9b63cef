"""What a classifier asks of a backbone."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Backbone(Protocol):
    """Maps a cloud to features of its points; a pooling and a head make it a classifier."""

    channels: int
    """How many features a point has."""

    def __call__(self, points: Float[Tensor, "b n 3"]) -> Float[Tensor, "b m c"]:
        """Return the features of every point, or of some that stand for all."""
        ...
