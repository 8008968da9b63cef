"""Classifier heads: -> 512 -> 256 -> classes."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.nn.edge import SLOPE
from locotrans.nn.norm import BatchNorm


class HeadLayer(nn.Module):
    """A linear layer, batch norm, leaky ReLU and dropout."""

    def __init__(
        self, in_channels: int, out_channels: int, dropout: float = 0.5, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels, bias=bias)
        self.norm = BatchNorm(out_channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch d"]:
        """Map one vector a shape (or a point)."""
        return self.dropout(F.leaky_relu(self.norm(self.linear(x)), SLOPE))


class Head(nn.Module):
    """The last two layers of a classifier: a hidden one, and the logits."""

    def __init__(self, in_channels: int, hidden: int, classes: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.hidden = HeadLayer(in_channels, hidden, dropout)
        self.logits = nn.Linear(hidden, classes)

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch classes"]:
        """Return the logits."""
        return self.logits(self.hidden(x))
