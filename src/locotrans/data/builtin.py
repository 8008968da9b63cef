"""The built-in data set: twenty categories of procedural objects, drawn when they are asked for.

Shapes come in blocks. A block is a function of (seed, split, its number, points per shape) and of
nothing else, so the first 100 of 1,000 shapes are those that a request for 100 gives, and no block
of the training split shares its random stream with one of the test split.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# the order of these two imports is that of the labels
from locotrans.data import builtin_furniture, builtin_objects  # noqa: F401
from locotrans.data.builtin_category import CATEGORIES, Category, Draw
from locotrans.data.builtin_surfaces import BOX, Surfaces, sample_surfaces
from locotrans.data.clouds import CloudSet
from locotrans.data.registry import register_dataset
from locotrans.data.transforms import normalize

SPLITS = {"train": 4000, "test": 1000}
"""The usual number of shapes; the place of a split in this table enters its seed."""

BLOCK = 32
"""Shapes of each category whose proportions are drawn together."""

CHUNK = 40
"""Shapes whose points are drawn together: few enough for the processor's cache."""


@register_dataset("builtin")
def load_builtin(
    split: str,
    *,
    root: Path | None = None,
    points: int = 1024,
    shapes: int | None = None,
    seed: int = 0,
) -> CloudSet:
    """Generate a split of the built-in set: z is up, and every object has the same heading.

    Labels follow each other in turn (shape i has label i mod 20). Clouds have mean zero and
    greatest norm 1; their points are in random order.

    Args:
        split: "train" or "test".
        root: Not used, since there are no files.
        points: Points of each shape.
        shapes: How many; None takes 4,000 for "train" and 1,000 for "test".
        seed: Any integer from 0; another seed gives other shapes.
    """
    if split not in SPLITS:
        raise ValueError(f"builtin has the splits {', '.join(SPLITS)}, got {split!r}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    count = SPLITS[split] if shapes is None else shapes
    number = list(SPLITS).index(split)
    cloud, normals = torch.empty(2, count, points, 3)
    parts = torch.empty(count, points, dtype=torch.long)
    for first, *drawn in _draw(seed, number, count, points):
        for target, source in zip((cloud, normals, parts), drawn, strict=True):
            rows = target[first : first + CHUNK]
            rows.copy_(source[: len(rows)])
    return CloudSet(
        name="builtin",
        split=split,
        up="z",
        points=cloud,
        labels=torch.arange(count) % len(CATEGORIES),
        class_names=tuple(CATEGORIES),
        normals=normals,
        parts=parts,
        part_names=part_names(),
    )


@cache
def part_names() -> tuple[str, ...]:
    """Names of all parts of all categories, "category/part", in the order of their numbers."""
    return tuple(f"{c.name}/{part}" for c in CATEGORIES.values() for part in c.parts)


def _draw(
    seed: int, split: int, count: int, points: int
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Draw chunks of shapes until there are ``count``: the first one's index, and the tensors."""
    size = BLOCK * len(CATEGORIES)
    for block, start in enumerate(range(0, count, size)):
        rng = np.random.default_rng([seed, split, block])
        layout = _draw_layout(rng)
        for first in range(0, min(size, count - start), CHUNK):
            *surfaces, part = (column[first : first + CHUNK] for column in layout)
            cloud, normals, choice = sample_surfaces(*surfaces, points, rng)
            yield start + first, normalize(cloud), normals, part.gather(1, choice)


def _draw_layout(rng: np.random.Generator) -> tuple[Tensor, ...]:
    """Draw ``BLOCK`` shapes of each category, the categories taking turns.

    Returns:
        Kind, size, area, centre, rotation and part number of every primitive, (s, p, ...).
    """
    rows = [_pack(c, c.build(Draw(rng, BLOCK))) for c in CATEGORIES.values()]
    # (block, categories, primitives, ...) -> (s, p, ...)
    return tuple(
        torch.stack(_padded(list(column)), dim=1).flatten(0, 1)
        for column in zip(*rows, strict=True)
    )


def _pack(category: Category, surfaces: list[Surfaces]) -> tuple[Tensor, ...]:
    """Put the groups of a category side by side, (block, p, ...): the fields, then part numbers."""
    names = part_names()

    def column(values: list[Tensor]) -> Tensor:
        return torch.cat([value.expand(BLOCK, *value.shape[1:]) for value in values], dim=1)

    def ids(numbers: list[int]) -> Tensor:
        return column(
            [torch.full(g.area.shape, n) for g, n in zip(surfaces, numbers, strict=True)]
        )

    return (
        ids([g.kind for g in surfaces]),
        column([g.size for g in surfaces]),
        column([g.area for g in surfaces]),
        column([g.center for g in surfaces]),
        column([g.rotation for g in surfaces]),
        ids([names.index(f"{category.name}/{g.part}") for g in surfaces]),
    )


def _padded(columns: list[Tensor]) -> list[Tensor]:
    """Lengthen axis 1 of each to that of the longest with zeros: boxes of no area, never drawn."""
    assert BOX == 0
    longest = max(c.shape[1] for c in columns)
    return [
        torch.cat([c, c.new_zeros(c.shape[0], longest - c.shape[1], *c.shape[2:])], dim=1)
        for c in columns
    ]
