"""The fused relative-pose convolution against `locotrans.nn.rpr`, which is run in float64."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from locotrans.geometry.neighbors import gather
from locotrans.nn.edge import leaky_max
from locotrans.nn.norm import count_together
from locotrans.nn.poses import equivariant_pose
from locotrans.nn.rpr import RelativePoseConv

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels import rpr, rpr_plan
from locotrans.kernels.rpr import rpr_conv, supported
from locotrans.kernels.rpr_plan import layers_of


@pytest.fixture
def kernels(monkeypatch):
    """Let the layer itself take its kernels, on any device, for all but the exact float64."""
    monkeypatch.setattr("locotrans.nn.rpr.use_kernels", lambda x: x.dtype == torch.float32)


def make(b, n, k, cv, c, d, refine, generator):
    """Return a layer whose batch norms are not the identity, and its inputs."""
    conv = RelativePoseConv(3 * cv, c, d, refine=refine)
    with torch.no_grad():
        for p in conv.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / max(p[0].numel(), 1) ** 0.5)
        for norm in conv.modules():
            if isinstance(norm, nn.BatchNorm1d):
                norm.running_mean.copy_(torch.randn(norm.num_features, generator=generator) / 4)
                norm.running_var.copy_(torch.rand(norm.num_features, generator=generator) + 0.5)
        conv.norm.weight[0] = 0  # then the first neighbour is chosen; others are negative
    x = torch.randn(b, n, c, generator=generator)
    v = torch.randn(b, n, 3, cv, generator=generator)
    frames = torch.linalg.qr(torch.randn(b, n, 3, 3, generator=generator))[0]
    neighbors = torch.randint(n, (b, n, k), generator=generator)
    return conv, x, v, frames, neighbors


def fused(conv, x, v, frames, neighbors, **options):
    b, n, k = neighbors.shape
    first = torch.arange(b, device=x.device)[:, None, None] * n
    w1, w2 = conv.linear.weight.chunk(2, dim=-1)
    points = (t.flatten(0, 1) for t in (conv.basis(x), F.linear(x, w2 - w1), v, frames))
    index = (neighbors + first).reshape(b * n, k).int()
    return rpr_conv(*points, index, w1, layers_of(conv), **options).unflatten(0, (b, n))


def plain(conv, x, v, frames, neighbors):
    return conv(x, equivariant_pose(v, neighbors, frames), neighbors)


def gradients(function, conv, x, v, frames, neighbors, dout, **options):
    """Return the output, and the gradients of inputs and parameters by name."""
    x, v = x.clone().requires_grad_(), v.clone().requires_grad_()
    out = function(conv, x, v, frames, neighbors, **options)
    out.backward(dout.to(out))
    grads = {name: p.grad for name, p in conv.named_parameters()}
    return out, {"x": x.grad, "v": v.grad} | grads


def assert_near(a, b, tolerance, name=""):
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    error = (a - b).norm() / b.norm().clamp(min=1e-6)  # a bias before a batch norm: 0
    assert error <= tolerance, f"{name}: {error:.1e}"


def assert_same(
    case, device, generator, tolerances=(1e-4, 1e-4), reference=plain, training=True, **options
):
    """Compare output and running statistics, and all gradients, with those of the reference."""
    conv, x, v, frames, neighbors = case
    conv.train(training)
    exact = copy.deepcopy(conv).double()
    dout = torch.randn(*x.shape[:2], conv.norm.num_features, generator=generator)
    inputs = [t.double() if t.is_floating_point() else t for t in (x, v, frames, neighbors)]
    expected, expected_grads = gradients(reference, exact, *inputs, dout)
    conv = conv.to(device)
    inputs = [t.to(device) for t in (x, v, frames, neighbors)]
    out, grads = gradients(fused, conv, *inputs, dout, **options)
    assert_near(out, expected, tolerances[0], "output")
    for (name, a), b in zip(conv.named_buffers(), exact.buffers(), strict=True):
        assert_near(a, b, tolerances[0], name)
    for name, grad in expected_grads.items():
        assert_near(grads[name], grad, tolerances[1], f"gradient of {name}")


def test_one_edge_has_no_statistics(device, generator):
    conv, *inputs = make(1, 1, 1, 2, 8, 8, True, generator)
    with pytest.raises(ValueError, match="at least two edges"):
        fused(conv.to(device), *(t.to(device) for t in inputs))


@pytest.mark.parametrize("refine", [True, False])
@pytest.mark.parametrize(("c", "precision"), [(8, "ieee"), (128, "ieee"), (128, "tf32")])
def test_evaluation_without_gradients(c, precision, refine, device, generator):
    conv, *inputs = make(2, 35, 3, 4, c, 24, refine, generator)
    conv, inputs = conv.to(device).eval(), [t.to(device) for t in inputs]
    with torch.inference_mode():
        out = fused(conv, *inputs, precision=precision)
        tolerance = 1e-4 if precision == "ieee" else 1e-3
        assert_near(out, plain(conv, *inputs), tolerance)


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_half_precision_has_the_range_it_needs(size, device, generator):
    conv, *inputs = make(1, 8, 3, 4, 16, 16, True, generator)
    for linear, norm in ((conv.kernel2, conv.pose_norm), (conv.refine, conv.refine_norm)):
        with torch.no_grad():
            linear.weight *= size
            linear.bias *= size
            norm.running_mean *= size
            norm.running_var *= size**2
            norm.eps *= size**2
    conv, inputs = conv.to(device).eval(), [t.to(device) for t in inputs]
    with torch.inference_mode():
        out = fused(conv, *inputs, precision="tf32")
        assert_near(out, plain(conv, *inputs), 1e-3)


def test_gradients_of_the_parameters_alone(device, small_blocks, generator):
    conv, x, v, frames, neighbors = make(1, 7, 3, 4, 16, 16, False, generator)
    exact = copy.deepcopy(conv).double()
    plain(exact, x.double(), v.double(), frames.double(), neighbors).sum().backward()
    conv, x, v, frames, neighbors = (t.to(device) for t in (conv, x, v, frames, neighbors))
    fused(conv, x, v, frames, neighbors).sum().backward()
    assert_near(conv.kernel1.weight.grad, exact.kernel1.weight.grad, 1e-4)


@pytest.mark.parametrize("momentum", [None, 0.0, 0.3])
def test_a_cumulative_average_and_other_momenta(momentum, device, generator, kernels):
    conv, *inputs = make(1, 6, 3, 2, 8, 8, True, generator)
    for norm in conv.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.momentum = momentum
    exact, conv = copy.deepcopy(conv).double(), conv.to(device)
    x, v, frames, neighbors = inputs

    def compare(factor):
        given = (factor * x, v, neighbors, frames)
        expected = exact(*(t.double() if t.is_floating_point() else t for t in given))
        assert_near(conv(*(t.to(device) for t in given)), expected, 1e-4)

    compare(1)
    with count_together():
        compare(2)
    for (name, a), b in zip(conv.named_buffers(), exact.buffers(), strict=True):
        assert_near(a, b, 1e-5, name)
        assert a.is_floating_point() or a == 2
    conv.eval(), exact.eval()
    compare(3)


@pytest.mark.parametrize("frozen", ["kernel_norm", "norm"])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norms_in_different_modes(training, frozen, device, generator, kernels):
    conv, *inputs = make(1, 6, 3, 2, 8, 8, True, generator)
    conv.train(training)
    getattr(conv, frozen).train(not training)
    exact, conv = copy.deepcopy(conv).double(), conv.to(device)
    x, v, frames, neighbors = inputs
    expected = exact(x.double(), v.double(), neighbors, frames.double())
    x, v, frames, neighbors = (t.to(device) for t in inputs)
    assert_near(conv(x, v, neighbors, frames), expected, 1e-4)
    for (name, a), b in zip(conv.named_buffers(), exact.buffers(), strict=True):
        assert_near(a, b, 1e-5, name)
    with pytest.raises(ValueError, match="all in training or all in evaluation"):
        fused(conv, x, v, frames, neighbors)


def test_frames_that_ask_for_a_gradient_get_it(device, generator, kernels):
    conv, x, v, frames, neighbors = make(1, 6, 3, 2, 8, 8, True, generator)
    exact, conv = copy.deepcopy(conv).double(), conv.to(device)
    doubles = frames.double().requires_grad_()
    exact(x.double(), v.double(), neighbors, doubles).square().sum().backward()
    x, v, frames, neighbors = (t.to(device) for t in (x, v, frames, neighbors))
    frames.requires_grad_()
    conv(x, v, neighbors, frames).square().sum().backward()
    assert_near(frames.grad, doubles.grad, 1e-4)
    with pytest.raises(ValueError, match="no gradient of the frames"):
        fused(conv, x, v, frames, neighbors)


def test_too_few_vectors_are_refused(device, generator, kernels):
    conv, x, v, frames, neighbors = make(1, 6, 3, 2, 8, 8, True, generator)
    conv, x, v, frames, neighbors = (t.to(device) for t in (conv, x, v, frames, neighbors))
    with pytest.raises(RuntimeError, match="shapes"):
        conv(x, v[..., :1], neighbors, frames)


def test_zero_vectors_may_follow_the_channels(device, small_blocks, generator):
    conv, x, v, frames, neighbors = make(1, 5, 2, 3, 8, 8, False, generator)
    x, frames, neighbors = (t.to(device) for t in (x, frames, neighbors))
    results = []
    for extra in (0, 1, 16):  # rows narrower and wider than a tile
        wide = F.pad(v, (0, extra)).to(device).requires_grad_()
        out = fused(copy.deepcopy(conv).to(device), x, wide, frames, neighbors)
        (out**2).sum().backward()
        assert wide.grad[..., 3:].abs().sum() == 0
        results.append((out, wide.grad[..., :3]))
    for out, grad in results[1:]:
        assert_near(out, results[0][0], 1e-6)
        assert_near(grad, results[0][1], 1e-5)


class Rounded(torch.autograd.Function):
    """Rounding to bfloat16, the identity to gradients. Triton's interpreter truncates."""

    @staticmethod
    def forward(ctx, x):
        if rpr_plan.INTERPRETED:
            return (x.float().view(torch.int32) & -65536).view(torch.float32).to(x)
        return x.to(torch.bfloat16).to(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def plain_rounded(conv, x, v, frames, neighbors):
    """`RelativePoseConv` with every factor and every stored tensor rounded where the kernels do."""
    rounded = Rounded.apply

    def linear(layer, t):
        return F.linear(rounded(t), rounded(layer.weight), layer.bias)

    def norm(layer, t):
        # the statistics are those of the exact tensor, as in the kernels
        mean, var = t.flatten(0, -2).mean(0), t.flatten(0, -2).var(0, unbiased=False)
        layer(t)
        return F.relu((rounded(t) - mean) * (var + layer.eps).rsqrt() * layer.weight + layer.bias)

    pose = equivariant_pose(v, neighbors, frames)
    a = norm(conv.kernel_norm, linear(conv.kernel1, pose))
    a = norm(conv.pose_norm, linear(conv.kernel2, a) * gather(conv.basis(x), neighbors))
    a = norm(conv.refine_norm, linear(conv.refine, a))
    w1, w2 = conv.linear.weight.chunk(2, dim=-1)
    e = F.linear(rounded(a), rounded(w1)) + F.linear(x, w2 - w1).unsqueeze(2)
    return leaky_max(conv.norm(e))


def test_bfloat16_rounds_what_it_stores_and_multiplies(device, small_blocks, generator):
    case = make(1, 11, 4, 4, 16, 20, True, generator)
    options = {"reference": plain_rounded, "store": torch.bfloat16}
    # the gradients are rounded on their way too, and the reference does not do that
    assert_same(case, device, generator, tolerances=(1e-3, 0.05), **options)


def test_only_small_layers_are_supported(device):
    device = torch.device(device, 0 if device == "cuda" else None)
    assert supported(42, 128, 256, 20, device)
    assert not supported(42, 256, 256, 20, device)
    assert not supported(21, 64, 64, 128, device)


TABLES = [
    (rpr_plan.LARGE, rpr_plan.FLOAT32_LAUNCHES),
    (rpr_plan.SMALL, rpr_plan.SMALL_FLOAT32_LAUNCHES),
]


@pytest.mark.parametrize(("memory", "table"), TABLES)
def test_tiles_are_those_for_the_memory_of_the_device(
    memory, table, device, generator, kernels, monkeypatch
):
    launches, launch = {}, rpr_plan.Plan.launch

    def noted(plan, kernel):
        launches[kernel] = launch(plan, kernel)
        return launches[kernel]

    monkeypatch.setattr(rpr, "shared_memory", lambda device: memory)
    monkeypatch.setattr(rpr_plan.Plan, "launch", noted)
    conv, x, v, frames, neighbors = make(1, 35, 3, 4, 128, 24, False, generator)
    exact, conv = copy.deepcopy(conv).double().eval(), conv.to(device).eval()
    expected = plain(exact, x.double(), v.double(), frames.double(), neighbors)
    x, v, frames, neighbors = (t.to(device) for t in (x, v, frames, neighbors))
    with torch.inference_mode():
        assert_near(conv(x, v, neighbors, frames), expected, 1e-4)
    assert launches == {k: table.get(f"{k} wide", table[k]) for k in ("pose", "linear", "max")}


def test_too_little_memory_leaves_a_layer_to_the_plain_code(
    device, generator, kernels, monkeypatch
):
    monkeypatch.setattr(rpr, "shared_memory", lambda device: rpr_plan.SMALL - 1)
    monkeypatch.setattr(rpr, "rpr_conv", None)
    conv, *inputs = make(1, 6, 3, 2, 8, 8, True, generator)
    x, v, frames, neighbors = (t.to(device) for t in inputs)
    assert conv.to(device)(x, v, neighbors, frames).shape == (1, 6, 8)


LAYERS = [(21, 64, 64), (21, 64, 128), (42, 128, 256)]


@pytest.fixture(params=[rpr_plan.LARGE, rpr_plan.SMALL])
def memory(request, monkeypatch):
    monkeypatch.setattr(rpr, "shared_memory", lambda device: request.param)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "bf16"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_the_network_on_the_gpu(layer, precision, memory, generator):
    # of so many edges, a few choose another maximum or cross zero: each moves a gradient by 0.3%
    case = make(2, 301, 20, *layer, True, generator)
    if precision == "bf16":
        options = {"reference": plain_rounded, "store": torch.bfloat16, "tolerances": (1e-2, 0.1)}
    else:
        options = {"precision": precision, "tolerances": (1e-4, 1e-2)}
    assert_same(case, "cuda", generator, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "tf32"])
@pytest.mark.parametrize("refine", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_evaluation_of_the_layers_on_the_gpu(layer, refine, precision, memory, generator):
    conv, *inputs = make(2, 301, 20, *layer, refine, generator)
    conv, inputs = conv.cuda().eval(), [t.cuda() for t in inputs]
    with torch.inference_mode():
        out = fused(conv, *inputs, precision=precision)
        assert_near(out, plain(conv, *inputs), 1e-3 if precision == "tf32" else 1e-4)


@pytest.mark.gpu
def test_step_can_be_captured_in_a_graph(generator):
    conv, *inputs = make(2, 300, 20, 21, 64, 64, True, generator)
    conv, inputs = conv.cuda(), [t.cuda() for t in inputs]
    x = inputs[0].requires_grad_()
    fused(conv, *inputs, store=torch.bfloat16).sum().backward()  # compiles
    graph = torch.cuda.CUDAGraph()
    x.grad = None
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        fused(conv, *inputs, store=torch.bfloat16).sum().backward()
    graph.replay()
    torch.cuda.synchronize()
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("far", "followed", "tolerance"), [(10, False, 2e-6), (100, False, 2e-4), (100, True, 2e-6)]
)
def test_a_mean_far_from_the_running_one_costs_digits_that_come_back(
    far, followed, tolerance, generator, device
):
    conv, *inputs = make(2, 40, 8, 5, 16, 32, True, generator)
    with torch.no_grad():
        conv.kernel1.bias += far
        conv.kernel_norm.running_mean += far if followed else 0
    exact = plain(copy.deepcopy(conv).double(), *(t.double() for t in inputs[:3]), inputs[3])
    out = fused(conv.to(device), *(t.to(device) for t in inputs))
    assert_near(out, exact, tolerance)
