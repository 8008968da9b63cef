"""Random tensors that several tests of layers take."""

import torch

B, N, K = 2, 6, 3
"""Clouds, points and neighbours of the fixtures `neighbors` and `frames`."""


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
