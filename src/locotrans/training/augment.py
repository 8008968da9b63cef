"""What a network is shown of its training shapes: points drawn, clouds scaled, shifted, turned."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from locotrans.data.filling import NEAREST, moved_copies, nearest_others
from locotrans.data.transforms import (
    drop_points,
    jitter,
    normalize,
    protocol_rotations,
    random_mirror,
    random_scale,
    random_shift,
    rotate,
    shuffle_points,
    uniform,
)
from locotrans.geometry import Axis, center
from locotrans.nn.graph import point_graph
from locotrans.training.config import TrainConfig
from locotrans.training.evening import (
    CHUNK,
    NEAR,
    choose_farthest,
    even_points,
    with_points_between,
)

VERSIONS = 8
"""Of each cloud that is thinned and evened out."""


def augment(
    points: Float[Tensor, "b n 3"],
    config: TrainConfig,
    up: Axis,
    generator: torch.Generator,
    *,
    centred: bool = False,
) -> Float[Tensor, "b m 3"]:
    """Draw or thin points, mirror, scale, jitter, shift, rotate and shuffle clouds.

    With ``centred``, the drawn points have their mean at the origin before, as a network that
    centres them in evaluation will see them.

    The rotation comes after the scaling, so that a shape is stretched along the axes of its
    canonical pose and then turned, as if another such object had been turned.
    """
    if config.draw_from is not None:
        points = drop_points(points, config.draw_from - config.points, generator=generator)
    if config.resample is not None and not config.even:
        points = thin_and_fill(points, config.resample, generator=generator)
    if centred:
        points = center(points)
    if config.mirror:
        points = random_mirror(points, up, generator=generator)
    if config.scale > 1:
        points = random_scale(points, 1 / config.scale, config.scale, generator=generator)
    if config.jitter > 0:
        points = jitter(points, config.jitter, 5 * config.jitter, generator=generator)
    if config.shift > 0:
        points = random_shift(points, config.shift, generator=generator)
    if config.rotation != "none":
        R = protocol_rotations(config.rotation, up, len(points), generator=generator)
        points = rotate(points, R)
    if config.shuffle:
        points = shuffle_points(points, generator=generator)
    return points


def thin_and_fill(
    points: Float[Tensor, "b n 3"], fewest: int, *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    """Keep some points of each cloud, and put moved copies of them in the place of the others."""
    points, source, removed = thin(points, fewest, generator=generator)
    near = nearest_kept(points, removed, NEAREST)
    return torch.where(removed, moved_copies(points, near, source, generator=generator), points)


def thin_and_even(
    points: Float[Tensor, "b n 3"], fewest: int, *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    """Keep some points of each cloud, and even these out, with others between them."""
    points, source, removed = thin(points, fewest, generator=generator)
    candidates = with_points_between(points, nearest_kept(points, removed, NEAR))
    rows = source.reshape(*source.shape, 1, 1).expand_as(candidates)
    return choose_farthest(candidates.gather(1, rows).flatten(1, 2), points.shape[1])


def thin(
    points: Float[Tensor, "b n 3"], fewest: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, "b n 3"], Int[Tensor, "b n"], Bool[Tensor, "b n 1"]]:
    """Choose which points of each cloud are kept: a random number, from ``fewest`` to all.

    Half of the clouds lose less than a quarter of what they can: to fit sparse clouds as often as
    dense ones would cost accuracy on the latter.

    Args:
        points: the clouds.
        fewest: as many as have to be kept.
        generator: source of the random numbers.

    Returns:
        The points in random order, the kept ones first; which of these each is, or is replaced by;
        and where points are removed.
    """
    b, n, _ = points.shape
    points = shuffle_points(points, generator=generator)
    draws = uniform(b, 1, generator=generator).to(points.device)
    kept = n - (draws.square() * (n + 1 - fewest)).long().clamp_max(n - fewest)
    place = torch.arange(n, device=points.device).expand(b, n)
    return points, place % kept, (place >= kept).unsqueeze(-1)


def nearest_kept(
    points: Float[Tensor, "b n 3"], removed: Bool[Tensor, "b n 1"], count: int
) -> Int[Tensor, "b n k"]:
    """Return the nearest others of every point that is kept, among those that are.

    Those that are removed go where they are nobody's neighbours: so all clouds keep one size.
    """
    far = 2 * (points.amax(1, keepdim=True) - points.amin(1, keepdim=True)).amax(2, keepdim=True)
    return nearest_others(point_graph(torch.where(removed, points + far, points), count + 1))


@torch.no_grad()
def even_versions(
    points: Float[Tensor, "s n 3"], fewest: int | None, *, generator: torch.Generator
) -> Float[Tensor, "v s n 3"]:
    """Even clouds out, once and for all, since this takes longer than a step.

    Args:
        points: the clouds.
        fewest: points that are kept at least: then there are several versions, of other points.
        generator: source of the random numbers.
    """
    parts = points.split(CHUNK)
    if fewest is None:
        versions = [torch.cat([even_points(some, points.shape[1]) for some in parts])]
    else:
        versions = [
            torch.cat([thin_and_even(some, fewest, generator=generator) for some in parts])
            for _ in range(VERSIONS)
        ]
    return normalize(torch.stack(versions))


def draw_labelled(
    points: Float[Tensor, "b n 3"],
    labels: Int[Tensor, "b n"],
    given: dict[str, Tensor],
    config: TrainConfig,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "b m 3"], Int[Tensor, "b m"], dict[str, Tensor]]:
    """Draw and shuffle points as `augment` does, with their labels and colours."""
    if config.draw_from is None and not config.shuffle:
        return points, labels, given
    colors = given.get("colors", points[..., :0])
    joined = torch.cat([points, labels.unsqueeze(-1).to(points.dtype), colors], dim=-1)
    count = 0 if config.draw_from is None else config.draw_from - config.points
    points, numbers, colors = drop_points(joined, count, generator=generator).split(
        [3, 1, colors.shape[-1]], dim=-1
    )
    if "colors" in given:
        given = {**given, "colors": colors}
    return points, numbers.squeeze(-1).long(), given
