"""The fused cross-entropy against torch's in float64."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels.cross_entropy import cross_entropy


@pytest.mark.parametrize(("b", "classes"), [(1, 2), (7, 40), (70, 33), (2, 3000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients(b, classes, dtype, device, generator):
    logits = (10 * torch.randn(b, classes, generator=generator)).to(dtype)
    labels = torch.randint(classes, (b,), generator=generator)
    inputs, doubles = logits.to(device).requires_grad_(), logits.double().requires_grad_()
    actual = cross_entropy(inputs, labels.to(device), 0.3)
    expected = F.cross_entropy(doubles, labels, label_smoothing=0.3)
    assert actual.dtype == torch.float32
    assert actual.item() == pytest.approx(expected.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(3 * actual, inputs)
    (reference,) = torch.autograd.grad(3 * expected, doubles)
    assert gradient.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2**-8
    assert (gradient.cpu().double() - reference).abs().max() <= tolerance * reference.abs().max()


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_not_overlooked(label, device):
    labels = torch.tensor([0, label], device=device)
    assert cross_entropy(torch.zeros(2, 3, device=device), labels, 0.2).isnan()
