"""What is done to clouds, and what an output should then be."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from locotrans.testing.motions import describe_matrix, turn

Kind = Literal["invariant", "equivariant"]
Case = tuple[str, Tensor, Callable[[str, Tensor], Tensor]]
"""What was done, the clouds, and the output to expect, given its name and the original one."""


def turned(
    points: Float[Tensor, "b n 3"],
    R: Float[Tensor, "r 3 3"],
    kinds: Mapping[str, Kind] | None = None,
) -> Iterator[Case]:
    """Turn the clouds by each of some matrices; equivariant outputs are turned along."""
    for matrix in R:
        change = partial(_turn_output, matrix, kinds or {})
        yield describe_matrix(matrix), turn(points, matrix), change


def permuted(points: Float[Tensor, "b n 3"], count: int, seed: int) -> Iterator[Case]:
    """Reorder the points at random; what belongs to a point follows it."""
    generator = torch.Generator().manual_seed(seed)
    for i in range(count):
        order = torch.randperm(points.shape[1], generator=generator)
        yield f"order {i + 1}", points[:, order], partial(_reorder, order)


def shifted(points: Float[Tensor, "b n 3"], direction: Float[Tensor, "3"]) -> Iterator[Case]:
    """Move the clouds by one and by ten radii."""
    radius = radius_of(points)
    for factor in (1, 10):
        yield f"by {factor} radii", points + factor * radius * direction, _same


def scaled(points: Float[Tensor, "b n 3"]) -> Iterator[Case]:
    """Make the clouds smaller and larger."""
    for factor in (0.5, 2.0):
        yield f"times {factor:g}", points * factor, _same


def mirrored(points: Float[Tensor, "b n 3"], R: Float[Tensor, "r 3 3"]) -> Iterator[Case]:
    """Mirror the clouds at a plane and turn them."""
    for matrix in R:
        yield "a reflection", turn(points, -matrix), _same


def alone(points: Float[Tensor, "b n 3"]) -> Iterator[Case]:
    """Ask for every cloud by itself."""
    for i in range(len(points)):
        yield f"cloud {i} alone", points[i : i + 1], partial(_only, i)


def repeated(points: Float[Tensor, "b n 3"]) -> Iterator[Case]:
    """Give some points twice."""
    yield "", with_repeats(points), _same


def with_repeats(points: Float[Tensor, "b n 3"]) -> Float[Tensor, "b m 3"]:
    """Append an eighth of the points a second time."""
    return torch.cat([points, points[:, : math.ceil(points.shape[1] / 8)]], dim=1)


def lattice(count: int, radius: float) -> Float[Tensor, "1 n 3"]:
    """Return a regular grid of at least ``count`` points: most of its distances tie."""
    side = math.ceil(count ** (1 / 3) - 1e-9)
    line = torch.linspace(-1, 1, max(side, 2), dtype=torch.float64)
    return torch.cartesian_prod(line, line, line)[None] * (radius / math.sqrt(3))


def radius_of(points: Float[Tensor, "b n 3"]) -> float:
    """Return the largest distance of a point from the centre of its cloud."""
    return float((points - points.mean(1, keepdim=True)).norm(dim=-1).max())


def _same(name: str, x: Tensor) -> Tensor:
    return x


def _only(i: int, name: str, x: Tensor) -> Tensor:
    return x[i : i + 1]


def _reorder(order: Tensor, name: str, x: Tensor) -> Tensor:
    """Reorder an output of points, (b, n, ...); any other stays."""
    return x[:, order] if x.dim() > 2 and x.shape[1] == len(order) else x


def _turn_output(R: Tensor, kinds: Mapping[str, Kind], name: str, x: Tensor) -> Tensor:
    """Turn vectors on the last axis, or on the last but one in front of channels."""
    if kinds.get(name) != "equivariant":
        return x
    axis = -2 if x.dim() >= 4 or (x.dim() == 3 and x.shape[-1] != 3) else -1
    if x.shape[axis] != 3:
        raise ValueError(
            f"{name}, of shape {tuple(x.shape)}, holds no vectors: its last axis, or the last but "
            "one in front of channels, must have the size 3"
        )
    return (x.movedim(axis, -1) @ R.mT).movedim(-1, axis)
