"""Answers for transformed clouds against what they should be."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from locotrans.testing.answers import Model, Output, ask, undisturbed
from locotrans.testing.motions import describe_matrix, random_orders, rotation_matrices, turn

TOLERANCES = {
    torch.float64: 1e-8,
    torch.float32: 1e-3,
    torch.float16: 5e-2,
    torch.bfloat16: 1e-1,
}
"""The relative error that is forgiven, by the dtype of the points."""

# how the expected answer follows from the one for the clouds as they were
Change = Callable[[str, Tensor], Tensor]
Case = tuple[str, Tensor, Change]  # what is done, the clouds then, and their answer


def same(name: str, x: Tensor) -> Tensor:
    """Expect no change."""
    return x


def turned(
    points: Tensor, rotations: int | Tensor, seed: int, change: Callable[[Tensor], Change]
) -> Iterator[Case]:
    """Turn the clouds by each of the rotations."""
    matrices = rotation_matrices(rotations, seed)
    for i, R in enumerate(matrices):
        yield f"{describe_matrix(R)} ({i + 1} of {len(matrices)})", turn(points, R), change(R)


def reordered(
    points: Tensor, permutations: int, seed: int, change: Callable[[Tensor], Change]
) -> Iterator[Case]:
    """Put the points into random orders."""
    for i, order in enumerate(random_orders(points, permutations, seed)):
        yield f"permutation {i + 1} of {permutations}", points[:, order], change(order)


def compare(
    model: Model,
    points: Tensor,
    cases: Iterator[Case],
    kind: str,
    output: Output,
    seed: int,
    tolerance: float | None,
    *,
    prefer_logits: bool = True,
    first_row: bool = False,
) -> float:
    """Compare the model's answers for transformed clouds with those that they should be."""
    if tolerance is None:
        tolerance = TOLERANCES[points.dtype]
    worst, where = 0.0, ""
    with undisturbed(model, points):
        reference = ask(model, points, output, seed, prefer_logits)
        for what, clouds, change in cases:
            answer = ask(model, clouds, output, seed, prefer_logits)
            if answer.keys() != reference.keys():
                raise AssertionError(f"the answer has other parts under {what}")
            for name, value in answer.items():
                expected = change(name, reference[name])
                error = _relative_error(value[:1] if first_row else value, expected)
                if error > worst or not where:
                    worst, where = error, f"{name} under {what}"
    if worst > tolerance:
        trains = isinstance(model, nn.Module) and model.training
        mode = "; it is in training mode, perhaps call eval()" if trains else ""
        raise AssertionError(
            f"not {kind}: the relative error of {where} is {worst:.2e}, "
            f"above the tolerance {tolerance:.0e} (points in {points.dtype}){mode}"
        )
    return worst


def _relative_error(value: Tensor, expected: Tensor) -> float:
    if value.shape != expected.shape:
        return math.inf
    if value.numel() == 0:
        return 0.0
    value, expected = value.double(), expected.double()
    difference = (value - expected).abs().max().item()
    size = expected.abs().max().item()
    if not math.isfinite(difference) or not math.isfinite(size):
        return math.inf  # nan would compare as no error
    return difference / size if size > 0 else difference


def check_points(points: Tensor) -> None:
    """Refuse what are no clouds."""
    if points.dim() != 3 or points.shape[-1] != 3 or points.numel() == 0:
        raise ValueError(f"points must have the shape (b, n, 3), got {tuple(points.shape)}")
    if points.dtype not in TOLERANCES:
        raise ValueError(f"points must be floating-point numbers, got {points.dtype}")
