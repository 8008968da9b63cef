"""Neighbourhood graphs of points and of features, by the kernel where there is one."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry.neighbors import knn, knn_features
from locotrans.kernels import use_kernels


def point_graph(points: Float[Tensor, "b n 3"], k: int) -> Int[Tensor, "b n k"]:
    """Return the k nearest neighbours of every point, as `locotrans.geometry.neighbors.knn`."""
    if not use_kernels(points):
        return knn(points, k)
    from locotrans.kernels.knn import nearest

    return nearest(points.detach(), k, coordinates=True)


def feature_graph(x: Float[Tensor, "b n c"], k: int) -> Int[Tensor, "b n k"]:
    """Return the k nearest neighbours in feature space, as `knn_features`."""
    if not use_kernels(x):
        return knn_features(x, k)
    from locotrans.kernels.knn import nearest

    x = x.detach().float()
    x = x - x.mean(-2, keepdim=True)
    return nearest(x, k, coordinates=False)


def global_index(neighbors: Int[Tensor, "b n k"]) -> Int[Tensor, "m k"]:
    """Return the neighbours of all m = b n points as rows of the whole batch, for the kernels."""
    b, n, _ = neighbors.shape
    offset = n * torch.arange(b, device=neighbors.device)
    return (neighbors + offset[:, None, None]).flatten(0, 1).int()
