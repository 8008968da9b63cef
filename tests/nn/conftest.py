"""Edges, and the frames of their points."""

import pytest
import torch

from drawing import B, K, N
from locotrans.geometry import random_rotations


@pytest.fixture
def neighbors():
    return torch.randint(N, (B, N, K), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def frames():
    generator = torch.Generator().manual_seed(2)
    return random_rotations(B, N, generator=generator, dtype=torch.float64)
