"""Heads: -> 512 -> 256 -> classes, for every shape or for every point."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.kernels import use_kernels
from locotrans.nn.edge import SLOPE
from locotrans.nn.norm import BatchNorm


def whole_linear(layer: nn.Linear, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch d"]:
    """Apply a linear layer; to one vector a shape in the type of its weights, even under autocast.

    To cast the weights, and their gradients back, takes longer than so small a product saves.
    """
    if x.dim() != 2 or not torch.is_autocast_enabled(x.device.type):
        return layer(x)
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.to(layer.weight.dtype))


class HeadLayer(nn.Module):
    """A linear layer, batch norm, leaky ReLU and dropout."""

    def __init__(
        self, in_channels: int, out_channels: int, dropout: float = 0.5, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels, bias=bias)
        self.norm = BatchNorm(out_channels)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "*batch c"], shape: Float[Tensor, "b e"] | None = None
    ) -> Float[Tensor, "*batch d"]:
        """Map one vector a shape, or a point.

        Args:
            x: the vectors.
            shape: features that all points of a cloud share, which count as channels behind those
                of ``x``; their product is taken once a cloud instead of once a point.
        """
        if shape is None:
            product = whole_linear(self.linear, x)
        else:
            own, shared = self.linear.weight.split([x.shape[-1], shape.shape[-1]], dim=1)
            product = F.linear(x, own) + F.linear(shape, shared, self.linear.bias).unsqueeze(1)
        return self.dropout(self._activate(product))

    def _activate(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Apply batch norm and leaky ReLU."""
        if use_kernels(x):
            from locotrans.kernels.head import norm_act, supported

            if supported(x, training=self.norm.training):
                return norm_act(x, self.norm.statistics(), SLOPE)
        return F.leaky_relu(self.norm(x), SLOPE)


class Head(nn.Module):
    """The last two layers of a classifier: a hidden one, and the logits."""

    def __init__(self, in_channels: int, hidden: int, classes: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.hidden = HeadLayer(in_channels, hidden, dropout)
        self.logits = nn.Linear(hidden, classes)

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch classes"]:
        """Return the logits."""
        return whole_linear(self.logits, self.hidden(x))


def make_head(
    in_channels: int,
    widths: Sequence[int],
    classes: int,
    dropout: float,
    *,
    drop_last: bool = True,
) -> nn.Module:
    """Return hidden layers of the given widths, and the logits.

    Args:
        in_channels: features in.
        widths: channels of the hidden layers.
        classes: how many logits.
        dropout: after every hidden layer.
        drop_last: after the last one, too.
    """
    *first, last = widths
    layers: list[nn.Module] = []
    for width in first:
        layers.append(HeadLayer(in_channels, width, dropout))
        in_channels = width
    head = Head(in_channels, last, classes, dropout if drop_last else 0.0)
    return nn.Sequential(*layers, head) if layers else head
