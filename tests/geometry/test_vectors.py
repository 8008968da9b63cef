import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from locotrans.geometry import center, random_rotations, safe_length, safe_normalize

SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
DTYPES = st.sampled_from([torch.float32, torch.float64])


def draw(shape, dtype, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, dtype=DTYPES, seed=st.integers(0, 2**32 - 1), dim=st.sampled_from([-1, 0]))
def test_lengths_and_directions_of_any_shape(shape, dtype, seed, dim):
    v = draw((*shape, 3), dtype, seed)
    length, direction = safe_length(v, dim), safe_normalize(v, dim)
    assert length.dtype == direction.dtype == dtype
    torch.testing.assert_close(length, v.norm(dim=dim, keepdim=True))
    torch.testing.assert_close(direction * length, v)
    torch.testing.assert_close(direction.norm(dim=dim), torch.ones_like(length).squeeze(dim))


def test_unit_length_is_exact_to_rounding_however_short_the_vector():
    v = (
        draw((1000, 3), torch.float64, 0)
        * torch.logspace(-10, 10, 1000, dtype=torch.float64)[:, None]
    )
    assert (safe_normalize(v).norm(dim=-1) - 1).abs().max() < 1e-15
    added = v / (v.norm(dim=-1, keepdim=True) + 1e-6)  # the usual way loses short vectors
    assert (added.norm(dim=-1) - 1).abs().max() > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-13])
def test_zero_and_tiny_vectors_are_finite_with_finite_gradients(dtype, size):
    v = torch.full((4, 3), size, dtype=dtype, requires_grad=True)
    for function in (safe_length, safe_normalize):
        value = function(v)
        (gradient,) = torch.autograd.grad(value.sum(), v)
        assert value.isfinite().all()
        assert gradient.isfinite().all()
    if size == 0:
        assert (safe_normalize(v) == 0).all()
        assert (torch.autograd.grad(safe_length(v).sum(), v)[0] == 0).all()


def test_added_eps():
    assert safe_length(torch.tensor([3.0, 4.0, 0.0]), eps=0.5).item() == 5.5


def test_gradients_against_differences():
    v = draw((2, 3), torch.float64, 3).requires_grad_()
    assert torch.autograd.gradcheck(safe_length, (v,))
    assert torch.autograd.gradcheck(safe_normalize, (v,))


@settings(max_examples=20, deadline=None)
@given(shape=SHAPES, n=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_center_forgets_translation_and_follows_rotation(shape, n, seed):
    points = draw((*shape, n, 3), torch.float64, seed)
    offset = draw((*shape, 1, 3), torch.float64, seed + 1)
    R = random_rotations(generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    centered = center(points)
    assert centered.mean(-2).abs().max() < 1e-15
    torch.testing.assert_close(center(points + 100 * offset), centered, rtol=0, atol=1e-12)
    torch.testing.assert_close(center(points @ R.mT), centered @ R.mT, rtol=0, atol=1e-14)


def test_center_twice_recovers_what_the_rounded_mean_left():
    points = draw((1, 1024, 3), torch.float32, 0) + 1000
    once = points - points.mean(-2, keepdim=True)
    assert center(points).mean(-2).abs().max() < 1e-6
    assert center(points).mean(-2).abs().max() <= once.mean(-2).abs().max()
