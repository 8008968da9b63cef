"""What is done to clouds: rotations and other orders of the points."""

import math

import torch
from torch import Tensor

from locotrans.geometry.rotations import random_rotations, rotation_angle, rotation_axis


def rotation_matrices(rotations: int | Tensor, seed: int) -> Tensor:
    """Return matrices in float64 on the CPU."""
    if isinstance(rotations, Tensor):
        if rotations.dim() not in (2, 3) or rotations.shape[-2:] != (3, 3):
            raise ValueError(f"rotations must be (r, 3, 3) or (3, 3), got {tuple(rotations.shape)}")
        matrices = rotations.detach().cpu().double().reshape(-1, 3, 3)
    else:
        generator = torch.Generator().manual_seed(seed)
        matrices = random_rotations(rotations, generator=generator, dtype=torch.float64)
    if len(matrices) == 0:
        raise ValueError("at least one rotation is needed")
    return matrices


def turn(points: Tensor, R: Tensor) -> Tensor:
    """Rotate in float64, so that in any dtype the model is tested, and not the rotation."""
    return (points.double() @ R.to(points.device).mT).to(points.dtype)


def random_orders(points: Tensor, count: int, seed: int) -> list[Tensor]:
    """Draw orders of the points."""
    if count < 1:
        raise ValueError("at least one permutation is needed")
    generator = torch.Generator().manual_seed(seed)
    n = points.shape[1]
    return [torch.randperm(n, generator=generator).to(points.device) for _ in range(count)]


def describe_matrix(R: Tensor) -> str:
    """Say what a matrix does: its angle and axis if it is a rotation, else its entries."""
    identity = torch.eye(3, dtype=R.dtype)
    if (R @ R.mT - identity).abs().max() > 1e-6 or torch.linalg.det(R) < 0:
        rows = "; ".join(" ".join(f"{x:.3f}" for x in row) for row in R.tolist())
        return f"the matrix [{rows}], which is not a rotation,"
    angle = rotation_angle(R)
    x, y, z = rotation_axis(R).tolist()
    return f"a rotation by {math.degrees(angle):.1f} degrees about ({x:.3f}, {y:.3f}, {z:.3f})"
