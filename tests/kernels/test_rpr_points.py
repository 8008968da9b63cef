"""The products of points of a relative-pose convolution against the same by torch."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels.rpr_points import point_products


def plain_products(x, basis, weight):
    w1, w2 = weight.chunk(2, dim=-1)
    return F.linear(x, basis), F.linear(x, w2 - w1), w1


def change(a, b):
    return (a.double() - b).norm() / b.norm()


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # first, in a thread of autograd
@pytest.mark.parametrize(("n", "c", "d"), [(40, 64, 64), (9, 5, 7), (1, 32, 256)])
def test_products_and_gradients(n, c, d, device):
    x = torch.randn(n, c, device=device, requires_grad=True)
    basis = torch.randn(c, c, device=device, requires_grad=True)
    weight = torch.randn(d, 2 * c, device=device, requires_grad=True)
    inputs = [x, basis, weight]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    actual, expected = point_products(*inputs), plain_products(*exact)
    cotangents = [torch.randn_like(t) for t in actual]
    for a, b in zip(actual, expected, strict=True):
        assert change(a, b) < 1e-6
    gradients = torch.autograd.grad(actual, inputs, cotangents)
    expected = torch.autograd.grad(expected, exact, [t.double() for t in cotangents])
    for a, b in zip(gradients, expected, strict=True):
        assert change(a, b) < 1e-6


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
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


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
def test_features_without_gradient(device):
    x = torch.randn(12, 8, device=device)
    basis = torch.randn(8, 8, device=device, requires_grad=True)
    weight = torch.randn(4, 16, device=device, requires_grad=True)
    losses = (
        sum(t.square().sum() for t in products(x, basis, weight))
        for products in (point_products, plain_products)
    )
    pairs = (torch.autograd.grad(loss, [basis, weight]) for loss in losses)
    for a, b in zip(*pairs, strict=True):
        assert change(a, b) < 1e-6
