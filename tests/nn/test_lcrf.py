import pytest
import torch

from drawing import draw
from locotrans.geometry import random_rotations
from locotrans.geometry.frames import gram_schmidt_frame, printed_symmetric_frame, symmetric_frame
from locotrans.nn import LCRF, to_frame

KINDS = {
    "symmetric": symmetric_frame,
    "symmetric_printed": printed_symmetric_frame,
    "gram_schmidt": gram_schmidt_frame,
}


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_built_from_the_two_vectors(kind):
    head = LCRF(8, kind).double()
    vectors, frames = head(draw(2, 7, 3, 8))
    assert vectors.shape == (2, 7, 3, 2)
    torch.testing.assert_close(frames, KINDS[kind](vectors[..., 0], vectors[..., 1]))


def test_frames_turn_along():
    head = LCRF(8).double().eval()
    v = draw(2, 7, 3, 8)
    R = random_rotations(generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (vectors, frames), (turned_vectors, turned_frames) = head(v), head(R @ v)
    torch.testing.assert_close(turned_vectors, R @ vectors)
    torch.testing.assert_close(turned_frames, R @ frames)


def test_no_gradient_below_the_head():
    head = LCRF(8).double()
    v = draw(2, 7, 3, 4).requires_grad_()
    mean = draw(2, 1, 3, 4, seed=1).requires_grad_()
    _, frames = head(v, mean)
    (frames * draw(3, 3)).sum().backward()
    assert v.grad is None
    assert mean.grad is None
    assert all(parameter.grad.abs().sum() > 0 for parameter in head.projection.linear.parameters())


def test_to_frame_is_the_transpose_of_the_frame_times_the_vector():
    frames, v = draw(2, 7, 3, 3), draw(2, 7, 4, 3, 5, seed=1)
    out = to_frame(frames, v)
    assert out.shape == (2, 7, 4, 15)
    torch.testing.assert_close(out[1, 6, 3], (frames[1, 6].T @ v[1, 6, 3]).flatten())
