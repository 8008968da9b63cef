"""The fused symmetric frame against `locotrans.geometry.frames.symmetric_frame` in float64."""

import pytest
import torch

from locotrans.geometry.frames import symmetric_frame

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels.frames import symmetric_frames


def both(vectors, device, generator):
    """Return frames, then gradients: of the kernel, of the plain code, and that in float64."""
    cotangent = torch.randn(len(vectors), 3, 3, generator=generator)
    inputs = vectors.to(device).requires_grad_()
    plain = vectors.clone().requires_grad_()
    doubles = vectors.double().requires_grad_()
    results = [symmetric_frames(inputs)]
    results += [symmetric_frame(*v.unbind(-1)) for v in (plain, doubles)]
    gradients = [
        torch.autograd.grad(x, v, cotangent.to(x))[0].cpu()
        for x, v in zip(results, (inputs, plain, doubles), strict=True)
    ]
    return [x.detach().cpu() for x in results], gradients


@pytest.mark.parametrize("n", [1, 130])
def test_values_and_gradients(n, device, generator):
    vectors = torch.randn(n, 3, 2, generator=generator)
    (frames, _, exact), (gradients, plain, reference) = both(vectors, device, generator)
    torch.testing.assert_close(frames.double(), exact, rtol=0, atol=2e-6)
    # near-parallel vectors have large gradients: float32 differs there with the plain code too
    scale = reference.abs().amax((1, 2))
    error = (gradients.double() - reference).abs().amax((1, 2))
    allowed = (plain.double() - reference).abs().amax((1, 2))
    assert (error <= 1e-5 * scale + 4 * allowed).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_nearly_parallel_and_opposite_vectors_are_as_exact_as_in_the_plain_code(
    sign, device, generator
):
    vectors = torch.randn(512, 3, 1, generator=generator).repeat(1, 1, 2)
    vectors[:, :, 1] += 1e-4 * torch.randn(512, 3, generator=generator)
    vectors[:, :, 1] *= sign
    (frames, plain, exact), _ = both(vectors, device, generator)
    errors = [(x.double() - exact).flatten(1).norm(dim=1).median() for x in (frames, plain)]
    assert errors[0] <= 1.2 * errors[1]  # some 1e-3: unit vectors 1e-4 apart have 1e-7 of rounding


def test_zero_parallel_opposite_and_tiny_vectors(device, generator):
    # Equal or opposite vectors have equal lengths, however these round: their unit vectors cancel
    # exactly, and the axis that is not defined is zero. One that is left over from rounding would
    # be of length one.
    vectors = torch.randn(8, 3, 2, generator=generator)
    vectors[0] = 0
    vectors[1, :, 0] = 0
    vectors[2, :, 1] = vectors[2, :, 0]
    vectors[3, :, 1] = -vectors[3, :, 0]
    vectors[4] *= 1e-14
    vectors[5] *= 1e-9
    (frames, plain_frames, _), (gradients, plain, _) = both(vectors, device, generator)
    torch.testing.assert_close(frames, plain_frames, rtol=1e-5, atol=1e-6)
    assert gradients.isfinite().all()
    scale = plain.abs().amax((1, 2), keepdim=True)
    assert ((gradients - plain).abs() <= 1e-4 * scale).all()
