"""What every classifier and every segmenter takes and returns."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class ClassifierOutput(NamedTuple):
    """The answer of a classifier; a field that a variant does not have is None."""

    logits: Float[Tensor, "b classes"]
    """The combined logits: the answer."""
    invariant: Float[Tensor, "b classes"] | None = None
    """Logits of the invariant branch."""
    equivariant: Float[Tensor, "b classes"] | None = None
    """Logits of the equivariant branch."""
    fused: Float[Tensor, "b classes"] | None = None
    """Logits of the fusion of both branches."""
    vectors: Float[Tensor, "b n 3 2"] | None = None
    """The two vectors, not normalised, that the frames are built from; they turn with the cloud."""
    frames: Float[Tensor, "b n 3 3"] | None = None
    """The local reference frames, axes as columns; they turn with the cloud."""
    embedding: Float[Tensor, "b e"] | None = None
    """One vector a shape, the last before the classifiers."""
    point_features: Float[Tensor, "b n c"] | None = None
    """Features of every point."""
    neighbors: Int[Tensor, "b n k"] | None = None
    """The graph of coordinates, over which frames are to be consistent."""


class SegmenterOutput(NamedTuple):
    """The answer of a segmenter; a field that a variant does not have is None."""

    logits: Float[Tensor, "b n classes"]
    """The combined logits of every point: the answer."""
    invariant: Float[Tensor, "b n classes"] | None = None
    """Logits of the invariant branch."""
    equivariant: Float[Tensor, "b n classes"] | None = None
    """Logits of the equivariant branch."""
    fused: Float[Tensor, "b n classes"] | None = None
    """Logits of the fusion of both branches."""
    vectors: Float[Tensor, "b n 3 2"] | None = None
    """As in `ClassifierOutput`."""
    frames: Float[Tensor, "b n 3 3"] | None = None
    """As in `ClassifierOutput`."""
    point_features: Float[Tensor, "b n c"] | None = None
    """Features of every point, the last before the heads."""
    neighbors: Int[Tensor, "b n k"] | None = None
    """As in `ClassifierOutput`."""


def check_points(points: Tensor, k: int, model: nn.Module) -> None:
    """Raise a ValueError that says what is wrong, unless ``points`` are clouds a model can take.

    Values are checked for being finite too, except where that would stall a GPU while training.
    """
    if not isinstance(points, Tensor):
        raise ValueError(f"points must be a tensor, got {type(points).__name__}")
    shape = tuple(points.shape)
    if points.dim() != 3 or shape[2] != 3:
        hint = ""
        if points.dim() == 2 and shape[1] == 3:
            hint = "; add a batch axis: points[None]"
        elif points.dim() == 3 and shape[1] == 3:
            hint = "; the coordinates must come last: points.mT"
        raise ValueError(f"points must have the shape (batch, points, 3), got {shape}{hint}")
    if not points.is_floating_point():
        raise ValueError(f"points must be floating-point numbers, got {points.dtype}")
    if shape[0] == 0 or shape[1] == 0:
        raise ValueError(f"points must not be empty, got the shape {shape}")
    if shape[1] < k:
        raise ValueError(
            f"a cloud of {shape[1]} points is too small for k = {k} neighbours: "
            "give at least k points, or build the model with a smaller k"
        )
    weights = next(model.parameters()).dtype
    if points.dtype != weights:
        raise ValueError(
            f"points are {points.dtype} and the model is {weights}: "
            f"give it points.to({weights}), or turn the model into model.to({points.dtype})"
        )
    if _may_wait(points) and not bool(torch.isfinite(points).all()):
        bad = int((~torch.isfinite(points)).any(-1).sum())
        raise ValueError(f"points must be finite; {bad} of {shape[0] * shape[1]} hold nan or inf")


def _may_wait(points: Tensor) -> bool:
    """Say whether values may be looked at: on a GPU that waits for it, and no graph allows it."""
    if torch.compiler.is_compiling():
        return False
    if not points.is_cuda:
        return True
    return not torch.is_grad_enabled() and not torch.cuda.is_current_stream_capturing()


def check_category(category: Tensor | None, categories: int, points: Tensor) -> None:
    """Raise a ValueError unless each shape has one of the categories that a network was built for.

    Numbers are looked at where `check_points` looks at values.
    """
    if category is None or categories == 0:
        if categories > 0:
            raise ValueError(
                f"the network needs the category of each shape: give category, {len(points)} "
                f"numbers from 0 to {categories - 1}"
            )
        if category is not None:
            raise ValueError("the network knows no categories: leave category out")
        return
    if not isinstance(category, Tensor):
        raise ValueError(f"category must be a tensor, got {type(category).__name__}")
    numbers = not category.is_floating_point() and category.dtype != torch.bool
    if tuple(category.shape) != tuple(points.shape[:1]) or not numbers:
        raise ValueError(
            f"category must hold one whole number for each of the {len(points)} clouds, "
            f"got {category.dtype} of shape {tuple(category.shape)}"
        )
    if _may_wait(points) and not bool(((category >= 0) & (category < categories)).all()):
        low, high = int(category.min()), int(category.max())
        raise ValueError(
            f"unknown category: the numbers span {low} to {high}, "
            f"the network knows 0 to {categories - 1}"
        )


def check_colors(colors: Tensor | None, wanted: bool, points: Tensor) -> None:
    """Raise a ValueError unless there are colours exactly where a network was built for them."""
    if (colors is not None) != wanted:
        raise ValueError(
            "the network needs colors, red, green and blue of every point from 0 to 1"
            if wanted
            else "the network takes no colors: build it with colors=True, or leave them out"
        )
    if colors is not None and colors.shape != points.shape:
        raise ValueError(
            f"colors must have the shape of the points, {tuple(points.shape)}, "
            f"got {tuple(colors.shape)}"
        )
    if colors is not None and colors.dtype != points.dtype:
        raise ValueError(
            f"colors must be {points.dtype} as the points are, from 0 to 1, got {colors.dtype}"
        )
    if colors is not None and _may_wait(points) and not bool(colors.isfinite().all()):
        raise ValueError("colors must be finite: they hold nan or infinity")
