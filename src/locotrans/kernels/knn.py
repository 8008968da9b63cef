"""k nearest neighbours on the GPU: distances, and a selection kernel.

The specification is `locotrans.geometry.neighbors`, tie rule included; neighbours have no order.
Distances of features (`knn_features`) are written to memory, some rows at a time; those of
coordinates are made where they are needed, in the selection (`knn_select`).

32 clouds of 1,024 points, 64 features, k = 20: 8 MB read, 3 MB written (3 us), the factors
written and read (0.01 ms), 13 GFLOP of products in half precision (0.02 ms), the distances written
and read (0.06 ms), about 1,000 instructions a row for the selection, by its machine code (0.04 ms).

Larger clouds, by the machine code for a row: 142 instructions for the minima of 416 columns of
coordinates (35 of features), 195 (62) to look through 512 columns for what is listed, 205 (170)
more where something is, and about 1,200 in addition. 8 clouds of 4,096 points, k = 20: 5,800 a row
of coordinates (0.2 ms), 3,400 of features (0.1 ms), whose distances are written once and read twice
(0.3 ms).
"""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry.neighbors import point_rounding
from locotrans.kernels import on_device
from locotrans.kernels.knn_features import RELATIVE, feature_distances, feature_factors
from locotrans.kernels.knn_select import select_kernel, select_large_kernel

ENTRIES = 2**23  # distances of features that exist at a time: an H200's second cache holds them,
ROWS = 1024  # unless so few rows would leave a GPU idle
COLUMNS = 2048  # distances that a warp holds
GROUPS = 128  # of these columns, at most
STEP = 512  # columns that a warp takes at a time of larger clouds
PERIOD = 416  # groups of these: 13 x 32, so that neighbours in the lines of a scan share none
ROUNDS = 24  # of a bisection, at most


@on_device
def nearest(x: Float[Tensor, "b n c"], k: int, *, coordinates: bool) -> Int[Tensor, "b n k"]:
    """Return the k nearest neighbours of every point, as int32.

    Args:
        x: coordinates, or features.
        k: how many neighbours.
        coordinates: take distances by differences, not by products.
    """
    b, n, _ = x.shape
    x = x.contiguous()
    out = torch.empty(b, n, k, dtype=torch.int32, device=x.device)
    if coordinates:
        x = x.float()
        slack, relative = point_rounding(x)
        _select(x.mT.contiguous(), slack.contiguous(), relative, out, 0, n, coordinates=True)
        return out
    left, right, slack = feature_factors(x)
    chunk = max(1, min(n, max(ROWS // b, ENTRIES // (b * n))))
    for first in range(0, n, chunk):
        rows = min(chunk, n - first)
        distances = feature_distances(left[:, first : first + rows], right)
        _select(distances, slack, RELATIVE, out, first, rows, coordinates=False)
    return out


def _select(
    source: Tensor,
    slack: Float[Tensor, "b n"],
    relative: float,
    out: Int[Tensor, "b n k"],
    first: int,
    rows: int,
    *,
    coordinates: bool,
) -> None:
    """Write the neighbours of some rows; the arguments are those of the kernels."""
    b, n, k = out.shape
    near = out.new_empty(b, rows, triton.next_power_of_2(2 * k))
    if n <= COLUMNS:
        groups = min(GROUPS, triton.next_power_of_2(n))
        # at least two: Triton 3.6 fails on a row whose groups are single columns, as many as NEAR
        blocks = max(2, triton.next_power_of_2(triton.cdiv(n, groups)))
        select_kernel[(rows, b)](
            source, slack, relative, near, out, first, rows, n, k,
            COORDINATES=coordinates, BLOCKS=blocks, GROUPS=groups, NEAR=near.shape[-1],
            ROUNDS=ROUNDS, num_warps=1, maxnreg=80 if blocks <= 8 else 168,
        )  # fmt: skip
    else:
        lanes = min(32, STEP)
        select_large_kernel[(rows, b)](
            source, slack, relative, near, out, first, rows, n, k,
            COORDINATES=coordinates, BLOCKS=STEP // lanes, LANES=lanes, GROUPS=PERIOD,
            NEAR=near.shape[-1], ROUNDS=ROUNDS, num_warps=1, maxnreg=80,
        )  # fmt: skip
