"""What a page shows of a network's answer for one pose, beside that for the file's own pose."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from locotrans.data.clouds import allowed_parts
from locotrans.geometry.frames import gram_schmidt_frame, symmetric_frame
from locotrans.metrics import axis_consistency
from locotrans.models import Task, model_task
from locotrans.training.checkpoint import load_weights
from locotrans.training.predict.samples import Choice, trained_choice

KINDS = {
    "symmetric": "LCRF",
    "symmetric_printed": "LCRF",
    "gram_schmidt": "Gram-Schmidt",
    "handcrafted": "Hand-crafted",
}
"""What the page calls the kinds of frames."""
TOP = 5
"""Classes, or parts, that are listed."""


@dataclass
class ViewedNetwork:
    """A network, and what it was trained for."""

    title: str
    model: nn.Module
    task: Task
    names: tuple[str, ...]
    """Of the classes, or of the parts."""
    categories: tuple[str, ...]
    """Of shapes, one of which a network for parts is told; else none."""
    points: int
    choice: Choice
    """How they are chosen."""
    device: torch.device

    @property
    def own_frames(self) -> str | None:
        """The kind of frames that the network itself sees the cloud through."""
        return KINDS.get(getattr(self.model.config, "frames", ""))

    @torch.inference_mode()
    def ask(self, points: Float[Tensor, "n 3"], category: int) -> "Answer":
        """Send one cloud through the network."""
        dtype = next(self.model.parameters()).dtype
        given = {}
        if self.categories:
            given["category"] = torch.tensor([category], device=self.device)
        output = self.model(points[None].to(self.device, dtype), **given)
        logits = output.logits[0].float().cpu()
        if self.categories:
            logits = logits.masked_fill(~allowed_parts(self.categories, self.names)[category], -99)
        features = output.point_features
        return Answer(
            logits,
            None if features is None else features[0].double().cpu(),
            frames_of(output),
            None if output.neighbors is None else output.neighbors[0].cpu(),
        )


class Answer(NamedTuple):
    """What a network says of a cloud, in the cloud's pose."""

    logits: Float[Tensor, "*n classes"]
    features: Float[Tensor, "n c"] | None
    frames: dict[str, Float[Tensor, "n 3 3"]]
    """By their kind."""
    neighbors: Int[Tensor, "n k"] | None


def load_viewed(weights: Path | str, device: torch.device) -> ViewedNetwork:
    """Build the network of a run folder or weights file.

    Raises:
        ValueError: the weights are of a network for scenes, or do not say what they are for.
    """
    model, metadata = load_weights(weights)
    task = model_task(metadata["model"])
    if task == "scenes" or getattr(model.config, "colors", False):
        raise ValueError(f"{weights} is for scenes: use `locotrans segment --picture`")
    for key in ("class_names", "part_names") if task == "parts" else ("class_names",):
        if key not in metadata:
            raise ValueError(f"{weights} does not say what it was trained on: it has no {key!r}")
    classes = tuple(metadata["class_names"])
    return ViewedNetwork(
        title=f"{metadata['model']} ({Path(weights).name})",
        model=model.to(device),
        task=task,
        names=tuple(metadata["part_names"]) if task == "parts" else classes,
        categories=classes if task == "parts" else (),
        points=metadata.get("points", 1024),
        choice=trained_choice(metadata),
        device=device,
    )


def frames_of(output: Any) -> dict[str, Float[Tensor, "n 3 3"]]:
    """Return the frames of a network of either kind, both from the same two vectors a point."""
    if output.frames is None:
        return {}
    if output.vectors is None:
        return {KINDS["handcrafted"]: output.frames[0].float().cpu()}
    v1, v2 = output.vectors[0].float().cpu().unbind(-1)
    return {
        KINDS["symmetric"]: symmetric_frame(v1, v2),
        KINDS["gram_schmidt"]: gram_schmidt_frame(v1, v2),
    }


@dataclass
class Reference:
    """The answer for the file's own pose, that those for other poses are compared with."""

    answer: Answer
    mean: Tensor
    basis: Tensor
    """The first three principal components of the features of points, as columns."""
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, answer: Answer) -> "Reference":
        """Take an answer as the reference."""
        features = answer.features
        if features is None:
            empty = torch.zeros(3, dtype=torch.double)
            return cls(answer, empty, torch.eye(3, dtype=torch.double), empty, empty)
        mean = features.mean(0)
        _, _, right = torch.linalg.svd(features - mean, full_matrices=False)
        basis = nn.functional.pad(right[:3].mT, (0, max(0, 3 - len(right))))
        # a singular vector has no sign of its own: let its largest entry be positive
        basis = basis * basis.gather(0, basis.abs().argmax(0, keepdim=True)).sign()
        parts = (features - mean) @ basis
        low, high = parts.quantile(0.02, 0), parts.quantile(0.98, 0)
        return cls(answer, mean, basis, low, high)

    def colors(self, answer: Answer) -> list[int] | None:
        """Return the features of points as red, green and blue, by the components of the own pose.

        They are the same colours in every pose if the features do not change.
        """
        if answer.features is None:
            return None
        parts = (answer.features - self.mean) @ self.basis
        share = (parts - self.low) / (self.high - self.low).clamp_min(1e-9)
        return (40 + 190 * share.clamp(0, 1)).round().int().flatten().tolist()

    def compare(self, answer: Answer, rotation: Float[Tensor, "3 3"]) -> dict[str, Any]:
        """Say what stays: the answer, the share of points that keep theirs, and the frames."""
        old, new = self.answer.logits, answer.logits
        kept = (new.argmax(-1) == old.argmax(-1)).double().mean().item()
        spread = (old.max(-1).values - old.masked_fill(old < -90, 0).min(-1).values).max()
        turned = {
            kind: turn_between(self.answer.frames[kind], rotation.mT @ frames)
            for kind, frames in answer.frames.items()
        }
        change = ((new - old).abs().max() / spread.clamp_min(1e-9)).item()
        return {"kept": kept, "logits": change, "frames": turned}


def turn_between(a: Float[Tensor, "n 3 3"], b: Float[Tensor, "n 3 3"]) -> float:
    """Return the angle in degrees that 99% of the frames turn by at most, from a to b.

    The rest may be frames of two nearly parallel vectors, which rounding turns.
    """
    chord = (a - b).double().flatten(1).norm(dim=1) / 8**0.5  # sin(angle / 2)
    return torch.rad2deg(2 * chord.clamp(max=1).asin()).quantile(0.99).item()


def describe(
    network: ViewedNetwork,
    reference: Reference,
    answer: Answer,
    rotation: Float[Tensor, "3 3"],
    shown: Int[Tensor, "m"],
) -> dict[str, Any]:
    """Return plain values for the page.

    Args:
        network: who answered.
        reference: its answer for the own pose.
        answer: its answer for the turned cloud.
        rotation: how the cloud is turned.
        shown: points whose frames are drawn.
    """
    shares = answer.logits.softmax(-1)
    confidence, labels = shares.max(-1)
    if network.task == "parts":
        listed = labels.bincount(minlength=len(network.names)) / len(labels)
    else:
        listed = shares
    top = listed.topk(min(TOP, len(listed)))
    consistency = {}
    if answer.neighbors is not None:
        for kind, frames in answer.frames.items():
            consistency[kind] = axis_consistency(frames[None], answer.neighbors[None]).tolist()
    return {
        "top": [
            [network.names[i], round(share, 4)]
            for share, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)
            if share > 0
        ],
        "labels": labels.reshape(-1).tolist(),
        "confidence": [round(x, 3) for x in confidence.reshape(-1).tolist()],
        "features": reference.colors(answer),
        "frames": {  # in the object's own coordinates, axis by axis
            kind: [round(x, 4) for x in (rotation.mT @ frames[shown]).mT.flatten().tolist()]
            for kind, frames in answer.frames.items()
        },
        "consistency": consistency,
        "stays": reference.compare(answer, rotation),
    }
