"""The choice of farthest points for the CPU, compiled by Numba."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry.neighbors import farthest_from_center
from locotrans.kernels.loops import exact_loop
from locotrans.kernels.threads import share_out

LANES = 512  # points that are looked at together, by vector instructions


def farthest(points: Float[Tensor, "b n 3"], m: int) -> Int[Tensor, "b m"]:
    """Choose m points of each cloud, as `locotrans.geometry.neighbors.farthest_points`."""
    b, n, _ = points.shape
    first = farthest_from_center(points).numpy()
    planes = points.mT.contiguous().numpy()
    out = torch.empty(b, m, dtype=torch.int64)
    chosen = out.numpy()

    def work(start: int, stop: int) -> None:
        for cloud in range(-(-start // n), -(-stop // n)):  # those that begin in this part
            choose(planes[cloud], first[cloud], chosen[cloud])

    share_out(work, b * n)
    return out


@exact_loop
def choose(planes, first, out):
    """Choose points of a cloud, each the farthest from those before.

    Args:
        planes: (3, n) coordinates.
        first: the first of them.
        out: (m,) their indices.
    """
    n = planes.shape[1]
    x, y, z = planes[0], planes[1], planes[2]
    nearest = np.full(n, np.inf, np.float32)
    most = np.empty(min(n, LANES), np.float32)  # of every `LANES`-th
    last = first
    for place in range(len(out)):
        out[place] = last
        px, py, pz = x[last], y[last], z[last]
        most[:] = 0
        for start in range(0, n, LANES):
            part = slice(start, min(start + LANES, n))
            approach(x[part], y[part], z[part], px, py, pz, nearest[part], most)
        farthest = most.max()
        last = n
        for lane in range(len(most)):
            if most[lane] == farthest:  # of those that tie, the first point
                i = lane
                while nearest[i] != farthest:
                    i += LANES
                last = min(last, i)
        if farthest == 0:  # every point lies where a chosen one does
            nearest[:] = np.inf
            last = first


@exact_loop
def approach(x, y, z, px, py, pz, nearest, most):
    """Lower the distances of some points from the chosen ones, and raise the greatest of each."""
    for i in range(len(nearest)):
        dx, dy, dz = x[i] - px, y[i] - py, z[i] - pz
        nearest[i] = min(nearest[i], dx * dx + dy * dy + dz * dz)
        most[i] = max(most[i], nearest[i])
