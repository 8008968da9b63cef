"""Clouds are evened out, so that it matters little how a shape was sampled.

Random points of a surface lie in clusters and leave gaps, scanners see near things more densely,
and farthest points lie evenly. An evened cloud is of the last kind, whatever it was: farthest
points, chosen among its own and, where these are few, others between near ones. It is made without
random numbers. ``locotrans train --even`` trains on such clouds.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.data.clouds import CloudSet
from locotrans.data.filling import in_range, nearest_others
from locotrans.data.transforms import normalize
from locotrans.geometry.neighbors import gather
from locotrans.nn.graph import farthest, point_graph

NEAR = 6
"""Near points of each, with others in between."""
CANDIDATES = 3
"""Candidates there are at least for each point that is chosen."""
CHUNK = 1024
"""Clouds that are evened at a time: on a GPU many take hardly longer than one."""


def even_points(points: Float[Tensor, "b n 3"], count: int) -> Float[Tensor, "b m 3"]:
    """Choose ``count`` farthest points among those of each cloud and others between them.

    Symmetry: equivariant under rotation, translation and scale and invariant to the order of the
        points, up to ties.
    Degenerate: of a cloud of few places some are chosen several times.
    """
    return choose_farthest(candidates(points, count), count)


def candidates(points: Float[Tensor, "b n 3"], count: int) -> Float[Tensor, "b c 3"]:
    """Return what ``count`` points are chosen among: three times as many, or more.

    Where a cloud has fewer, points between each and its six nearest are added, again and again if
    need be.
    """
    if points.shape[1] == 0:
        raise ValueError("a cloud without points cannot be evened out")
    # from the inside out: among neighbours that tie the first are taken, whatever the order was
    order = in_range(points).norm(dim=-1).argsort(dim=1)
    points = points.gather(1, order.unsqueeze(-1).expand(-1, -1, 3))
    while (n := points.shape[1]) < CANDIDATES * count:
        near = nearest_others(point_graph(in_range(points), min(NEAR + 1, n)))
        points = with_points_between(points, near).flatten(1, 2)
    return points


def with_points_between(
    points: Float[Tensor, "b n 3"], near: Int[Tensor, "b n k"]
) -> Float[Tensor, "b n k_1 3"]:
    """Return each point, and behind it one on the line to each of its near ones.

    It divides the line as the room that the two ends have, their distances from the farthest of
    their near ones. (At the middle it would be as far from the one as from the other, and which is
    farther would be left to rounding.)
    """
    there, here, scaled = gather(points, near), points.unsqueeze(2), in_range(points)
    room = (gather(scaled, near) - scaled.unsqueeze(2)).norm(dim=-1).amax(2, keepdim=True)
    room_there = gather(room, near).squeeze(-1)
    total = room + room_there
    share = torch.where(total > 0, room / total, 0.5).unsqueeze(-1)
    return torch.cat([here, (1 - share) * here + share * there], dim=2)


def choose_farthest(points: Float[Tensor, "b n 3"], count: int) -> Float[Tensor, "b m 3"]:
    """Return ``count`` points of each cloud, each the farthest from those before."""
    chosen = farthest(in_range(points), count)
    return points.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 3))


@torch.no_grad()
def evened(data: CloudSet, count: int, device: torch.device | str = "cpu") -> CloudSet:
    """Return the clouds of a set evened out and normalised.

    What belongs to single points is left behind.

    Args:
        data: the set.
        count: points of each cloud.
        device: where to compute.
    """
    clouds = [even_points(some.to(device), count).cpu() for some in data.points.split(CHUNK)]
    result = data.with_points(normalize(torch.cat(clouds)))
    return replace(result, given_checksum=data.source)
