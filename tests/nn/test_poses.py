"""The relative poses of edges."""

import pytest
import torch

from drawing import B, K, N, draw
from locotrans.geometry import random_rotations
from locotrans.nn import equivariant_pose, point_pair_pose


def test_equivariant_pose_edge_by_edge(neighbors, frames):
    v = draw(B, N, 3, 4)
    pose = equivariant_pose(v, neighbors, frames)
    assert pose.shape == (B, N, K, 12)
    for b, r, a in [(0, 0, 0), (1, 5, 2), (0, 3, 1)]:
        expected = frames[b, r].T @ (v[b, neighbors[b, r, a]] - v[b, r])
        torch.testing.assert_close(pose[b, r, a], expected.flatten())


def test_point_pair_pose_by_hand():
    points = torch.tensor([[[0.0, 0, 0], [0, 2, 0]]], dtype=torch.float64)
    frames = torch.eye(3, dtype=torch.float64).expand(1, 2, 3, 3).clone()
    frames[0, 1] = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])  # first axis: y
    pose = point_pair_pose(points, torch.tensor([[[1, 0], [0, 1]]]), frames)
    # distance, angles of the edge (y) with x and with y, angle between x and y
    torch.testing.assert_close(pose[0, 0, 0], torch.tensor([2.0, 0, 1, 0]).double())
    torch.testing.assert_close(pose[0, 0, 1], torch.tensor([0.0, 0, 0, 1]).double())  # to itself
    torch.testing.assert_close(pose[0, 1, 0], torch.tensor([2.0, -1, 0, 0]).double())


@pytest.mark.parametrize("kind", ["equivariant", "handcrafted"])
def test_poses_do_not_change_when_all_turns_along(kind, neighbors, frames):
    R = random_rotations(generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    points, v = draw(B, N, 3), draw(B, N, 3, 4)
    if kind == "equivariant":
        before, after = (
            equivariant_pose(r @ v, neighbors, r @ frames) for r in (torch.eye(3).double(), R)
        )
    else:
        before, after = (
            point_pair_pose(points @ r.mT, neighbors, r @ frames)
            for r in (torch.eye(3).double(), R)
        )
    torch.testing.assert_close(after, before)
