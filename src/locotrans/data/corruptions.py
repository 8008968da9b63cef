"""What the world does to a cloud, on whole batches ``(b, n, 3)``, on any device.

Each corruption takes its generator explicitly (numbers are drawn on the generator's device, as in
`transforms`) and keeps the shape: **where points vanish, random points that are left stand in for
them, repeated**. A network then sees the right number of points, some of them twice. The exception
is `drop_points`, whose clouds get smaller.

Amounts are exact shares of the points rather than probabilities, and with the same seed the
points that a mild corruption takes are among those that a severe one takes. Lengths are in units
of the cloud's radius, as for clouds of `normalize`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from locotrans.data.transforms import (
    drop_points,
    jitter,
    random_order,
    random_scale,
    random_shift,
    rotate,
)
from locotrans.geometry import center, quaternion_to_matrix, random_rotations, safe_length
from locotrans.geometry.neighbors import farthest_points, gather

ResampleMethod = Literal["random", "repeat", "farthest"]
SEVERITIES = (1, 2, 3, 4, 5)


def fill_removed(
    points: Float[Tensor, "b n 3"], kept: Bool[Tensor, "b n"], *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    """Put a random kept point into the place of every removed one.

    Degenerate: a cloud of which nothing is kept becomes its first point, n times.
    """
    b, n, _ = points.shape
    draws = torch.rand(b, n, generator=generator, device=generator.device).to(points.device)
    count = kept.sum(1, keepdim=True).clamp_min(1)
    kept_first = (~kept).int().argsort(dim=1, stable=True)
    stand_ins = kept_first.gather(1, (draws * count).long().clamp_max(count - 1))
    own = torch.arange(n, device=points.device).expand(b, n)
    return _take(points, torch.where(kept, own, stand_ins))


def resample(
    points: Float[Tensor, "b n 3"],
    count: int,
    method: ResampleMethod = "random",
    *,
    generator: torch.Generator,
) -> Float[Tensor, "b m 3"]:
    """Return ``count`` points of each cloud.

    Args:
        points: the clouds.
        count: how many points to return.
        method: "random" takes a uniform subset, "farthest" spreads evenly over the shape, and
            both repeat the cloud where it is too small; "repeat" draws with repetition.
        generator: source of the random numbers; "farthest" draws none where there is enough.
    """
    b, n, _ = points.shape
    if count < 1:
        raise ValueError(f"a cloud needs at least 1 point, got {count}")
    if method == "repeat":
        draws = torch.rand(b, count, generator=generator, device=generator.device)
        return _take(points, (draws * n).long().clamp_max(n - 1).to(points.device))
    if method == "farthest" and count <= n:
        return _take(points, farthest_points(points, count))
    whole, rest = divmod(count, n)
    order = random_order(b, n, generator=generator)[:, :rest].to(points.device)
    return torch.cat([*[points] * whole, _take(points, order)], dim=1)


def thin_out(
    points: Float[Tensor, "b n 3"], share: float, *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    """Keep a random ``1 - share`` of the points: a sparser scan."""
    kept = random_order(*points.shape[:2], generator=generator) >= _amount(points, share)
    return fill_removed(points, kept.to(points.device), generator=generator)


def thin_locally(
    points: Float[Tensor, "b n 3"],
    share: float,
    region: float = 0.5,
    *,
    generator: torch.Generator,
) -> Float[Tensor, "b n 3"]:
    """Remove ``share`` of the points around a random one: the density changes within a cloud.

    Args:
        points: the clouds.
        share: how much of the region vanishes.
        region: how much of the cloud, the points nearest to the chosen one, is the region.
        generator: source of the random numbers.
    """
    b, n, _ = points.shape
    inside = _rank(_distance_to_one(points, generator)) < _amount(points, region)
    lot = torch.rand(b, n, generator=generator, device=generator.device).to(points.device)
    removed = _rank(torch.where(inside, lot, 2.0)) < round(share * _amount(points, region))
    return fill_removed(points, ~removed, generator=generator)


def cut_ball(
    points: Float[Tensor, "b n 3"], share: float, *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    """Remove the ``share`` of the points that lies nearest to a random one: a missing part."""
    kept = _rank(_distance_to_one(points, generator)) >= _amount(points, share)
    return fill_removed(points, kept, generator=generator)


def cut_half_space(
    points: Float[Tensor, "b n 3"], share: float, *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    """Remove the ``share`` of the points that lies farthest in a random direction."""
    direction = torch.randn(points.shape[0], 3, 1, generator=generator, device=generator.device)
    height = (points @ direction.to(points)).squeeze(-1)
    return fill_removed(points, _rank(-height) >= _amount(points, share), generator=generator)


def occlude(
    points: Float[Tensor, "b n 3"],
    views: int = 1,
    cell: float | None = None,
    *,
    generator: torch.Generator,
) -> Float[Tensor, "b n 3"]:
    """Remove what cannot be seen from any of some random directions.

    The cloud is looked at from far away through a grid of square cells. A point is hidden if
    another, in its cell or one of the eight around it, is nearer to the eye by more than three
    cells: what slopes by more than about 60 degrees is missed, as a scanner misses it.

    Args:
        points: the clouds.
        views: how many directions; the first ones are the same for any number.
        cell: side of a cell in radii of the cloud; by default ``2 / sqrt(n)``, which puts about
            three points of a sphere's near side into nine cells.
        generator: source of the random numbers.
    """
    b, n, _ = points.shape
    if views < 1:
        raise ValueError(f"a cloud must be seen from at least 1 direction, got {views}")
    cell = 2 / n**0.5 if cell is None else cell
    centered = center(points)
    radius = safe_length(centered).amax(1, keepdim=True)
    centered = centered / torch.where(radius > 0, radius, 1.0)
    side = int(2 / cell) + 1
    seen = torch.zeros(b, n, dtype=torch.bool, device=points.device)
    for _ in range(views):
        R = random_rotations(b, generator=generator, device=generator.device)
        across, height = rotate(centered, R).split([2, 1], dim=-1)  # the eye is above
        column, row = ((across + 1) / cell).long().clamp(0, side - 1).unbind(-1)
        index, height = column * side + row, height.squeeze(-1)
        top = height.new_full((b, side * side), -torch.inf)
        top = top.scatter_reduce(1, index, height, "amax").reshape(b, 1, side, side)
        top = torch.nn.functional.max_pool2d(top, 3, stride=1, padding=1).flatten(1)
        seen |= height >= top.gather(1, index) - 3 * cell
    return fill_removed(points, seen, generator=generator)


def add_outliers(
    points: Float[Tensor, "b n 3"], share: float, *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    """Replace a random ``share`` of the points by points uniform in the bounding sphere."""
    b, n, _ = points.shape
    chosen = random_order(b, n, generator=generator) < _amount(points, share)
    way = torch.randn(b, n, 3, generator=generator, device=generator.device)
    r = torch.rand(b, n, 1, generator=generator, device=generator.device) ** (1 / 3)
    middle = points.mean(1, keepdim=True)
    radius = safe_length(points - middle).amax(1, keepdim=True)
    strays = middle + radius * (r * torch.nn.functional.normalize(way, dim=-1)).to(points)
    return torch.where(chosen[..., None].to(points.device), strays, points)


def turn(
    points: Float[Tensor, "b n 3"], degrees: float, *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    """Turn each cloud by the angle ``degrees`` about a random axis through the origin."""
    axis = torch.randn(points.shape[0], 3, generator=generator, device=generator.device)
    half = torch.deg2rad(torch.tensor(degrees / 2, device=axis.device))
    vector = torch.nn.functional.normalize(axis, dim=-1) * half.sin()
    q = torch.cat([half.cos().expand(len(axis), 1), vector], dim=-1)
    return rotate(points, quaternion_to_matrix(q).to(points))


class Ladder(NamedTuple):
    """A corruption in five steps of severity."""

    apply: Callable[..., Tensor]
    parameter: str
    """The argument that grows worse."""
    levels: tuple[float, ...]
    """Its values at severity 1 to 5."""


def _drop_share(
    points: Float[Tensor, "b n 3"], share: float, *, generator: torch.Generator
) -> Float[Tensor, "b kept 3"]:
    return drop_points(points, _amount(points, share), generator=generator)


def _stretch(
    points: Float[Tensor, "b n 3"], factor: float, *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    return random_scale(points, 1 / factor, factor, generator=generator)


CORRUPTIONS: dict[str, Ladder] = {
    "jitter": Ladder(partial(jitter, clip=torch.inf), "sigma", (0.01, 0.02, 0.03, 0.04, 0.05)),
    "drop": Ladder(_drop_share, "share", (0.25, 0.375, 0.5, 0.625, 0.75)),
    "thin": Ladder(thin_out, "share", (0.25, 0.375, 0.5, 0.625, 0.75)),
    "density": Ladder(thin_locally, "share", (0.5, 0.6, 0.7, 0.8, 0.9)),
    "ball": Ladder(cut_ball, "share", (0.1, 0.2, 0.3, 0.4, 0.5)),
    "half_space": Ladder(cut_half_space, "share", (0.1, 0.2, 0.3, 0.4, 0.5)),
    "occlusion": Ladder(occlude, "views", (5, 4, 3, 2, 1)),
    "outliers": Ladder(add_outliers, "share", (0.01, 0.02, 0.05, 0.1, 0.2)),
    "scale": Ladder(_stretch, "factor", (1.2, 1.4, 1.6, 1.8, 2.0)),
    "shift": Ladder(random_shift, "size", (0.1, 0.2, 0.3, 0.4, 0.5)),
    "rotation": Ladder(turn, "degrees", (15.0, 30.0, 60.0, 120.0, 180.0)),
}
"""The severity ladders. "scale" stretches each axis by its own factor in [1 / factor, factor];
"drop" is the only one whose clouds get smaller."""


def corrupt(
    points: Float[Tensor, "b n 3"], name: str, severity: int, *, generator: torch.Generator
) -> Float[Tensor, "b m 3"]:
    """Apply a corruption of the table; severity 0 is the cloud as it is."""
    check_corruption(name, severity)
    if severity == 0:
        return points
    ladder = CORRUPTIONS[name]
    level: dict[str, Any] = {ladder.parameter: ladder.levels[severity - 1]}
    return ladder.apply(points, **level, generator=generator)


def check_corruption(name: str, severity: int) -> None:
    """Raise a ValueError unless the table has this corruption and its ladder this step."""
    if name not in CORRUPTIONS:
        raise ValueError(f"no corruption {name!r}; there are {', '.join(CORRUPTIONS)}")
    if severity not in (0, *SEVERITIES):
        raise ValueError(f"severity must be from 0 to {SEVERITIES[-1]}, got {severity}")


def _amount(points: Float[Tensor, "b n 3"], share: float) -> int:
    """Return how many points a share is; at least one point must be left over."""
    if not 0 <= share <= 1:
        raise ValueError(f"a share must be from 0 to 1, got {share}")
    return min(round(share * points.shape[1]), points.shape[1] - 1)


def _rank(values: Float[Tensor, "b n"]) -> Tensor:
    """Return the place of every value in the order of its row, ties in order of index."""
    return values.argsort(dim=1, stable=True).argsort(dim=1)


def _distance_to_one(
    points: Float[Tensor, "b n 3"], generator: torch.Generator
) -> Float[Tensor, "b n"]:
    """Return the distances to a random point of each cloud."""
    b, n, _ = points.shape
    chosen = torch.randint(n, (b, 1), generator=generator, device=generator.device)
    return (points - _take(points, chosen.to(points.device))).square().sum(-1)


def _take(points: Float[Tensor, "b n 3"], index: Tensor) -> Float[Tensor, "b m 3"]:
    return gather(points, index[..., None]).squeeze(2)
