"""The fused pooling of invariants against `VNInvariants`' product and `max_mean_pool`."""

import pytest
import torch
from torch.nn import functional as F

from locotrans.nn.edge import max_mean_pool

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels import pool as kernel


def plain(v, z):
    return max_mean_pool((z.mT @ v).flatten(-2)).unflatten(1, (2, 3, -1))


def assert_same(actual, expected, tolerance=1e-4):
    error = (actual.detach().cpu().double() - expected.detach()).abs().max()
    assert error <= tolerance * expected.abs().max().clamp_min(1e-6)


def compare(v, z, device, tolerance=1e-4):
    """Compare outputs and gradients with the plain code in float64."""
    inputs = [x.to(device).requires_grad_() for x in (v, z)]
    doubles = [x.double().requires_grad_() for x in (v, z)]
    generator = torch.Generator().manual_seed(1)
    pooled = torch.promote_types(v.dtype, torch.float32)
    cotangent = torch.randn(len(v), 2, 3, v.shape[3], generator=generator).to(pooled)
    actual = kernel.pool_projections(*inputs)
    expected = plain(*doubles)
    gradients = torch.autograd.grad(actual, inputs, cotangent.to(device))
    references = torch.autograd.grad(expected, doubles, cotangent.double())
    assert [x.dtype for x in (actual, *gradients)] == [pooled, v.dtype, z.dtype]
    for a, b in zip([actual, *gradients], [expected, *references], strict=True):
        assert_same(a, b, tolerance)


def cloud(b, n, c, generator):
    v = torch.randn(b, n, 3, c, generator=generator)
    return v, torch.randn(b, n, 3, 3, generator=generator)


@pytest.mark.parametrize(
    ("b", "n", "c"), [(2, 21, 5), (1, 18, 70), (1, 8, 64), (1, 1, 1), (1, 3, 341)]
)
def test_pooling(b, n, c, device, generator):
    compare(*cloud(b, n, c, generator), device)


@pytest.mark.parametrize("programs", [1, 6])
def test_clouds_in_one_or_several_segments(programs, device, generator, monkeypatch):
    monkeypatch.setattr(kernel, "PROGRAMS", programs)
    compare(*cloud(2, 27, 5, generator), device)


@pytest.mark.parametrize("different", [1, 7])
def test_the_first_of_equal_points_is_the_maximum(different, device, generator):
    v, z = cloud(2, different, 4, generator)
    rows = torch.arange(19) % different
    compare(v[:, rows], z[:, rows], device)


def test_channels_of_a_wider_tensor(device, generator):
    v, z = cloud(1, 11, 8, generator)
    compare(v[..., :5], z, device)
    compare(v[:, ::2], z[:, ::2], device)
    compare(v.mT.contiguous().mT, z, device)


@pytest.mark.parametrize(("b", "n", "c", "wide"), [(2, 21, 5, 8), (1, 9, 70, 70)])
def test_vectors_of_the_cloud_and_zero_vectors(b, n, c, wide, device, generator):
    v, z = cloud(b, n, c, generator)
    given = [v, z, torch.randn(b, 1, 3, c, generator=generator)]
    doubles = [x.double().requires_grad_() for x in given]
    inputs = [
        (F.pad(x, (0, wide - c)) if x is not z else x).to(device).requires_grad_() for x in given
    ]
    actual = kernel.pool_projections(*inputs, channels=c)
    expected = plain(torch.cat([doubles[0], doubles[2].expand(-1, n, -1, -1)], -1), doubles[1])
    assert_same(actual, expected)
    cotangent = torch.randn(expected.shape, generator=generator)
    gradients = torch.autograd.grad(actual, inputs, cotangent.to(device))
    references = torch.autograd.grad(expected, doubles, cotangent.double())
    for a, reference in zip(gradients, references, strict=True):
        assert_same(a[..., : reference.shape[-1]], reference)
        assert not a[..., reference.shape[-1] :].any()


@pytest.mark.parametrize("which", [0, 1], ids=["maximum", "mean"])
def test_gradient_of_one_output(which, device, generator):
    v, z = cloud(1, 9, 3, generator)
    inputs = [x.to(device).requires_grad_() for x in (v, z)]
    doubles = [x.double().requires_grad_() for x in (v, z)]
    actual = torch.autograd.grad(kernel.pool_projections(*inputs)[:, which].sum(), inputs)
    expected = torch.autograd.grad(plain(*doubles)[:, which].sum(), doubles)
    for a, b in zip(actual, expected, strict=True):
        assert_same(a, b)


def test_bfloat16_is_storage_only(device, generator):
    v, z = (x.bfloat16() for x in cloud(2, 13, 6, generator))
    compare(v, z, device, tolerance=0.01)


def test_float64(device, generator):
    v, z = (x.double() for x in cloud(1, 9, 3, generator))
    compare(v, z, device, tolerance=1e-12)


def test_sizes_that_do_not_match_are_refused(generator):
    v, z = cloud(1, 4, 2, generator)
    with pytest.raises(ValueError, match="belong together"):
        kernel.pool_projections(v, z[:, :3])
    with pytest.raises(ValueError, match="belong together"):
        kernel.pool_projections(v, z, v[:, :2])
    with pytest.raises(ValueError, match="belong together"):
        kernel.pool_projections(v, z, channels=3)


@pytest.mark.gpu
@pytest.mark.parametrize(("b", "n", "c"), [(4, 1024, 341), (1, 20_001, 85)])
def test_large_clouds(b, n, c, generator):
    # products that are exact in float32, and so in the order of float64
    compare(*((64 * x).round() / 64 for x in cloud(b, n, c, generator)), "cuda")


@pytest.mark.gpu
def test_a_cuda_graph_can_hold_it(generator):
    v, z = (x.cuda().requires_grad_() for x in cloud(4, 300, 85, generator))

    def step():
        maximum, mean = kernel.pool_projections(v, z).unbind(1)
        return torch.autograd.grad((maximum * mean).sum(), [v, z])

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    v.data.mul_(-2)
    graph.replay()
    for a, b in zip(captured, step(), strict=True):
        assert_same(a, b.cpu().double())
