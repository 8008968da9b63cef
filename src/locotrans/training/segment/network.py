"""Trained weights of a segmenter, asked for the labels of a cloud of any size."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor, nn

from locotrans.data.clouds import allowed_parts
from locotrans.data.scenes import Scene, Scenes
from locotrans.data.spheres import doubt_radius
from locotrans.data.transforms import rotate
from locotrans.models import Task, model_task
from locotrans.training.checkpoint import load_weights
from locotrans.training.segment.scenes import (
    Ask,
    Report,
    segment_blocks,
    segment_scene,
    segment_shape,
)
from locotrans.training.tasks import category_numbers

FEWER = 4
"""Times as few points as learned, from which it is worth a word."""
UNLIKE = 2
"""Times the size of the blocks learned from, or less, from which it is worth a word."""


@dataclass
class SegmenterNetwork:
    """A network, what it was trained for, and how clouds reach it."""

    model: nn.Module
    task: Task
    names: tuple[str, ...]
    """Of the labels."""
    categories: tuple[str, ...]
    """Of shapes; scenes have one."""
    points: int
    """Points of a block."""
    radius: float
    """Of the blocks."""
    learned: tuple[int, float] | None = None
    """Points and radius of the blocks that it was trained on, where these may be others."""
    turns: int = 2
    """Spheres that every point of a scene is in, at least."""
    batch_size: int = 8
    seed: int = 0
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        for name, least in (("points", 1), ("turns", 1), ("batch_size", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.radius > 0:
            raise ValueError(f"radius must be positive, got {self.radius}")
        self.model.to(self.device).eval()

    @property
    def takes_colors(self) -> bool:
        """Whether each point must come with a colour."""
        config: Any = self.model.config
        return bool(config.colors)

    @cached_property
    def allowed(self) -> Bool[Tensor, "categories labels"]:
        """True where a label belongs to a category; in scenes all labels may occur."""
        if self.task == "scenes":
            return torch.ones(len(self.categories), len(self.names), dtype=torch.bool)
        return allowed_parts(self.categories, self.names)

    def category(self, name: str) -> int:
        """Return the number of a category, by `category_numbers` and whatever the case.

        Raises:
            ValueError: there is no such category; known ones are listed.
        """
        known = category_numbers(self.categories)
        if name.lower() not in known:
            raise ValueError(f"unknown category {name!r}; known: {', '.join(self.categories)}")
        return known[name.lower()]

    def segment(
        self,
        points: Float[np.ndarray, "n 3"],
        colors: Float32[np.ndarray, "n 3"] | None = None,
        category: int | None = None,
        report: Report | None = None,
    ) -> Float32[np.ndarray, "n classes"]:
        """Return the probabilities of every point, in order.

        Args:
            points: the cloud, of any size, in any pose.
            colors: from 0 to 1, if the network takes them.
            category: of the shape, for parts.
            report: hears of the progress.
        """
        tints, ask = self.tints(colors), self.ask(category)
        if self.task == "parts":
            return segment_shape(ask, points, tints, **self.settings(report))
        return segment_scene(
            ask, points, tints, radius=self.radius, turns=self.turns, **self.settings(report)
        )

    def doubt(self, points: Float[np.ndarray, "n 3"]) -> str | None:
        """Say what makes the answer for a cloud unlikely to be right, if anything does."""
        if self.task == "parts":
            few = len(points) < self.points / FEWER
            return (
                f"it has {len(points)} points, the network learned {self.points}" if few else None
            )
        return doubt_radius(points, self.radius)

    def unlike_training(self) -> list[str]:
        """Say where the blocks differ much from those that the network was trained on."""
        if self.learned is None:
            return []
        points, radius = self.learned
        return [
            f"--{what} {ours:g}: the network learned from blocks of {theirs:.3g}"
            for what, ours, theirs in (
                ("points", self.points, points),
                ("radius", self.radius, radius),
            )
            if not 1 / UNLIKE <= ours / theirs <= UNLIKE
        ]

    def segment_turned(
        self, scene: Scene, cut: Scenes, rotation: Float[Tensor, "3 3"]
    ) -> Float32[np.ndarray, "n classes"]:
        """Return the probabilities of every point of a scene whose blocks are turned.

        It is cut as the data set was, in the pose of the file: spheres would be the same in any,
        blocks of floor need to know which way is up.
        """
        tints, ask = self.tints(scene.colors), self.ask(rotation=rotation)
        settings = self.settings()
        if cut.sphere:
            settings |= {"radius": cut.sphere, "turns": self.turns}
            return segment_scene(ask, scene.points, tints, **settings)
        del settings["least"]
        settings |= {"block": cut.block, "ratio": cut.ratio}
        return segment_blocks(ask, scene.points, tints, **settings)

    def tints(self, colors: Float32[np.ndarray, "n 3"] | None) -> Float32[np.ndarray, "n 3"] | None:
        """Return the colours if the network takes them; there must be some then."""
        if self.takes_colors and colors is None:
            raise ValueError("there are no colours, which the network takes")
        return colors if self.takes_colors else None

    def settings(self, report: Report | None = None) -> dict[str, Any]:
        """Return how clouds of any kind reach the network."""
        config: Any = self.model.config
        return {
            "size": self.points,
            "least": config.k,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "report": report,
        }

    def ask(self, category: int | None = None, rotation: Float[Tensor, "3 3"] | None = None) -> Ask:
        """Return the network as a function from blocks, which it is shown turned, to answers."""
        config: Any = self.model.config
        dtype = next(self.model.parameters()).dtype
        allowed = self.allowed[0 if category is None else category].to(self.device)

        @torch.inference_mode()
        def answer(
            blocks: Float[Tensor, "b n 3"], tints: Float[Tensor, "b n 3"] | None
        ) -> Float[Tensor, "b n c"]:
            given: dict[str, Tensor] = {}
            if config.categories:
                given["category"] = torch.full((len(blocks),), category or 0, device=self.device)
            if tints is not None:
                given["colors"] = tints.to(self.device, dtype)
            if rotation is not None:
                blocks = rotate(blocks, rotation.expand(len(blocks), 3, 3))
            logits = self.model(blocks.to(self.device, dtype), **given).logits
            return logits.float().masked_fill(~allowed, -torch.inf).softmax(-1)

        return answer


def load_segmenter(
    weights: Path | str,
    *,
    points: int | None = None,
    radius: float | None = None,
    **settings: Any,
) -> SegmenterNetwork:
    """Build the network of a weights file, to be fed as it was trained.

    Args:
        weights: run folder or weights file.
        points: points of a block; by default as in training.
        radius: of the spheres that a scene is cut into; by default that of the training clouds.
        **settings: ``turns``, ``batch_size``, ``seed`` and ``device`` of `SegmenterNetwork`.
    """
    model, metadata = load_weights(weights)
    task = model_task(metadata["model"])
    if task == "classification":
        raise ValueError(f"{weights} classifies whole shapes: use `locotrans predict`")
    for key in ("part_names", "class_names", "points", "radius"):
        if key not in metadata:
            raise ValueError(f"{weights} does not say what it was trained on: it has no {key!r}")
    return SegmenterNetwork(
        model,
        task,
        tuple(metadata["part_names"]),
        tuple(metadata["class_names"]),
        metadata["points"] if points is None else points,
        metadata["radius"] if radius is None else radius,
        learned=(metadata["points"], metadata["radius"]),
        **settings,
    )
