"""The fused scalar edge convolutions against `EdgeConv` and `FrameConv` in float64."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from locotrans.geometry.neighbors import global_index
from locotrans.nn.edge import SLOPE, EdgeConv, leaky_max
from locotrans.nn.norm import BatchNorm
from locotrans.nn.rpr import FrameConv

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels import edge_max as kernel
from locotrans.kernels import statistics


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def fused_edge_conv(layer, x, neighbors):
    """EdgeConv by the kernel, with one product for both sides of the edges."""
    w1, w2 = layer.linear.weight.chunk(2, dim=1)
    u, w = F.linear(x, torch.cat([w1, w2 - w1])).flatten(0, 1).chunk(2, dim=1)
    out = kernel.edge_max(u, w, global_index(neighbors), layer.norm.statistics())
    return out.unflatten(0, x.shape[:2])


def fused_frame_conv(layer, frames, points, neighbors):
    """FrameConv by the kernel."""
    weights = layer.linear.weight.split(3, dim=1)
    m, w = frames @ weights[0].T, None
    if len(weights) == 2:
        w = (points.unsqueeze(2) @ frames @ weights[1].T).flatten(0, 2)
    index = global_index(neighbors)
    statistics = layer.norm.statistics()
    out = kernel.frame_conv(points.flatten(0, 1), index, m.flatten(0, 1), statistics, w=w)
    return out.unflatten(0, points.shape[:2])


def plain_frame_conv(layer, frames, points, neighbors):
    return layer(points, neighbors, frames)


def used(layer, training=True):
    """Give a layer gammas of both signs, and running statistics that are not the initial ones."""
    norm = layer.norm
    nn.init.uniform_(norm.bias, -1, 1)
    for x in (norm.weight.data, norm.running_mean, norm.running_var):
        x.uniform_(0.5, 1.5)
    norm.weight.data[::2] *= -1
    return layer.train(training)


def outcome(function, layer, x, *arguments):
    """Run a layer; return the output, the new running statistics and all gradients."""
    x = x.clone().requires_grad_()
    out = function(layer, x, *arguments)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    gradients = torch.autograd.grad(out, [x, *parameters], cotangent)
    named = dict(zip(["x", *names], gradients, strict=True))
    return {"out": out, **named, **dict(layer.named_buffers())}


def assert_same(actual, expected, tolerance=1e-4):
    error = (actual.detach().cpu().double() - expected.detach()).abs().max()
    assert error <= tolerance * expected.abs().max().clamp_min(1e-6)


def compare(layer, plain, fused, *arguments, device, dtype=torch.float32, tolerance=1e-4):
    """Compare a kernel with the layer itself in float64."""
    arguments = [x.to(dtype) if x.is_floating_point() else x for x in arguments]
    double = [x.double() if x.is_floating_point() else x for x in arguments]
    expected = outcome(plain, copy.deepcopy(layer).double(), *double)
    actual = outcome(fused, layer.to(device, dtype), *(x.to(device) for x in arguments))
    for name, value in expected.items():
        assert_same(actual[name], value, tolerance)


def graph(b, n, k, c, generator):
    """Features and neighbours; few of which repeat, so that there are no equal edges."""
    assert k <= n
    order = torch.rand(b, n, n, generator=generator).argsort(dim=2)
    return torch.randn(b, n, c, generator=generator), order[..., :k]


def compare_edge_conv(layer, x, neighbors, **options):
    compare(layer, EdgeConv.__call__, fused_edge_conv, x, neighbors, **options)


def compare_frame_conv(layer, points, neighbors, generator, **options):
    frames = torch.randn(*points.shape, 3, generator=generator)
    compare(layer, plain_frame_conv, fused_frame_conv, frames, points, neighbors, **options)


TRAINING = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


@TRAINING
def test_without_gradients(training, device, generator):
    x, neighbors = (t.to(device) for t in graph(2, 9, 5, 3, generator))
    frames = torch.randn(*x.shape, 3, generator=generator).to(device)
    for layer, function, arguments in (
        (EdgeConv(3, 7), fused_edge_conv, (x, neighbors)),
        (FrameConv(7), fused_frame_conv, (frames, x, neighbors)),
    ):
        layer = used(layer, training).to(device)
        out = function(layer, *arguments)
        with torch.inference_mode():
            torch.testing.assert_close(function(layer, *arguments), out)


def test_float64(device, generator):
    options = {"device": device, "dtype": torch.float64, "tolerance": 1e-7}
    x, neighbors = graph(1, 11, 3, 3, generator)
    compare_edge_conv(used(EdgeConv(3, 5)), x, neighbors, **options)
    compare_frame_conv(used(FrameConv(5)), x, neighbors, generator, **options)


def test_programs_share_the_tiles(device, generator, monkeypatch):
    monkeypatch.setattr(statistics, "PROGRAMS", 2)
    x, neighbors = graph(1, 150, 1, 3, generator)
    compare_edge_conv(used(EdgeConv(3, 5)), x, neighbors, device=device)
    compare_frame_conv(used(FrameConv(5)), x, neighbors, generator, device=device)


# ------------------------------------------------- the functions alone, where equal edges are equal


def plain_edges(norm, u, w, index):
    return leaky_max(norm((u[index] + w[:, None])[None]))[0]


def plain_frames(norm, m, points, index):
    edges = points[index] - points[:, None]
    return leaky_max(norm((edges @ m)[None]))[0]


class Alone(nn.Module):
    """A batch norm, as a layer with nothing before it."""

    def __init__(self, channels):
        super().__init__()
        self.norm = BatchNorm(channels)


def compare_alone(norm, u, w, index, **options):
    def plain(layer, u, w, index):
        return plain_edges(layer.norm, u, w, index)

    def fused(layer, u, w, index):
        return kernel.edge_max(u, w, index.int(), layer.norm.statistics())

    def swapped(function):
        return lambda layer, w, u, index: function(layer, u, w, index)

    compare(copy.deepcopy(norm), plain, fused, u, w, index, **options)
    compare(norm, swapped(plain), swapped(fused), w, u, index, **options)


def compare_frames_alone(norm, m, points, index, **options):
    def plain(layer, m, points, index):
        return plain_frames(layer.norm, m, points, index)

    def fused(layer, m, points, index):
        return kernel.frame_conv(points, index.int(), m, layer.norm.statistics())

    compare(norm, plain, fused, m, points, index, **options)


@TRAINING
@pytest.mark.parametrize("different", [1, 3])
def test_duplicated_points(different, training, device, generator):
    u, w = torch.randn(2, different, 5, generator=generator)
    rows = torch.arange(12) % different
    index = torch.randint(12, (12, 5), generator=generator)
    compare_alone(used(Alone(5), training), u[rows], w[rows], index, device=device)
    points = torch.randn(different, 3, generator=generator)[rows]
    m = torch.randn(12, 3, 5, generator=generator)
    compare_frames_alone(used(Alone(5), training), m, points, index, device=device)


@TRAINING
def test_gammas_of_zero(training, device, generator):
    norm = used(Alone(4), training)
    norm.norm.weight.data[1:3] = 0
    u, w = torch.randn(2, 9, 4, generator=generator)
    index = torch.randint(9, (9, 3), generator=generator)
    compare_alone(norm, u, w, index, device=device)


def test_more_neighbours_than_a_byte_counts(device, generator, monkeypatch):
    assert kernel._slot_type(256) == torch.uint8
    assert kernel._slot_type(257) == torch.int32
    monkeypatch.setattr(kernel, "_slot_type", lambda _: torch.int32)
    u, w = torch.randn(2, 9, 4, generator=generator)
    index = torch.randint(9, (9, 3), generator=generator)
    compare_alone(used(Alone(4)), u, w, index, device=device)


def test_a_mean_that_is_large_beside_the_deviation(device, generator):
    u, w = torch.randn(2, 9, 4, generator=generator)
    index = torch.randint(9, (9, 3), generator=generator)
    compare_alone(used(Alone(4)), u + 300, w + 300, index, device=device, tolerance=1e-3)


def test_bfloat16_is_storage_only(device, generator):
    u, w = torch.randn(2, 12, 5, generator=generator).bfloat16()
    m = torch.randn(12, 3, 5, generator=generator).bfloat16()
    points = torch.randn(12, 3, generator=generator)
    index = torch.stack([torch.randperm(12, generator=generator)[:4] for _ in range(12)])
    double = [x.double().requires_grad_() for x in (u, w, m)]
    single = [x.to(device).requires_grad_() for x in (u, w, m)]
    norm = used(Alone(5)).norm
    expected = plain_edges(copy.deepcopy(norm).double(), *double[:2], index)
    expected = torch.stack(
        [expected, plain_frames(copy.deepcopy(norm).double(), double[2], points.double(), index)]
    )
    norm, points, rows = norm.to(device), points.to(device), index.int().to(device)
    actual = kernel.edge_max(*single[:2], rows, norm.statistics())
    other = kernel.frame_conv(points, rows, single[2], norm.statistics())
    actual = torch.stack([actual, other])
    assert actual.dtype == torch.bfloat16
    assert_same(actual, expected, 0.01)
    cotangent = torch.randn(actual.shape, generator=generator).bfloat16()
    for a, b in zip(
        torch.autograd.grad(actual, single, cotangent.to(device)),
        torch.autograd.grad(expected, double, cotangent.double()),
        strict=True,
    ):
        assert a.dtype == torch.bfloat16
        assert_same(a, b, 0.01)


def test_padding_stays_zero(device, generator):
    d, width = 5, 8
    u, w = torch.randn(2, 9, d, generator=generator)
    index = torch.stack([torch.randperm(9, generator=generator)[:3] for _ in range(9)])
    norm = used(Alone(d)).norm
    plain = [x.double().requires_grad_() for x in (u, w)]
    expected = plain_edges(copy.deepcopy(norm).double(), *plain, index)
    padded = [F.pad(x, (0, width - d)).to(device).requires_grad_() for x in (u, w)]
    out = kernel.edge_max(*padded, index.int().to(device), norm.to(device).statistics())
    assert_same(out, F.pad(expected, (0, width - d)))
    gradients = torch.autograd.grad(out.square().sum(), padded)
    for a, b in zip(gradients, torch.autograd.grad(expected.square().sum(), plain), strict=True):
        assert_same(a, F.pad(b, (0, width - d)))
        assert not a[:, d:].any()


def test_the_slope_is_that_of_the_layers():
    for function in (kernel.edge_max, kernel.frame_conv):
        assert inspect.signature(function).parameters["slope"].default == SLOPE


def test_what_cannot_be_done_is_refused(device, generator):
    u, w = torch.randn(2, 4, 3, generator=generator).to(device)
    index = torch.zeros(4, 2, dtype=torch.int32, device=device)
    m, statistics = u[:, :, None] * w[:, None], BatchNorm(3).to(device).statistics()
    with pytest.raises(ValueError, match="belong together"):
        kernel.edge_max(u, w[:, :2], index, statistics)
    with pytest.raises(ValueError, match="belong together"):
        kernel.frame_conv(u, index, m[:3], statistics)
    with pytest.raises(ValueError, match="more than one"):
        kernel.edge_max(u[:1], w[:1], index[:1, :1], statistics)
    with pytest.raises(ValueError, match="no gradient of the points"):
        kernel.frame_conv(u.requires_grad_(), index, m, statistics)


def exact(x):
    """Round, so that edges are exact in float32 and their order is that of float64."""
    return (64 * x).round() / 64


@pytest.mark.gpu
@TRAINING
@pytest.mark.parametrize(("n", "d"), [(4001, 85), (2048, 128)])
def test_large_clouds(n, d, training, generator):
    u, w = exact(torch.randn(2, n, d, generator=generator))
    index = torch.randint(n, (n, 20), generator=generator)
    compare_alone(used(Alone(d), training), u, w, index, device="cuda")
    points = exact(torch.randn(n, 3, generator=generator))
    m = exact(torch.randn(n, 3, d, generator=generator))
    compare_frames_alone(used(Alone(d), training), m, points, index, device="cuda")


@pytest.mark.gpu
def test_a_cuda_graph_can_hold_them(generator):
    u, w = torch.randn(2, 100, 21, generator=generator).cuda()
    points, m = torch.randn(100, 3).cuda(), torch.randn(100, 3, 21).cuda()
    index = torch.randint(100, (100, 20), generator=generator).int().cuda()
    norm = BatchNorm(21).cuda()
    for x in (u, w, m):
        x.requires_grad_()

    def step():
        out = kernel.edge_max(u, w, index, norm.statistics())
        out = out + kernel.frame_conv(points, index, m, norm.statistics())
        return torch.autograd.grad(out.square().sum(), [u, w, m, norm.weight])

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    u.data.mul_(-2)
    graph.replay()
    for a, b in zip(captured, step(), strict=True):
        assert_same(a, b.cpu().double())
