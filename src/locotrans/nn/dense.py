"""A linear layer with batch norm and ReLU, and residual blocks of it."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.nn.norm import BatchNorm


class Dense(nn.Module):
    """A linear layer, batch norm and ReLU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)
        self.norm = BatchNorm(out_channels)

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch d"]:
        """Map the last axis."""
        return F.relu(self.norm(self.linear(x)))


class Residual(nn.Module):
    """Two linear layers with batch norm, whose result is added to what comes in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Dense(channels, channels)
        self.second = nn.Linear(channels, channels)
        self.norm = BatchNorm(channels)

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """Map the last axis."""
        return F.relu(x + self.norm(self.second(self.first(x))))
