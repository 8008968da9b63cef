"""The fused embedding and its pooling against `PointLayer` and `max_mean_pool`."""

import copy

import pytest
import torch

from interpreted import LONG
from locotrans.nn.edge import PointLayer, max_mean_pool

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels.embed import embed_pool


def prepared(channels, generator):
    """Return a layer whose batch norm has scales of both signs, 0 among them, and has run."""
    layer = PointLayer(3, channels)
    with torch.no_grad():
        layer.norm.weight.normal_(generator=generator)
        layer.norm.weight[0] = 0
        layer.norm.bias.normal_(generator=generator)
        layer.norm.running_mean.normal_(generator=generator)
        layer.norm.running_var.uniform_(0.5, 2, generator=generator)
    return layer


def close(actual, expected, tolerance):
    scale = expected.abs().max().clamp_min(1e-6)
    assert (actual.cpu().double() - expected).abs().max() <= tolerance * scale


BLOCKS, SMALL, ONE = (2, 70, 67), (3, 5, 8), (1, 2, 1)
CASES = [(BLOCKS, "both"), (SMALL, "both"), (SMALL, "pooled"), (SMALL, "embedding"), (ONE, "both")]
CASES += [pytest.param(BLOCKS, uses, marks=LONG) for uses in ("pooled", "embedding")]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("size", "uses"), CASES)
def test_values_and_gradients(size, training, uses, device, generator):
    b, n, c = size
    layer = prepared(c, generator).train(training)
    plain, fused = copy.deepcopy(layer).double(), layer.to(device)
    y = 3 + torch.randn(b, n, c, generator=generator)
    weights = [
        torch.randn(b, n, c, generator=generator),
        torch.randn(b, 2 * c, generator=generator),
    ]
    inputs, doubles = y.to(device).requires_grad_(), y.double().requires_grad_()
    actual = embed_pool(inputs, fused.norm.statistics())
    embedding = torch.nn.functional.leaky_relu(plain.norm(doubles), 0.2)
    expected = embedding, max_mean_pool(embedding)
    for a, e in zip(actual, expected, strict=True):
        assert a.shape == e.shape
        close(a.detach(), e.detach(), 1e-5)
    for a, e in zip(
        fused.norm.state_dict().values(), plain.norm.state_dict().values(), strict=True
    ):
        close(a, e.double(), 1e-5)
    gradients = []
    for x, out, norm in ((inputs, actual, fused.norm), (doubles, expected, plain.norm)):
        used = {"both": (0, 1), "pooled": (1,), "embedding": (0,)}[uses]
        loss = sum((out[i] * weights[i].to(out[i])).sum() for i in used)
        gradients.append(torch.autograd.grad(loss, [x, norm.weight, norm.bias]))
    for a, e in zip(*gradients, strict=True):
        close(a, e, 1e-4)


def test_bfloat16(device, generator):
    layer = prepared(9, generator).to(device)
    plain = copy.deepcopy(layer)
    y = torch.randn(2, 33, 9, generator=generator).to(device).bfloat16().requires_grad_()
    out, pooled = embed_pool(y, layer.norm.statistics())
    expected = torch.nn.functional.leaky_relu(plain.norm(y.float()), 0.2)
    assert out.dtype == torch.bfloat16
    assert pooled.dtype == torch.float32
    close(out.detach(), expected.detach().cpu().double(), 2**-8)
    close(pooled.detach(), max_mean_pool(expected).detach().cpu().double(), 1e-5)
    weight = torch.randn(2, 18, generator=generator).to(device)
    (actual,) = torch.autograd.grad((pooled * weight).sum(), y)
    (reference,) = torch.autograd.grad((max_mean_pool(expected) * weight).sum(), y)
    assert actual.dtype == torch.bfloat16
    close(actual, reference.cpu().double(), 2**-7)


def test_maximum_of_equal_points_goes_to_the_first(device):
    layer = PointLayer(3, 4).to(device).eval()
    y = torch.ones(1, 5, 4, device=device, requires_grad=True)
    pooled = embed_pool(y, layer.norm.statistics())[1]
    (gradient,) = torch.autograd.grad(pooled[:, :4].sum(), y)
    assert (gradient[0, 0] > 0).all()
    assert (gradient[0, 1:] == 0).all()


def test_widths_that_differ_are_refused(device):
    layer = PointLayer(3, 4).to(device)
    with pytest.raises(ValueError, match="4 channels"):
        embed_pool(torch.zeros(1, 5, 3, device=device), layer.norm.statistics())
