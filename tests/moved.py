"""What copies that were moved along lines to near points have to be."""

from jaxtyping import Float, Int
from torch import Tensor

from locotrans.data.filling import nearest_others
from locotrans.geometry.neighbors import knn


def steps_along_lines(
    points: Float[Tensor, "n 3"], copies: Float[Tensor, "m 3"], source: Int[Tensor, "m"]
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k"]]:
    """Return how far copies went along the lines to the points nearest to theirs, and how far off.

    The first in lengths of the lines, for each of the lines.
    """
    here = points[source]
    near = points[nearest_others(knn(points, min(4, len(points)))[None])[0]][source]
    lines, moves = near - here[:, None], (copies - here)[:, None]
    steps = (lines * moves).sum(-1) / lines.square().sum(-1).clamp_min(1e-30)
    return steps, (steps[..., None] * lines - moves).norm(dim=-1)


def lie_between(
    points: Float[Tensor, "n 3"], copies: Float[Tensor, "m 3"], source: Int[Tensor, "m"]
) -> bool:
    """Tell whether each copy went at most half of the way along one of the lines."""
    steps, off = steps_along_lines(points, copies, source)
    return bool(((off < 1e-12) & (steps.abs() <= 0.5 + 1e-9)).any(-1).all())
