"""Evaluation protocols: fixed rotations of every test shape, every head and sum of heads.

A protocol such as z/SO(3) names the rotations of training and of testing; here is the second half.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import PurePath
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from locotrans.data import CloudSet
from locotrans.data.transforms import RotationProtocol, protocol_rotations, rotate
from locotrans.geometry import Axis
from locotrans.metrics import class_accuracy, overall_accuracy, rotation_agreement
from locotrans.training.config import derive_seed
from locotrans.training.tasks import is_segmenter

HEADS = ("invariant", "equivariant", "fused")


TITLES = {
    "instance_miou": "instance mIoU",
    "class_miou": "class mIoU",
    "miou": "mIoU",
    "overall_accuracy": "overall",
    "class_accuracy": "class mean",
    "rotation_agreement": "agreement",
}
"""Figures of an evaluation, as columns."""


def main_figure(figures: Mapping[str, Any]) -> str:
    """Name the figure that networks for a task are compared by: an mIoU, or the accuracy."""
    for name in ("instance_miou", "miou", "overall_accuracy"):
        if name in figures:
            return name
    raise KeyError("overall_accuracy")


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    data: CloudSet,
    rotation: RotationProtocol,
    *,
    rotations_per_shape: int = 3,
    seed: int = 0,
    batch_size: int = 32,
    device: torch.device | str = "cpu",
    excluded: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure a network on a data set whose shapes are rotated by the protocol.

    A classifier has accuracies; a segmenter of parts has the instance and the class mIoU and a
    table of categories, one of scenes mIoU, accuracies and a table of classes.

    Figures are over all rotated poses. The agreement compares each with the prediction for the
    shape as it is stored; with ``rotation="none"`` there is nothing to compare and it is 1.

    Args:
        model: any network whose output has ``logits`` and perhaps the heads' logits; it is
            left on the device and in the mode, training or eval, in which it came.
        data: the shapes; "z" turns them about their up axis ``data.up``.
        rotation: the protocol.
        rotations_per_shape: poses of each shape; "none" has one.
        seed: seed of the rotations, which depend on it and on the shape's index alone.
        batch_size: shapes at a time; no effect on the result beyond rounding.
        device: where to compute.
        excluded: ids of shapes, as for `kept_rows`; with any, the figures without those shapes
            stand beside the others, as ``without_excluded``.
    """
    if len(data) == 0:
        raise ValueError(f"data set {data.name!r} has no shapes in split {data.split!r}")
    if rotations_per_shape < 1 or batch_size < 1:
        raise ValueError("rotations and batch size must be at least 1")
    kept = kept_rows(data, excluded) if excluded else None
    poses = 1 if rotation == "none" else rotations_per_shape
    R = sample_rotations(rotation, data.up, len(data), poses, seed)  # s r 3 3
    with evaluating(model, device):
        if is_segmenter(model):
            from locotrans.training.evaluate_points import tally_points

            heads, some = tally_points(model, data, R, batch_size, device, kept)
        else:
            answers = ask_shapes(model, data, R, batch_size, device)
            heads, some = tally_shapes(answers, data.labels), {}
            if kept is not None:
                rest = {head: (a[kept], b[:, kept]) for head, (a, b) in answers.items()}
                some = tally_shapes(rest, data.labels[kept])
    without = {}
    if kept is not None:
        without["without_excluded"] = {
            "samples": len(kept),
            "excluded": len(data) - len(kept),
            "heads": some,
        }
    return {
        **heads["combined"],
        "heads": heads,
        **facts_of(model, data, rotation, poses, seed),
        "samples": len(data),
        "split_size": data.split_size or len(data),
        "items": data.items,
        **without,
    }


def facts_of(
    model: nn.Module, data: CloudSet, rotation: RotationProtocol, poses: int, seed: int
) -> dict[str, Any]:
    """Say what was measured, and how."""
    return {
        "rotation": rotation,
        "axis": data.up if rotation == "z" else None,
        "rotations_per_shape": poses,
        "points": data.points.shape[1],
        "data": data.name,
        **({"data_title": data.title} if data.title else {}),
        "split": data.split,
        "data_checksum": data.source,
        "seed": seed,
        "model": type(model).__name__,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }


def kept_rows(data: CloudSet, excluded: Sequence[str]) -> Int[Tensor, " m"]:
    """Return the indices of the shapes that are not excluded.

    Args:
        data: the shapes.
        excluded: ids, with all of their folders or the last ones, with the suffix of a file or
            without; those that are not there, as of another split, are passed over. Where files
            name no shapes, "test#3" is the fourth of the test split.

    Raises:
        ValueError: if none of the shapes to exclude is there, a name stands for several, or nothing
            would be left.
    """
    where = f"{data.name} ({data.split})"
    by_name: dict[str, list[str]] = {}
    ids = data.ids or tuple(f"{data.split}#{row}" for row in range(len(data)))
    for whole in ids:
        by_name.setdefault(_bare(whole).rpartition("/")[2], []).append(whole)
    unwanted: set[str] = set()
    for name in excluded:
        bare = _bare(name)
        alike = by_name.get(bare.rpartition("/")[2], [])
        meant = [name] if name in alike else [x for x in alike if _is_end_of(bare, _bare(x))]
        if len(meant) > 1:
            raise ValueError(
                f"{name!r} stands for {len(meant)} shapes of {where}: write the whole id, such as "
                f"{min(meant)!r}"
            )
        unwanted.update(meant)
    if not unwanted:
        known = f"its ids are such as {ids[0]!r}"
        raise ValueError(f"{where} has no shape {min(excluded)!r} to exclude; {known}")
    kept = [row for row, name in enumerate(ids) if name not in unwanted]
    if not kept:
        raise ValueError(f"all {len(data)} shapes of {where} are excluded")
    return torch.tensor(kept)


def _bare(name: str) -> str:
    """Return a name without the suffix of a file of points, if it has one, with slashes."""
    from locotrans.data.readers import FORMATS

    path = PurePath(name)
    return (path.with_suffix("") if path.suffix.lower() in FORMATS else path).as_posix()


def _is_end_of(one: str, other: str) -> bool:
    """Say whether one of two paths is the other, or its end."""
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


Answers = dict[str, tuple[Tensor, Tensor]]
"""By head: the classes of the shapes as stored, (s,), and of their poses, (r, s)."""


def ask_shapes(
    model: nn.Module,
    data: CloudSet,
    rotations: Float[Tensor, "s r 3 3"],
    batch_size: int,
    device: torch.device | str,
) -> Answers:
    """Classify all shapes as they are stored and in every pose, by every head."""
    stored: list[dict[str, Tensor]] = []
    rotated: list[dict[str, Tensor]] = []
    for start in range(0, len(data), batch_size):
        points = data.points[start : start + batch_size].to(device)
        turns = rotations[start : start + batch_size].to(device)
        stored.append(predict_heads(model, points))
        poses = range(turns.shape[1])
        turned = [predict_heads(model, rotate(points, turns[:, pose])) for pose in poses]
        rotated.append({head: torch.stack([pose[head] for pose in turned]) for head in turned[0]})
    return {
        head: (
            torch.cat([batch[head] for batch in stored]).cpu(),
            torch.cat([batch[head] for batch in rotated], dim=-1).cpu(),
        )
        for head in rotated[0]
    }


def tally_shapes(answers: Answers, labels: Int[Tensor, " s"]) -> dict[str, dict[str, Any]]:
    """Return the accuracies and the agreement of every head of a classifier."""
    return {
        head: {
            "overall_accuracy": overall_accuracy(predictions, labels),
            "class_accuracy": class_accuracy(predictions, labels),
            "rotation_agreement": rotation_agreement(predictions, unrotated),
        }
        for head, (unrotated, predictions) in answers.items()
    }


@contextmanager
def evaluating(model: nn.Module, device: torch.device | str) -> Iterator[None]:
    """Have a model on a device and in eval mode for a while; then it is where and as it was."""
    home = next(model.parameters()).device
    modes = [(module, module.training) for module in model.modules()]
    with torch.inference_mode(False):  # tensors made in that mode can never be trained
        model.to(device).eval()
    try:
        yield
    finally:
        with torch.inference_mode(False):
            model.to(home)
        for module, training in modes:  # one by one: some may have been frozen
            module.training = training


def sample_rotations(
    rotation: RotationProtocol, up: Axis, count: int, poses: int, seed: int
) -> Float[Tensor, "s r 3 3"]:
    """Draw the fixed rotations of every shape, each shape's from a seed of its own index."""
    return torch.stack(
        [
            protocol_rotations(
                rotation,
                up,
                poses,
                generator=torch.Generator().manual_seed(derive_seed(seed, index)),
            )
            for index in range(count)
        ]
    )


def predict_heads(model: nn.Module, points: Float[Tensor, "b n 3"]) -> dict[str, Int[Tensor, " b"]]:
    """Predict by every head, every sum of heads' logits, and the model's own combination."""
    return answer_heads(model(points), lambda logits: logits.argmax(-1))


def answer_heads(output: Any, choose: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Let ``choose`` turn logits into answers: of every head, every sum, and the combination."""
    logits = {head: getattr(output, head) for head in HEADS}
    present = [head for head in HEADS if logits[head] is not None]
    answers = {
        "+".join(subset): choose(torch.stack([logits[head] for head in subset]).sum(0))
        for size in range(1, len(present) + 1)
        for subset in combinations(present, size)
    }
    return {**answers, "combined": choose(output.logits)}
