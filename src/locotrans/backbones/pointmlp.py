"""PointMLP (Ma et al. 2022): patches brought to one scale, and residual layers."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.backbones.protocol import PatchBackbone
from locotrans.nn.dense import Dense, Residual
from locotrans.nn.patches import PLAIN, Cloud, PatchFeatures, Sight, Stem, make_patches, rows

BLOCKS = 2  # before the pooling of a patch, and behind it
SMALLEST = 1e-4
"""Of the mean square of features that are brought to one scale; theirs is about 1."""


class PatchMLP(nn.Module):
    """One stage: patches of half of the points, residual layers, maximum, residual layers.

    Differences between neighbours and centre are divided by their root mean square over the cloud.
    (As published, by their deviation from their mean.)
    """

    def __init__(
        self, channels: int, out_channels: int, patch: int, sight: Sight, layer: int
    ) -> None:
        super().__init__()
        self.patch = patch
        self.features = PatchFeatures(channels, sight, layer)
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.transfer = Dense(2 * channels, out_channels)
        self.inside = nn.Sequential(*(Residual(out_channels) for _ in range(BLOCKS)))
        self.behind = nn.Sequential(*(Residual(out_channels) for _ in range(BLOCKS)))

    def forward(
        self, x: Float[Tensor, "b n c"], cloud: Cloud
    ) -> tuple[Float[Tensor, "b m d"], Cloud]:
        """Return the features of the centres, and these."""
        patches = make_patches(cloud, 2, self.patch)
        near = self.features(x, cloud, patches)
        center = rows(x, patches.centers).unsqueeze(2).expand_as(near)
        e = near - center
        exact = e.to(torch.promote_types(e.dtype, torch.float32))
        size = (exact.square().mean(dim=(1, 2, 3), keepdim=True) + SMALLEST).sqrt().to(e)
        e = torch.cat([self.scale * e / size + self.shift, center], dim=-1)
        x = self.inside(self.transfer(e)).max(dim=2).values
        return self.behind(x), patches.cloud


class PointMLP(PatchBackbone):
    """Stages of patches, each of half of the points that the one before has left."""

    def __init__(
        self,
        widths: Sequence[int] = (128, 256, 512),
        channels: int = 1024,
        patches: Sequence[int] = (24, 24, 24, 24),
        sight: Sight = PLAIN,
    ) -> None:
        super().__init__(channels, patches, stages=len(widths) + 1)
        before, behind = [widths[0] // 2, *widths], [*widths, channels]
        self.stem = Stem(before[0], sight)
        self.stages = nn.ModuleList(
            PatchMLP(c, d, size, sight, layer)
            for layer, (c, d, size) in enumerate(zip(before, behind, self.patches, strict=True))
        )

    def of_cloud(self, cloud: Cloud) -> Float[Tensor, "b m c"]:
        """Return the features of the points that are left."""
        x = self.stem(cloud)
        for stage in self.stages:
            x, cloud = stage(x, cloud)
        return x
