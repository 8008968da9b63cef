"""Clouds of too few points are filled up with points between their own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from locotrans.data.filling import fill_points
from locotrans.geometry import random_rotations
from moved import lie_between, steps_along_lines


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def cloud(size, seed=0, dtype=torch.float64):
    return torch.randn(size, 3, generator=seeded(seed), dtype=dtype)


@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 9))
def test_the_points_stay_and_others_lie_on_lines_between_near_ones(size, count, seed):
    points = cloud(size, seed)
    filled = fill_points(points, count, generator=seeded(seed))
    assert filled.shape == (max(size, count), 3)
    while len(filled) > size:  # undo the last doubling
        half = size
        while 2 * half < len(filled):
            half *= 2
        before, copies = filled[:half], filled[half:]
        assert lie_between(before, copies, torch.arange(len(copies)))
        filled = before
    assert (filled[:size] == points[: len(filled)]).all()


def test_copies_go_both_ways_to_all_three_and_are_all_different():
    points = cloud(500)
    copies = fill_points(points, 1000, generator=seeded())[500:]
    steps, off = steps_along_lines(points, copies, torch.arange(500))
    which = off.argmin(-1)
    assert (which.bincount(minlength=3) > 100).all()
    steps = steps.gather(1, which[:, None])
    assert 0.4 < (steps > 0).double().mean() < 0.6
    assert steps.abs().max() > 0.45
    assert len(copies.unique(dim=0)) == 500


def test_a_turned_cloud_is_filled_up_as_the_cloud_is_even_if_neighbours_tie():
    R = random_rotations(generator=seeded(1), dtype=torch.float32)
    axis = torch.arange(12.0) / 12
    grid = torch.cartesian_prod(axis, axis, torch.tensor([0.0, 1.0]))
    for points in (cloud(300, dtype=torch.float32), grid):
        plain, turned = (fill_points(x, 700, generator=seeded()) for x in (points, points @ R.mT))
        torch.testing.assert_close(turned, plain @ R.mT, rtol=0, atol=1e-5)


def test_degenerate_clouds():
    with pytest.raises(ValueError, match="without points"):
        fill_points(torch.zeros(0, 3), 5, generator=seeded())
    one = fill_points(torch.ones(1, 3), 5, generator=seeded())
    assert (one == 1).all()
    same = fill_points(torch.ones(9, 3), 20, generator=seeded())
    assert (same == 1).all()
    two = fill_points(torch.tensor([[0.0, 0, 0], [1, 0, 0]]), 4, generator=seeded())
    assert two[2:, 1:].abs().max() == 0
    assert (two[2:, 0] != two[:2, 0]).all()


@pytest.mark.parametrize("unit", [2.0**-90, 2.0**90])
def test_units_do_not_matter(unit):
    points = cloud(100, dtype=torch.float32)
    plain, scaled = (fill_points(x, 150, generator=seeded()) for x in (points, unit * points))
    assert torch.equal(scaled, unit * plain)
