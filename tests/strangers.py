"""Networks of other people, for `module:function`."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from locotrans.geometry import axis_rotation, quaternion_to_matrix, rotation_angle

CENTER = quaternion_to_matrix(torch.tensor([0.3, -0.5, 0.7, 0.2], dtype=torch.float64))
"""Where `Planted` is weak."""


def lengths(points):
    x = (points - points.mean(1, keepdim=True)).norm(dim=-1)
    return torch.stack([x.amax(1), x.mean(1), x.square().mean(1)], -1)


def constant_bias(points):
    """Depends on the pose, behind a constant that is a billion times as large."""
    return points[:, :, 0].amax(1, keepdim=True) + torch.tensor([1e9, 2e9], dtype=points.dtype)


def single_precision(points):
    return lengths(points.float())


def make():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(2))


def pose_of(points):
    """Return the rotation of three points from a standard pose, as Gram and Schmidt would."""
    a, b, c = (points[:, i] for i in range(3))
    u = F.normalize(b - a, dim=-1)
    w = F.normalize(torch.linalg.cross(u, c - a), dim=-1)
    return torch.stack([u, torch.linalg.cross(w, u), w], -1)


class Planted(nn.Module):
    """Invariant, but for poses within some degrees of one: there the answer jumps.

    `shoulder` widens the range by a slope on which the error rises from nothing.
    """

    def __init__(self, clouds, degrees, shoulder=0.0):
        super().__init__()
        # turned by CENTER, the first cloud is in the middle of the range
        self.center = CENTER @ pose_of(clouds[:1].double())[0]
        self.degrees, self.shoulder = degrees, shoulder

    def forward(self, points):
        away = rotation_angle(pose_of(points) @ self.center.to(points).mT) * (180 / math.pi)
        height = (away < self.degrees).to(points.dtype)
        if self.shoulder:
            height = ((self.degrees + self.shoulder - away) / self.shoulder).clamp(0, 1)
        return lengths(points) + height[:, None]


def spin(model, degrees=40.0):
    """Sabotage a LocoTrans: its frames lean on a fixed axis of space."""
    branch = model.equivariant_branch
    forward = branch.lcrf.forward

    def crooked(v, mean=None):
        vectors, frames = forward(v, mean)
        turn = axis_rotation("z", torch.tensor(math.radians(degrees), dtype=frames.dtype))
        return vectors, turn @ frames

    branch.lcrf.forward = crooked
    return model
