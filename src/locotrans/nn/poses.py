"""The relative pose of an edge, that of a neighbour as its reference point sees it (Tab. 6)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry.neighbors import gather
from locotrans.geometry.vectors import safe_length, safe_normalize
from locotrans.nn.lcrf import to_frame


def equivariant_pose(
    v: Float[Tensor, "b n 3 c"],
    neighbors: Int[Tensor, "b n k"],
    frames: Float[Tensor, "b n 3 3"],
) -> Float[Tensor, "b n k c3"]:
    """Return the relative pose ``F = U_r^T (v_j - v_r)`` of every edge (Eq. 17).

    With coordinates as the only channel, (b, n, 3, 1), it is the "coordinate" pose of Tab. 6.
    """
    return to_frame(frames, gather(v, neighbors) - v.unsqueeze(2))


def point_pair_pose(
    points: Float[Tensor, "b n 3"],
    neighbors: Int[Tensor, "b n k"],
    frames: Float[Tensor, "b n 3 3"],
) -> Float[Tensor, "b n k 4"]:
    """Return distance and angles of every point pair, the hand-crafted pose of Tab. 6.

    The length of ``p_j - p_r``, and the cosines between it and the first axes of both frames, and
    between those axes.
    """
    edges = gather(points, neighbors) - points.unsqueeze(2)
    direction = safe_normalize(edges)
    axis_r = frames[..., 0].unsqueeze(2)  # (b, n, 1, 3)
    axis_j = gather(frames[..., 0], neighbors)
    cosines = [(axis_r * direction), (axis_j * direction), (axis_r * axis_j)]
    return torch.cat([safe_length(edges), *(c.sum(-1, keepdim=True) for c in cosines)], dim=-1)
