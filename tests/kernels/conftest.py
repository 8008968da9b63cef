"""Kernels run compiled on a CUDA device, and through Triton's interpreter anywhere else."""

import importlib.util
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have several programs, tiles and blocks of columns of the RPR kernels for few points."""
    plan = importlib.import_module("locotrans.kernels.rpr_plan")
    small = {kernel: plan.Launch(32, 16, 4, 2) for kernel in plan.LAUNCHES}
    for kernel in small:
        if kernel.startswith(("pose", "max")):
            small[kernel] = plan.Launch(16, 16, 4, 2)
    monkeypatch.setattr(plan, "LAUNCHES", small)
    monkeypatch.setattr(plan, "FLOAT32_LAUNCHES", small)
    monkeypatch.setattr(plan, "FORWARD_PROGRAMS", 2)
    monkeypatch.setattr(plan, "BACKWARD_PROGRAMS", 2)


@pytest.fixture(autouse=True, scope="session")
def _language_changed_once() -> Iterator[None]:
    """Spare Triton's interpreter half of its time.

    A kernel that it starts has functions of the interpreter put into the language. They are put
    there anew, after a look at everything in it, whenever the kernel calls a function.
    """
    interpreter = None
    if importlib.util.find_spec("triton"):
        interpreter = importlib.import_module("triton.runtime.interpreter")
    change = getattr(interpreter, "_patch_lang", None)
    if change is None:  # an inside of Triton's, which others may not have
        yield
        return
    core = interpreter.tl.core

    def change_once(function: Callable[..., object]) -> object:
        known = [x for x in function.__globals__.values() if x is interpreter.tl or x is core]
        if any(core.is_builtin(x.load) for x in known):
            return change(function)
        return SimpleNamespace(restore=lambda: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", change_once)
        yield


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
