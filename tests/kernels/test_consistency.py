"""The fused consistency loss against `locotrans.losses.consistency_loss` in float64."""

import pytest
import torch

from locotrans.geometry.neighbors import global_index
from locotrans.geometry.vectors import safe_normalize
from locotrans.losses import consistency_loss

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels.consistency import consistency


def fused(vectors, neighbors):
    return consistency(safe_normalize(vectors, dim=-2).flatten(0, 1), global_index(neighbors))


def compare(vectors, neighbors, device):
    """Compare value and gradient; the cotangent is not one."""
    inputs = vectors.to(device).requires_grad_()
    doubles = vectors.double().requires_grad_()
    actual, expected = fused(inputs, neighbors.to(device)), consistency_loss(doubles, neighbors)
    (gradient,) = torch.autograd.grad(3 * actual, inputs)
    (reference,) = torch.autograd.grad(3 * expected, doubles)
    assert actual.shape == ()
    assert abs(actual.item() - expected.item()) <= 1e-5 * max(expected.item(), 1e-2)
    error = (gradient.cpu().double() - reference).abs().max()
    assert error <= 1e-4 * reference.abs().max().clamp_min(1e-6)


@pytest.mark.parametrize(
    ("b", "n", "k"), [(2, 9, 5), (1, 21, 20), (1, 3, 1), (1, 1, 1), (1, 40, 33)]
)
def test_values_and_gradients(b, n, k, device, generator):
    vectors = torch.randn(b, n, 3, 2, generator=generator)
    compare(vectors, torch.rand(b, n, n, generator=generator).topk(k).indices, device)


def test_zero_and_equal_vectors(device, generator):
    vectors = torch.randn(1, 12, 3, 2, generator=generator)
    vectors[:, :3] = 0
    vectors[:, 4:7, :, 1] = vectors[:, 4:7, :, 0]
    neighbors = torch.rand(1, 12, 12, generator=generator).topk(4).indices
    compare(vectors, neighbors, device)


@pytest.mark.parametrize("teacher", [0, 1])
def test_one_axis_teaches_all_rows(teacher, device, generator):
    vectors = torch.randn(1, 8, 3, 2, generator=generator)
    vectors[..., teacher] = torch.tensor([0.0, 0.0, 1.0]) + 0.01 * vectors[..., teacher]
    neighbors = torch.rand(1, 8, 8, generator=generator).topk(6).indices
    compare(vectors, neighbors, device)
    inputs = vectors.to(device).requires_grad_()
    (gradient,) = torch.autograd.grad(fused(inputs, neighbors.to(device)), inputs)
    assert (gradient[..., teacher] == 0).all()
    assert (gradient[..., 1 - teacher] != 0).any()
