"""PointNet++ (Qi et al. 2017b): small PointNets on patches, then one on what is left."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.backbones.protocol import PatchBackbone
from locotrans.nn.dense import Dense
from locotrans.nn.patches import PLAIN, Cloud, PatchFeatures, Sight, make_patches, offsets


class PointNet2(PatchBackbone):
    """Patches of half of the points, of a quarter of these, and all that are left together.

    Differs: a patch holds the nearest points; as published, the first ones of a ball, repeated
        where they are few, which depends on the order of the points and on the unit.
    """

    def __init__(
        self,
        widths: Sequence[int] = (128, 256),
        channels: int = 1024,
        patches: Sequence[int] = (32, 64),
        sight: Sight = PLAIN,
    ) -> None:
        super().__init__(channels, patches, stages=len(widths))
        self.features = nn.ModuleList(
            PatchFeatures(c, sight, layer) for layer, c in enumerate(widths[:-1])
        )
        self.stages = nn.ModuleList(
            layers(3 + c, d // 2, d // 2, d) for c, d in zip([0, *widths[:-1]], widths, strict=True)
        )
        self.last = layers(3 + widths[-1], channels // 4, channels // 2, channels)

    def of_cloud(self, cloud: Cloud) -> Float[Tensor, "b m c"]:
        """Return the features of the points that are left."""
        patches = make_patches(cloud, 2, self.patches[0])
        first, *further = self.stages
        x = first(offsets(cloud, patches)).max(dim=2).values
        for features, stage, size in zip(self.features, further, self.patches[1:], strict=True):
            cloud = patches.cloud.detached()  # frames get their gradient above
            patches = make_patches(cloud, 4, size)
            e = torch.cat([offsets(cloud, patches), features(x, cloud, patches)], dim=-1)
            x = stage(e).max(dim=2).values
        left = patches.cloud.detached()
        return self.last(torch.cat([left.seen_from_itself, x], dim=-1))


def layers(*widths: int) -> nn.Sequential:
    """Return one `Dense` layer after the other."""
    return nn.Sequential(*(Dense(c, d) for c, d in pairwise(widths)))
