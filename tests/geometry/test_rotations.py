import math

import pytest
import roma
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from locotrans.geometry import (
    AXES,
    axis_rotation,
    quaternion_to_matrix,
    random_axis_rotations,
    random_rotations,
    rotation_angle,
    rotation_axis,
)

SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
SEEDS = st.integers(0, 2**32 - 1)
IDENTITY = torch.eye(3, dtype=torch.float64)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def many():
    return random_rotations(100_000, generator=seeded(0), dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, seed=SEEDS, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_rotations_of_any_shape_are_rotations(shape, seed, dtype):
    uniform = random_rotations(*shape, generator=seeded(seed), dtype=dtype)
    about = random_axis_rotations(*shape, axis="y", generator=seeded(seed), dtype=dtype)
    for R in (uniform, about):
        assert R.shape == (*shape, 3, 3)
        assert R.dtype == dtype
        tolerance = 1e-14 if dtype == torch.float64 else 2e-6
        assert (R @ R.mT - IDENTITY.to(dtype)).abs().max() < tolerance
        assert (torch.linalg.det(R) - 1).abs().max() < tolerance


def test_same_seed_same_rotations():
    assert torch.equal(
        random_rotations(5, generator=seeded(3)), random_rotations(5, generator=seeded(3))
    )
    assert not torch.equal(
        random_rotations(5, generator=seeded(3)), random_rotations(5, generator=seeded(4))
    )


def test_moments_of_the_haar_measure(many):
    # five standard errors of 100,000 draws; E[R_ij R_kl] vanishes unless (i, j) = (k, l)
    entries = many.flatten(1)
    assert entries.mean(0).abs().max() < 5 / math.sqrt(3 * 1e5)
    second = entries.mT @ entries / len(entries)
    expected = torch.eye(9, dtype=torch.float64) / 3
    assert (second - expected).abs().max() < 5 * 0.3 / math.sqrt(1e5)
    # E[R_11 R_22 R_33] is 1/6 and E[R_ij^4] is 1/5 for the Haar measure
    assert many.diagonal(dim1=-2, dim2=-1).prod(-1).mean().item() == pytest.approx(1 / 6, abs=5e-3)
    assert (many**4).mean().item() == pytest.approx(1 / 5, abs=2e-3)


def test_angles_have_density_one_minus_cosine(many):
    angle = rotation_angle(many).sort().values
    observed = torch.arange(1, len(angle) + 1, dtype=torch.float64) / len(angle)
    expected = (angle - angle.sin()) / math.pi
    assert (observed - expected).abs().max() < 1.95 / math.sqrt(len(angle))  # Kolmogorov, p = 0.001


def test_uniform_euler_angles_would_fail_the_haar_tests():
    angles = 2 * math.pi * torch.rand(3, 100_000, generator=seeded(0), dtype=torch.float64)
    R = (
        axis_rotation("z", angles[0])
        @ axis_rotation("y", angles[1])
        @ axis_rotation("z", angles[2])
    )
    assert abs(R[:, 2, 2].square().mean().item() - 1 / 3) > 0.1


@pytest.mark.parametrize("axis", AXES)
def test_axis_rotations_keep_the_axis_and_fill_the_circle(axis):
    R = random_axis_rotations(20_000, axis=axis, generator=seeded(1), dtype=torch.float64)
    i = AXES.index(axis)
    assert torch.equal(R[:, i], IDENTITY[i].expand(20_000, 3))
    assert torch.equal(R[..., i], IDENTITY[i].expand(20_000, 3))
    j, k = (i + 1) % 3, (i + 2) % 3
    turn = torch.atan2(R[:, k, j], R[:, j, j])
    for order in (1, 2, 3):
        assert (order * turn).cos().mean().abs() < 5 / math.sqrt(2 * 20_000)
        assert (order * turn).sin().mean().abs() < 5 / math.sqrt(2 * 20_000)


@settings(max_examples=30, deadline=None)
@given(axis=st.sampled_from(AXES), angle=st.floats(-10, 10))
def test_axis_rotation_against_roma(axis, angle):
    assume(angle == 0 or abs(angle) > 1e-6)  # the cosine of less is 1 to roma
    unit = IDENTITY[AXES.index(axis)]
    expected = roma.rotvec_to_rotmat(angle * unit)
    ours = axis_rotation(axis, torch.tensor(angle, dtype=torch.float64))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-14)


def test_a_quarter_turn_about_z_takes_x_to_y():
    R = axis_rotation("z", torch.tensor(math.pi / 2, dtype=torch.float64))
    torch.testing.assert_close(R @ IDENTITY[0], IDENTITY[1])


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, seed=SEEDS, size=st.floats(0.01, 100))
def test_quaternions_against_roma(shape, seed, size):
    q = torch.randn(*shape, 4, generator=seeded(seed), dtype=torch.float64)
    wxyz_to_xyzw = roma.quat_normalize(q[..., [1, 2, 3, 0]])
    expected = roma.unitquat_to_rotmat(wxyz_to_xyzw)
    torch.testing.assert_close(quaternion_to_matrix(size * q), expected, rtol=0, atol=1e-14)


@settings(max_examples=50, deadline=None)
@given(
    seed=SEEDS,
    angle=st.one_of(st.floats(0, math.pi), st.sampled_from([0.0, 1e-9, math.pi - 1e-9, math.pi])),
)
def test_angle_is_exact_at_both_ends(seed, angle):
    axis = torch.randn(3, generator=seeded(seed), dtype=torch.float64)
    R = roma.rotvec_to_rotmat(angle * axis / axis.norm())
    assert rotation_angle(R).item() == pytest.approx(angle, abs=1e-14)


def test_unknown_axis():
    with pytest.raises(ValueError, match="axis must be one of x, y, z, got 'w'"):
        axis_rotation.__wrapped__("w", torch.tensor(0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_axes_of_rotations_by_any_angle(dtype):
    axis = torch.nn.functional.normalize(torch.tensor([1.0, 2.0, 3.0], dtype=dtype), dim=0)
    for angle in (1e-6, 1e-3, 0.5, 1.5, 1.6, 3.0, 3.1415):
        half = torch.tensor(angle / 2, dtype=dtype)
        R = quaternion_to_matrix(torch.cat([half.cos()[None], axis * half.sin()]))
        error = (rotation_axis(R) - axis).abs().max()
        assert error < (2e-6 if dtype == torch.float32 else 1e-9)


def test_an_angle_that_is_a_whole_number(without_shape_checks):
    assert torch.equal(axis_rotation("z", torch.tensor(1)), axis_rotation("z", torch.tensor(1.0)))
