"""Kernels run compiled on a CUDA device, and through Triton's interpreter anywhere else."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _infinite_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new memory with infinities of either sign: who reads it before it is written, fails."""
    if torch.cuda.is_available():  # which records graphs, and would wait
        return
    generator = torch.Generator().manual_seed(0)

    def filled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*arguments: object, **options: object) -> Tensor:
            x = make(*arguments, **options)
            if x.is_floating_point():
                signs = torch.rand(x.shape, generator=generator) > 0.5
                x.detach().copy_(torch.where(signs, torch.inf, -torch.inf))
            return x

        return call

    monkeypatch.setattr(torch, "empty", filled(torch.empty))
    monkeypatch.setattr(torch, "empty_like", filled(torch.empty_like))
    monkeypatch.setattr(Tensor, "new_empty", filled(Tensor.new_empty))
