"""What a category of the built-in set is: a function from random numbers to primitives."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from locotrans.data.builtin_surfaces import Surfaces


@dataclass(frozen=True)
class Draw:
    """A source of random proportions, one for each of ``count`` shapes."""

    rng: np.random.Generator
    count: int

    def __call__(self, low: float, high: float) -> Float[Tensor, "s 1"]:
        """Draw from the uniform distribution on [low, high)."""
        numbers = self.rng.uniform(low, high, size=(self.count, 1))
        return torch.from_numpy(numbers.astype(np.float32))


Build = Callable[[Draw], list[Surfaces]]


@dataclass(frozen=True)
class Category:
    """A named class of shapes with named parts."""

    name: str
    parts: tuple[str, ...]
    build: Build


CATEGORIES: dict[str, Category] = {}
"""Every category by name; the order is that of the labels."""


def category(*parts: str) -> Callable[[Build], Build]:
    """Enter the decorated function as a category of its own name with the given parts."""

    def enter(build: Build) -> Build:
        name = build.__name__
        CATEGORIES[name] = Category(name, parts, build)
        return build

    return enter
