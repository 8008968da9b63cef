"""What a network is shown of its training shapes: points drawn, clouds scaled, shifted, turned."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.data.filling import NEAREST, moved_copies, nearest_others
from locotrans.data.transforms import (
    drop_points,
    protocol_rotations,
    random_scale,
    random_shift,
    rotate,
    shuffle_points,
    uniform,
)
from locotrans.geometry import Axis, center
from locotrans.nn.graph import point_graph
from locotrans.training.config import TrainConfig


def augment(
    points: Float[Tensor, "b n 3"],
    config: TrainConfig,
    up: Axis,
    generator: torch.Generator,
    *,
    centred: bool = False,
) -> Float[Tensor, "b m 3"]:
    """Draw or thin the points, scale and shift each cloud along its axes, rotate and shuffle it.

    With ``centred``, the drawn points have their mean at the origin before, as a network that
    centres them in evaluation will see them.

    The rotation comes after the scaling, so that a shape is stretched along the axes of its
    canonical pose and then turned, as if another such object had been turned.
    """
    if config.draw_from is not None:
        points = drop_points(points, config.draw_from - config.points, generator=generator)
    if config.resample is not None:
        points = thin_and_fill(points, config.resample, generator=generator)
    if centred:
        points = center(points)
    if config.scale > 1:
        points = random_scale(points, 1 / config.scale, config.scale, generator=generator)
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
    """Keep some points of each cloud, and put moved copies of them in the place of the others.

    How many are kept is uniform, from ``fewest`` to all; which, random. They come first.

    Args:
        points: the clouds.
        fewest: four or more.
        generator: source of the random numbers.
    """
    b, n, _ = points.shape
    points = shuffle_points(points, generator=generator)
    draws = uniform(b, 1, generator=generator).to(points.device)
    kept = (fewest + draws * (n + 1 - fewest)).long().clamp_max(n)
    place = torch.arange(n, device=points.device).expand(b, n)
    removed = (place >= kept).unsqueeze(-1)
    # the others go where they are nobody's neighbours: so all clouds keep one size
    far = 2 * (points.amax(1, keepdim=True) - points.amin(1, keepdim=True)).amax(2, keepdim=True)
    near = nearest_others(point_graph(torch.where(removed, points + far, points), NEAREST + 1))
    copies = moved_copies(points, near, place % kept, generator=generator)
    return torch.where(removed, copies, points)


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
