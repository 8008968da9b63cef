"""Figures of merit: of classification and segmentation, as fractions in [0, 1], and of frames.

Predictions may carry leading axes (several poses of each shape); labels are one per shape, or in
segmentation one per point.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from locotrans.geometry.neighbors import gather


def overall_accuracy(predictions: Int[Tensor, "*poses s"], labels: Int[Tensor, " s"]) -> float:
    """Return the share of correct predictions, every sample counting the same."""
    _require_samples(predictions, labels)
    return (predictions == labels).double().mean().item()


def class_accuracy(predictions: Int[Tensor, "*poses s"], labels: Int[Tensor, " s"]) -> float:
    """Return the mean over classes of the share of correct predictions within each class.

    Degenerate: a class with no sample does not count, rather than counting 0.
    """
    _require_samples(predictions, labels)
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
    _require_samples(rotated, unrotated)
    return (rotated == unrotated).double().mean().item()


def _require_samples(predictions: Tensor, labels: Tensor | None = None) -> None:
    if predictions.numel() == 0:
        raise ValueError("no predictions: a share of nothing is not defined")
    if labels is not None and labels.shape != predictions.shape[-1:]:
        raise ValueError(
            f"labels must be one for each of the {predictions.shape[-1]} samples, got shape "
            f"{tuple(labels.shape)}"
        )


def axis_consistency(
    frames: Float[Tensor, "b n 3 3"], neighbors: Int[Tensor, "b n k"]
) -> Float[Tensor, "3"]:
    """Return, for each axis of the frames, its mean cosine with those of the neighbours (Eq. 9).

    Every list of neighbours contains the point itself, which does not count.
    """
    if neighbors.shape[-1] < 2:
        raise ValueError("consistency needs a neighbour beside the point itself")
    cosines = (gather(frames, neighbors) * frames.unsqueeze(2)).sum(-2)  # (b, n, k, axis)
    itself = frames.square().sum(-2)  # (b, n, axis): 1, or 0 where a frame is degenerate
    return ((cosines.sum(2) - itself) / (neighbors.shape[-1] - 1)).mean((0, 1))


def retrieval_map(
    embeddings: Float[Tensor, "s c"], labels: Int[Tensor, " s"], batch_size: int = 256
) -> float:
    """Return the mean average precision of retrieval: each shape asks for the others of its class.

    The others are ranked by the cosine of their embeddings with that of the query. The average
    precision of a query is the mean, over the shapes of its class, of the share of its class among
    the shapes up to there.

    Degenerate: a shape that is alone in its class does not ask.
    """
    _require_samples(labels)
    if not bool(embeddings.isfinite().all()):
        raise ValueError("embeddings must be finite to be compared")
    units = torch.nn.functional.normalize(embeddings.double(), dim=-1)
    precisions = []
    for rows in torch.arange(len(units), device=units.device).split(batch_size):
        cosines = units[rows] @ units.mT
        cosines[torch.arange(len(rows)), rows] = torch.inf  # the query itself: first, then left out
        order = cosines.argsort(dim=-1, descending=True)[:, 1:]
        hits = (labels[order] == labels[rows].unsqueeze(-1)).double()
        ranks = torch.arange(1, order.shape[1] + 1, device=units.device)
        found = hits.sum(-1)
        average = (hits * hits.cumsum(-1) / ranks).sum(-1) / found.clamp_min(1)
        precisions.append(average[found > 0])
    answers = torch.cat(precisions)
    if answers.numel() == 0:
        raise ValueError("every shape is alone in its class: there is nothing to retrieve")
    return answers.mean().item()


def shape_ious(
    predictions: Int[Tensor, "*poses s n"],
    parts: Int[Tensor, "s n"],
    categories: Int[Tensor, " s"],
    allowed: Bool[Tensor, "categories parts"],
) -> Float[Tensor, "*poses s"]:
    """Return the mean intersection over union of each shape, over the parts of its own category.

    The rule of ShapeNetPart: a part that is absent from the shape and from its prediction counts 1.

    Args:
        predictions: the part of each point.
        parts: the true part of each point.
        categories: the category of each shape.
        allowed: True where a part belongs to a category.
    """
    count = allowed.shape[1]
    parts = parts.expand_as(predictions)
    both = torch.where(predictions == parts, parts, count)
    hits, said, true = (_histograms(x, count) for x in (both, predictions, parts))
    union = said + true - hits
    iou = torch.where(union > 0, hits / union.clamp_min(1), 1.0)
    own = allowed[categories].double()
    return (iou * own).sum(-1) / own.sum(-1)


def _histograms(values: Int[Tensor, "*rows n"], count: int) -> Float[Tensor, "*rows c"]:
    """Count how often each of 0, ..., count - 1 occurs in each row; ``count`` itself is ignored."""
    out = torch.zeros(*values.shape[:-1], count + 1, dtype=torch.double, device=values.device)
    ones = torch.ones((), dtype=torch.double, device=values.device).expand(values.shape)
    return out.scatter_add(-1, values, ones)[..., :count]


def part_figures(
    ious: Float[Tensor, "*poses s"], categories: Int[Tensor, " s"], names: Sequence[str]
) -> dict[str, Any]:
    """Return the instance mIoU, the class mIoU and a table, from the IoU of each shape.

    The instance mIoU is the mean over the shapes, the class mIoU the mean over the categories of
    their shapes' means.

    Degenerate: a category without shapes does not count.
    """
    _require_samples(ious)
    each = ious.double().reshape(-1, ious.shape[-1]).mean(0)
    table = {
        name: each[categories == number].mean().item()
        for number, name in enumerate(names)
        if bool((categories == number).any())
    }
    return {
        "instance_miou": each.mean().item(),
        "class_miou": sum(table.values()) / len(table),
        "categories": table,
    }


def confusion_matrix(
    predictions: Int[Tensor, "*shape"], labels: Int[Tensor, "*shape"], classes: int
) -> Int[Tensor, "classes classes"]:
    """Count points by true class (rows) and predicted class (columns).

    A point with the label -1 is unlabelled and is ignored. Matrices of several scenes add up.
    """
    known = labels >= 0
    true, said = labels[known].long(), predictions[known].long()
    for what, numbers in (("labels", true), ("predictions", said)):
        if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < classes:
            raise ValueError(
                f"{what} must be from 0 to {classes - 1}, got {int(numbers.min())} to "
                f"{int(numbers.max())}"
            )
    pairs = true * classes + said
    return pairs.bincount(minlength=classes * classes).reshape(classes, classes)


def scene_figures(
    confusion: Int[Tensor, "classes classes"], names: Sequence[str]
) -> dict[str, Any]:
    """Return mIoU, overall and class accuracy and a table, from a confusion matrix of points.

    The rule of S3DIS: counts are summed over all scenes before anything is divided.

    Degenerate: a class that no point has and that is nowhere predicted does not count; the class
        accuracy leaves out every class that no point has.
    """
    return _scene_figures(confusion.diagonal(), confusion.sum(1), confusion.sum(0), names)


def pooled_scene_figures(tables: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Return the figures of several test sets together, from the tables of `scene_figures`.

    So the six folds of S3DIS become one figure: counts are summed over all areas, each of which was
    labelled by the network that had not seen it.
    """
    names = list(dict.fromkeys(name for table in tables for name in table))
    counts = torch.zeros(3, len(names), dtype=torch.long)
    for table in tables:
        for name, row in table.items():
            right = round(row["accuracy"] * row["points"])
            added = (right, int(row["points"]), int(row["predicted"]))
            counts[:, names.index(name)] += torch.tensor(added)
    hits, true, said = counts
    return _scene_figures(hits, true, said, names)


def _scene_figures(
    hits: Int[Tensor, " classes"],
    true: Int[Tensor, " classes"],
    said: Int[Tensor, " classes"],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the figures from the points of each class: found, there, and predicted."""
    if true.sum() == 0:
        raise ValueError("no labelled point: figures of nothing are not defined")
    union = true + said - hits
    iou, accuracy = hits.double() / union.clamp_min(1), hits.double() / true.clamp_min(1)
    table = {
        name: {
            "iou": iou[i].item(),
            "accuracy": accuracy[i].item(),
            "points": int(true[i]),
            "predicted": int(said[i]),
        }
        for i, name in enumerate(names)
        if union[i] > 0
    }
    return {
        "miou": iou[union > 0].mean().item(),
        "overall_accuracy": (hits.sum().double() / true.sum()).item(),
        "class_accuracy": accuracy[true > 0].mean().item(),
        "classes": table,
    }
