"""Edge layers in evaluation on the CPU, by the loops of `loops`.

Each has the plain PyTorch code of the layer as its specification. Batch norm with fixed statistics
is a factor and an offset for each channel, which go into the weights. What torch does well, the
products, stays with torch; the loops do what lies between them, for as many reference points at a
time as the cache holds. Reference points are shared out among torch's threads.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import BatchNorm1d, Linear
from torch.nn import functional as F

from locotrans.kernels import loops
from locotrans.kernels.threads import share_out

CACHE = 2**17  # numbers of an edge tensor that are worked on at a time
PRODUCT_ROWS = 512  # of a product before they are worked on
LANES = 8  # numbers of a vector instruction; a rest is worked on one by one


def fold(norm: BatchNorm1d) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """Return factor and offset of a batch norm with its running statistics."""
    assert norm.running_var is not None
    assert norm.running_mean is not None
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return scale, norm.bias - scale * norm.running_mean


def fold_linear(
    linear: Linear, norm: BatchNorm1d
) -> tuple[Float[Tensor, " d"], Float[Tensor, "c d"]]:
    """Return bias and transposed weight of a linear layer with a batch norm behind it."""
    scale, shift = fold(norm)
    bias = shift if linear.bias is None else shift + scale * linear.bias
    return bias, (scale[:, None] * linear.weight).mT.contiguous()


def product(
    x: Float[Tensor, "*batch c"], weight: Float[Tensor, "c d"]
) -> Float[Tensor, "*batch d"]:
    """Return ``x W``, of all rows."""
    rows = x.reshape(-1, x.shape[-1])
    out = x.new_empty(len(rows), weight.shape[1])

    def work(start: int, stop: int) -> None:
        torch.mm(rows[start:stop], weight, out=out[start:stop])

    share_out(work, len(rows))
    return out.reshape(*x.shape[:-1], out.shape[1])


def point_layer(
    x: Float[Tensor, "*batch c"], bias: Float[Tensor, " d"], weight: Float[Tensor, "c d"]
) -> Float[Tensor, "*batch d"]:
    """Return the leaky ReLU of ``x W + bias``."""
    rows, (bias_,) = x.reshape(-1, x.shape[-1]), as_arrays(bias)
    out = x.new_empty(len(rows), len(bias))

    def work(first: int, last: int) -> None:
        for start in range(first, last, PRODUCT_ROWS):
            part = slice(start, min(start + PRODUCT_ROWS, last))
            torch.mm(rows[part], weight, out=out[part])
            loops.bias_leaky(out[part].numpy(), bias_)

    share_out(work, len(rows))
    return out.reshape(*x.shape[:-1], out.shape[1])


def vn_edge_conv(
    v: Float[Tensor, "m 3 c"],
    index: Int[Tensor, "m k"],
    weight: Float[Tensor, "d c2"],
    direction: Float[Tensor, "d c2"],
    norm: BatchNorm1d,
) -> Float[Tensor, "m 3 d"]:
    """Return the mean over the neighbours of a VN layer on the edges [v_j - v_r, v_r]."""
    d, fill = len(weight), -len(weight) % LANES
    w1, w2 = torch.cat([F.pad(part, (0, 0, 0, fill)) for part in (weight, direction)]).chunk(2, 1)
    u, w = product(v, w1.mT), product(v, (w2 - w1).mT)
    scale, shift = (F.pad(x, (0, fill)) for x in fold(norm))
    out = v.new_empty(len(v), 3, d + fill)
    arrays = as_arrays(u, w, index, scale, shift, out)
    share_out(lambda *rows: loops.vn_edges(*arrays, *rows), len(v))
    return out[..., :d].contiguous()


def vn_layer(
    v: Float[Tensor, "*batch 3 c"],
    mean: Float[Tensor, "*shape 1 3 c"] | None,
    parts: list[Float[Tensor, "_ e"]],
    norm: BatchNorm1d,
) -> Float[Tensor, "*batch 3 d"]:
    """Map the vectors of every point: product, batch norm of the lengths, leaky ReLU.

    Args:
        v: vectors of the points.
        mean: vectors that all points of a cloud share, as channels behind those of ``v``.
        parts: weights of the vectors and of their directions.
        norm: of the lengths.
    """
    own, *shared = torch.cat(parts).chunk(1 if mean is None else 2, dim=1)
    vectors = v.reshape(-1, *v.shape[-2:])
    if mean is None:
        offset = v.new_zeros(1, 3, len(own))
    else:
        offset = F.linear(mean.reshape(-1, *mean.shape[-2:]), shared[0])
    n = max(1, len(vectors) // len(offset))
    out = v.new_empty(len(vectors), 3, len(parts[0]))
    (offset_,), arrays = as_arrays(offset), as_arrays(*fold(norm), out)
    weight = own.mT.contiguous()
    _by_products(vectors, weight, lambda pq, *rows: loops.vn_points(pq, offset_, n, *arrays, *rows))
    return out.reshape(*v.shape[:-1], out.shape[-1])


def _by_products(
    v: Float[Tensor, "m 3 c"], weight: Float[Tensor, "c e"], work: Callable[..., None]
) -> None:
    """Call ``work(v W, start, stop)`` for the vectors of some points at a time."""
    step = max(1, CACHE // (3 * weight.shape[1]))

    def part(first: int, last: int) -> None:
        buffer = v.new_empty(3 * step, weight.shape[1])
        for start in range(first, last, step):
            stop = min(start + step, last)
            rows = buffer[: 3 * (stop - start)]
            torch.mm(v[start:stop].flatten(0, 1), weight, out=rows)
            work(rows.unflatten(0, (-1, 3)).numpy(), start, stop)

    share_out(part, len(v))


def edge_conv(
    x: Float[Tensor, "m c"],
    index: Int[Tensor, "m k"],
    weight: Float[Tensor, "d c2"],
    norm: BatchNorm1d,
) -> Float[Tensor, "m d"]:
    """Return the maximum over the neighbours of a layer on the edges [x_j - x_r, x_r]."""
    scale, shift = fold(norm)
    w1, w2 = weight.chunk(2, dim=1)
    u = product(x, (scale[:, None] * w1).mT)
    w = product(x, (scale[:, None] * (w2 - w1)).mT) + shift
    out = torch.empty_like(w)
    arrays = as_arrays(u, w, index, out)
    share_out(lambda *rows: loops.edge_max(*arrays, *rows), len(w))
    return out


def frame_conv(
    points: Float[Tensor, "m 3"],
    matrix: Float[Tensor, "m 3 d"],
    offset: Float[Tensor, "m d"],
    index: Tensor,
) -> Float[Tensor, "m d"]:
    """Return the leaky ReLU of ``max_j matrix_r (p_j - p_r) + offset_r``."""
    out = points.new_empty(len(points), matrix.shape[-1])
    arrays = as_arrays(points, matrix, offset, index, out)
    share_out(lambda *rows: loops.frame_max(*arrays, *rows), len(points))
    return out


def rpr_conv(
    v: Float[Tensor, "m 3 cv"],
    frames: Float[Tensor, "m 3 3"],
    index: Int[Tensor, "m k"],
    basis: Float[Tensor, "m c"],
    reference: Float[Tensor, "m d"],
    layers: list[tuple[Tensor, Tensor]],
    norm: tuple[Tensor, Tensor],
    last: Float[Tensor, "c d"],
) -> Float[Tensor, "m d"]:
    """Return the relative pose convolution of Eqs. 15 to 17.

    Args:
        v: vectors of the points.
        frames: of the points.
        index: the neighbours.
        basis: x_j before its kernel.
        reference: what the reference point adds to the last product, offset included.
        layers: bias and weight of kernel1, kernel2 and, if there is one, refine.
        norm: factor and offset behind the product of kernel and basis.
        last: weight of the last product.
    """
    (b1, w1), (b2, w2), *refine = layers
    fill = -v.shape[-1] % LANES
    v, w1 = F.pad(v, (0, fill)), F.pad(w1.unflatten(0, (3, -1)), (0, 0, 0, fill)).flatten(0, 1)
    (m, k), d, c, pose = index.shape, reference.shape[1], basis.shape[1], len(w1)
    b2, w2 = b2 * norm[0], w2 * norm[0]
    out = torch.empty_like(reference)
    v_, frames_, index_, reference_, out_ = as_arrays(v, frames, index, reference, out)
    b1_, b2_, basis_, shift_ = as_arrays(b1, b2, basis, norm[1])
    step = max(1, min(m, CACHE // (k * max(d, pose))))

    def work(first: int, stop: int) -> None:
        buffers = [v.new_empty(step * k, width) for width in (pose, len(b1), c, c, d)]
        for start in range(first, stop, step):
            end = min(start + step, stop)
            f, h, x, refined, e = (buffer[: (end - start) * k] for buffer in buffers)
            loops.poses(v_, frames_, index_, f.numpy(), start, end)
            torch.mm(f, w1, out=h)
            loops.bias_relu(h.numpy(), b1_)
            torch.mm(h, w2, out=x)
            loops.modulate(x.numpy(), b2_, basis_, shift_, index_, start, end)
            for bias, weight in refine:
                x = torch.mm(x, weight, out=refined)
                loops.bias_relu(x.numpy(), bias.numpy())
            torch.mm(x, last, out=e)
            loops.max_rows(e.numpy(), reference_, k, out_, start, end)

    share_out(work, m)
    return out


def max_mean_pool(x: Float[Tensor, "b n c"]) -> Float[Tensor, "b c2"]:
    """Return the maximum and the mean over the points, concatenated."""
    b, n, c = x.shape
    largest, total = x.new_empty(b, c), x.new_empty(b, c)
    for cloud in zip(*as_arrays(x, largest, total), strict=True):
        loops.max_sum(*cloud)
    return torch.cat([largest, total / n], dim=-1)


def pool_projections(
    v: Float[Tensor, "b n 3 c"], z: Float[Tensor, "b n 3 3"]
) -> tuple[Float[Tensor, "b 3 c"], Float[Tensor, "b 3 c"]]:
    """Return maximum and mean over the points of the inner products of v with z_1, z_2, z_3."""
    b, n, _, c = v.shape
    largest, total = v.new_empty(b, 3, c), v.new_empty(b, 3, c)
    for cloud in zip(*as_arrays(v, z, largest, total), strict=True):
        loops.pool(*cloud)
    return largest, total / n


def as_arrays(*tensors: Tensor) -> list[Any]:
    """Return tensors as Numba takes them; what is written to must be contiguous."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
