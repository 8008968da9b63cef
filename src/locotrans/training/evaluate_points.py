"""Evaluation of networks that label points: the protocols of `evaluate`, with mIoUs."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from locotrans.data import CloudSet
from locotrans.data.transforms import rotate
from locotrans.metrics import confusion_matrix, part_figures, scene_figures, shape_ious
from locotrans.training.evaluate import answer_heads
from locotrans.training.tasks import check_points_of, given, labels_parts


class Tally:
    """Counts for one head, batch after batch of shapes."""

    def __init__(self, model: nn.Module, data: CloudSet) -> None:
        self.parts = labels_parts(model)
        self.data = data
        self.ious: list[Float[Tensor, "poses b"]] = []
        self.labels: list[Int[Tensor, " b"]] = []
        self.confusion = torch.zeros(len(data.part_names), len(data.part_names), dtype=torch.long)
        self.unchanged = 0
        self.points = 0

    def add(
        self,
        rotated: Int[Tensor, "poses b n"],
        stored: Int[Tensor, "b n"],
        truth: Int[Tensor, "b n"],
        labels: Int[Tensor, " b"],
    ) -> None:
        """Count the answers for a batch: in every pose, and in that of the file."""
        self.labels.append(labels.cpu())
        if self.parts:
            allowed = self.data.allowed_parts.to(truth.device)
            # an unlabelled point is none of its category's parts, whatever is said of it
            said = torch.where(truth < 0, allowed.shape[1], rotated)
            true = torch.where(truth < 0, allowed.shape[1], truth)
            nothing = torch.zeros(len(allowed), 1, dtype=torch.bool, device=truth.device)
            ious = shape_ious(said, true, labels, torch.cat([allowed, nothing], dim=1))
            self.ious.append(ious.cpu())
        truths = truth.expand_as(rotated)
        count = len(self.data.part_names)
        self.confusion += confusion_matrix(rotated, truths, count).cpu()
        self.unchanged += int((rotated == stored).sum())
        self.points += rotated.numel()

    def figures(self) -> dict[str, Any]:
        """Return the figures, and under ``categories`` or ``classes`` a table."""
        scene = scene_figures(self.confusion, self.data.part_names)
        agreement = {"rotation_agreement": self.unchanged / self.points}
        if not self.parts:
            table = {"classes": scene.pop("classes")}
            return {**scene, **agreement, **table}
        figures = part_figures(
            torch.cat(self.ious, -1), torch.cat(self.labels), self.data.class_names
        )
        table = {"categories": figures.pop("categories")}
        overall = {"overall_accuracy": scene["overall_accuracy"]}
        return {**figures, **overall, **agreement, **table}


def tally_points(
    model: nn.Module,
    data: CloudSet,
    rotations: Float[Tensor, "s r 3 3"],
    batch_size: int,
    device: torch.device | str,
    kept: Int[Tensor, " m"] | None = None,
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the figures of every head, every sum of heads, and the network's own combination.

    Args:
        model: the network, in eval mode on the device.
        data: the shapes.
        rotations: of each shape.
        batch_size: shapes at a time.
        device: where to compute.
        kept: indices of shapes that are counted apart, too.

    Returns:
        The figures of all shapes, and of those that are kept, or nothing.
    """
    check_points_of(model, data)
    assert data.parts is not None
    extra = given(model, data)
    tallies: dict[str, Tally] = {}
    some: dict[str, Tally] = {}
    chosen = torch.zeros(len(data), dtype=torch.bool)
    if kept is not None:
        chosen[kept] = True
    for start in range(0, len(data), batch_size):
        rows = slice(start, start + batch_size)
        batch = {name: x[rows].to(device) for name, x in extra.items()}
        points, labels = data.points[rows].to(device), data.labels[rows].to(device)
        choose = partial(best_label, data.allowed_parts.to(device)[labels])
        turns = rotations[rows].to(device)
        stored = answer_heads(model(points, **batch), choose)
        poses = [
            answer_heads(model(rotate(points, turns[:, pose]), **batch), choose)
            for pose in range(turns.shape[1])
        ]
        for head, unrotated in stored.items():
            answers = torch.stack([pose[head] for pose in poses])
            truth, counted = data.parts[rows].to(device), chosen[rows].to(device)
            tally = tallies.setdefault(head, Tally(model, data))
            tally.add(answers, unrotated, truth, labels)
            if bool(counted.any()):
                part = some.setdefault(head, Tally(model, data))
                part.add(answers[:, counted], unrotated[counted], truth[counted], labels[counted])
    return (
        {head: tally.figures() for head, tally in tallies.items()},
        {head: tally.figures() for head, tally in some.items()},
    )


def best_label(
    allowed: Bool[Tensor, "b parts"], logits: Float[Tensor, "b n parts"]
) -> Int[Tensor, "b n"]:
    """Return the best of the parts that belong to the shape's category."""
    return logits.masked_fill(~allowed.unsqueeze(1), -torch.inf).argmax(-1)
