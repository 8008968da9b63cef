"""The numerics of frames: how orthonormal, how exact and how steep each formula is."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from locotrans.geometry import random_rotations
from locotrans.geometry.frames import (
    gram_schmidt_frame,
    printed_symmetric_frame,
    symmetric_frame,
)

Row = dict[str, Any]
Frame = Callable[[Tensor, Tensor], Tensor]
ANGLES = (90, 60, 30, 10, 1, 0.1, 150, 170, 179.9)


def printed_without_eps(v1: Tensor, v2: Tensor) -> Tensor:
    return printed_symmetric_frame(v1, v2, eps=0.0)


FRAMES: dict[str, Frame] = {
    "closed form": symmetric_frame,
    "as printed": printed_symmetric_frame,
    "as printed, epsilon 0": printed_without_eps,
    "Gram-Schmidt": gram_schmidt_frame,
}


def frames(pairs: int) -> list[Row]:
    """How far frames of random directions are from orthonormal, and from their exact value."""
    v1, v2 = _pairs(pairs)
    rows = []
    for name, frame in FRAMES.items():
        exact_frame = gram_schmidt_frame if frame is gram_schmidt_frame else symmetric_frame
        rounded = frame(v1.float(), v2.float())
        exact = exact_frame(v1.float().double(), v2.float().double())
        error = (rounded - exact).abs().amax((-1, -2))
        single, double = _orthonormality(rounded), _orthonormality(frame(v1, v2))
        rows.append(
            {
                "frame": name,
                "worst error of U'U, float64": double.max().item(),
                "median, float64": double.median().item(),
                "worst error of U'U, float32": single.max().item(),
                "median, float32": single.median().item(),
                "worst error of the frame, float32": error.max().item(),
                "99.9% below": error.double().quantile(0.999).item(),
            }
        )
    return rows


def same_value(pairs: int) -> list[Row]:
    """How far the closed form is from the printed one, in float64, by the angle of the vectors."""
    v1, v2 = _pairs(pairs)
    angle = torch.rad2deg(torch.acos(nn.functional.cosine_similarity(v1, v2, dim=-1)))
    difference = (symmetric_frame(v1, v2) - printed_without_eps(v1, v2)).abs().amax((-1, -2))
    from_line = torch.minimum(angle, 180 - angle)
    return [
        {"angle above": least, "worst difference": difference[from_line > least].max().item()}
        for least in (30, 10, 1)
    ]


def gradients(count: int) -> list[Row]:
    """The gradient of a random linear function of the frame, by the angle between the vectors."""
    generator = torch.Generator().manual_seed(0)
    torch.randn(2, 100_000, 3, generator=generator, dtype=torch.float64)  # the pairs of `frames`
    weights = torch.randn(1000, 3, 3, generator=generator, dtype=torch.float64)[:count]
    rows = []
    for degrees in ANGLES:

        def gradient(frame: Frame, dtype: torch.dtype, degrees: float = degrees) -> Tensor:
            return _frame_gradient(frame, math.radians(degrees), weights, dtype)

        closed = gradient(symmetric_frame, torch.float64)
        printed = gradient(printed_without_eps, torch.float64)
        closed32 = gradient(symmetric_frame, torch.float32)
        printed32 = gradient(printed_symmetric_frame, torch.float32)
        rows.append(
            {
                "angle": f"{degrees}°",
                "closed form": closed.norm(dim=-1).mean().item(),
                "as printed": printed.norm(dim=-1).mean().item(),
                "relative difference": _relative(printed, closed).mean().item(),
                "float32, closed": _relative(closed32, closed).max().item(),
                "float32, printed": _relative(printed32, printed).max().item(),
            }
        )
    return rows


def _orthonormality(U: Tensor) -> Tensor:
    return (U.mT @ U - torch.eye(3, dtype=U.dtype)).abs().amax((-1, -2))


def _relative(x: Tensor, reference: Tensor) -> Tensor:
    return (x - reference).norm(dim=-1) / reference.norm(dim=-1)


def _frame_gradient(frame: Frame, angle: float, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradients of <W, U> by both vectors, for as many frames as weights."""
    R = random_rotations(
        len(weights), generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    pair = [[1.0, 0, 0], [math.cos(angle), math.sin(angle), 0]]
    v = [(R @ torch.tensor(x, dtype=torch.float64)).to(dtype).requires_grad_() for x in pair]
    return torch.cat(torch.autograd.grad((frame(*v) * weights.to(dtype)).sum(), v), -1).double()


def _pairs(count: int) -> tuple[Tensor, Tensor]:
    """Draw pairs of vectors in random directions."""
    generator = torch.Generator().manual_seed(0)
    v1, v2 = torch.randn(2, count, 3, generator=generator, dtype=torch.float64)
    return v1, v2
