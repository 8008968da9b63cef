"""Neighbours and farthest points, by the kernel where there is one."""

from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry.neighbors import farthest_points, knn, knn_features
from locotrans.kernels import has_loops, use_kernels

FEW = 4096  # points of which all distances are found sooner than a k-d tree answers


def point_graph(points: Float[Tensor, "b n 3"], k: int) -> Int[Tensor, "b n k"]:
    """Return the k nearest neighbours of every point, as `locotrans.geometry.neighbors.knn`."""
    if use_kernels(points):
        from locotrans.kernels.knn import nearest

        return nearest(points.detach(), k, coordinates=True)
    if has_loops(points) and 1 <= k <= points.shape[1] <= FEW:
        from locotrans.kernels import cpu_knn

        return cpu_knn.knn(points.detach(), k)
    return knn(points, k)


def feature_graph(x: Float[Tensor, "b n c"], k: int) -> Int[Tensor, "b n k"]:
    """Return the k nearest neighbours in feature space, as `knn_features`."""
    if use_kernels(x):
        from locotrans.kernels.knn import nearest

        return nearest(x.detach(), k, coordinates=False)
    if has_loops(x) and 1 <= k <= x.shape[1]:
        from locotrans.kernels import cpu_knn

        return cpu_knn.knn_features(x.detach(), k)
    return knn_features(x, k)


def farthest(points: Float[Tensor, "b n 3"], m: int) -> Int[Tensor, "b m"]:
    """Choose m of the n or fewer points of each cloud, as `farthest_points`."""
    if use_kernels(points):
        from locotrans.kernels import farthest as kernel

        if points.shape[1] <= kernel.MOST:
            return kernel.farthest(points, m)
    if has_loops(points) and 1 <= m <= points.shape[1]:
        from locotrans.kernels import farthest_loops

        return farthest_loops.farthest(points.detach(), m)
    return farthest_points(points, m)
