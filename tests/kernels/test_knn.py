"""The fused kNN against `locotrans.geometry.neighbors`."""

import contextlib
import importlib

import pytest
import torch

from locotrans.geometry.neighbors import knn, knn_features, point_rounding

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels import knn as kernel
from locotrans.kernels.knn_features import (
    RELATIVE,
    feature_centers,
    feature_distances,
    feature_factors,
)


@pytest.fixture(autouse=True)
def short_programs(device, monkeypatch):
    if device == "cpu":  # the interpreter takes one step, and one round, at a time
        monkeypatch.setattr(kernel, "STEP", 16)
        monkeypatch.setattr(kernel, "PERIOD", 13)
        monkeypatch.setattr(kernel, "ROUNDS", 3)


def same_sets(a, b):
    return torch.equal(a.long().sort(-1).values, b.sort(-1).values)


def fused(x, k, coordinates, device):
    return kernel.nearest(x.to(device), k, coordinates=coordinates).cpu()


def fused_row(x, k, row, coordinates, device):
    """The neighbours of one point of every cloud: the interpreter is slow."""
    x = x.to(device)
    out = torch.empty(*x.shape[:2], k, dtype=torch.int32, device=device)
    if coordinates:
        source, (slack, relative) = x.mT.contiguous(), point_rounding(x)
    else:
        left, right, slack = feature_factors(x)
        source, relative = feature_distances(left[:, row : row + 1], right), RELATIVE
    kernel._select(source, slack.contiguous(), relative, out, row, 1, coordinates=coordinates)
    return out[:, row].cpu()


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
COMPILED += [(2049, 1), (4096, 20), (4200, 64), (5000, 127)]  # beyond what a warp holds
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


@pytest.mark.parametrize("columns", [1024, 4], ids=["one block", "several blocks"])
def test_some_rows_of_distances_of_features_exist_at_a_time(
    columns, device, monkeypatch, generator
):
    monkeypatch.setattr(kernel, "COLUMNS", columns)
    monkeypatch.setattr(kernel, "ENTRIES", 70)
    monkeypatch.setattr(kernel, "ROWS", 4)
    shapes = []

    def distances(left, right):
        shapes.append((*left.shape[:2], right.shape[1]))
        return feature_distances(left, right)

    monkeypatch.setattr(kernel, "feature_distances", distances)
    for n, rows in ((7, [5, 2]), (11, [3, 3, 3, 2]), (36, [2] * 18)):
        f = torch.randn(2, n, 5, generator=generator)
        shapes.clear()
        assert same_sets(fused(f, 3, False, device), knn_features(f, 3))
        assert shapes == [(2, x, n) for x in rows]


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
@pytest.mark.parametrize("bad", [torch.nan, 1e25])
def test_numbers_that_are_none_have_neighbors_too(bad, device, generator):
    x = torch.randn(1, 7, 3, generator=generator)
    x[0, 2] = bad
    for coordinates in (True, False):
        found = fused(x, 3, coordinates, device)
        assert ((found >= 0) & (found < 7)).all()
        assert (found.sort(-1).values.diff() > 0).all()


@pytest.fixture
def large(monkeypatch):
    """Take clouds of more than 16 points in steps of 16, and column i in group i % 13."""
    monkeypatch.setattr(kernel, "COLUMNS", 16)
    monkeypatch.setattr(kernel, "STEP", 16)
    monkeypatch.setattr(kernel, "PERIOD", 13)
    monkeypatch.setattr(kernel, "ROUNDS", 24)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("coordinates", [True, False])
@pytest.mark.parametrize(
    ("n", "k", "kind"), [(70, 5, "random"), (64, 5, "sorted"), (33, 5, "twice"), (18, 11, "random")]
)
def test_a_large_cloud_step_by_step(n, k, kind, coordinates, device, generator):
    x = torch.randn(2, n, 3, generator=generator)
    if kind == "sorted":
        x = x.sort(1).values
    if kind == "twice":  # of the two copies of the last neighbour the first has a place
        x[:, 17:33] = x[:, :16]
    plain = knn if coordinates else knn_features
    for row in (16, n - 1):
        found = fused_row(x, k, row, coordinates, device)
        assert same_sets(found, plain(x, k)[:, row])


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("coordinates", [True, False])
def test_equal_points_of_a_large_cloud_go_by_index(coordinates, device):
    x = torch.ones(1, 34, 3)  # as many as no list holds
    found = fused_row(x, 3, 20, coordinates, device)
    assert found.sort().values.tolist() == [[0, 1, 2]]


@pytest.mark.usefixtures("large")
def test_near_points_of_one_group(device, generator):
    x = torch.randn(1, 70, 3, generator=generator)
    x[:, 3::13] = 9 + x[:, 3::13] / 100  # six, more than the four places of the list
    assert same_sets(fused_row(x, 2, 3, True, device), knn(x, 2)[:, 3])


@pytest.mark.usefixtures("large")
def test_more_neighbors_than_groups(device, generator):
    x = torch.randn(1, 34, 3, generator=generator)
    assert same_sets(fused_row(x, 20, 7, True, device), knn(x, 20)[:, 7])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("bad", [torch.nan, 1e25])
def test_numbers_that_are_none_are_far_in_a_large_cloud(bad, device, generator):
    x = torch.randn(1, 20, 3, generator=generator)
    x[:, 1:18] = bad
    assert fused_row(x, 5, 18, True, device).sort().values.tolist() == [[0, 1, 2, 18, 19]]
    found = fused_row(x, 5, 18, False, device)  # whose centre is none, too
    assert ((found >= 0) & (found < 20)).all()
    assert (found.sort(-1).values.diff() > 0).all()
    x = torch.randn(1, 34, 3, generator=generator)
    x[:, 5] = bad
    found = fused_row(x, 4, 7, True, device)
    assert 5 not in found
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
    # tensor cores cut what does not fit float32 off the sum, at every 16 products
    cut = left.shape[-1] / 16 * 2**-24 if device == "cuda" else 0
    assert errors[1] < 3 * 2**-22 + errors[2] + cut  # whose sums are of float32, too


LAUNCHING = {
    "consistency": ["vector_losses"],
    "cross_entropy": ["cross_entropy"],
    "edge_max": ["edge_max", "frame_conv"],
    "embed": ["embed_pool"],
    "frames": ["symmetric_frames"],
    "head": ["norm_act"],
    "knn": ["nearest"],
    "pool": ["pool_projections"],
    "rpr": ["rpr_conv"],
    "rpr_points": ["point_products"],
    "vn_edges": ["vn_edge_conv"],
    "vn_points": ["vn_norm_act", "vn_norm_act_mean"],
    "vn_weights": ["pack_edges", "pack_halves", "pack_layer"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(m, x) for m, names in LAUNCHING.items() for x in names]
)
def test_kernels_run_on_the_device_of_their_input(module, name, monkeypatch):
    entered = []

    @contextlib.contextmanager
    def device_of(x):
        entered.append(x)
        raise InterruptedError
        yield

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    x = torch.zeros(1)
    with pytest.raises(InterruptedError):
        getattr(importlib.import_module(f"locotrans.kernels.{module}"), name)(x)
    assert entered[0] is x
