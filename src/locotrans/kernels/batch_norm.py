"""A batch norm as the kernels take it."""

from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor


class Norm(NamedTuple):
    """What a kernel needs to normalise as a batch norm does.

    Flat, as ``*norm``, it goes to the forward pass of a `torch.autograd.Function`, which sees no
    tensor inside a tuple; there ``Norm(*norm)`` puts it together again.
    """

    weight: Float[Tensor, " c"]
    """gamma."""
    bias: Float[Tensor, " c"]
    """beta."""
    running_mean: Float[Tensor, " c"]
    """Updated in place in training, used in evaluation."""
    running_var: Float[Tensor, " c"]
    """Likewise."""
    training: bool
    """Normalise by the statistics of what is given."""
    momentum: float
    """Of the running statistics."""
    eps: float
    """Added to the variance."""

    @property
    def channels(self) -> int:
        """Return how many it normalises."""
        return len(self.weight)

    @staticmethod
    def gradients(dweight: Tensor, dbias: Tensor) -> tuple[Any, ...]:
        """Return what a backward pass has to give for a flat norm."""
        return dweight, dbias, *[None] * (len(Norm._fields) - 2)
