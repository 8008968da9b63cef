"""Fusion of the invariant and the equivariant branch by attention over channels."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.nn.heads import whole_linear


class AttentionFusion(nn.Module):
    """Merge two feature vectors into one: a linear map of both, gated by a sigmoid of itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.merge = nn.Linear(2 * channels, channels)
        self.gate = nn.Linear(channels, channels)

    def forward(
        self, invariant: Float[Tensor, "*batch c"], equivariant: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """Fuse the features of the two branches."""
        x = whole_linear(self.merge, torch.cat([invariant, equivariant], dim=-1))
        return F.relu(x * torch.sigmoid(whole_linear(self.gate, x)))
