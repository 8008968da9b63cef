"""PCT (Guo et al. 2021): patches as tokens, then attention among all of them."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.backbones.protocol import PatchBackbone
from locotrans.nn.dense import Dense
from locotrans.nn.edge import PointLayer
from locotrans.nn.patches import PLAIN, Cloud, PatchFeatures, Sight, Stem, make_patches, rows

ATTENTIONS = 4


class OffsetAttention(nn.Module):
    """What attention gathers, less what was there before, is mapped and added to it.

    Scores become weights by a softmax over the points that ask, then by their sum over those that
    are asked.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.key = nn.Linear(channels, channels // 4, bias=False)  # and query
        self.value = nn.Linear(channels, channels)
        self.layer = Dense(channels, channels)

    def forward(self, x: Float[Tensor, "b m c"]) -> Float[Tensor, "b m c"]:
        """Let every point ask all points."""
        key = self.key(x)
        weights = (key @ key.mT).softmax(dim=1)
        weights = weights / (weights.sum(dim=2, keepdim=True) + 1e-9)
        return x + self.layer(x - weights @ self.value(x))


class PCT(PatchBackbone):
    """Two stages of patches, each of half of the points, and four layers of attention."""

    def __init__(
        self,
        widths: Sequence[int] = (128, 256),
        channels: int = 1024,
        patches: Sequence[int] = (32, 32),
        sight: Sight = PLAIN,
    ) -> None:
        super().__init__(channels, patches, stages=len(widths))
        start, last = widths[0] // 2, widths[-1]
        before = [start, *widths[:-1]]
        self.stem = Stem(start, sight)
        self.start = Dense(start, start)
        self.features = nn.ModuleList(
            PatchFeatures(c, sight, layer) for layer, c in enumerate(before)
        )
        self.stages = nn.ModuleList(
            nn.Sequential(Dense(2 * c, d), Dense(d, d)) for c, d in zip(before, widths, strict=True)
        )
        self.before = nn.Sequential(Dense(last, last), Dense(last, last))
        self.attentions = nn.ModuleList(OffsetAttention(last) for _ in range(ATTENTIONS))
        self.last = PointLayer((ATTENTIONS + 1) * last, channels)

    def of_cloud(self, cloud: Cloud) -> Float[Tensor, "b m c"]:
        """Return the features of the points that are left."""
        x = self.start(self.stem(cloud))
        for features, stage, size in zip(self.features, self.stages, self.patches, strict=True):
            patches = make_patches(cloud, 2, size)
            near = features(x, cloud, patches)
            center = rows(x, patches.centers).unsqueeze(2).expand_as(near)
            x = stage(torch.cat([near - center, center], dim=-1)).max(dim=2).values
            cloud = patches.cloud
        gathered = [x]
        x = self.before(x)
        for attention in self.attentions:
            x = attention(x)
            gathered.append(x)
        return self.last(torch.cat(gathered, dim=-1))
