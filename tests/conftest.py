"""Every annotation of a shape is checked while the tests run."""

import os

import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("locotrans", "beartype.beartype")
torch.set_num_threads(1)  # two workers share two cores
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
