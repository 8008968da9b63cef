"""Clouds of too few points are filled up with points between their own.

A network is trained on clouds of some size. To repeat the points of a smaller one would leave half
of every neighbourhood empty, since a point and its copies are their own nearest neighbours. So a
copy is moved, up to half of the way towards one of the three nearest points, or as far away from
it: about where another sample of the same surface would lie. ``locotrans train --resample`` shows
a network such clouds in training.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.data.transforms import uniform
from locotrans.geometry.neighbors import knn

NEAREST = 3
"""Points that a copy may move towards."""


def fill_points(
    points: Float[Tensor, "n 3"], count: int, *, generator: torch.Generator
) -> Float[Tensor, "m 3"]:
    """Return a cloud with moved copies of its points behind them, so that it has ``count``.

    A cloud of less than half of them is doubled until it has enough, so that later copies lie
    between earlier ones too. One that has enough is returned as it is.

    Degenerate: copies of a point that is alone, or has three others in its place, stay there.

    Symmetry: equivariant under rotation, translation and scale, up to ties of neighbours.
    """
    if len(points) == 0:
        raise ValueError("a cloud without points cannot be filled up")
    while len(points) < count:
        size = len(points)
        near = nearest_others(knn(in_range(points[None]), min(NEAREST + 1, size)))
        source = torch.arange(min(count - size, size), device=points.device)[None]
        copies = moved_copies(points[None], near, source, generator=generator)
        points = torch.cat([points, copies[0]])
    return points


def in_range(points: Float[Tensor, "b n 3"]) -> Float[Tensor, "b n 3"]:
    """Return clouds at the origin, in units of a power of two in which distances are usual.

    Squares of very large or small coordinates would be infinite or zero.
    """
    centered = points - points.mean(1, keepdim=True, dtype=torch.float64).to(points.dtype)
    extent = centered.abs().amax((1, 2), keepdim=True)
    return torch.ldexp(centered, -torch.frexp(extent).exponent)


def nearest_others(neighbors: Int[Tensor, "b n k"]) -> Int[Tensor, "b n m"]:
    """Return neighbours without the points themselves, in the order of their indices.

    A point that has no others is returned for them.
    """
    n, k = neighbors.shape[-2:]
    own = torch.arange(n, device=neighbors.device).unsqueeze(-1)
    others = neighbors.long().masked_fill(neighbors == own, n).sort(-1).values
    others = others[..., : max(k - 1, 1)]
    return torch.where(others == n, own, others)


def moved_copies(
    points: Float[Tensor, "b n 3"],
    near: Int[Tensor, "b n k"],
    source: Int[Tensor, "b m"],
    *,
    generator: torch.Generator,
) -> Float[Tensor, "b m 3"]:
    """Return copies of points, each moved along a line to one of its near ones.

    Args:
        points: the clouds.
        near: `nearest_others` of every point.
        source: which points are copied.
        generator: source of the random numbers.
    """
    k = near.shape[-1]
    draws = uniform(2, *source.shape, generator=generator).to(points)
    choice = k * source + (draws[0] * k).long().clamp_max(k - 1)
    goal = near.flatten(1).gather(1, choice)
    here, there = (points.gather(1, i.unsqueeze(-1).expand(-1, -1, 3)) for i in (source, goal))
    return here + (draws[1] - 0.5).unsqueeze(-1) * (there - here)
