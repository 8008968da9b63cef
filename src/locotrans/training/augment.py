"""What a network is shown of its training shapes: points drawn, clouds scaled, shifted, turned."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.data.transforms import (
    drop_points,
    protocol_rotations,
    random_scale,
    random_shift,
    rotate,
    shuffle_points,
)
from locotrans.geometry import Axis, center
from locotrans.training.config import TrainConfig


def augment(
    points: Float[Tensor, "b n 3"],
    config: TrainConfig,
    up: Axis,
    generator: torch.Generator,
    *,
    centred: bool = False,
) -> Float[Tensor, "b m 3"]:
    """Draw the points, scale and shift each cloud along its axes, rotate and shuffle it.

    With ``centred``, the drawn points have their mean at the origin before, as a network that
    centres them in evaluation will see them.

    The rotation comes after the scaling, so that a shape is stretched along the axes of its
    canonical pose and then turned, as if another such object had been turned.
    """
    if config.draw_from is not None:
        points = drop_points(points, config.draw_from - config.points, generator=generator)
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
