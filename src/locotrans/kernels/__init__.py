"""Fused kernels for a few functions of `locotrans.geometry` and `locotrans.nn`.

Each has the plain PyTorch code as its specification, and is used in its place: on a CUDA device for
float32 and bfloat16 tensors, by Triton; on a CPU for float32 tensors in training, and in evaluation
without gradients, by Numba. The environment variable ``LOCOTRANS_KERNELS``, or `set_kernels`,
decides: "auto" (the default) or "off". Without Triton or Numba, or anywhere else, the plain code
runs.
Where several processes train together, the kernels take the statistics of batch norm, and the means
of the consistency loss, over the shapes of all of them, as the plain code does.
"""

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

_SETTINGS = ("auto", "off")
_setting = "auto"


def set_kernels(setting: str) -> str:
    """Choose "auto" or "off" for this process, and return the setting that was in force."""
    global _setting
    if setting not in _SETTINGS:
        raise ValueError(f"the kernels can be {' or '.join(_SETTINGS)}, not {setting!r}")
    before, _setting = _setting, setting
    return before


def use_kernels(x: Tensor) -> bool:
    """Say whether the kernels are to be used for a tensor like ``x``."""
    return (
        _setting == "auto"
        and x.is_cuda
        and x.dtype in (torch.float32, torch.bfloat16)
        and _has_triton
    )


def use_loops(x: Tensor, *, training: bool = False) -> bool:
    """Say whether the compiled loops of the CPU are to be used for a tensor like ``x``.

    They have no gradients, and batch norm with fixed statistics; `use_learning_loops` is for
    training.

    Args:
        x: the tensor.
        training: whether a batch norm of the layer, whatever the layer's own mode, is in training.
    """
    return not training and not torch.is_grad_enabled() and has_loops(x)


def use_learning_loops(x: Tensor, *, training: bool) -> bool:
    """Say whether the loops for training on a CPU are to be used for a tensor like ``x``.

    They have first derivatives, backward; the plain code has all others.

    Args:
        x: the tensor.
        training: whether all batch norms of the layer are in training.
    """
    return training and has_loops(x)


def has_loops(x: Tensor) -> bool:
    """Say whether there are compiled loops of the CPU for a tensor like ``x``.

    Those that find neighbours, which have no gradients, are used wherever this holds.
    """
    return (
        _setting == "auto"
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")  # whose bfloat16 numpy does not know
        and not torch.compiler.is_compiling()  # which compiles the plain code
        and not torch._C._is_tracing()
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and _has_numba
    )


def stored_dtype() -> torch.dtype:
    """Return the type of large tensors that kernels store: bfloat16 under autocast to it."""
    mixed = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    return torch.bfloat16 if mixed else torch.float32


def product_precision() -> str:
    """Return how the kernels take products, as torch is set to; float32 is TF32 three times."""
    if stored_dtype() == torch.bfloat16:
        return "bf16"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


P = ParamSpec("P")
T = TypeVar("T")


def on_device(
    function: Callable[Concatenate[Tensor, P], T],
) -> Callable[Concatenate[Tensor, P], T]:
    """Let a function launch its kernels on the device of its first argument, current or not.

    (Autograd takes its derivative there by itself.)
    """

    @functools.wraps(function)
    def call(x: Tensor, /, *arguments: P.args, **options: P.kwargs) -> T:
        with torch.cuda.device_of(x):
            return function(x, *arguments, **options)

    return call


_has_triton = importlib.util.find_spec("triton") is not None
_has_numba = importlib.util.find_spec("numba") is not None
set_kernels(os.environ.get("LOCOTRANS_KERNELS", "auto"))
