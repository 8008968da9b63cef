"""The fused vector-neuron layers against `locotrans.nn.vn` in float64."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from interpreted import LONG
from locotrans.geometry.products import float32_products
from locotrans.nn.invariants import VNPooledInvariants
from locotrans.nn.vn import VNBatchNorm, VNEdgeConv, VNLayer, vn_leaky_relu

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels import statistics
from locotrans.kernels.vn_edges import vn_edge_conv
from locotrans.kernels.vn_points import vn_norm_act


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def fused_edge_conv(layer, v, neighbors):
    """VNEdgeConv by the kernel."""
    b, n, k = neighbors.shape
    offset = n * torch.arange(b, device=v.device)[:, None, None]
    index = (neighbors + offset).reshape(b * n, k).int()
    w1, w2 = torch.cat([layer.linear.weight, layer.direction.weight]).chunk(2, dim=1)
    uw = F.linear(v, torch.cat([w1, w2 - w1])).flatten(0, 1)
    return vn_edge_conv(uw, index, layer.norm.norm.statistics()).reshape(b, n, 3, -1)


def fused_layer(layer, v, mean=None):
    """VNLayer by the kernel, with one product for the vectors and their directions."""
    shared = len(layer.direction.weight) == 1
    direction = F.pad(layer.direction.weight, (0, 0, 0, 7 if shared else 0))
    halves = torch.cat([layer.linear.weight, direction]).chunk(1 if mean is None else 2, dim=1)
    pq, offset = F.linear(v, halves[0]), None if mean is None else F.linear(mean, halves[1])
    return vn_norm_act(pq, layer.norm.norm.statistics(), shared=shared, offset=offset)


def layer_and_mean(layer, v):
    """The new vectors and twice their mean, in one tensor."""
    out, mean = layer.with_mean(v)
    return torch.cat([out, 2 * mean], dim=1)


def used(layer, training=True):
    """Give a layer parameters and running statistics that are not the initial ones."""
    norm = layer.norm.norm
    nn.init.uniform_(norm.bias, -1, 1)
    for x in (norm.weight.data, norm.running_mean, norm.running_var):
        x.uniform_(0.5, 1.5)
    return layer.train(training)


def outcome(function, layer, *arguments):
    """Run a layer; return the output, the new running statistics and all gradients."""
    v = arguments[0].clone().requires_grad_()
    out = function(layer, v, *arguments[1:])
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(out.shape, generator=generator).to(out)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    gradients = torch.autograd.grad(out, [v, *parameters], cotangent)
    named = dict(zip(["v", *names], gradients, strict=True))
    return {"out": out, **named, **dict(layer.named_buffers())}


def assert_same(actual, expected, tolerance):
    error = (actual.detach().cpu().double() - expected.detach()).abs().max()
    assert error <= tolerance * expected.abs().max().clamp_min(1e-6)


def compare(layer, function, *arguments, device, dtype=torch.float32, tolerance=1e-4):
    """Compare a kernel with the layer itself in float64."""
    arguments = [x.to(dtype) if x.is_floating_point() else x for x in arguments]
    double = [x.double() if x.is_floating_point() else x for x in arguments]
    reference = copy.deepcopy(layer).double()
    plain = outcome(lambda f, *x: f(*x), reference, *double)
    fused = outcome(function, layer.to(device, dtype), *(x.to(device) for x in arguments))
    for name, expected in plain.items():
        assert_same(fused[name], expected, tolerance)


def cloud(b, n, k, c, generator):
    v = torch.randn(b, n, 3, c, generator=generator)
    return v, torch.randint(n, (b, n, k), generator=generator)


TRAINING = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


@TRAINING
def test_edge_conv_in_float64(training, device, generator):
    layer = used(VNEdgeConv(3, 5), training)
    v, neighbors = cloud(1, 11, 3, 3, generator)
    compare(
        layer, fused_edge_conv, v, neighbors, device=device, dtype=torch.float64, tolerance=1e-7
    )


def test_edge_conv_of_equal_points(device, generator):
    v, neighbors = cloud(1, 10, 4, 3, generator)
    v = v[:, :1].expand(1, 10, 3, 3)  # no variance at all
    compare(used(VNEdgeConv(3, 5)), fused_edge_conv, v, neighbors, device=device)


def round_factors(monkeypatch):
    """Let torch's products round what they multiply to 10 bits, as TF32 does."""

    def rounded(x):
        near = (x.detach().view(torch.int32) + 2**12 & -(2**13)).view(torch.float32)
        return x + (near - x).detach()

    linear, matmul = F.linear, torch.Tensor.__matmul__
    monkeypatch.setattr(F, "linear", lambda x, w: linear(rounded(x), rounded(w)))
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda x, y: matmul(rounded(x), rounded(y)))


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "plain"])
@pytest.mark.parametrize("small", [-2e-4, -1e-4])  # lost if rounded or cut off
def test_first_edges_keep_small_weights_where_factors_are_rounded(
    small, kernels, device, generator, monkeypatch
):
    layer = VNEdgeConv(1, 5)
    with torch.no_grad():  # the edge of a point with itself is the small weight times the point
        for weight in (layer.linear.weight[2], layer.direction.weight[3]):
            weight.copy_(torch.tensor([0.75, small]))
    v, neighbors = cloud(2, 30, 4, 1, generator)
    neighbors[:, :, 0] = torch.arange(30)
    clouds = v.to(device), neighbors.to(device)
    monkeypatch.setattr("locotrans.nn.vn.use_kernels", lambda _: False)
    plain = outcome(lambda f, *x: f(*x), copy.deepcopy(layer), v, neighbors)
    monkeypatch.setattr("locotrans.nn.vn.use_kernels", lambda _: kernels)
    layer.to(device)
    if device == "cpu":
        round_factors(monkeypatch)
    with float32_products("high"):
        lost = outcome(fused_edge_conv, copy.deepcopy(layer), *clouds)
        kept = outcome(lambda f, *x: f(*x), layer, *clouds)
    for name, expected in plain.items():
        assert_same(kept[name], expected.double(), 1e-3)
    if device == "cpu":  # a GPU may take so small a product without TF32
        largest = [x["linear.weight"].detach().abs().max().item() for x in (lost, plain)]
        assert largest[0] > 100 * largest[1]


@pytest.mark.parametrize("zero", ["points", "vectors", "directions"])
def test_edge_conv_at_zero_vectors(zero, device, generator):
    layer = used(VNEdgeConv(3, 5))
    v, neighbors = cloud(1, 9, 2, 3, generator)
    if zero == "points":
        v[:, ::2] = 0
    else:  # <p, q> = 0, the corner of the leaky ReLU, on every edge
        (layer.linear if zero == "vectors" else layer.direction).weight.data[0] = 0
    compare(layer, fused_edge_conv, v, neighbors, device=device)


def test_programs_share_the_tiles(device, generator, monkeypatch):
    monkeypatch.setattr(statistics, "PROGRAMS", 2)
    v, neighbors = cloud(1, 25, 1, 2, generator)
    compare(used(VNEdgeConv(2, 5)), fused_edge_conv, v, neighbors, device=device)
    compare(used(VNLayer(2, 5)), fused_layer, v, device=device)


BLOCKS = [(9, 3, 70, True), pytest.param(9, 3, 70, False, marks=LONG)]
LAYERS = [(19, 5, 21, True), (19, 5, 21, False), *BLOCKS]


@pytest.mark.parametrize(("n", "c", "d", "training"), [*LAYERS, (2, 1, 1, True), (2, 1, 1, False)])
def test_layer(n, c, d, training, device, generator):
    v = torch.randn(1, n, 3, c, generator=generator)
    compare(used(VNLayer(c, d), training), fused_layer, v, device=device)


@pytest.mark.parametrize(("n", "c", "d", "training"), LAYERS)
def test_layer_with_a_shared_direction(n, c, d, training, device, generator):
    v = torch.randn(n, 3, c, generator=generator)
    layer = used(VNLayer(c, d, shared_direction=True), training)
    compare(layer, fused_layer, v, device=device)


@pytest.mark.parametrize("shared", [False, True])
def test_layer_in_float64(shared, device, generator):
    v = torch.randn(7, 3, 2, generator=generator)
    layer = used(VNLayer(2, 5, shared_direction=shared))
    compare(layer, fused_layer, v, device=device, dtype=torch.float64, tolerance=1e-7)


@TRAINING
@pytest.mark.parametrize("shared", [False, True])
def test_vectors_of_the_cloud_are_added(shared, training, device, generator):
    v = torch.randn(2, 19, 3, 2, generator=generator)
    mean = torch.randn(2, 1, 3, 2, generator=generator)
    layer = used(VNLayer(4, 5, shared_direction=shared), training)
    compare(layer, fused_layer, v, mean, device=device)


@pytest.mark.parametrize("both", [True, False], ids=["both", "mean alone"])
def test_mean_over_the_cloud(both, device, generator, kernels):
    v = torch.randn(2, 19, 3, 2, generator=generator)
    layer = used(VNLayer(2, 5, shared_direction=True))

    def function(layer, v):
        out = layer_and_mean(layer, v)
        return out if both else out[:, -1:]

    reference = copy.deepcopy(layer).double()
    expected = outcome(function, reference, v.double())
    actual = outcome(function, layer.to(device), v.to(device))
    for name, x in expected.items():
        assert_same(actual[name], x, 1e-4)


@pytest.fixture
def kernels(monkeypatch):
    """Let float32 tensors go through the kernels wherever they are."""
    monkeypatch.setattr("locotrans.nn.vn.use_kernels", lambda x: x.dtype == torch.float32)


@TRAINING
def test_layers_of_wide_vectors(training, device, generator, kernels):
    layer = used(VNLayer((2, 9), 5), training)
    parts = torch.randn(1, 7, 3, 11, generator=generator).split([2, 9], dim=-1)
    wide = torch.cat([F.pad(x, (0, -x.shape[-1] % 8)) for x in parts], dim=-1)
    reference = copy.deepcopy(layer).double()
    expected = outcome(lambda f, v: f(v), reference, torch.cat(parts, dim=-1).double())
    layer.to(device)
    for v in (torch.cat(parts, dim=-1), wide):
        again = copy.deepcopy(layer)
        actual = outcome(lambda f, v: f(v), again, v.to(device))
        if v is wide:
            gradient = actual.pop("v")
            assert_same(
                torch.cat([gradient[..., :2], gradient[..., 8:17]], -1), expected["v"], 1e-4
            )
        for name, x in actual.items():
            assert_same(x, expected[name], 1e-4)  # the count of batches among them
        out = again.eval()(v.to(device), wide=True)
        assert out.shape[-1] == 8
        assert not out[..., 5:].any()
    with pytest.raises(ValueError, match="takes 11 vectors a point, not 10"):
        layer(v[..., :10].to(device))


@TRAINING
def test_edge_conv_of_wide_vectors(training, device, generator, kernels):
    layer = used(VNEdgeConv(3, 5), training)
    v, neighbors = cloud(2, 7, 3, 3, generator)
    reference = copy.deepcopy(layer).double()
    expected = outcome(lambda f, *x: f(*x), reference, v.double(), neighbors)
    wide = F.pad(v, (0, 5)).to(device)
    actual = outcome(lambda f, *x: f(*x), layer.to(device), wide, neighbors.to(device))
    assert not actual["v"][..., 3:].any()
    actual["v"] = actual["v"][..., :3]
    for name, x in expected.items():
        assert_same(actual[name], x, 1e-4)
    with pytest.raises(ValueError, match="takes 3 vectors a point, not 2"):
        layer(v[..., :2].to(device), neighbors.to(device))


def plain_edges(uw, index, norm):
    """What `vn_edge_conv` does to its arguments."""
    u, w = uw.chunk(2, dim=-1)
    p, q = (u[index] + w[:, None]).chunk(2, dim=-1)
    return vn_leaky_relu(norm(p), q).mean(1)


def edges(n, k, d, generator):
    uw = torch.randn(n, 3, 4 * d, generator=generator)
    return uw, torch.randint(n, (n, k), generator=generator)


def test_bfloat16_is_storage_only(device, generator):
    uw, index = edges(12, 4, 5, generator)
    norm = VNBatchNorm(5).to(device)
    plain = uw.bfloat16().double().requires_grad_()
    expected = plain_edges(plain, index, copy.deepcopy(norm).cpu().double())
    fused = uw.bfloat16().to(device).requires_grad_()
    out = vn_edge_conv(fused, index.int().to(device), norm.norm.statistics())
    assert out.dtype == torch.bfloat16
    assert_same(out, expected, 0.01)
    cotangent = torch.randn(out.shape, generator=generator).bfloat16()
    (gradient,) = torch.autograd.grad(out, fused, cotangent.to(device))
    assert gradient.dtype == torch.bfloat16
    assert_same(gradient, torch.autograd.grad(expected, plain, cotangent.double())[0], 0.01)


def test_padding_stays_zero(device, generator):
    d, width = 5, 8
    uw, index = edges(9, 3, d, generator)
    norm = VNBatchNorm(d)
    plain = uw.double().requires_grad_()
    expected = plain_edges(plain, index, copy.deepcopy(norm).double())
    padded = F.pad(uw.unflatten(2, (4, d)), (0, width - d)).flatten(2).to(device).requires_grad_()
    out = vn_edge_conv(padded, index.int().to(device), norm.to(device).norm.statistics())
    assert out.shape == (9, 3, width)
    assert_same(out, F.pad(expected, (0, width - d)), 1e-4)
    assert not out[..., d:].any()
    (a,) = torch.autograd.grad(out.square().sum(), padded)
    (b,) = torch.autograd.grad(expected.square().sum(), plain)
    parts = a.unflatten(2, (4, width))
    assert_same(parts[..., :d].flatten(2), b, 1e-4)
    assert not parts[..., d:].any()


def test_one_edge_has_no_variance(device, generator):
    uw, index = (x.to(device) for x in edges(1, 1, 3, generator))
    with pytest.raises(ValueError, match="more than one"):
        vn_edge_conv(uw, index, VNBatchNorm(3).to(device).norm.statistics())


def test_sizes_that_do_not_match_are_refused(device, generator):
    uw, index = (x.to(device) for x in edges(4, 2, 3, generator))
    norm = VNBatchNorm(3).to(device).norm.statistics()
    with pytest.raises(ValueError, match="belong together"):
        vn_edge_conv(uw, index[:3], norm)
    with pytest.raises(ValueError, match="belong together"):
        vn_norm_act(uw[..., :4], norm)
    with pytest.raises(ValueError, match="belong together"):
        vn_norm_act(uw[..., :6], norm, offset=uw[:1])


@pytest.mark.gpu
def test_a_cuda_graph_can_hold_them(generator):
    uw, index = (x.cuda() for x in edges(100, 20, 24, generator))
    norm = VNBatchNorm(24).cuda()
    uw.requires_grad_()

    def step():
        out = vn_edge_conv(uw, index, norm.norm.statistics())
        out = vn_norm_act(out.repeat(1, 1, 2), norm.norm.statistics())
        return torch.autograd.grad(out.square().sum(), [uw, norm.norm.weight])

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    uw.data.mul_(-2)
    graph.replay()
    for a, b in zip(captured, step(), strict=True):
        assert_same(a, b.cpu().double(), 1e-4)


def test_layers_for_points_in_bfloat16(device, monkeypatch, generator):
    # far from directions of length 0, near which rounding (or cutting, as the interpreter does)
    # changes gradients at will
    layers = nn.ModuleList([VNLayer((3, 2), 6, shared_direction=True), VNPooledInvariants(12)])
    exact, layers = copy.deepcopy(layers).double(), layers.to(device)
    v = torch.randn(3, 40, 3, 5, generator=generator) / 8
    v = (v + torch.randn(3, 5, generator=generator)).bfloat16()

    def run(layers, v):
        v = v.requires_grad_()
        out = layers[1](*layers[0].with_mean(v, wide=True))
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        cotangent[:, : len(out.T) // 2] = 0  # of maxima, which rounding may choose elsewhere
        out.backward(cotangent.to(out))
        parameters = torch.cat([p.grad.flatten() for p in layers.parameters()])
        return [x.detach().double().cpu() for x in (out, v.grad, parameters)], v.grad.dtype

    expected, _ = run(exact, v.double())
    for room in ("vn", "invariants"):
        monkeypatch.setattr(f"locotrans.nn.{room}.use_kernels", lambda x: True)
    actual, dtype = run(layers, v.to(device))
    assert dtype == torch.bfloat16
    assert (actual[0] - expected[0]).norm() < 0.05 * expected[0].norm()
    for a, b in zip(actual[1:], expected[1:], strict=True):
        assert F.cosine_similarity(a.flatten(), b.flatten(), dim=0) > 0.9
