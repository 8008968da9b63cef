"""Figures of merit: of a classifier, as fractions in [0, 1], and of its frames.

Predictions may carry leading axes (several poses of each shape); labels are one per shape.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry.neighbors import gather


def overall_accuracy(predictions: Int[Tensor, "*poses s"], labels: Int[Tensor, " s"]) -> float:
    """Return the share of correct predictions, every sample counting the same."""
    _require_samples(predictions)
    return (predictions == labels).double().mean().item()


def class_accuracy(predictions: Int[Tensor, "*poses s"], labels: Int[Tensor, " s"]) -> float:
    """Return the mean over classes of the share of correct predictions within each class.

    Degenerate: a class with no sample does not count, rather than counting 0.
    """
    _require_samples(predictions)
    labels = labels.expand_as(predictions).flatten()
    correct = (predictions.flatten() == labels).double()
    total = labels.bincount()
    hits = torch.zeros(len(total), dtype=torch.double, device=labels.device)
    hits = hits.index_add(0, labels, correct)
    present = total > 0
    return (hits[present] / total[present]).mean().item()


def rotation_agreement(rotated: Int[Tensor, "*poses s"], unrotated: Int[Tensor, " s"]) -> float:
    """Return the share of predictions that rotations leave unchanged, right or wrong.

    Args:
        rotated: predictions for rotated poses of each shape.
        unrotated: predictions for the shapes' own poses.
    """
    _require_samples(rotated)
    return (rotated == unrotated).double().mean().item()


def _require_samples(predictions: Tensor) -> None:
    if predictions.numel() == 0:
        raise ValueError("no predictions: a share of nothing is not defined")


def axis_consistency(
    frames: Float[Tensor, "b n 3 3"], neighbors: Int[Tensor, "b n k"]
) -> Float[Tensor, "3"]:
    """Return, for each axis of the frames, its mean cosine with those of the neighbours (Eq. 9).

    Every list of neighbours contains the point itself, which does not count.
    """
    cosines = (gather(frames, neighbors) * frames.unsqueeze(2)).sum(-2)  # (b, n, k, axis)
    itself = frames.square().sum(-2)  # (b, n, axis): 1, or 0 where a frame is degenerate
    return ((cosines.sum(2) - itself) / (neighbors.shape[-1] - 1)).mean((0, 1))
