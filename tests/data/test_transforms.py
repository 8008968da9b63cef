"""Transforms: ranges, symmetry, explicit generators."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from locotrans.data import (
    drop_points,
    jitter,
    normalize,
    protocol_rotations,
    random_mirror,
    random_order,
    random_scale,
    random_shift,
    rotate,
    shuffle_points,
)
from locotrans.geometry import AXES, random_rotations, rotation_angle


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def points(generator) -> torch.Tensor:
    return torch.randn(6, 40, 3, generator=generator, dtype=torch.float64)


RANDOM = {
    "scale": lambda p, g: random_scale(p, generator=g),
    "shift": lambda p, g: random_shift(p, generator=g),
    "mirror": lambda p, g: random_mirror(p, "y", generator=g),
    "jitter": lambda p, g: jitter(p, generator=g),
    "shuffle": lambda p, g: shuffle_points(p, generator=g),
    "drop": lambda p, g: drop_points(p, 10, generator=g),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_transforms_depend_on_their_generator_alone(points, name, dtype):
    points = points.to(dtype)
    before, state = points.clone(), torch.get_rng_state()
    first = RANDOM[name](points, seeded(1))
    assert torch.equal(first, RANDOM[name](points, seeded(1)))
    assert not torch.equal(first, RANDOM[name](points, seeded(2)))
    assert torch.equal(points, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.dtype == dtype


@hypothesis.given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(-100, 100))
@hypothesis.settings(deadline=None, max_examples=30)
def test_normalize_removes_place_and_size_and_turns_along(seed, scale, shift):
    cloud = torch.randn(2, 20, 3, generator=seeded(seed), dtype=torch.float64)
    R = random_rotations(2, generator=seeded(seed), dtype=torch.float64)
    unit = normalize(cloud)
    assert unit.mean(1).abs().max() < 1e-14
    torch.testing.assert_close(unit.norm(dim=-1).amax(1), torch.ones(2, dtype=torch.float64))
    moved = rotate(scale * cloud, R) + shift
    torch.testing.assert_close(normalize(moved), rotate(unit, R), atol=1e-10, rtol=0)


def test_normalize_of_equal_points_is_zero_with_a_finite_gradient():
    cloud = torch.full((1, 8, 3), 7.3, requires_grad=True)
    unit = normalize(cloud)
    assert torch.equal(unit, torch.zeros(1, 8, 3))
    unit.sum().backward()
    assert cloud.grad.isfinite().all()


def test_rotate_acts_from_the_left(points):
    R = random_rotations(6, generator=seeded(), dtype=torch.float64)
    torch.testing.assert_close(rotate(points, R)[3, 5], R[3] @ points[3, 5])


def test_rotate_keeps_all_digits_under_autocast(points):
    points = points.float()
    R = random_rotations(6, generator=seeded())
    with torch.autocast("cpu", torch.bfloat16):
        turned = rotate(points, R)
    torch.testing.assert_close(turned, rotate(points, R), rtol=0, atol=0)


def test_scale_is_within_bounds_and_differs_by_axis_and_cloud():
    ones = torch.ones(500, 2, 3)
    factors = random_scale(ones, 0.5, 2.0, generator=seeded())
    assert torch.equal(factors[:, 0], factors[:, 1])  # one factor for the whole cloud
    assert factors.min() >= 0.5
    assert factors.max() <= 2.0
    assert factors.amin(0).max() < 0.6
    assert factors.amax(0).min() > 1.9
    assert torch.corrcoef(factors[:, 0].T).fill_diagonal_(0).abs().max() < 0.2


def test_shift_is_within_bounds_and_differs_by_axis_and_cloud():
    offsets = random_shift(torch.zeros(500, 2, 3), 0.3, generator=seeded())
    assert torch.equal(offsets[:, 0], offsets[:, 1])
    assert offsets.abs().max() <= 0.3
    assert offsets.amin(0).max() < -0.25
    assert offsets.amax(0).min() > 0.25
    assert torch.corrcoef(offsets[:, 0].T).fill_diagonal_(0).abs().max() < 0.2


@pytest.mark.parametrize("up", AXES)
def test_half_of_the_clouds_are_mirrored_across_the_up_axis(up):
    signs = random_mirror(torch.ones(1000, 2, 3), up, generator=seeded())
    assert torch.equal(signs[:, 0], signs[:, 1])
    assert (signs[..., AXES.index(up)] == 1).all()
    mirrored = signs[:, 0].prod(-1)
    assert torch.equal(mirrored.abs(), torch.ones(1000))
    assert abs(mirrored.mean()) < 0.1


def test_jitter_has_its_deviation_and_its_limit():
    noise = jitter(torch.zeros(50, 100, 3), 0.01, 0.02, generator=seeded())
    assert noise.abs().max() == pytest.approx(0.02)
    assert noise.std().item() == pytest.approx(0.0096, rel=0.01)  # 0.01 cut off at two deviations


def test_order_is_a_permutation_of_its_own_for_each_cloud():
    order = random_order(50, 30, generator=seeded())
    assert torch.equal(order.sort(-1).values, torch.arange(30).expand(50, 30))
    assert len(order.unique(dim=0)) == 50


def test_shuffle_keeps_the_points_and_what_is_joined_to_them(points):
    joined = torch.cat([points, 2 * points], dim=-1)
    mixed = shuffle_points(joined, generator=seeded())
    assert torch.equal(mixed[..., 3:], 2 * mixed[..., :3])
    assert not torch.equal(mixed, joined)
    assert torch.equal(mixed[..., 0].sort(-1).values, points[..., 0].sort(-1).values)


def test_drop_leaves_distinct_points_of_the_cloud(points):
    left = drop_points(points, 15, generator=seeded())
    assert left.shape == (6, 25, 3)
    hits = (left[:, :, None] == points[:, None]).all(-1)
    assert (hits.sum(-1) == 1).all()
    assert (hits.sum(1) <= 1).all()


@pytest.mark.parametrize("up", AXES)
def test_protocol_z_turns_about_the_up_axis_whatever_its_letter(up):
    R = protocol_rotations("z", up, 200, generator=seeded(), dtype=torch.float64)
    axis = torch.eye(3, dtype=torch.float64)[AXES.index(up)]
    torch.testing.assert_close(R @ axis, axis.expand(200, 3))
    assert rotation_angle(R).max() > 3
    assert rotation_angle(R).min() < 0.1


def test_protocol_so3_moves_every_axis_and_takes_any_shape():
    R = protocol_rotations("so3", "z", 100, 4, generator=seeded(), dtype=torch.float64)
    assert R.shape == (100, 4, 3, 3)
    torch.testing.assert_close(R @ R.mT, torch.eye(3, dtype=torch.float64).expand_as(R))
    assert R.mean((0, 1)).abs().max() < 0.1
    assert R.diagonal(dim1=-2, dim2=-1).amin((0, 1)).max() < -0.9


def test_protocol_none_gives_identities_and_draws_nothing():
    g = seeded()
    state = g.get_state()
    R = protocol_rotations("none", "z", 3, generator=g)
    assert torch.equal(R, torch.eye(3).expand(3, 3, 3))
    assert torch.equal(g.get_state(), state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: random_scale(p, 2.0, 1.0, generator=seeded()), "0 < low <= high"),
        (lambda p: random_scale(p, 0.0, 1.0, generator=seeded()), "0 < low <= high"),
        (lambda p: random_shift(p, -1.0, generator=seeded()), "negative"),
        (lambda p: jitter(p, -0.1, generator=seeded()), "negative"),
        (lambda p: drop_points(p, 40, generator=seeded()), "can drop 0 to 39 of 40"),
        (lambda p: drop_points(p, -1, generator=seeded()), "can drop 0 to 39 of 40"),
    ],
)
def test_bad_arguments_are_refused(points, call, message):
    with pytest.raises(ValueError, match=message):
        call(points)


@pytest.mark.parametrize("exponent", [-120, -100, 20, 100, 120])
def test_normalize_gives_the_same_bits_in_any_unit(exponent):
    cloud = torch.randn(3, 50, 3, generator=seeded()) + 2
    assert torch.equal(normalize(cloud * 2.0**exponent), normalize(cloud))
    centered = cloud - cloud.mean(-2, keepdim=True)
    centered = centered - centered.mean(-2, keepdim=True)
    plain = centered / centered.norm(dim=-1, keepdim=True).amax(-2, keepdim=True)
    assert torch.allclose(normalize(cloud), plain, rtol=1e-6, atol=1e-7)
