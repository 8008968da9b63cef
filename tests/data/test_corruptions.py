import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from locotrans.data.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    add_outliers,
    corrupt,
    cut_ball,
    cut_half_space,
    fill_removed,
    occlude,
    resample,
    thin_locally,
    thin_out,
    turn,
)
from locotrans.geometry import random_rotations

SPARSER = ("drop", "thin", "density", "ball", "half_space", "occlusion")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def spheres(b=6, n=256):
    """Points on unit spheres, each pair of clouds different."""
    return torch.nn.functional.normalize(torch.randn(b, n, 3, generator=seeded(1)), dim=-1)


def chamfer(a, b):
    d = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    return (d.amin(1).mean() + d.amin(2).mean()).item()


def come_from(points, source):
    """Say whether every point is exactly one of its cloud's."""
    return bool((points[:, :, None] == source[:, None]).all(-1).any(-1).all())


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_shape_values_and_seeds(name, severity):
    points = spheres()
    before = points.clone()
    state = torch.get_rng_state()
    result = corrupt(points, name, severity, generator=seeded())
    kept = 256 - round(0.125 * (severity + 1) * 256) if name == "drop" else 256
    assert result.shape == (6, kept, 3)
    assert result.dtype == points.dtype
    assert result.isfinite().all()
    assert torch.equal(points, before)  # nothing in place
    assert not torch.equal(result, points)
    assert torch.equal(result, corrupt(points, name, severity, generator=seeded()))
    assert not torch.equal(result, corrupt(points, name, severity, generator=seeded(1)))
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is not touched


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_higher_severity_takes_the_cloud_farther_away(name):
    points = spheres(8)
    if name == "rotation":  # a sphere looks the same, and so does half a turn of a flat cloud
        points = points.abs()
    away = [chamfer(points, corrupt(points, name, s, generator=seeded())) for s in (0, *SEVERITIES)]
    assert away[0] == 0
    assert away == sorted(away)
    assert len(set(away)) == 6


@pytest.mark.parametrize("name", SPARSER)
def test_what_is_left_are_points_of_the_cloud_and_severities_are_nested(name):
    points = spheres(2)
    wider = points
    for severity in SEVERITIES:
        result = corrupt(points, name, severity, generator=seeded())
        assert come_from(result, points)
        assert come_from(result, wider)
        wider = result


@pytest.mark.parametrize("name", CORRUPTIONS)
@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 9), severity=st.integers(1, 5), same=st.booleans())
def test_tiny_and_degenerate_clouds(name, n, severity, same):
    points = torch.ones(2, n, 3) if same else torch.randn(2, n, 3, generator=seeded(n))
    result = corrupt(points.double(), name, severity, generator=seeded())
    assert result.isfinite().all()
    assert result.dtype == torch.double
    assert 1 <= result.shape[1] <= n


def test_exact_amounts():
    points = spheres(3, 100)

    def left(result):
        return [len(cloud.unique(dim=0)) for cloud in result]

    assert left(thin_out(points, 0.3, generator=seeded())) == [70] * 3
    assert left(cut_ball(points, 0.25, generator=seeded())) == [75] * 3
    assert left(cut_half_space(points, 0.4, generator=seeded())) == [60] * 3
    assert left(thin_locally(points, 0.5, region=0.2, generator=seeded())) == [90] * 3
    moved = (add_outliers(points, 0.1, generator=seeded()) != points).any(-1)
    assert moved.sum(1).tolist() == [10] * 3


def test_a_ball_and_a_half_space_are_what_is_cut():
    points = spheres(4, 400)
    result = cut_half_space(points, 0.5, generator=seeded())
    assert (result.mean(1).norm(dim=-1) > 0.4).all()  # half a sphere: its mean is at 1/2
    gone = ~(points[:, :, None] == cut_ball(points, 0.1, generator=seeded())[:, None]).all(-1).any(
        2
    )
    for cloud, hole in zip(points, gone, strict=True):
        assert torch.pdist(cloud[hole]).max() < 1.5  # a cap of a tenth is 1.2 across


def test_outliers_fill_the_bounding_sphere():
    points = 0.1 * spheres(2, 4000) + torch.tensor([5.0, 0, 0])
    away = (add_outliers(points, 1.0, generator=seeded()) - points.mean(1, keepdim=True)).norm(
        dim=-1
    )
    assert away.max() < 0.105
    assert abs((away < 0.05).float().mean() - 1 / 8) < 0.02  # uniform in the volume


def test_one_view_hides_the_back_and_many_hide_nothing():
    points = spheres(3, 2000)
    front = occlude(points, 1, generator=seeded())
    assert (front.mean(1).norm(dim=-1) > 0.3).all()
    share = len(front[0].unique(dim=0)) / 2000
    assert 0.25 < share < 0.5  # the half that faces the eye, less its steep rim
    all_round = occlude(points, 12, generator=seeded())
    assert len(all_round[0].unique(dim=0)) > 1980


def test_occlusion_does_not_depend_on_place_and_size():
    points = spheres(2, 500).double()
    moved = occlude(7 * points + 30, generator=seeded())
    torch.testing.assert_close((moved - 30) / 7, occlude(points, generator=seeded()))


def test_turn_is_by_the_angle():
    R = random_rotations(4, generator=seeded(3))
    turned = turn(R, 30.0, generator=seeded())  # rows are points
    cosine = ((R.mT @ turned).diagonal(dim1=1, dim2=2).sum(-1) - 1) / 2
    torch.testing.assert_close(cosine, torch.full((4,), 30.0).deg2rad().cos())


def test_resampling():
    points = spheres(2, 60)
    subset = resample(points, 20, generator=seeded())
    assert come_from(subset, points)
    assert len(subset[0].unique(dim=0)) == 20
    more = resample(points, 150, generator=seeded())
    assert torch.equal(more[:, :60], points)
    assert torch.equal(more[:, 60:120], points)
    assert len(more[0, 120:].unique(dim=0)) == 30
    again = resample(points, 60, "repeat", generator=seeded())
    assert come_from(again, points)
    assert len(again[0].unique(dim=0)) < 60
    spread = resample(points, 20, "farthest", generator=seeded())
    assert torch.pdist(spread[0]).min() > 1.5 * torch.pdist(subset[0]).min()
    assert resample(points, 100, "farthest", generator=seeded()).shape == (2, 100, 3)


def test_filling_keeps_what_is_kept_in_its_place():
    points = spheres(2, 10)
    kept = torch.arange(10).expand(2, 10) % 3 == 0
    result = fill_removed(points, kept, generator=seeded())
    assert torch.equal(result[kept], points[kept])
    assert come_from(result, points[:, ::3])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            lambda g: corrupt(spheres(), "rain", 1, generator=g),
            "no corruption 'rain'; there",
        ),
        (lambda g: corrupt(spheres(), "ball", 6, generator=g), "from 0 to 5, got 6"),
        (lambda g: thin_out(spheres(), 1.5, generator=g), "from 0 to 1, got 1.5"),
        (lambda g: occlude(spheres(), 0, generator=g), "at least 1 direction"),
        (lambda g: resample(spheres(), 0, generator=g), "at least 1 point"),
    ],
)
def test_bad_arguments(call, reason):
    with pytest.raises(ValueError, match=reason):
        call(seeded())
