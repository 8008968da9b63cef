"""The products of points of a relative-pose convolution against the same by torch."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels.rpr_points import point_products


@pytest.mark.parametrize(("n", "c", "d"), [(40, 64, 64), (9, 5, 7), (1, 32, 256)])
def test_products_and_gradients(n, c, d, device):
    x = torch.randn(n, c, device=device, requires_grad=True)
    basis = torch.randn(c, c, device=device, requires_grad=True)
    weight = torch.randn(d, 2 * c, device=device, requires_grad=True)
    w1, w2 = weight.chunk(2, dim=-1)
    expected = F.linear(x, basis), F.linear(x, w2 - w1), w1
    actual = point_products(x, basis, weight)
    cotangents = [torch.randn_like(t) for t in expected]
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)
    inputs = [x, basis, weight]
    gradients = (torch.autograd.grad(t, inputs, cotangents) for t in (actual, expected))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_bfloat16_rounds_the_weights_once(device):
    x = torch.randn(20, 32, device=device).bfloat16().requires_grad_()
    basis = torch.randn(32, 32, device=device, requires_grad=True)
    weight = torch.randn(16, 64, device=device, requires_grad=True)
    x_basis, z, w1 = point_products(x, basis, weight)
    assert x_basis.dtype == z.dtype == torch.bfloat16
    assert w1.dtype == torch.float32
    torch.testing.assert_close(x_basis.float(), x.float() @ basis.mT, rtol=0.02, atol=0.2)
    gradients = torch.autograd.grad(x_basis.float().sum() + z.float().sum() + w1.sum(), [x, weight])
    assert [g.dtype for g in gradients] == [torch.bfloat16, torch.float32]


def test_features_without_gradient(device):
    x = torch.randn(12, 8, device=device)
    basis = torch.randn(8, 8, device=device, requires_grad=True)
    weight = torch.randn(4, 16, device=device, requires_grad=True)
    loss = sum(t.square().sum() for t in point_products(x, basis, weight))
    w1, w2 = weight.chunk(2, dim=-1)
    plain = sum(t.square().sum() for t in (x @ basis.mT, x @ (w2 - w1).mT, w1))
    pairs = (torch.autograd.grad(t, [basis, weight]) for t in (loss, plain))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)
