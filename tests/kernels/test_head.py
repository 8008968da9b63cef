"""Fused batch norm and leaky ReLU of shapes against the plain code in float64."""

import copy

import pytest
import torch
from torch.nn import functional as F

from locotrans.nn.norm import BatchNorm

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels.head import norm_act, supported


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("b", "c"), [(3, 5), (33, 40), (200, 7)])
def test_values_gradients_and_running_statistics(b, c, dtype, training, device, generator):
    norm = BatchNorm(c).train(training)
    with torch.no_grad():
        for x in (norm.weight, norm.bias, norm.running_mean):
            x.normal_(generator=generator)
        norm.running_var.uniform_(0.5, 2, generator=generator)
    plain, fused = copy.deepcopy(norm).double(), norm.to(device)
    y = (3 + torch.randn(b, c, generator=generator)).to(dtype)
    cotangent = torch.randn(b, c, generator=generator).to(dtype)
    inputs, doubles = y.to(device).requires_grad_(), y.double().requires_grad_()
    actual = norm_act(inputs, fused.statistics())
    expected = F.leaky_relu(plain(doubles), 0.2)
    assert actual.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 2**-7
    pairs = [(actual, expected)]
    pairs += zip(fused.state_dict().values(), plain.state_dict().values(), strict=True)
    gradients = (
        torch.autograd.grad(x, [v, *n.parameters()], cotangent.to(x))
        for x, v, n in ((actual, inputs, fused), (expected, doubles, plain))
    )
    pairs += zip(*gradients, strict=True)
    for a, e in pairs:
        assert a.shape == e.shape
        error = (a.detach().cpu().double() - e.detach()).abs().max()
        assert error <= tolerance * e.detach().abs().max().clamp_min(1e-6)


def test_what_is_supported():
    assert supported(torch.zeros(2, 3), training=True)
    assert not supported(torch.zeros(1, 3), training=True)  # torch says what is wrong
    assert supported(torch.zeros(1, 3), training=False)
    assert not supported(torch.zeros(257, 3), training=False)
    assert not supported(torch.zeros(2, 4, 3), training=True)
