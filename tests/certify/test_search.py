"""The search enters every ball of the radius it names, and climbs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from locotrans.certify.search import (
    covering_radius,
    cube_rotations,
    divisions_for,
    rotation_grid,
    search_rotations,
)
from locotrans.geometry import quaternion_to_matrix, random_rotations, rotation_angle


def to_nearest(R, grid):
    """Return the angle in degrees from each rotation to the nearest of a grid."""
    trace = torch.einsum("rij,gij->rg", R, grid).amax(1)
    return torch.rad2deg(((trace - 1) / 2).clamp(-1, 1).acos())


@pytest.mark.parametrize("divisions", [1, 2, 3, 8])
def test_no_rotation_is_farther_than_the_covering_radius(divisions, generator):
    grid = rotation_grid(divisions)
    assert len(grid) == 4 * divisions**3
    R = random_rotations(20_000, generator=generator, dtype=torch.float64)
    far = to_nearest(R, grid).max().item()
    radius = covering_radius(divisions)
    assert far <= radius + 1e-6
    assert far > 0.8 * radius  # it does not promise less than it keeps


def test_a_corner_of_a_cell_is_at_the_covering_radius():
    # the four quaternions (1, 0, 0, 0), ... leave (1, 1, 1, 1) at 120 degrees from each
    corner = quaternion_to_matrix(torch.ones(1, 4, dtype=torch.float64))
    assert to_nearest(corner, rotation_grid(1)).item() == pytest.approx(120)
    assert covering_radius(1) == pytest.approx(120)


def test_divisions_are_the_fewest():
    for radius in (120.0, 70.0, 20.0, 10.0):
        m = divisions_for(radius)
        assert covering_radius(m) <= radius
        assert m == 1 or covering_radius(m - 1) > radius
    for radius in (0.1, -1.0, 200.0, math.nan):
        with pytest.raises(ValueError, match="radius must be from"):
            divisions_for(radius)


def test_cube_rotations():
    R = cube_rotations()
    assert len(torch.unique(R, dim=0)) == 24
    assert torch.equal(torch.linalg.det(R), torch.ones(24, dtype=torch.float64))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(lambda q: sum(map(abs, q)) > 0.1))
def test_a_weakness_as_wide_as_promised_is_found_wherever_it_lies(q):
    center = quaternion_to_matrix(torch.tensor(q, dtype=torch.float64))

    def errors(R):
        return (rotation_angle(R @ center.mT) < math.radians(72)).double()

    search = search_rotations(errors, 72.0)
    assert search.radius <= 72
    assert search.worst[1] == 1
    assert rotation_angle(search.worst[0] @ center.mT) < math.radians(72)


def test_the_climb_finds_the_top_of_a_slope():
    center = random_rotations(dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def errors(R):
        return -rotation_angle(R @ center.mT)

    search = search_rotations(errors, 30.0)
    assert math.degrees(rotation_angle(search.worst[0] @ center.mT)) < 1.5
    assert len(search.rotations) == len(search.errors)


def test_what_is_not_a_number_is_the_worst():
    def errors(R):
        return torch.where(rotation_angle(R) > 2.9, torch.nan, 0.0)

    assert search_rotations(errors, 60.0).worst[1] == math.inf
