r"""Fused scalar edge convolutions: batch norm over all edges, leaky ReLU, maximum over neighbours.

`edge_max` is what `locotrans.nn.edge.EdgeConv` does after its two products per point, `frame_conv`
what `locotrans.nn.rpr.FrameConv` does after its one. No edge tensor exists in memory: the backward
pass gathers and computes the edges again. For every edge (r, j) and channel::

    e = u_j + w_r                               edge_max
    e = <m_r, p_j - p_r> (+ w_r)                frame_conv, m_r = U_r W^T
    x = (e - mean) / sqrt(var + bn_eps)         mean and variance over all edges, in training
    out_r = leaky(max over j of gamma x + beta)

Batch norm is monotone in e, so the maximum is that of e sign(gamma), known before the statistics
are: one pass over the edges gives both, and one over the points normalises. In evaluation all of it
is one pass.

Backward, with g = dL/dout leaky' and the edges e* that were the maximum (`best`, and which of the k
in `slot`; the first of equals)::

    dbeta = sum g,  dgamma = sum g x*           over the points
    de = gamma rstd (g [e is e*] - [training] (dbeta + x dgamma) / edges)
    du_j = sum over r of de,  dw_r = sum over j of de,  dm_r = sum over j of de (p_j - p_r)

Bytes that each pass must move from and to device memory, a point and channel, with s bytes an entry
of u, w, m and out, and f = 4 for what is float32 always (16.8 MB at f, for 32 clouds of 1,024
points, d = 128)::

                edges          output    reductions    gradients
    edge_max    2 s + f + 1    f + s     f + s         4 s + f + 1, and 3 f + s for du
    frame_conv  3 s + f + 1    f + s     f + s         7 s + f + 1     (s for w, s for dw if asked)

and 4 k N of indices, for edges and gradients. du is written as zeros, then read and written, and
once more if it is to be bf16. The gathers of `edge_max` come on top, from the L2 cache: s d k N for
the edges, s d k N and f d k N of atomic additions for the gradients; they set its floor: 335 MB,
then 670 MB at the size above, k = 20, float32. `frame_conv` gathers 12 bytes an edge.

A width may be padded, so that products and rows are aligned: channels beyond those of the batch
norm must be zero, give zero, and get a zero gradient.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from locotrans.kernels.vn import (
    _channel,
    _load,
    _means,
    _moments,
    _norm,
    _programs,
    _real,
    _rows,
    _store,
    _store_partial,
)

# A program's tile is points x channels, 8 (edge_max) or 4 (frame_conv) of them a thread.
EDGE_TILE = 1024
FRAME_TILE = 512
CHANNELS = 64
WARPS = 4


@triton.jit
@no_type_check
def _load_tile(base, rows, stride, c, mask, REAL: tl.constexpr):
    """Load some rows and channels of a matrix."""
    pointer = base + rows.to(tl.int64)[:, None] * stride + c[None, :]
    return tl.load(pointer, mask=mask, other=0.0).to(REAL)


@triton.jit
@no_type_check
def _store_tile(base, rows, stride, c, mask, x):
    """Store some rows and channels of a matrix."""
    tl.store(base + rows.to(tl.int64)[:, None] * stride + c[None, :], x, mask=mask)


@triton.jit
@no_type_check
def _load_points(points, rows, inside, REAL: tl.constexpr):
    """Load the coordinates of some rows of an (n, 3) tensor, as three columns (rows, 1)."""
    pointer = points + rows.to(tl.int64)[:, None] * 3
    x = tl.load(pointer, mask=inside[:, None], other=0.0).to(REAL)
    y = tl.load(pointer + 1, mask=inside[:, None], other=0.0).to(REAL)
    z = tl.load(pointer + 2, mask=inside[:, None], other=0.0).to(REAL)
    return x, y, z


@triton.jit
@no_type_check
def _load_reference(
    source, m, w, r, n, c, m_row, w_row,
    FRAME: tl.constexpr, OFFSET: tl.constexpr, REAL: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Load what reference points give to all their edges: w_r, and in a frame p_r and m_r."""
    inside = r < n
    mask = inside[:, None] & (c < WIDTH)[None, :]
    offset = tl.zeros((r.shape[0], c.shape[0]), dtype=REAL)
    if OFFSET:
        offset = _load_tile(w, r, w_row, c, mask, REAL)
    if FRAME:
        x, y, z = _load_points(source, r, inside, REAL)
        mx, my, mz = _load(m, r, m_row, c, mask, REAL)
        return offset, x, y, z, mx, my, mz
    else:
        return offset, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0


@triton.jit
@no_type_check
def _edge(
    source, j, inside, c, mask, source_row, offset, x, y, z, mx, my, mz,
    FRAME: tl.constexpr, REAL: tl.constexpr,
):  # fmt: skip
    """Return e of one edge a row and, in a frame, p_j - p_r as columns (rows, 1)."""
    if FRAME:
        dx, dy, dz = _load_points(source, j, inside, REAL)
        dx, dy, dz = dx - x, dy - y, dz - z
        return offset + mx * dx + my * dy + mz * dz, dx, dy, dz
    else:
        return offset + _load_tile(source, j, source_row, c, mask, REAL), 0.0, 0.0, 0.0


@triton.jit
@no_type_check
def _first_edge(
    source, m, w, index, n, c, source_row, m_row, w_row,
    FRAME: tl.constexpr, OFFSET: tl.constexpr, REAL: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return e of edge 0, the shift of the statistics: the same for all programs; (1, channels)."""
    zero = tl.arange(0, 1)
    offset, x, y, z, mx, my, mz = _load_reference(
        source, m, w, zero, n, c, m_row, w_row, FRAME, OFFSET, REAL, WIDTH
    )
    e, _, _, _ = _edge(
        source, tl.load(index + zero), zero < n, c, (c < WIDTH)[None, :], source_row,
        offset, x, y, z, mx, my, mz, FRAME, REAL,
    )  # fmt: skip
    return e


@triton.jit
@no_type_check
def _leaky(e, mean, rstd, gamma, beta, SLOPE: tl.constexpr):
    y = (e - mean) * rstd * gamma + beta
    return tl.where(y > 0, y, SLOPE * y)


@triton.jit
@no_type_check
def _through_leaky(grad, e, mean, rstd, gamma, beta, SLOPE: tl.constexpr):
    """Return g and x of the maximum e."""
    x = (e - mean) * rstd
    return tl.where(x * gamma + beta > 0, grad, SLOPE * grad), x


@triton.jit
@no_type_check
def _edge_maxima(
    source, m, w, index, out, best, slot, partial, shift_out, mean, var, weight, bias,
    n, k, channels, programs, source_row, m_row, w_row,
    FRAME: tl.constexpr, OFFSET: tl.constexpr, TRAINING: tl.constexpr,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store `best` and `slot` over every programs-th tile; and sum e - shift and its square.

    In evaluation, where there is nothing to sum, store the output instead.
    """
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    gamma = _channel(weight, c, channels, REAL)
    sign = tl.where(gamma > 0, 1.0, tl.where(gamma < 0, -1.0, 0.0))
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    shift = tl.zeros((1, C), dtype=REAL)
    if TRAINING:
        shift = _first_edge(
            source, m, w, index, n, c, source_row, m_row, w_row, FRAME, OFFSET, REAL, WIDTH
        )
        if program == 0:
            tl.store(shift_out + c[None, :], shift, mask=(c < channels)[None, :])

    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        offset, x, y, z, mx, my, mz = _load_reference(
            source, m, w, r, n, c, m_row, w_row, FRAME, OFFSET, REAL, WIDTH
        )
        maximum = tl.zeros((ROWS, C), dtype=REAL)
        place = tl.zeros((ROWS, C), dtype=tl.int32)
        edges = index + r.to(tl.int64) * k
        for i in range(k):
            j = tl.load(edges + i, mask=r < n, other=0)
            e, _, _, _ = _edge(
                source, j, r < n, c, mask, source_row, offset, x, y, z, mx, my, mz, FRAME, REAL
            )
            if TRAINING:
                shifted = tl.where(mask, e - shift, 0.0)
                first += shifted
                second += shifted * shifted
            better = (sign * e > sign * maximum) | (i == 0)
            maximum = tl.where(better, e, maximum)
            place = tl.where(better, i, place)
        _store_tile(best, r, WIDTH, c, mask, maximum)
        _store_tile(slot, r, WIDTH, c, mask, place)
        if not TRAINING:
            mu, rstd, _, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
            y_max = _leaky(maximum, mu, rstd, gamma, beta, SLOPE)
            _store_tile(out, r, WIDTH, c, mask, y_max)
    if TRAINING:
        _store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def _normalise(
    best, out, mean, var, weight, bias, n, channels,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store the output, from the maxima."""
    blocks = tl.cdiv(WIDTH, C)
    r = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    mu, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    maximum = _load_tile(best, r, WIDTH, c, mask, REAL)
    _store_tile(out, r, WIDTH, c, mask, _leaky(maximum, mu, rstd, gamma, beta, SLOPE))


@triton.jit
@no_type_check
def _edge_reductions(
    best, grad, partial, mean, var, weight, bias, n, channels, programs, g_row,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum g and g x*, over every programs-th tile."""
    blocks = tl.cdiv(WIDTH, C)
    program = tl.program_id(0) // blocks
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mu, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    first = tl.zeros((ROWS, C), dtype=REAL)
    second = tl.zeros((ROWS, C), dtype=REAL)
    for tile in range(program, tl.cdiv(n, ROWS), programs):
        r = tile * ROWS + tl.arange(0, ROWS)
        mask = (r < n)[:, None] & (c < WIDTH)[None, :]
        g = _load_tile(grad, r, g_row, c, mask, REAL)
        maximum = _load_tile(best, r, WIDTH, c, mask, REAL)
        g, x = _through_leaky(g, maximum, mu, rstd, gamma, beta, SLOPE)
        first += g  # 0 outside the mask
        second += g * x
    _store_partial(partial, program, c, channels, first, second)


@triton.jit
@no_type_check
def _edge_gradients(
    source, m, w, index, best, slot, grad, sums, du, dm, dw, mean, var, weight, bias,
    n, k, channels, count, source_row, m_row, w_row, g_row,
    FRAME: tl.constexpr, OFFSET: tl.constexpr, TRAINING: tl.constexpr,
    BN_EPS: tl.constexpr, SLOPE: tl.constexpr, REAL: tl.constexpr,
    ROWS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add de of every edge to du_j, in memory, and to dw_r or dm_r, in registers."""
    blocks = tl.cdiv(WIDTH, C)
    r = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    mask = (r < n)[:, None] & (c < WIDTH)[None, :]
    mu, rstd, gamma, beta = _norm(mean, var, weight, bias, c, channels, BN_EPS, REAL)
    mean_g, mean_gx = _means(sums, c, channels, count, TRAINING, REAL)
    g = _load_tile(grad, r, g_row, c, mask, REAL)
    maximum = _load_tile(best, r, WIDTH, c, mask, REAL)
    g, _ = _through_leaky(g, maximum, mu, rstd, gamma, beta, SLOPE)
    place = _load_tile(slot, r, WIDTH, c, mask, tl.int32)
    # de = [e is e*] peak - base - (e - mean) tilt
    peak = gamma * rstd * g
    base = gamma * rstd * mean_g
    tilt = gamma * rstd * rstd * mean_gx
    offset, x, y, z, mx, my, mz = _load_reference(
        source, m, w, r, n, c, m_row, w_row, FRAME, OFFSET, REAL, WIDTH
    )
    total = tl.zeros((ROWS, C), dtype=REAL)
    along_x = tl.zeros((ROWS, C), dtype=REAL)
    along_y = tl.zeros((ROWS, C), dtype=REAL)
    along_z = tl.zeros((ROWS, C), dtype=REAL)
    edges = index + r.to(tl.int64) * k
    for i in range(k):
        j = tl.load(edges + i, mask=r < n, other=0)
        e, dx, dy, dz = _edge(
            source, j, r < n, c, mask, source_row, offset, x, y, z, mx, my, mz, FRAME, REAL
        )
        de = tl.where(place == i, peak, 0.0) - base - (e - mu) * tilt
        total += de
        if FRAME:
            along_x += de * dx
            along_y += de * dy
            along_z += de * dz
        else:
            wanted = mask
            if not TRAINING:
                wanted = mask & (place == i)  # de is 0 elsewhere
            pointer = du + j.to(tl.int64)[:, None] * WIDTH + c[None, :]
            tl.atomic_add(pointer, de, mask=wanted, sem="relaxed")
    if FRAME:
        _store(dm, r, WIDTH, c, mask, along_x, along_y, along_z)
    if OFFSET:
        _store_tile(dw, r, WIDTH, c, mask, total)


# -------------------------------------------------------------------------------- torch's side


def _dense(x: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Return x with channels side by side, copied only if it must be."""
    return x if x.stride(1) == 1 else x.contiguous()


def _slot_type(k: int) -> torch.dtype:
    """Return the smallest type that holds the place of an edge among k."""
    return torch.uint8 if k <= 256 else torch.int32


class _EdgeMax(torch.autograd.Function):
    """`edge_max` (source u, no m), `frame_conv` (source the points) and their derivatives."""

    @staticmethod
    def forward(
        ctx: Any, source: Tensor, m: Tensor | None, w: Tensor | None, index: Tensor,
        weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
        training: bool, momentum: float, bn_eps: float, slope: float,
    ) -> Tensor:  # fmt: skip
        frame, offset = m is not None, w is not None
        index = index.contiguous()
        source = source.contiguous() if frame else _dense(source)
        m = None if m is None else _rows(m)
        w = None if w is None else _dense(w)
        like = source if m is None else m
        (n, k), width, channels = index.shape, like.shape[-1], len(weight)
        dtype, real = _real(like)
        columns = min(CHANNELS, max(16, triton.next_power_of_2(width)))
        rows = (FRAME_TILE if frame else EDGE_TILE) // columns
        blocks, tiles = triton.cdiv(width, columns), triton.cdiv(n, rows)
        norm = {"BN_EPS": bn_eps, "SLOPE": slope, "REAL": real}
        tile = {"ROWS": rows, "C": columns, "WIDTH": width, "num_warps": WARPS, **norm}
        flags = {"FRAME": frame, "OFFSET": offset, "TRAINING": training}
        strides = (
            source.stride(0), 0 if m is None else m.stride(1), 0 if w is None else w.stride(0),
        )  # fmt: skip

        mean, var = running_mean, running_var
        out = like.new_empty(n, width)
        best = like.new_empty(n, width, dtype=dtype)
        slot = like.new_empty(n, width, dtype=_slot_type(k))
        programs = _programs(n, rows, blocks) if training else tiles
        partial = like.new_empty(programs if training else 0, 2, channels, dtype=dtype)
        shift = like.new_empty(channels, dtype=dtype)
        _edge_maxima[(programs * blocks,)](
            source, like if m is None else m, like if w is None else w, index,
            out, best, slot, partial, shift, mean, var, weight, bias,
            n, k, channels, programs, *strides, **flags, **tile,
        )  # fmt: skip
        if training:
            moments = _moments(partial, shift, running_mean, running_var, momentum, n * k)
            mean, var = moments.unbind()
            _normalise[(tiles * blocks,)](best, out, mean, var, weight, bias, n, channels, **tile)
        ctx.save_for_backward(source, m, w, index, best, slot, weight, bias, mean, var)
        ctx.flags, ctx.tile, ctx.strides = flags, tile, strides
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        source, m, w, index, best, slot, weight, bias, mean, var = ctx.saved_tensors
        grad = _dense(grad)
        (n, k), width, channels = index.shape, best.shape[1], len(weight)
        rows, columns = ctx.tile["ROWS"], ctx.tile["C"]
        blocks = triton.cdiv(width, columns)
        programs = _programs(n, rows, blocks)
        partial = best.new_empty(programs, 2, channels)
        _edge_reductions[(programs * blocks,)](
            best, grad, partial, mean, var, weight, bias, n, channels, programs, grad.stride(0),
            **ctx.tile,
        )  # fmt: skip
        sums = partial.sum(0)
        dbeta, dgamma = sums.to(weight.dtype).unbind()
        du = None if m is not None else torch.zeros_like(best)
        dm = None if m is None else m.new_empty(n, 3, width)
        dw = None if w is None else w.new_empty(n, width)
        _edge_gradients[(triton.cdiv(n, rows) * blocks,)](
            source, best if m is None else m, best if w is None else w, index, best, slot, grad,
            sums, best if du is None else du, best if dm is None else dm,
            best if dw is None else dw, mean, var, weight, bias,
            n, k, channels, n * k, *ctx.strides, grad.stride(0), **ctx.flags, **ctx.tile,
        )  # fmt: skip
        du = None if du is None else du.to(source.dtype)
        return du, dm, dw, None, dgamma, dbeta, *[None] * 6


def edge_max(
    u: Float[Tensor, "n d"],
    w: Float[Tensor, "n d"],
    index: Int[Tensor, "n k"],
    weight: Float[Tensor, " c"],
    bias: Float[Tensor, " c"],
    running_mean: Float[Tensor, " c"],
    running_var: Float[Tensor, " c"],
    training: bool,
    momentum: float,
    bn_eps: float = 1e-5,
    slope: float = 0.2,
) -> Float[Tensor, "n d"]:
    """Apply batch norm to the edges u_j + w_r, and leaky ReLU to their maximum over j.

    Args:
        u: what a point gives as a neighbour; d >= c channels.
        w: what a point gives as the reference point. It and u may be halves of one product.
        index: the neighbours j of every r, as rows of u.
        weight: gamma of the batch norm.
        bias: beta of the batch norm.
        running_mean: updated in place in training, used in evaluation.
        running_var: likewise.
        training: normalise by the statistics of these edges.
        momentum: of the running statistics.
        bn_eps: of the batch norm.
        slope: of the leaky ReLU.

    Returns:
        The new features, in the type of u; arithmetic is float32 at least.

    Gradient: that of a maximum goes to the first of equal edges. That of u is summed by atomic
        additions, in no fixed order. In evaluation the backward pass reads the running statistics
        again.
    """
    if u.shape != w.shape or len(index) != len(u) or len(weight) > u.shape[1]:
        raise ValueError(
            f"u {tuple(u.shape)}, w {tuple(w.shape)}, index {tuple(index.shape)} and a batch norm "
            f"of {len(weight)} channels do not belong together"
        )
    return _EdgeMax.apply(
        u, None, w, index, weight, bias, running_mean, running_var, training, momentum,
        bn_eps, slope,
    )  # fmt: skip


def frame_conv(
    points: Float[Tensor, "n 3"],
    index: Int[Tensor, "n k"],
    m: Float[Tensor, "n 3 d"],
    weight: Float[Tensor, " c"],
    bias: Float[Tensor, " c"],
    running_mean: Float[Tensor, " c"],
    running_var: Float[Tensor, " c"],
    training: bool,
    momentum: float,
    bn_eps: float = 1e-5,
    slope: float = 0.2,
    w: Float[Tensor, "n d"] | None = None,
) -> Float[Tensor, "n d"]:
    """Apply batch norm to the edges <m_r, p_j - p_r> + w_r, and leaky ReLU to their maximum over j.

    Args:
        points: the coordinates p.
        index: the neighbours j of every r, as rows of the points.
        m: ``U_r W^T``, the columns of the frame mapped by the layer; d >= c channels.
        weight: gamma of the batch norm.
        bias: beta of the batch norm.
        running_mean: updated in place in training, used in evaluation.
        running_var: likewise.
        training: normalise by the statistics of these edges.
        momentum: of the running statistics.
        bn_eps: of the batch norm.
        slope: of the leaky ReLU.
        w: what a point adds to all its edges, if anything.

    Returns:
        The new features, in the type of m; arithmetic is float32 at least.

    Symmetry: SO(3)-invariant, if m and the points turn together, and w does not change.
    Gradient: of m, w and the batch norm; points that ask for one are refused. That of a maximum
        goes to the first of equal edges. In evaluation the backward pass reads the running
        statistics again.
    """
    fits = points.shape == (len(index), 3) and m.shape[:2] == points.shape
    if not fits or (w is not None and w.shape != m[:, 0].shape) or len(weight) > m.shape[2]:
        raise ValueError(
            f"points {tuple(points.shape)}, index {tuple(index.shape)}, m {tuple(m.shape)}, "
            f"w {None if w is None else tuple(w.shape)} and a batch norm of {len(weight)} channels "
            "do not belong together"
        )
    if points.requires_grad:
        raise ValueError("frame_conv has no gradient of the points; use the plain code")
    return _EdgeMax.apply(
        points, m, w, index, weight, bias, running_mean, running_var, training, momentum,
        bn_eps, slope,
    )  # fmt: skip
