"""Kernels run compiled on a CUDA device, and through Triton's interpreter anywhere else."""

import pytest
import torch


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
