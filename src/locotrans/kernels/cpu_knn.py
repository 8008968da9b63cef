"""Neighbour search on the CPU, by the loops of `knn_loops`; `geometry.neighbors` specifies it."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from locotrans.geometry.neighbors import feature_rounding, point_rounding
from locotrans.kernels import knn_loops
from locotrans.kernels.cpu import CACHE
from locotrans.kernels.threads import share_out

ROWS = 32  # of distances at least, so that a product has enough to do
Distances = Callable[[int, Tensor], None]


def knn(points: Float[Tensor, "b n 3"], k: int) -> Int[Tensor, "b n k"]:
    """Return the k nearest neighbours by differences, as `geometry.neighbors.knn`."""

    def prepare(cloud: Tensor) -> tuple[Distances, Tensor, float]:
        planes = cloud[0].mT.contiguous().numpy()

        def distances(start: int, out: Tensor) -> None:
            knn_loops.point_distances(planes, start, out.numpy())

        return distances, *point_rounding(cloud)

    return _nearest(points, prepare, k)


def knn_features(x: Float[Tensor, "b n c"], k: int) -> Int[Tensor, "b n k"]:
    """Return the k nearest neighbours in feature space, as `geometry.neighbors.knn_features`."""

    def prepare(cloud: Tensor) -> tuple[Distances, Tensor, float]:
        cloud = cloud - cloud.mean(-2, keepdim=True)
        squares = cloud.square().sum(-1)
        # |y|^2 - 2 x.y as one product: of [-2 x, 1] and [y, |y|^2]
        left = F.pad(-2 * cloud[0], (0, 1), value=1.0)
        right = torch.cat([cloud[0], squares.mT], dim=-1).mT.contiguous()

        def distances(start: int, out: Tensor) -> None:
            torch.mm(left[start : start + len(out)], right, out=out)

        return distances, *feature_rounding(squares)

    return _nearest(x, prepare, k)


def _nearest(
    x: Float[Tensor, "b n c"],
    prepare: Callable[[Tensor], tuple[Distances, Float[Tensor, "1 n"], float]],
    k: int,
) -> Int[Tensor, "b n k"]:
    """Return the k nearest neighbours.

    Args:
        x: clouds.
        prepare: gives, for one of them, what writes the distances of some points, from the first
            on, to all; and their rounding.
        k: how many neighbours.
    """
    b, n, _ = x.shape
    out = torch.empty(b, n, k, dtype=torch.int32)
    chosen, step = out.numpy(), min(max(CACHE // n, ROWS), n)

    def work(first: int, last: int) -> None:
        buffer, row = x.new_empty(step, n), first
        while row < last:  # some rows of one cloud
            cloud, start = divmod(row, n)
            if row == first or start == 0:
                distances, absolute, relative = prepare(x[cloud : cloud + 1])
                slack = absolute[0].contiguous().numpy()
            stop = min(start + step, n, start + last - row)
            part = buffer[: stop - start]
            distances(start, part)
            knn_loops.select(
                part.numpy(), slack[start:stop], relative, k, chosen[cloud, start:stop]
            )
            row += stop - start

    share_out(work, b * n)
    return out.long()
