import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from locotrans.geometry import random_rotations
from locotrans.geometry.frames import (
    gram_schmidt_frame,
    handcrafted_frame,
    printed_symmetric_frame,
    symmetric_frame,
)
from locotrans.geometry.neighbors import knn

TWO_VECTORS = [symmetric_frame, printed_symmetric_frame, gram_schmidt_frame]
EXACT = [symmetric_frame, gram_schmidt_frame]
SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
SEEDS = st.integers(0, 2**32 - 1)
IDENTITY = torch.eye(3, dtype=torch.float64)


def pairs(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, *shape, 3, generator=generator, dtype=dtype).unbind(0)


def worst_orthonormality(U):
    return (U.mT @ U - IDENTITY.to(U.dtype)).abs().max().item()


@pytest.mark.parametrize("frame", EXACT)
@settings(max_examples=25, deadline=None)
@given(shape=SHAPES, seed=SEEDS)
def test_frames_of_any_shape_are_rotations(frame, shape, seed):
    U = frame(*pairs(*shape, seed=seed))
    assert U.shape == (*shape, 3, 3)
    assert U.dtype == torch.float64
    assert worst_orthonormality(U) < 1e-9  # 1e-16 / sin(theta)
    assert (torch.linalg.det(U) - 1).abs().max() < 1e-9
    assert frame(*pairs(*shape, seed=seed, dtype=torch.float32)).dtype == torch.float32


@pytest.mark.parametrize("frame", TWO_VECTORS)
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_frames_turn_along_and_forget_lengths(frame, seed):
    v1, v2 = pairs(6, seed=seed)
    R = random_rotations(generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    U = frame(v1, v2)
    torch.testing.assert_close(frame(v1 @ R.mT, v2 @ R.mT), R @ U, rtol=0, atol=1e-7)
    if frame is not printed_symmetric_frame:
        torch.testing.assert_close(frame(3 * v1, 0.2 * v2), U, rtol=0, atol=1e-9)


@pytest.mark.parametrize("frame", TWO_VECTORS)
def test_a_reflection_flips_the_third_axis(frame):
    v1, v2 = pairs(20)
    mirror = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64))
    U, reflected = frame(v1, v2), frame(v1 @ mirror, v2 @ mirror)
    torch.testing.assert_close(reflected[..., :2], mirror @ U[..., :2])
    torch.testing.assert_close(reflected[..., 2], -(mirror @ U[..., 2:]).squeeze(-1))


def test_closed_form_is_the_printed_formula():
    v1, v2 = pairs(1000)
    printed = printed_symmetric_frame(v1, v2, eps=0.0)
    sine = torch.linalg.cross(v1, v2).norm(dim=-1) / (v1.norm(dim=-1) * v2.norm(dim=-1))
    error = (symmetric_frame(v1, v2) - printed).abs().amax((-1, -2))
    assert (error * sine.square()).max() < 1e-14
    # by hand: a right angle leaves the two vectors as they are, exchanged
    x, y, z = IDENTITY
    torch.testing.assert_close(symmetric_frame(x, y), torch.stack([y, x, -z], dim=-1))


def test_at_right_angles_an_axis_is_as_consistent_as_the_other_vector():
    """Eq. 11: u_a1 . u_b1 = v_a2 . v_b2 for the frames of two points a and b, and vice versa."""
    v1, v2 = (x / x.norm(dim=-1, keepdim=True) for x in pairs(2, 100))
    right = torch.linalg.cross(v1, v2)
    right = right / right.norm(dim=-1, keepdim=True)

    def cosines(x):
        return (x[0] * x[1]).sum(-1)

    for frame in (symmetric_frame, printed_symmetric_frame):
        U = frame(v1, right)
        torch.testing.assert_close(cosines(U[..., 0]), cosines(right), rtol=0, atol=1e-5)
        torch.testing.assert_close(cosines(U[..., 1]), cosines(v1), rtol=0, atol=1e-5)
        U = frame(v1, v2)  # at other angles it does not hold
        assert (cosines(U[..., 0]) - cosines(v2)).abs().max() > 0.1


def test_symmetric_frame_bisects():
    v1, v2 = pairs(100)
    u1, u2, _ = symmetric_frame(v1, v2).unbind(-1)
    v1, v2 = v1 / v1.norm(dim=-1, keepdim=True), v2 / v2.norm(dim=-1, keepdim=True)
    torch.testing.assert_close((u1 * v1).sum(-1), (u2 * v2).sum(-1))
    torch.testing.assert_close((u1 * v2).sum(-1), (u2 * v1).sum(-1))


@pytest.mark.parametrize("frame", [symmetric_frame, printed_symmetric_frame])
def test_exchanging_the_vectors_exchanges_the_axes(frame):
    v1, v2 = pairs(50)
    U, swapped = frame(v1, v2), frame(v2, v1)
    torch.testing.assert_close(swapped[..., [1, 0]], U[..., :2])
    with pytest.raises(AssertionError):  # Gram-Schmidt prefers the first
        torch.testing.assert_close(
            gram_schmidt_frame(v2, v1)[..., [1, 0]], gram_schmidt_frame(v1, v2)[..., :2]
        )


def test_gram_schmidt_keeps_the_first_direction_and_the_plane():
    v1, v2 = pairs(50)
    u1, u2, u3 = gram_schmidt_frame(v1, v2).unbind(-1)
    torch.testing.assert_close(u1, v1 / v1.norm(dim=-1, keepdim=True))
    assert ((u2 * v2).sum(-1) > 0).all()
    assert (u3 * v2).sum(-1).abs().max() < 1e-12


def test_closed_form_is_better_conditioned_in_float32():
    v1, v2 = pairs(100_000, dtype=torch.float32)
    closed, printed = symmetric_frame(v1, v2), printed_symmetric_frame(v1, v2)
    assert worst_orthonormality(closed) < 5e-5
    assert worst_orthonormality(printed) > 1e-3
    truth = symmetric_frame(v1.double(), v2.double())
    assert (closed - truth).abs().max() < (printed - truth).abs().max() / 10


def test_added_eps_spoils_the_printed_formula_even_in_float64():
    v1, v2 = pairs(1000)
    assert worst_orthonormality(printed_symmetric_frame(v1, v2)) > 1e-7
    assert worst_orthonormality(symmetric_frame(v1, v2)) < 1e-12


def test_gradients_agree_at_a_right_angle_and_differ_elsewhere():
    weights = torch.randn(3, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def gradient(frame, v1, v2):
        v1, v2 = v1.clone().requires_grad_(), v2.clone().requires_grad_()
        return torch.cat(torch.autograd.grad((frame(v1, v2) * weights).sum(), (v1, v2)))

    def printed(v1, v2):
        return printed_symmetric_frame(v1, v2, eps=0.0)

    x, y, _ = IDENTITY
    torch.testing.assert_close(gradient(symmetric_frame, x, y), gradient(printed, x, y))
    oblique = x + 0.5 * y
    difference = gradient(symmetric_frame, x, oblique) - gradient(printed, x, oblique)
    assert difference.norm() > 0.1
    v1, v2 = (v.requires_grad_() for v in pairs(4))
    assert torch.autograd.gradcheck(symmetric_frame, (v1, v2))  # the full gradient


X = [1.0, 0.0, 0.0]
DEGENERATE = {
    "both zero": ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    "one zero": (X, [0.0, 0.0, 0.0]),
    "equal": (X, X),
    "parallel": (X, [2.0, 0.0, 0.0]),
    "opposite": (X, [-1.0, 0.0, 0.0]),
    "nearly parallel": (X, [1.0, 1e-7, 0.0]),
    "tiny": ([1e-30, 0.0, 0.0], [0.0, 1e-30, 0.0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("frame", TWO_VECTORS)
def test_degenerate_vectors_are_finite_with_finite_gradients(frame, case, dtype):
    v1, v2 = (torch.tensor(v, dtype=dtype, requires_grad=True) for v in DEGENERATE[case])
    U = frame(v1, v2)
    gradients = torch.autograd.grad(U.square().sum() + U.sum(), (v1, v2))
    assert U.isfinite().all()
    assert U.abs().max() <= 2
    assert all(gradient.isfinite().all() for gradient in gradients)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_handcrafted_frame_turns_along_and_forgets_translation(seed):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(2, 20, 3, generator=generator, dtype=torch.float64)
    R = random_rotations(generator=generator, dtype=torch.float64)
    neighbors = knn(points, 6)
    U = handcrafted_frame(points, neighbors)
    assert worst_orthonormality(U) < 1e-9
    moved = handcrafted_frame(points @ R.mT + 2.0, neighbors)
    torch.testing.assert_close(moved, R @ U, rtol=0, atol=1e-9)


def test_handcrafted_frame_by_hand():
    points = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, -2.0, 0.0]])
    neighbors = torch.tensor([[0, 2], [1, 3], [2, 1], [3, 0]])
    first = handcrafted_frame(points, neighbors)[0]
    # away from the centre: x; to the mean of (1, 0, 0) and (0, 2, 0): (-1/2, 1, 0), hence y
    torch.testing.assert_close(first, torch.eye(3))


def test_handcrafted_frame_of_coincident_points_is_finite():
    points = torch.ones(1, 5, 3, requires_grad=True)
    U = handcrafted_frame(points, knn(points, 3))
    (gradient,) = torch.autograd.grad(U.sum(), points)
    assert U.isfinite().all()
    assert gradient.isfinite().all()
