"""The fused kNN against `locotrans.geometry.neighbors`."""

import pytest
import torch

from locotrans.geometry.neighbors import knn, knn_features

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels import knn as kernel
from locotrans.kernels.knn_features import (
    RELATIVE,
    feature_centers,
    feature_distances,
    feature_factors,
)


@pytest.fixture(autouse=True)
def wide_programs(device, monkeypatch):
    if device == "cpu":  # the interpreter takes one program, and one round, at a time
        monkeypatch.setattr(kernel, "ROWS", 16)
        monkeypatch.setattr(kernel, "ROUNDS", 3)


def same_sets(a, b):
    return torch.equal(a.long().sort(-1).values, b.sort(-1).values)


def fused(x, k, coordinates, device):
    return kernel.nearest(x.to(device), k, coordinates=coordinates).cpu()


@pytest.mark.parametrize(
    ("n", "k", "columns"), [(1, 1, 1024), (3, 2, 1024), (12, 5, 1024), (19, 5, 16), (18, 15, 16)]
)
def test_selects_what_the_plain_code_selects(n, k, columns, device, monkeypatch, generator):
    monkeypatch.setattr(kernel, "COLUMNS", columns)
    b = 2 if n < 5 else 1
    x = torch.randn(b, n, 3, generator=generator)
    assert same_sets(fused(x, k, True, device), knn(x, k))
    f = torch.randn(b, n, 37, generator=generator)
    assert same_sets(fused(f, k, False, device), knn_features(f, k))


def places(kind, n, generator):
    """Return n points: at random, each twice, on a grid, in clumps, or all in one place.

    Coordinates are multiples of 1/64: sums of squares are exact, in any order.
    """
    x = torch.randn(2, n, 3, generator=generator)
    if kind == "twice":
        x[:, n // 2 : n // 2 * 2] = x[:, : n // 2]
    if kind == "grid":
        i = torch.arange(n)
        x = torch.stack([i % 13, i // 13 % 13, i // 169], -1).expand(2, -1, -1) - 6.0
    if kind == "clumps":  # the near ones share few groups of columns
        x = x / 2 + 10 * torch.randn(16, 3, generator=generator)[torch.arange(n) % 16]
    if kind == "one":
        x = torch.ones(2, n, 3)
    return (64 * x).round() / 64


KINDS = ["random", "twice", "grid", "clumps", "one"]
SIZES = [(9, 3, kind) for kind in KINDS] + [(5, 5, "twice")]
COMPILED = [
    (127, 127),
    (130, 1),
    (333, 5),
    (512, 40),
    (1000, 127),
    (1024, 20),
    (1025, 20),
    (2047, 40),
]
COMPILED += [(2048, 1), (2048, 64)]  # minutes of the interpreter
INTERPRETED = pytest.mark.skipif(not torch.cuda.is_available(), reason="slow when interpreted")


@pytest.mark.parametrize(
    ("n", "k", "kind"),
    SIZES + [pytest.param(*size, kind, marks=INTERPRETED) for size in COMPILED for kind in KINDS],
)
def test_sizes_and_kinds_of_places(n, k, kind, device, generator):
    x = places(kind, n, generator)[: 2 if device == "cuda" else 1]
    f = (8 * x).round().repeat(1, 1, 4)  # whole numbers
    for given, coordinates, plain in ((x, True, knn(x, k)), (f, False, knn_features(f, k))):
        found = fused(given, k, coordinates, device)
        assert same_sets(found, plain)
        if n <= kernel.COLUMNS:
            assert (found.sort(-1).values.diff() > 0).all()


@pytest.mark.parametrize("columns", [1024, 16], ids=["one block", "several blocks"])
def test_ties_go_to_the_lowest_index(columns, device, monkeypatch):
    monkeypatch.setattr(kernel, "COLUMNS", columns)
    r = torch.arange(3.0) - 1
    layers = 2 if columns == 16 else 1
    grid = torch.stack(torch.meshgrid(r, r, r[:layers], indexing="ij"), -1).reshape(1, -1, 3)
    k = 9 if columns == 16 else 5
    assert same_sets(fused(grid, k, True, device), knn(grid, k))
    assert same_sets(fused(grid, k, False, device), knn_features(grid, k))


def test_many_neighbors(device, monkeypatch, generator):
    monkeypatch.setattr(kernel, "ROUNDS", 24)
    n, k = (300, 200) if device == "cuda" else (12, 10)
    x = torch.randn(1, n, 3, generator=generator)
    assert same_sets(fused(x, k, True, device), knn(x, k))


def test_more_equal_points_than_neighbors(device, generator):
    x = torch.cat([torch.randn(2, 3, generator=generator), torch.full((5, 3), 3.0)])[None]
    assert same_sets(fused(x, 4, True, device), knn(x, 4))
    assert same_sets(fused(x, 4, False, device), knn_features(x, 4))
    equal = torch.zeros(1, 5, 4)
    assert (fused(equal, 3, False, device) == torch.arange(3)).all()


def test_candidates_come_from_all_blocks_of_columns(device, monkeypatch, generator):
    monkeypatch.setattr(kernel, "GROUPS", 4)  # 16 columns are four blocks
    monkeypatch.setattr(kernel, "ROUNDS", 24)  # enough for the list
    x = torch.randn(1, 13, 3, generator=generator)
    assert same_sets(fused(x, 2, True, device), knn(x, 2))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize(("n", "bad"), [(7, torch.nan), (7, 1e25), (20, 1e25)])
def test_numbers_that_are_none_have_neighbors_too(n, bad, device, monkeypatch, generator):
    monkeypatch.setattr(kernel, "COLUMNS", 16)  # the larger cloud is taken in blocks
    x = torch.randn(1, n, 3, generator=generator)
    x[0, 2] = bad
    for coordinates in (True, False):
        found = fused(x, 3, coordinates, device)
        assert ((found >= 0) & (found < n)).all()
        assert (found.sort(-1).values.diff() > 0).all()


@pytest.mark.parametrize(("c", "size"), [(5, 1), (150, 1), (5, 1e-9), (150, 1e9), (600, 1)])
@pytest.mark.parametrize("outlier", [1.0, 1e3])
def test_distances_of_features_have_the_accuracy_of_float32(c, size, outlier, device, generator):
    x = torch.randn(2, 70, c, generator=generator) * torch.logspace(-3, 3, c) + 5
    if outlier > 1:
        x = torch.randn(2, 70, c, generator=generator)
        x[:, 7], x[:, 8] = outlier, -outlier
    x *= size
    left, right, slack = feature_factors(x.to(device))
    d = feature_distances(left[:, 3:69], right)
    center = feature_centers(x.to(device))[0].cpu()[:, None]
    torch.testing.assert_close(
        center, x.mean(-2, keepdim=True), rtol=1e-5, atol=1e-6 * x.abs().max()
    )
    y = (x - center).double()
    squares = y.square().sum(-1)
    scale = squares[:, None] + 2 * (squares[:, 3:69, None] * squares[:, None]).sqrt()
    true = squares[:, None] - 2 * y[:, 3:69] @ y.mT
    rounding = 2 * RELATIVE * squares
    # features are cut to 22 bits, and the product of their lower parts is left out
    factor = (slack.cpu().sum(-1) / rounding.sum(-1)).log2().round().exp2()[:, None]
    torch.testing.assert_close(slack.cpu().double() / factor, rounding, rtol=1e-6, atol=0)
    exact = left[:, 3:69].double() @ right.double().mT
    plain = (x - center).square().sum(-1)[:, None] - 2 * (x - center)[:, 3:69] @ (x - center).mT
    errors = [
        ((distances.cpu() - true).abs() / scale).max()
        for distances in (exact.cpu() / factor[:, None], d.cpu() / factor[:, None], plain)
    ]
    assert errors[0] < 3 * 2**-22
    assert errors[1] < 3 * 2**-22 + errors[2]  # whose sums are of float32, too


def test_duplicated_points_are_all_found(device, generator):
    x = torch.randn(1, 4, 3, generator=generator).repeat(1, 3, 1)
    assert same_sets(fused(x, 4, True, device), knn(x, 4))
