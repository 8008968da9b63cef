"""The compiled loops of the CPU against the plain code that specifies them."""

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import pytest
import torch
from torch import nn

from locotrans import create_model
from locotrans.geometry.neighbors import knn, knn_features
from locotrans.kernels import set_kernels, use_loops
from locotrans.nn import EdgeConv, FrameConv, PointLayer, RelativePoseConv, VNEdgeConv, VNLayer
from locotrans.nn.edge import max_mean_pool
from locotrans.nn.invariants import VNPooledInvariants
from locotrans.nn.norm import BatchNorm

pytest.importorskip("numba", reason="Numba is not installed")

from locotrans.kernels import cpu_knn, threads

SIZES = [(1, 1, 1), (2, 37, 5), (1, 70, 64), (3, 300, 20)]  # clouds, points, k


@pytest.fixture(autouse=True)
def _evaluation():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def prepared(layer):
    """Give a layer statistics and weights unlike those at the start, and set it to evaluation."""
    for norm in layer.modules():
        if isinstance(norm, BatchNorm):
            norm.weight.uniform_(-1.5, 1.5)
            norm.bias.normal_()
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.2, 3)
    return layer.eval()


def agrees(function, *inputs):
    """Compare what the loops give with what the plain code gives."""
    assert use_loops(torch.zeros(1))
    fast = function(*inputs)
    before = set_kernels("off")
    try:
        plain = function(*inputs)
    finally:
        set_kernels(before)
    assert fast.shape == plain.shape
    assert fast.dtype == plain.dtype
    scale = plain.abs().max().clamp_min(1e-6)
    assert ((fast - plain).abs().max() / scale).item() < 1e-5


def clouds(b, n):
    points = torch.randn(b, n, 3)
    points[:, n // 2 :: 3] = points[:, :1].clone()  # some are the same
    return points


def graph(b, n, k):
    return torch.rand(b, n, n).topk(k).indices


def rotations(b, n):
    return torch.linalg.qr(torch.randn(b, n, 3, 3)).Q


@pytest.mark.parametrize(("b", "n", "k"), SIZES)
def test_vector_layers(b, n, k):
    v, neighbors = torch.randn(b, n, 3, 7), graph(b, n, k)
    v[:, n // 2 :] = v[:, :1].clone()  # edges of length zero
    agrees(prepared(VNEdgeConv(7, 13)), v, neighbors)
    agrees(prepared(VNLayer(7, 9)), v)
    agrees(prepared(VNLayer(7, 9, shared_direction=True)), v)
    agrees(prepared(VNLayer(14, 9)), v, v.mean(1, keepdim=True))
    agrees(prepared(VNPooledInvariants(14)), v, v.mean(1, keepdim=True))


@pytest.mark.parametrize("refine", [True, False])
@pytest.mark.parametrize(("b", "n", "k"), SIZES)
def test_relative_pose_conv(b, n, k, refine):
    layer = prepared(RelativePoseConv(15, 8, 21, refine=refine))
    x, v = torch.randn(b, n, 8), torch.randn(b, n, 3, 5)
    agrees(layer, x, v, graph(b, n, k), rotations(b, n))


@pytest.mark.parametrize(("b", "n", "k"), SIZES)
def test_scalar_layers(b, n, k):
    x, neighbors = torch.randn(b, n, 8), graph(b, n, k)
    agrees(prepared(EdgeConv(8, 19)), x, neighbors)
    agrees(prepared(PointLayer(8, 19)), x)
    agrees(max_mean_pool, x)
    for reference_point in (True, False):
        layer = prepared(FrameConv(11, reference_point=reference_point))
        agrees(layer, clouds(b, n), neighbors, rotations(b, n))


@pytest.mark.parametrize(("b", "n", "k"), [*SIZES, (1, 500, 33), (2, 16, 16), (1, 17, 1)])
def test_neighbors(b, n, k):
    points, x = torch.randn(b, n, 3), torch.randn(b, n, 12)
    assert torch.equal(cpu_knn.knn(points, k), knn(points, k).sort().values)
    assert torch.equal(cpu_knn.knn_features(x, k), knn_features(x, k).sort().values)


@pytest.mark.parametrize("k", [1, 6, 20, 27])
def test_ties_go_to_the_lowest_index(k):
    axis = torch.arange(6.0)
    points = torch.cartesian_prod(axis, axis, axis)[None]
    expected = knn(points, k).sort().values
    assert torch.equal(cpu_knn.knn(points, k), expected)
    turned = points @ rotations(1, 1)[0].mT
    assert torch.equal(cpu_knn.knn(turned, k), expected)
    assert torch.equal(cpu_knn.knn_features(turned, k), expected)


def test_more_ties_than_spare_candidates():
    points = torch.zeros(1, 200, 3)
    assert torch.equal(cpu_knn.knn(points, 5), torch.arange(5).expand(1, 200, 5))
    assert torch.equal(cpu_knn.knn_features(points, 5), torch.arange(5).expand(1, 200, 5))


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_neighbors_exist_whatever_the_features_are(bad, generator):
    """Weights of a run that diverged must give a bad answer, not a crash."""
    for n, k in ((5, 4), (40, 20), (300, 64)):
        for count in (1, n // 2, n):
            x = torch.randn(2, n, 7, generator=generator)
            x[:, :count] = bad
            neighbors = cpu_knn.knn_features(x, k)
            assert 0 <= int(neighbors.min()) <= int(neighbors.max()) < n
    model = create_model("locotrans_dgcnn_light", 5, k=4).eval()
    with torch.no_grad():
        next(model.parameters()).fill_(bad)
    with torch.inference_mode():
        assert model(torch.randn(2, 40, 3, generator=generator)).logits.shape == (2, 5)


def test_several_threads(monkeypatch):
    monkeypatch.setattr(threads, "ALONE", 16)
    before = torch.get_num_threads()
    model = prepared(create_model("locotrans_dgcnn_light", 5))
    points = torch.randn(2, 130, 3)
    torch.set_num_threads(3)
    try:
        several = model(points)
        assert torch.get_num_threads() == 3
        torch.set_num_threads(1)
        one = model(points)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(several.neighbors, one.neighbors)
    assert (several.logits - one.logits).abs().max() < 1e-5 * one.logits.abs().max()


@pytest.mark.parametrize("name", ["locotrans_dgcnn", "locotrans_dgcnn_light", "vn_dgcnn", "dgcnn"])
def test_networks(name):
    model = prepared(create_model(name, 5))
    agrees(lambda points: model(points).logits, clouds(2, 90))


def test_only_where_nothing_else_is_asked_for():
    x = torch.zeros(1)
    assert use_loops(x)
    assert not use_loops(x, training=True)
    assert not use_loops(x.double())
    with torch.enable_grad():
        assert not use_loops(x)


def test_threads_that_begin_meanwhile_keep_their_number(monkeypatch, generator):
    monkeypatch.setattr(threads, "ALONE", 16)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen = []

    def work(start, stop):
        if start == 0:
            stranger = Thread(target=lambda: seen.append(torch.get_num_threads()))
            stranger.start()
            stranger.join()
        seen.append(-torch.get_num_threads())

    try:
        threads.share_out(work, 10)  # starts nothing
        threads.share_out(work, 100)
        threads.share_out(work, 100)
    finally:
        torch.set_num_threads(before)
    assert [x for x in seen if x > 0] == [2, 2, 2]
    assert [x for x in seen if x < 0] == [-2, -1, -1, -1, -1]


def test_a_forward_pass_leaves_the_cores_to_the_loops(monkeypatch):
    """Torch divides nothing there itself, and all else has the threads that it had."""
    monkeypatch.setattr(threads, "ALONE", 16)
    before, seen = torch.get_num_threads(), {"own": [], "strangers": [], "parts": []}

    def work(start, stop):
        seen["parts"].append((start, stop))

    class Model(nn.Module):
        @threads.undivided
        def forward(self, points, fails=False):
            seen["own"].append(torch.get_num_threads())
            threads.share_out(work, 100)
            stranger = Thread(target=lambda: seen["strangers"].append(torch.get_num_threads()))
            stranger.start()
            stranger.join()
            if fails:
                raise KeyError

    model, points = Model().eval(), torch.zeros(1)
    torch.set_num_threads(3)  # which no other test starts
    try:
        model(points)
        assert torch.get_num_threads() == 3
        with pytest.raises(KeyError):
            model(points=points, fails=True)
        assert torch.get_num_threads() == 3
        model(points.double())  # not by the loops
        model.train()(points)
    finally:
        torch.set_num_threads(before)
    assert seen["own"] == [1, 1, 3, 3]
    assert seen["strangers"] == 4 * [3]
    assert sorted(seen["parts"]) == sorted(4 * [(0, 33), (33, 66), (66, 100)])


def test_threads_that_begin_at_once_keep_their_number():
    """None lowers torch's number while others ask for it for the first time."""
    model, points = prepared(create_model("locotrans_dgcnn_light", 5)), torch.randn(1, 30, 3)
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)

    def answer(start):
        start.wait()
        with torch.inference_mode():
            model(points)
        seen.append(torch.get_num_threads())

    try:
        for _ in range(5):
            start = Barrier(4)
            strangers = [Thread(target=answer, args=[start]) for _ in range(4)]
            for stranger in strangers:
                stranger.start()
            for stranger in strangers:
                stranger.join()
    finally:
        torch.set_num_threads(before)
    assert seen == 20 * [2]


def test_layers_take_no_clouds():
    x, v = torch.zeros(0, 30, 8), torch.zeros(0, 30, 3, 8)
    assert prepared(PointLayer(8, 5))(x).shape == (0, 30, 5)
    assert prepared(VNLayer(8, 5))(v).shape == (0, 30, 3, 5)
    index = torch.zeros(0, 30, 4, dtype=torch.long)
    assert prepared(EdgeConv(8, 5))(x, index).shape == (0, 30, 5)


def test_threads_of_the_user(monkeypatch):
    """Two threads that evaluate at once get what one gets, and torch keeps its threads."""
    monkeypatch.setattr(threads, "ALONE", 16)
    model, points = prepared(create_model("locotrans_dgcnn_light", 5)), torch.randn(2, 130, 3)
    expected, before = model(points).logits, torch.get_num_threads()
    torch.set_num_threads(2)

    def answer(_):
        with torch.inference_mode():
            return model(points).logits

    try:
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(answer, range(6)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    for logits in answers:
        assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("size", [1e-20, 1e19])
def test_neighbors_of_tiny_and_huge_features_are_different_points(size, generator):
    for n, k in ((257, 2), (40, 20), (100, 64)):
        found = cpu_knn.knn_features(size * torch.randn(2, n, 8, generator=generator), k)
        assert (found.sort(-1).values.diff(dim=-1) > 0).all()
        assert 0 <= int(found.min()) <= int(found.max()) < n


def test_neighbors_that_do_not_exist_are_refused(generator):
    layer, x = EdgeConv(4, 8).eval(), torch.randn(2, 10, 4, generator=generator)
    for bad in (10, -1, 1000):
        with torch.no_grad(), pytest.raises(IndexError, match="from 0 to 9"):
            layer(x, torch.full((2, 10, 3), bad))


@pytest.mark.parametrize("name", ["locotrans_dgcnn", "locotrans_dgcnn_light", "dgcnn", "vn_dgcnn"])
def test_batch_norms_in_training_learn_in_a_network_that_is_not(name, generator):
    """As where statistics are taken anew, with weights that stay."""
    points = torch.randn(3, 24, 3, generator=generator)
    answers = []
    for setting in ("auto", "off"):
        torch.manual_seed(0)
        model = create_model(name, 5, k=4).eval()
        norms = [x for x in model.modules() if isinstance(x, torch.nn.BatchNorm1d)]
        for norm in norms:
            norm.train()
        before = set_kernels(setting)
        with torch.no_grad():
            answers.append(model(points).logits)
        set_kernels(before)
        assert all(int(norm.num_batches_tracked) == 1 for norm in norms)
    # batch norm over three shapes magnifies rounding; statistics that stay are off by tenths
    torch.testing.assert_close(*answers, rtol=0, atol=0.02)


def test_statistics_are_taken_anew_by_torch(generator):
    model = create_model("locotrans_dgcnn_light", 5, k=4)
    batches = [torch.randn(3, 24, 3, generator=generator) for _ in range(2)]
    torch.optim.swa_utils.update_bn(batches, model)
    norm = model.invariant_branch.convs[0].norm
    seen = []
    hook = norm.register_forward_hook(lambda module, given, _: seen.append(given[0].flatten(0, -2)))
    model.train()
    before = set_kernels("off")  # which call no hooks
    for batch in batches:
        model(batch)
    set_kernels(before)
    hook.remove()
    mean = torch.stack([x.mean(0) for x in seen]).mean(0)
    again = create_model("locotrans_dgcnn_light", 5, k=4)
    again.load_state_dict(model.state_dict())
    torch.optim.swa_utils.update_bn(batches, again)
    torch.testing.assert_close(again.invariant_branch.convs[0].norm.running_mean, mean)


def test_the_default_type_does_not_matter(generator):
    model = create_model("locotrans_dgcnn_light", 5, k=4).eval()
    points = torch.randn(2, 24, 3, generator=generator)
    with torch.no_grad():
        expected = model(points).logits
        torch.set_default_dtype(torch.float64)
        try:
            found = model(points).logits
        finally:
            torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected)


COMPILED = """
import torch
from locotrans import create_model
for name in ("dgcnn", "locotrans_dgcnn_light"):
    model, points = create_model(name, 5, k=4).eval(), torch.randn(2, 24, 3)
    with torch.no_grad():  # before any loop has run
        found = torch.compile(model, backend="aot_eager", fullgraph=True)(points).logits
        torch.testing.assert_close(found, model(points).logits, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.slow
def test_networks_are_compiled():
    subprocess.run([sys.executable, "-c", COMPILED], check=True)
