"""Clouds are evened out: farthest points among a cloud's own and others between near ones."""

import pytest
import torch
from torch.nn import functional as F

from locotrans.data import CloudSet
from locotrans.geometry import random_rotations
from locotrans.geometry.neighbors import farthest_points, knn
from locotrans.training.evening import even_points, evened


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def spheres(size, seed=0, count=1):
    """Random points of spheres, uniform by area."""
    noise = torch.randn(count, size, 3, generator=seeded(seed), dtype=torch.float64)
    return F.normalize(noise, dim=-1)


def nearest_distances(cloud):
    distances = torch.cdist(cloud, cloud)
    distances.fill_diagonal_(torch.inf)
    return distances.amin(-1)


def unevenness(cloud):
    gaps = nearest_distances(cloud)
    return gaps.std() / gaps.mean()


def candidates_of(cloud):
    """All points of a cloud, and those between them and their six nearest."""
    near = knn(cloud, min(7, len(cloud)))
    room = torch.cdist(cloud, cloud).gather(1, near).amax(-1)
    between = [
        (room[j] * cloud[i] + room[i] * cloud[j]) / (room[i] + room[j])
        for i, row in enumerate(near)
        for j in row
        if j != i
    ]
    return torch.cat([cloud, torch.stack(between)])


def test_a_cloud_becomes_farthest_points_of_its_own_and_others_between():
    (cloud,) = spheres(100)
    (result,) = even_points(cloud[None], 100)
    candidates = candidates_of(cloud)
    torch.testing.assert_close(result, candidates[farthest_points(candidates, 100)])
    assert (torch.cdist(result, cloud).amin(-1) > 1e-6).sum() > 30  # which are not its own
    (many,) = spheres(300)
    chosen = even_points(many[None], 100)[0]  # enough of its own
    assert torch.equal(chosen, many[farthest_points(many, 100)])
    few = even_points(cloud[None, :20], 100)[0]  # others between these, again
    assert len(few.unique(dim=0)) == 100


def test_points_are_even_on_the_surface_however_they_were_sampled():
    random = spheres(400)[0]
    dense = spheres(4000)[0]
    samples = [random, random[:200], dense, dense[farthest_points(dense, 400)]]
    lot = torch.rand(4000, generator=seeded(1))
    samples.append(dense[lot < 0.1 + 0.9 * (dense[:, 2] > 0)])  # one half ten times as dense
    for cloud in samples:
        (result,) = even_points(cloud[None], 400)
        assert unevenness(result) < 0.3
        assert 0.96 < result.norm(dim=-1).mean() <= 1
    assert unevenness(random) > 0.4  # the twin


def test_neither_pose_nor_order_nor_unit_matters():
    clouds = spheres(60, count=2).float()
    plain = even_points(clouds, 90)
    R = random_rotations(2, generator=seeded(1), dtype=torch.float32)
    turned = even_points(clouds @ R.mT, 90)
    torch.testing.assert_close(turned, plain @ R.mT, rtol=0, atol=1e-5)
    order = torch.randperm(60, generator=seeded(2))
    torch.testing.assert_close(even_points(clouds[:, order], 90), plain, rtol=0, atol=1e-6)
    many = spheres(40, count=30).float()  # others between others
    for shuffled in (many[:, torch.randperm(40, generator=seeded(3))], many.flip(1)):
        torch.testing.assert_close(even_points(shuffled, 300), even_points(many, 300))
    for unit in (2.0**-90, 2.0**90):
        assert torch.equal(even_points(unit * clouds, 90), unit * plain)
    assert torch.equal(even_points(clouds[1:], 90), plain[1:])  # whatever is beside it


def test_degenerate_clouds():
    with pytest.raises(ValueError, match="without points"):
        even_points(torch.zeros(1, 0, 3), 5)
    assert torch.equal(even_points(torch.ones(2, 1, 3), 5), torch.ones(2, 5, 3))
    assert torch.equal(even_points(torch.ones(1, 9, 3), 20), torch.ones(1, 20, 3))
    ends = torch.tensor([[[0.0, 0, 0], [8, 0, 0]]])
    places = even_points(ends, 3)[0, :, 0]
    assert places.sort().values.tolist() == [0, 4, 8]


def test_a_set_is_evened_out_and_normalised_and_names_the_set_that_was_given():
    points = spheres(30, count=3).float() * 0.5 + 2
    data = CloudSet("stub", "test", "z", points, torch.tensor([0, 1, 0]), ("a", "b"))
    result = evened(data, 40)
    assert result.points.shape == (3, 40, 3)
    assert result.points.mean(1).abs().max() < 1e-5
    torch.testing.assert_close(result.points.norm(dim=-1).amax(-1), torch.ones(3))
    assert result.given_checksum == data.checksum != result.checksum
    assert evened(result, 40).given_checksum == data.checksum
    assert torch.equal(result.labels, data.labels)
    assert (result.name, result.split, result.up) == ("stub", "test", "z")


@pytest.mark.gpu
def test_a_gpu_chooses_the_same_points():
    clouds = spheres(200, count=5).float()
    torch.testing.assert_close(even_points(clouds.cuda(), 200).cpu(), even_points(clouds, 200))
