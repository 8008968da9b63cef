"""Scenes cut into spheres: every point is in some, however the scene is turned."""

import numpy as np
import pytest
import torch

from locotrans.data.spheres import cover
from locotrans.geometry import random_rotations


def scene(n=3000, seed=0):
    return np.random.default_rng(seed).uniform((0, 0, 0), (5, 4, 2.5), (n, 3))


def turned(points, seed=0):
    R = random_rotations(generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return points @ R.numpy().T + [20.0, -3.0, 7.0]


@pytest.mark.parametrize("turns", [1, 3])
def test_every_point_has_its_turns_and_lies_in_its_sphere(turns):
    points = scene()
    had = np.zeros(len(points), int)
    for block in cover(points, 1.0, 200, turns=turns):
        assert block.center in block.rows
        assert len(set(block.rows.tolist())) == len(block.rows) <= 200
        distance = np.linalg.norm(points[block.rows] - points[block.center], axis=1)
        assert distance.max() <= 1.0 + 1e-5
        had[block.rows] += 1
        assert block.done == np.minimum(had, turns).sum()
    assert had.min() >= turns


def test_a_turned_scene_is_cut_the_same_way():
    points = scene()
    here, there = list(cover(points, 1.0, 128)), list(cover(turned(points), 1.0, 128))
    assert len(here) == len(there) > 10
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(here, there, strict=True))
    stretched = list(cover(points * [2, 1, 1], 1.0, 128))  # the check can fail
    assert [b.rows.tolist() for b in stretched] != [b.rows.tolist() for b in here]


def test_ties_of_a_regular_grid_are_not_parted_by_rounding():
    axis = np.arange(12) * 0.1
    points = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    here, there = list(cover(points, 0.3, 400)), list(cover(turned(points), 0.3, 400))
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(here, there, strict=True))


def test_lonely_points_are_given_company():
    points = np.concatenate([scene(500), [[50.0, 50, 50]]])
    blocks = [b for b in cover(points, 1.0, 64, least=20) if 500 in b.rows]
    assert len(blocks[0].rows) == 20


def test_impossible_blocks():
    points = scene(30)
    with pytest.raises(
        ValueError, match="scene of 30 points, in blocks of 64, gives no block of 5"
    ):
        next(cover(points, 1.0, 64, least=50))
    with pytest.raises(ValueError, match="radius and size must be positive"):
        next(cover(points, 0.0, 64))
