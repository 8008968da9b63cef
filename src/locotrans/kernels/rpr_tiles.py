"""What the kernels of the relative-pose edge convolution share; the formulas are in `rpr`.

- Widths are padded to powers of two (at least 16, for ``tl.dot``) with zeros that stay zero, so
  that only rows need masks. A name ending in P is a padded width. Vectors alone come in rows of
  any WIDTH, with their channels first.
- A batch norm is a table of four rows, (4, CP): scale, shift, mean, 1 / deviation. Then
  ``bn(x) = scale x + shift`` and ``xhat = (x - mean) rstd``.
- Statistics are sums of ``x - center`` and of its square, with the running mean as ``center``,
  which keeps the variance from cancelling; each program writes its own row of ``sums``
  (programs, 2, CP).
- Edges are counted in 32 bits, offsets into edge tensors in 64.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def operand(x, PRECISION: tl.constexpr):
    """Convert to what a product multiplies: bfloat16, half precision, cut to its range, float32."""
    if PRECISION == "bf16":
        return x.to(tl.bfloat16)
    elif PRECISION == "half":
        return x if x.dtype == tl.float16 else tl.clamp(x, -65504.0, 65504.0).to(tl.float16)
    elif PRECISION == "bf16_rounded":
        return x.to(tl.bfloat16).to(tl.float32)
    else:
        return x.to(tl.float32)


@triton.jit
@no_type_check
def dot(a, b, PRECISION: tl.constexpr):
    """Multiply matrices with a float32 accumulator.

    "bf16_rounded" rounds the factors to bfloat16 but multiplies in float32: Triton's interpreter
    has no bfloat16 product.
    """
    if PRECISION == "bf16" or PRECISION == "half":
        return tl.dot(operand(a, PRECISION), operand(b, PRECISION))
    elif PRECISION == "bf16_rounded":
        return tl.dot(operand(a, PRECISION), operand(b, PRECISION), input_precision="ieee")
    else:
        return tl.dot(operand(a, PRECISION), operand(b, PRECISION), input_precision=PRECISION)


@triton.jit
@no_type_check
def load_matrix(
    pointer, rows, cols, row_stride, col_stride, ROWS: tl.constexpr, COLS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Load a block of a (ROWS, COLS) matrix as a factor, zero beyond its edges."""
    mask = (rows[:, None] < ROWS) & (cols[None, :] < COLS)
    at = pointer + rows[:, None] * row_stride + cols[None, :] * col_stride
    return operand(tl.load(at, mask=mask, other=0.0), PRECISION)


@triton.jit
@no_type_check
def activated(x, norm_ptr, cols, WIDTH: tl.constexpr):
    """Batch norm and ReLU."""
    x = x * load_vector(norm_ptr, cols, WIDTH) + load_vector(norm_ptr + WIDTH, cols, WIDTH)
    return tl.maximum(x, 0.0)


@triton.jit
@no_type_check
def load_vector(pointer, cols, COLS: tl.constexpr):
    """Load one number a channel as a row (1, c), zero beyond COLS."""
    return tl.load(pointer + cols, mask=cols < COLS, other=0.0).to(tl.float32)[None, :]


@triton.jit
@no_type_check
def load_rows(pointer, rows, cols, WIDTH: tl.constexpr, inside):
    """Load some columns of some rows of an (n, WIDTH) tensor in float32, zero where outside."""
    at = pointer + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :]
    return tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def load_stored(pointer, rows, cols, WIDTH: tl.constexpr, inside):
    """Do the same in the type of the tensor."""
    at = pointer + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :]
    return tl.load(at, mask=inside[:, None], other=0.0)


@triton.jit
@no_type_check
def store_rows(pointer, rows, cols, WIDTH: tl.constexpr, inside, x):
    """Store some columns of some rows of an (n, WIDTH) tensor in its own type, within its range."""
    at = pointer + rows.to(tl.int64)[:, None] * WIDTH + cols[None, :]
    if pointer.dtype.element_ty == tl.float16:
        x = tl.clamp(x, -65504.0, 65504.0)
    tl.store(at, x.to(pointer.dtype.element_ty), mask=inside[:, None])


@triton.jit
@no_type_check
def fold(x):
    """Add rows i and i + 8 of every 16: sums in half the registers.

    One thread holds both if ``x`` is a product, or has its layout. Else they pass through shared
    memory, much slower: not for a tensor that is only loaded.
    """
    return tl.sum(tl.reshape(x, (x.shape[0] // 16, 2, 8, x.shape[1])), axis=1)


@triton.jit
@no_type_check
def store_sums(pointer, program, cols, WIDTH: tl.constexpr, s1, s2):
    """Store two tiles of partial sums, summed over their rows, as row ``program``."""
    at = pointer + program * (2 * WIDTH) + cols
    tl.store(at, tl.sum(s1, axis=0))
    tl.store(at + WIDTH, tl.sum(s2, axis=0))


@triton.jit
@no_type_check
def load_frame(pointer, r, inside, ROW: tl.constexpr, AXIS: tl.constexpr):
    """Load entry (ROW, AXIS) of the frame of every point, as a column (points, 1)."""
    return tl.load(pointer + r * 9 + (ROW * 3 + AXIS), mask=inside, other=0.0)[:, None]


@triton.jit
@no_type_check
def store_matrix(pointer, rows, cols, COLS: tl.constexpr, x):
    """Store a block of a matrix with COLS columns."""
    tl.store(pointer + rows[:, None] * COLS + cols[None, :], x)
