"""Neighbourhoods: k nearest neighbours, gathering along them, farthest points.

Neighbour lists are ``(*batch, n, k)`` indices into the n points of the same cloud, and contain the
point itself. **Tie rule**: candidates whose distance equals the k-th smallest to within rounding
are tied, and ties go to the lowest index. Without it a rotation, which changes the last bits of
every distance, would choose other neighbours wherever distances nearly tie, as on a regular grid.

On a CPU any number of candidates may be tied. On other devices, and in exported programs, the first
k + SPARE candidates are looked at and no more: to find out whether the last of them is still tied
would make the host wait. (The fused kernels of a GPU have no such limit.)

Distances are compared in float32 at least: what half precision rounds away are neighbours.
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from locotrans.geometry.products import float32_products

CHUNK = 2**24  # entries of the distance matrix that exist at a time
TIE = 16.0  # what counts as rounding, in units of the machine epsilon
SPARE = 32  # candidates beyond k: at least as many as a shell of a lattice has ties
TREE = 1024  # points from which on a k-d tree is faster than all distances, on a CPU


def knn(points: Float[Tensor, "*batch n d"], k: int) -> Int[Tensor, "*batch n k"]:
    """Return the k nearest neighbours of every point, by differences of coordinates.

    Differences, unlike ``|x|^2 - 2 x.y + |y|^2``, lose nothing when the cloud is off centre.

    Args:
        points: coordinates, few of them a point (d is 3, usually).
        k: how many neighbours, the point itself included; at most n.

    Symmetry: invariant under O(3) and translation up to the tie rule above, equivariant under
        permutation but for ties.
    """
    flat = _clouds(points, k)
    absolute, relative = point_rounding(flat)
    if _looks(flat) and flat.shape[1] >= TREE:
        chosen = _search_trees(flat, absolute, relative, k)
    else:

        def distances(rows: slice) -> Tensor:
            if not _looks(flat):  # ONNX knows no cdist, and on a GPU it starts a block a pair
                square = flat.new_zeros(())
                for x, y in zip(flat[:, rows].unbind(-1), flat.unbind(-1), strict=True):
                    square = square + (x.unsqueeze(-1) - y.unsqueeze(-2)).square()
                return square.sqrt()
            return torch.cdist(flat[:, rows], flat, compute_mode="donot_use_mm_for_euclid_dist")

        chosen = _select(distances, absolute, relative, flat, k)
    return chosen.reshape(*points.shape[:-1], k)


def knn_features(features: Float[Tensor, "*batch n c"], k: int) -> Int[Tensor, "*batch n k"]:
    """Return the k nearest neighbours of every point in feature space, by one matrix product.

    ``|x - y|^2 = |x|^2 - 2 x.y + |y|^2`` on centred features. The product must run in true float32:
    TF32 errors exceed the distances that are compared.

    Symmetry: invariant under any rotation and translation of feature space, to rounding.
    """
    flat = _clouds(features, k)
    flat = flat - flat.mean(-2, keepdim=True)
    squares = flat.square().sum(-1)  # (b, n)

    def distances(rows: slice) -> Tensor:
        # |x|^2 is the same for the whole row: it does not change the order, and is left out
        exact = float32_products("highest") if flat.is_cuda else nullcontext()
        with torch.autocast(flat.device.type, enabled=False), exact:
            return torch.baddbmm(squares[:, None, :], flat[:, rows], flat.mT, alpha=-2)

    slack = feature_rounding(squares)
    return _select(distances, *slack, flat, k).reshape(*features.shape[:-1], k)


def point_rounding(points: Float[Tensor, "b n c"]) -> tuple[Float[Tensor, "b n"], float]:
    """Return what counts as rounding of a distance d between points, as a, c of ``a + c d``.

    A rotation moves a coordinate by about eps times the radius of the cloud, and a distance by as
    much.
    """
    radius = (points - points.mean(-2, keepdim=True)).norm(dim=-1).amax(-1, keepdim=True)
    return (TIE * torch.finfo(points.dtype).eps * radius).expand(points.shape[:-1]), 0.0


def feature_rounding(squares: Float[Tensor, "b n"]) -> tuple[Float[Tensor, "b n"], float]:
    """Return the same for ``t = |y|^2 - 2 x.y = |x - y|^2 - |x|^2``, given all ``|x|^2``.

    Its rounding is eps times the squares of both lengths, that is of ``|x|^2`` and of the squared
    distance ``t + |x|^2``: of the point itself, since one far point may be much longer.

    Features themselves come with the rounding of the layers before, some hundred times as much. In
    float64 there is room to allow for it, in float32 there is not: so much slack would call
    features tied that are not, and leave the choice to the order of the points.
    """
    layers = 64 if squares.dtype == torch.float64 else 1
    eps = layers * TIE * torch.finfo(squares.dtype).eps
    return 2 * eps * squares, eps


def _clouds(points: Float[Tensor, "*batch n c"], k: int) -> Float[Tensor, "b n c"]:
    """Return the clouds along one batch axis, once k is found to be possible.

    They carry no gradient, and are at least of float32.
    """
    n = points.shape[-2]
    if not 1 <= k <= n:
        raise ValueError(
            f"k = {k} neighbours were asked for in a cloud of {n} points: "
            f"k must lie between 1 and {n}; use a smaller k or more points"
        )
    flat = points.detach().reshape(-1, *points.shape[-2:])
    return flat.to(torch.promote_types(flat.dtype, torch.float32))


def _looks(flat: Float[Tensor, "b n c"]) -> bool:
    """Say whether what is done may depend on values: on a CPU, but not in an exported program."""
    return flat.device.type == "cpu" and not torch.compiler.is_exporting()


def _select(
    distances: Callable[[slice], Tensor],
    absolute: Float[Tensor, "b n"],
    relative: float,
    flat: Float[Tensor, "b n c"],
    k: int,
) -> Int[Tensor, "b n k"]:
    """Select neighbours, some rows at a time, by the tie rule at the top of the file.

    Args:
        distances: gives the distances of a slice of the points to all points.
        absolute: what counts as rounding, for every point,
        relative: and, times the distance, in addition.
        flat: the clouds.
        k: how many neighbours.
    """
    b, n, _ = flat.shape
    if torch.compiler.is_exporting():
        # any n at once; far points that do not exist make k + SPARE candidates of every n
        padded = F.pad(distances(slice(None)), (0, SPARE), value=torch.inf)
        return _choose(*padded.topk(k + SPARE, largest=False), absolute[:, :, None], relative, k)
    rows = max(1, CHUNK // max(1, b * n))
    chosen = []
    for start in range(0, n, rows):
        part = slice(start, start + rows)
        d, slack = distances(part), absolute[:, part, None]
        near, index = d.topk(min(k + SPARE, n), largest=False)
        found = _choose(near, index, slack, relative, k)
        if _looks(flat) and near.shape[-1] < n:
            tied = _undecided(near, slack, relative, k)
            found[tied] = _choose(*d[tied].sort(), slack[tied], relative, k)
        chosen.append(found)
    return torch.cat(chosen, dim=-2)


def _undecided(
    near: Float[Tensor, "*rows c"], absolute: Float[Tensor, "*rows 1"], relative: float, k: int
) -> Bool[Tensor, "*rows"]:
    """Say in which rows the last candidate is still tied, so that others may be, too."""
    kth = near[..., k - 1 : k]
    return (near[..., -1:] <= kth + absolute + relative * kth).squeeze(-1)


def _choose(
    near: Float[Tensor, "*rows c"],
    index: Int[Tensor, "*rows c"],
    absolute: Float[Tensor, "*rows 1"],
    relative: float,
    k: int,
) -> Int[Tensor, "*rows k"]:
    """Choose k of the candidates, which come in order of distance, by the tie rule."""
    kth = near[..., k - 1 : k]
    slack = absolute + relative * kth
    rank = torch.arange(near.shape[-1], device=near.device)
    last = torch.iinfo(index.dtype).max
    # nearer than the ties: in order of distance; tied: in order of index; farther: last
    key = torch.where(near > kth + slack, last, index + near.shape[-1])
    key = torch.where(near < kth - slack, rank, key)
    return index.gather(-1, key.topk(k, largest=False).indices)


def _search_trees(
    flat: Float[Tensor, "b n d"], absolute: Float[Tensor, "b n"], relative: float, k: int
) -> Int[Tensor, "b n k"]:
    """Select neighbours by a k-d tree a cloud, and by all distances where too many are tied."""
    from scipy.spatial import cKDTree

    n = flat.shape[1]
    candidates, threads = min(k + SPARE, n), torch.get_num_threads()
    chosen = []
    for cloud, slack in zip(flat, absolute.unsqueeze(-1), strict=True):
        found = cKDTree(cloud.numpy()).query(cloud.numpy(), candidates, workers=threads)
        near, index = torch.from_numpy(found[0]).to(flat.dtype), torch.from_numpy(found[1])
        nearest = _choose(near, index, slack, relative, k)
        tied = _undecided(near, slack, relative, k).nonzero().squeeze(-1)
        for rows in tied.split(max(1, CHUNK // n)):
            d = torch.cdist(cloud[rows], cloud, compute_mode="donot_use_mm_for_euclid_dist")
            nearest[rows] = _choose(*d.sort(), slack[rows], relative, k)
        chosen.append(nearest)
    return torch.stack(chosen)


def gather(x: Shaped[Tensor, "..."], index: Int[Tensor, "*batch m k"]) -> Shaped[Tensor, "..."]:
    """Return the rows of ``x`` at ``index``: ``(*batch, n, *f)`` becomes ``(*batch, m, k, *f)``."""
    batch, features = index.shape[:-2], x.shape[index.dim() - 1 :]
    n = x.shape[index.dim() - 2]
    rows = x.reshape(-1, *features)
    clouds = rows.shape[0] // n
    offset = n * torch.arange(clouds, device=index.device)[:, None]
    flat_index = (index.reshape(clouds, -1) + offset).flatten()
    return rows.index_select(0, flat_index).reshape(*batch, *index.shape[-2:], *features)


def global_index(neighbors: Int[Tensor, "b n k"]) -> Int[Tensor, "m k"]:
    """Return the neighbours of all m = b n points as rows of the whole batch, for the kernels."""
    b, n, _ = neighbors.shape
    if torch.compiler.is_exporting():  # which knows no tensors to write to
        offset = n * torch.arange(b, device=neighbors.device)
        return (neighbors + offset[:, None, None]).flatten(0, 1).int()
    if neighbors.device.type == "cpu" and not torch.compiler.is_compiling() and neighbors.numel():
        low, high = neighbors.aminmax()  # a loop would read what is not there
        if low < 0 or high >= n:
            raise IndexError(f"neighbours must be from 0 to {n - 1}, got {int(low)} to {int(high)}")
    offset = torch.arange(0, b * n, n, dtype=neighbors.dtype, device=neighbors.device)
    rows = torch.empty_like(neighbors, dtype=torch.int32)
    return torch.add(neighbors, offset[:, None, None], out=rows).flatten(0, 1)


def farthest_points(points: Float[Tensor, "*batch n 3"], m: int) -> Int[Tensor, "*batch m"]:
    """Choose m points, each the farthest from those chosen before.

    The first is the point farthest from the centre, so that the choice does not depend on the order
    of the points.

    Symmetry: invariant under O(3) and translation where no distances tie.
    Degenerate: where points lie in fewer than m places, these are gone through again and again.
    """
    n = points.shape[-2]
    if not 1 <= m <= n:
        raise ValueError(f"{m} farthest points were asked for in a cloud of {n} points")
    flat = points.detach().reshape(-1, n, 3)
    clouds = torch.arange(len(flat), device=flat.device)
    last = first = farthest_from_center(flat)
    nearest = torch.full(flat.shape[:2], torch.inf, dtype=flat.dtype, device=flat.device)
    chosen = [first]
    for _ in range(m - 1):
        x, y, z = (flat - flat[clouds, last][:, None]).square().unbind(-1)
        nearest = torch.minimum(nearest, x + y + z)
        farthest, last = nearest.max(-1)
        again = farthest == 0  # every point lies where a chosen one does
        last = torch.where(again, first, last)
        nearest = torch.where(again.unsqueeze(-1), torch.inf, nearest)
        chosen.append(last)
    return torch.stack(chosen, dim=-1).reshape(*points.shape[:-2], m)


def farthest_from_center(points: Float[Tensor, "b n 3"]) -> Int[Tensor, " b"]:
    """Return the first of the `farthest_points` of each cloud."""
    return (points - points.mean(1, keepdim=True)).square().sum(-1).argmax(-1)
