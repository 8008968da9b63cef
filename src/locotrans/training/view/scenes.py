"""The clouds that pages show, and the answers to them."""

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.data.transforms import rotate
from locotrans.geometry.neighbors import farthest_points
from locotrans.pictures import label_colors
from locotrans.training.predict.samples import load_sample
from locotrans.training.view.networks import Reference, ViewedNetwork, describe

KEPT = 8
"""Clouds that are remembered: a page that shows an older one has to be loaded again."""
FRAMES = 96
"""Points whose frames are drawn, at most."""
UNPACKED = 2**29
"""Bytes that a file may take once unpacked."""


@dataclass
class Scene:
    """A cloud, and the answers of the networks for its own pose."""

    name: str
    size: int
    """Points of the file."""
    points: Float[Tensor, "n 3"]
    shown: Int[Tensor, "m"]
    """Points whose frames are drawn."""
    category: int = 0
    references: dict[tuple[int, int], Reference] = field(default_factory=dict)
    """By the network and the category that it is told."""


class Viewer:
    """Networks, and the clouds that they are asked about, one at a time.

    Raises:
        ValueError: the networks were trained on other numbers or choices of points, so that one
            cloud cannot be shown to all, or on other categories.
    """

    def __init__(self, networks: Sequence[ViewedNetwork], seed: int = 0) -> None:
        for network in networks[1:]:
            _check_alike(networks[0], network)
        self.networks = networks
        self.seed = seed
        self.scenes: OrderedDict[int, Scene] = OrderedDict()
        self._numbers = count()
        self._lock = threading.Lock()

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories that the page lets one choose from."""
        return next((n.categories for n in self.networks if n.categories), ())

    def category(self, name: str) -> int:
        """Return the number of a category; where it is not known, 0."""
        return _number(self.categories, name)

    def open(self, path: Path, name: str, category: str = "") -> int:
        """Read a file, and return the number of its scene.

        Raises:
            ValueError: the file cannot be read; the message names it and says why.
        """
        with self._lock:
            first = self.networks[0]
            sample = load_sample(path, first.points, self.seed, UNPACKED, first.choice)
            if sample.points is None or sample.size is None:
                raise ValueError(f"{name}: {(sample.error or '').replace(str(path), name)}")
            points = torch.from_numpy(sample.points)
            shown = farthest_points(points[None], min(FRAMES, len(points)))[0]
            scene = Scene(name, sample.size, points, shown, self.category(category))
            number = next(self._numbers)
            self.scenes[number] = scene
            while len(self.scenes) > KEPT:
                self.scenes.popitem(last=False)
            return number

    def state(self, number: int) -> dict[str, Any]:
        """Return what a page needs to show a scene, with the answers for the file's own pose."""
        scene = self._scene(number)
        names = max(len(network.names) for network in self.networks)
        colors = (255 * label_colors(names)).round().int().tolist()
        own = torch.eye(3)
        return {
            "scene": number,
            "name": scene.name,
            "size": scene.size,
            "points": [round(x, 5) for x in scene.points.flatten().tolist()],
            "shown": scene.shown.tolist(),
            "categories": list(self.categories),
            "category": scene.category,
            "networks": [
                {"title": n.title, "task": n.task, "names": list(n.names), "own": n.own_frames}
                for n in self.networks
            ],
            "palette": colors,
            "answers": self.answers(number, own, scene.category),
        }

    def answers(
        self, number: int, rotation: Float[Tensor, "3 3"], category: int
    ) -> list[dict[str, Any]]:
        """Ask every network about a scene in a pose."""
        scene = self._scene(number)
        if self.categories and not 0 <= category < len(self.categories):
            raise ValueError(f"there is no category {category}")
        with self._lock:
            return [self._answer(scene, i, rotation, category) for i in range(len(self.networks))]

    def _answer(
        self, scene: Scene, index: int, rotation: Float[Tensor, "3 3"], category: int
    ) -> dict[str, Any]:
        network, key = self.networks[index], (index, category)
        told = _number(network.categories, self.categories[category]) if network.categories else 0
        if key not in scene.references:
            scene.references[key] = Reference.of(network.ask(scene.points, told))
        reference = scene.references[key]
        answer = network.ask(rotate(scene.points[None], rotation[None])[0], told)
        if not bool(answer.logits.isfinite().all()):
            raise ValueError(f"the answer of {network.title} is not a number")
        return describe(network, reference, answer, rotation, scene.shown)

    def _scene(self, number: int) -> Scene:
        if number not in self.scenes:
            raise ValueError("this cloud is no longer remembered: load the page or the file again")
        return self.scenes[number]


def _number(categories: Sequence[str], name: str) -> int:
    """Return the number of a category; where it is not known, 0."""
    known = [category.lower() for category in categories]
    return known.index(name.lower()) if name.lower() in known else 0


def _check_alike(one: ViewedNetwork, other: ViewedNetwork) -> None:
    """Raise a ValueError unless one cloud, and one category, can be shown to both networks."""
    if (other.points, other.choice) != (one.points, one.choice):
        raise ValueError(
            f"{one.title} takes {one.points} points ({one.choice}), {other.title} {other.points} "
            f"({other.choice}): a page shows one cloud; look at each by itself"
        )
    lists = [{name.lower() for name in x.categories} for x in (one, other) if x.categories]
    if len(lists) > 1 and lists[0] != lists[1]:
        raise ValueError(f"{one.title} and {other.title} were trained on other categories")


def parse_rotation(values: Any) -> Float[Tensor, "3 3"]:
    """Return nine numbers as a rotation.

    Raises:
        ValueError: they are none.
    """
    good = isinstance(values, list) and len(values) == 9
    if not good or not all(isinstance(x, int | float) and math.isfinite(x) for x in values):
        raise ValueError("a rotation is nine numbers, row by row")
    R = torch.tensor(values, dtype=torch.double).reshape(3, 3)
    if (R @ R.mT - torch.eye(3)).abs().max() > 1e-6 or torch.linalg.det(R) < 0:
        raise ValueError("the nine numbers are not a rotation")
    return R.float()
