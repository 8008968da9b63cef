"""The built-in data set: twenty categories of procedural objects, drawn when they are asked for.

Shapes come in blocks. A block is a function of (seed, split, its number, points per shape) and of
nothing else, so the first 100 of 1,000 shapes are those that a request for 100 gives, and no block
of the training split shares its random stream with one of the test split.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# the order of these two imports is that of the labels
from locotrans.data import builtin_furniture, builtin_objects  # noqa: F401
from locotrans.data.builtin_category import CATEGORIES, Category, Draw
from locotrans.data.builtin_surfaces import Layout, Surfaces, sample_surfaces
from locotrans.data.clouds import CloudSet
from locotrans.data.registry import register_dataset
from locotrans.data.transforms import normalize

SPLITS = {"train": 4000, "test": 1000}
"""The usual number of shapes; the place of a split in this table enters its seed."""

BLOCK = 32
"""Shapes of each category whose proportions are drawn together."""

CHUNK = 80
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
    greatest norm 1; their points are in random order. Another processor may round sines and
    cosines differently, and with them the checksum.

    Args:
        split: "train" or "test".
        root: Not used, since there are no files.
        points: Points of each shape.
        shapes: How many; None takes 4,000 for "train" and 1,000 for "test".
        seed: From 0 to 2**32 - 1; another seed gives other shapes.
    """
    if split not in SPLITS:
        raise ValueError(f"builtin has the splits {', '.join(SPLITS)}, got {split!r}")
    if not 0 <= seed < 2**32:  # one word, so that no two (seed, split, block) are the same words
        raise ValueError(f"seed must be from 0 to 2**32 - 1, got {seed}")
    count = SPLITS[split] if shapes is None else shapes
    number = list(SPLITS).index(split)
    cloud, normals = torch.empty(2, count, points, 3, dtype=torch.float32)
    parts = torch.empty(count, points, dtype=torch.long)
    for first, *drawn in _draw(seed, number, count, points):
        for target, source in zip((cloud, normals, parts), drawn, strict=True):
            rows = target[first : first + CHUNK]
            rows.copy_(source[: len(rows)])
    return CloudSet(
        name="builtin",
        split=split,
        split_size=SPLITS[split],
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
            chunk = Layout(*(column[first : first + CHUNK] for column in layout))
            cloud, normals, parts = sample_surfaces(chunk, points, rng)
            yield start + first, normalize(cloud), normals, parts


def _draw_layout(rng: np.random.Generator) -> Layout:
    """Draw ``BLOCK`` shapes of each category, the categories taking turns."""
    rows = [_join(c, c.build(Draw(rng, BLOCK))) for c in CATEGORIES.values()]
    # (block, categories, primitives, ...) -> (s, p, ...)
    columns = (torch.stack(_padded(column), dim=1) for column in zip(*rows, strict=True))
    return Layout(*(column.flatten(0, 1) for column in columns))


def _join(category: Category, groups: list[Surfaces]) -> Layout:
    """Put the groups of primitives of a category side by side, (block, p, ...)."""
    numbers = [part_names().index(f"{category.name}/{g.part}") for g in groups]
    return Layout(
        kind=_beside(torch.full(g.area.shape, g.kind) for g in groups),
        part=_beside(torch.full(g.area.shape, n) for g, n in zip(groups, numbers, strict=True)),
        size=_beside(g.size for g in groups),
        area=_beside(g.area for g in groups),
        center=_beside(g.center for g in groups),
        rotation=_beside(g.rotation for g in groups),
    )


def _beside(values: Iterable[Tensor]) -> Tensor:
    return torch.cat([value.expand(BLOCK, *value.shape[1:]) for value in values], dim=1)


def _padded(columns: Iterable[Tensor]) -> list[Tensor]:
    """Lengthen axis 1 of each to that of the longest with zeros: no area, so never drawn."""
    columns = list(columns)
    longest = max(c.shape[1] for c in columns)
    return [
        torch.cat([c, c.new_zeros(c.shape[0], longest - c.shape[1], *c.shape[2:])], dim=1)
        for c in columns
    ]
