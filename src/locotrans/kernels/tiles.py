"""Loads and stores that kernels share, of a tile of some rows r and channels c.

Kernels know the type of their arithmetic, which `arithmetic` gives, as REAL. Distances in memory
should be constants of a kernel: Triton sees of no other that it is a multiple of 8, and reads and
writes several numbers at once only where it knows.
"""

import os
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
@no_type_check
def load_channel(pointer, c, channels, REAL: tl.constexpr):
    """Load one number a channel, as a row (1, c)."""
    return tl.load(pointer + c, mask=c < channels, other=0.0).to(REAL)[None, :]


@triton.jit
@no_type_check
def load_tile(base, rows, stride, c, mask, REAL: tl.constexpr):
    """Load some rows and channels of a matrix."""
    pointer = base + rows.to(tl.int64)[:, None] * stride + c[None, :]
    return tl.load(pointer, mask=mask, other=0.0).to(REAL)


@triton.jit
@no_type_check
def store_tile(base, rows, stride, c, mask, x):
    """Store some rows and channels of a matrix."""
    tl.store(base + rows.to(tl.int64)[:, None] * stride + c[None, :], x, mask=mask)


@triton.jit
@no_type_check
def load_vectors(base, rows, stride, c, mask, REAL: tl.constexpr):
    """Load the vectors of some rows and channels of an (n, 3, stride) tensor."""
    pointer = base + rows.to(tl.int64)[:, None] * (3 * stride) + c[None, :]
    x = tl.load(pointer, mask=mask, other=0.0).to(REAL)
    y = tl.load(pointer + stride, mask=mask, other=0.0).to(REAL)
    z = tl.load(pointer + 2 * stride, mask=mask, other=0.0).to(REAL)
    return x, y, z


@triton.jit
@no_type_check
def store_vectors(base, rows, stride, c, mask, x, y, z):
    """Store the vectors of some rows and channels of an (n, 3, stride) tensor."""
    pointer = base + rows.to(tl.int64)[:, None] * (3 * stride) + c[None, :]
    tl.store(pointer, x, mask=mask)
    tl.store(pointer + stride, y, mask=mask)
    tl.store(pointer + 2 * stride, z, mask=mask)


@triton.jit
@no_type_check
def add_vectors(base, rows, stride, c, mask, x, y, z):
    """Add vectors to some rows, which may repeat, of an (n, 3, stride) tensor."""
    pointer = base + rows.to(tl.int64)[:, None] * (3 * stride) + c[None, :]
    tl.atomic_add(pointer, x, mask=mask, sem="relaxed")
    tl.atomic_add(pointer + stride, y, mask=mask, sem="relaxed")
    tl.atomic_add(pointer + 2 * stride, z, mask=mask, sem="relaxed")


def arithmetic(x: Tensor) -> tuple[torch.dtype, Any]:
    """Return the type of all arithmetic on x, for torch and for Triton."""
    if x.dtype == torch.float64:
        return torch.float64, tl.float64
    return torch.float32, tl.float32


def dense_rows(x: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Return x with channels side by side, copied only if it must be."""
    return x if x.stride(1) == 1 else x.contiguous()


def dense_vectors(x: Float[Tensor, "n 3 c"]) -> Float[Tensor, "n 3 c"]:
    """Return x with channels side by side and axes at one distance, copied only if it must be."""
    dense = x.stride(2) == 1 or x.shape[2] == 1
    return x if dense and x.stride(0) == 3 * x.stride(1) else x.contiguous()
