"""The fused losses of vectors against those of `locotrans.losses` in float64."""

import pytest
import torch

from locotrans.geometry.neighbors import global_index
from locotrans.losses import consistency_loss, orthogonality_loss

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels.consistency import vector_losses


def fused(vectors, neighbors):
    return vector_losses(vectors.flatten(0, 1), global_index(neighbors))


def compare(vectors, neighbors, device):
    """Compare values and gradients; the cotangents are neither one nor equal."""
    inputs = vectors.to(device).requires_grad_()
    doubles = vectors.double().requires_grad_()
    actual = fused(inputs, neighbors.to(device))
    expected = orthogonality_loss(doubles), consistency_loss(doubles, neighbors)
    for a, e in zip(actual, expected, strict=True):
        assert a.shape == ()
        assert abs(a.item() - e.item()) <= 1e-5 * max(e.item(), 1e-2)
    for weights in ((1.0, 0.0), (0.0, 3.0), (0.5, 2.0)):
        gradient, reference = (
            torch.autograd.grad(weights[0] * x[0] + weights[1] * x[1], v, retain_graph=True)[0]
            for x, v in ((actual, inputs), (expected, doubles))
        )
        error = (gradient.cpu().double() - reference).abs().max()
        # one row of cosines that are all wrong would give 1 / rows
        scale = max(reference.abs().max().item(), 1e-2 * sum(weights) / neighbors[..., 0].numel())
        assert error <= 1e-4 * scale


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
    (gradient,) = torch.autograd.grad(fused(inputs, neighbors.to(device))[1], inputs)
    assert (gradient[..., teacher] == 0).all()
    assert (gradient[..., 1 - teacher] != 0).any()
