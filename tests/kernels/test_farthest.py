"""Farthest points by a program on the GPU and by loops on the CPU, against the plain code."""

import pytest
import torch

from locotrans.geometry.neighbors import farthest_points
from locotrans.nn.graph import farthest as chosen

LANES = 512  # of the loops


@pytest.fixture(params=["program", "loops"])
def farthest(request, device):
    if request.param == "loops":
        pytest.importorskip("numba", reason="Numba is not installed")
        from locotrans.kernels.farthest_loops import farthest

        return farthest
    pytest.importorskip("triton", reason="Triton is not installed")
    from locotrans.kernels.farthest import farthest

    return lambda points, m: farthest(points.to(device), m).cpu()


@pytest.mark.parametrize(
    ("n", "m"), [(1, 1), (2, 2), (31, 31), (64, 20), (LANES, 9), (LANES + 1, 30), (1100, 40)]
)
def test_the_points_are_those_of_the_plain_code(farthest, generator, n, m):
    points = torch.randn(3, n, 3, generator=generator)
    assert torch.equal(farthest(points, m), farthest_points(points, m))
    far = points * 1e-15 + 1e-12
    assert torch.equal(farthest(far, m), farthest_points(far, m))


@pytest.mark.parametrize("places", [1, 2, 7])
def test_a_cloud_of_few_places_is_gone_through_again(farthest, generator, places):
    few = torch.randn(2, places, 3, generator=generator)
    points = few[:, torch.randint(places, (40,), generator=generator)]
    points[:, :places] = few
    order = farthest(points, 3 * places + 1)
    assert torch.equal(order, farthest_points(points, 3 * places + 1))
    assert all(len(set(row[:places].tolist())) == places for row in order)
    assert torch.equal(order[:, places:], order[:, : 2 * places + 1])


def test_of_those_that_tie_the_first_is_chosen(farthest):
    side = torch.arange(9.0)
    grid = torch.cartesian_prod(side, side, side)[None]  # 729 points, more than lanes
    assert torch.equal(farthest(grid, 100), farthest_points(grid, 100))


def test_clouds_are_shared_out_among_threads(generator):
    points = torch.randn(600, 40, 3, generator=generator)
    plain = farthest_points(points, 10)
    with torch.no_grad():
        assert torch.equal(chosen(points, 10), plain)
        torch.set_num_threads(2)
        try:
            assert torch.equal(chosen(points, 10), plain)
        finally:
            torch.set_num_threads(1)
        assert torch.equal(chosen(points.double(), 10), farthest_points(points.double(), 10))


@pytest.mark.gpu
def test_clouds_of_any_size_on_a_gpu(generator):
    from locotrans.kernels.farthest import MOST

    for n in (7168, MOST, MOST + 1):
        points = torch.randn(4, n, 3, generator=generator)
        assert torch.equal(chosen(points.cuda(), 1024).cpu(), farthest_points(points, 1024))
