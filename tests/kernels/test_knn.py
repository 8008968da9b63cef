"""The fused kNN against `locotrans.geometry.neighbors`."""

import pytest
import torch

from locotrans.geometry.neighbors import knn, knn_features

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels import knn as kernel


@pytest.fixture(autouse=True)
def wide_programs(device, monkeypatch):
    if device == "cpu":  # the interpreter takes one program at a time
        monkeypatch.setattr(kernel, "ROWS", 16)


def same_sets(a, b):
    return torch.equal(a.sort(-1).values, b.sort(-1).values)


def fused(x, k, coordinates, device):
    x = x.to(device)
    x = x if coordinates else x - x.mean(-2, keepdim=True)
    return kernel.nearest(x, k, coordinates=coordinates).cpu()


@pytest.mark.parametrize("columns", [1024, 16], ids=["one block", "several blocks"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (19, 5), (24, 20)])
def test_selects_what_the_plain_code_selects(n, k, columns, device, monkeypatch, generator):
    monkeypatch.setattr(kernel, "COLUMNS", columns)
    b = 1 if k > 5 else 2
    x = torch.randn(b, n, 3, generator=generator)
    assert same_sets(fused(x, k, True, device), knn(x, k))
    f = torch.randn(b, n, 37, generator=generator)
    assert same_sets(fused(f, k, False, device), knn_features(f, k))


@pytest.mark.parametrize("columns", [1024, 16], ids=["one block", "several blocks"])
def test_ties_go_to_the_lowest_index(columns, device, monkeypatch):
    monkeypatch.setattr(kernel, "COLUMNS", columns)
    r = torch.arange(3.0) - 1
    grid = torch.stack(torch.meshgrid(r, r, r, indexing="ij"), -1).reshape(1, -1, 3)
    assert same_sets(fused(grid, 9, True, device), knn(grid, 9))
    assert same_sets(fused(grid, 9, False, device), knn_features(grid, 9))


def test_many_neighbors(device, generator):
    x = torch.randn(1, 70, 3, generator=generator)
    assert same_sets(fused(x, 64, True, device), knn(x, 64))


def test_more_candidates_than_slots(device, generator):
    x = torch.randn(1, 5, 3, generator=generator).repeat(1, 14, 1)
    assert same_sets(fused(x, 7, True, device), knn(x, 7))
    equal = torch.zeros(1, 70, 4)
    assert (fused(equal, 7, False, device) == torch.arange(7)).all()


def test_duplicated_points_are_all_found(device, generator):
    x = torch.randn(1, 12, 3, generator=generator).repeat(1, 3, 1)
    assert same_sets(fused(x, 7, True, device), knn(x, 7))
