"""What it means that the frame prefers neither vector."""

import torch

from locotrans.geometry import gram_schmidt_frame, random_rotations, symmetric_frame

v1, v2 = torch.randn(2, 1000, 3, dtype=torch.float64)
R = random_rotations(1000, dtype=torch.float64)


def turned(v):
    """Turn every vector by its own rotation."""
    return (R @ v.unsqueeze(-1)).squeeze(-1)


for frame in (symmetric_frame, gram_schmidt_frame):
    U = frame(v1, v2)
    assert torch.allclose(U.mT @ U, torch.eye(3, dtype=torch.float64).expand_as(U))
    assert torch.allclose(frame(turned(v1), turned(v2)), R @ U)

swapped = symmetric_frame(v2, v1)
assert torch.allclose(swapped[..., 0], symmetric_frame(v1, v2)[..., 1])
assert not torch.allclose(gram_schmidt_frame(v2, v1)[..., 0], gram_schmidt_frame(v1, v2)[..., 1])
