r"""A test kit for symmetry: does a network, ours or yours, keep what it promises?

Each function takes a callable on points ``(b, n, 3)``, calls it on clouds and on transformed
clouds, and returns the largest relative error that it found, or raises an `AssertionError` that
names the error, the tolerance, the output and the transformation::

    >>> from locotrans.testing import assert_invariant
    >>> assert_invariant(model, points)                      # logits under rotations
    >>> assert_equivariant(model, points, output="frames")   # frames turn along

**Error.** The largest absolute change of an output divided by its largest absolute entry.
**Tolerance.** By the dtype of the points (`TOLERANCES`): float64 shows whether the property holds
at all, float32 shows how much of it rounding leaves.
**State.** A module keeps the mode that it is in, training or eval. Both calls of a comparison start
from the same random state, so that dropout drops the same units, and buffers (running statistics
of batch norm) and the global random state are put back afterwards. Nothing is differentiated. The
modules of a callable are found where it is one, a method or a partial application of one, or a
function that refers to them by name; give the module itself where it is hidden deeper.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from locotrans.testing.answers import Model, Output, modules_of
from locotrans.testing.comparison import (
    TOLERANCES,
    Case,
    Change,
    check_points,
    compare,
    reordered,
    same,
    turned,
)

__all__ = [
    "TOLERANCES",
    "assert_batch_independent",
    "assert_equivariant",
    "assert_invariant",
    "assert_permutation_equivariant",
    "assert_permutation_invariant",
]


def assert_invariant(
    model: Model,
    points: Float[Tensor, "b n 3"],
    *,
    output: Output = None,
    rotations: int | Float[Tensor, "*r 3 3"] = 4,
    seed: int = 0,
    tolerance: float | None = None,
) -> float:
    """Check that rotating the clouds does not change the answer, ``f(R p) = f(p)`` (Eq. 1).

    Args:
        model: any callable on points.
        points: the clouds to try.
        output: what to check; by default ``logits`` where the answer has them, else every
            floating-point tensor in it.
        rotations: how many random rotations, or the matrices themselves (any linear maps), or one.
        seed: of the rotations and of the calls.
        tolerance: relative error allowed; by default that of `TOLERANCES`.

    Returns:
        The largest relative error.
    """
    check_points(points)
    cases = turned(points, rotations, seed, lambda R: same)
    return compare(model, points, cases, "invariant", output, seed, tolerance)


def assert_equivariant(
    model: Model,
    points: Float[Tensor, "b n 3"],
    *,
    output: Output = None,
    dim: int | None = None,
    rotations: int | Float[Tensor, "*r 3 3"] = 4,
    seed: int = 0,
    tolerance: float | None = None,
) -> float:
    """Check that the answer turns along with the clouds, ``f(R p) = R f(p)`` (Eq. 2).

    Args:
        model: any callable on points.
        points: the clouds to try.
        output: what to check; by default every floating-point tensor of the answer.
        dim: the axis, of size 3, on which a rotation acts; by default the last but one of an output
            with four axes or more, ``(b, n, 3, c)``, and the last of any other.
        rotations: how many random rotations, or the matrices themselves (any linear maps), or one.
        seed: of the rotations and of the calls.
        tolerance: relative error allowed; by default that of `TOLERANCES`.

    Returns:
        The largest relative error.
    """
    check_points(points)

    def rotate(R: Tensor) -> Change:
        def change(name: str, x: Tensor) -> Tensor:
            axis = dim if dim is not None else (-2 if x.dim() >= 4 else -1)
            if not -x.dim() <= axis < x.dim() or x.shape[axis] != 3:
                raise ValueError(
                    f"axis {axis} of {name}, of shape {tuple(x.shape)}, does not hold vectors: "
                    "say which axis does by dim, or which part of the answer by output"
                )
            return (x.movedim(axis, -1).double() @ R.to(x.device).mT).movedim(-1, axis)

        return change

    cases = turned(points, rotations, seed, rotate)
    return compare(
        model, points, cases, "equivariant", output, seed, tolerance, prefer_logits=False
    )


def assert_permutation_invariant(
    model: Model,
    points: Float[Tensor, "b n 3"],
    *,
    output: Output = None,
    permutations: int = 4,
    seed: int = 0,
    tolerance: float | None = None,
) -> float:
    """Check that the order of the points does not matter.

    Args:
        model: any callable on points.
        points: the clouds to try.
        output: what to check, as in `assert_invariant`.
        permutations: how many random orders.
        seed: of the orders and of the calls.
        tolerance: relative error allowed; by default that of `TOLERANCES`.

    Returns:
        The largest relative error.
    """
    check_points(points)
    cases = reordered(points, permutations, seed, lambda order: same)
    return compare(model, points, cases, "permutation-invariant", output, seed, tolerance)


def assert_permutation_equivariant(
    model: Model,
    points: Float[Tensor, "b n 3"],
    *,
    output: Output = None,
    dim: int = 1,
    permutations: int = 4,
    seed: int = 0,
    tolerance: float | None = None,
) -> float:
    """Check that what belongs to a point follows it when the points are reordered.

    Args:
        model: any callable on points.
        points: the clouds to try.
        output: what to check; by default every floating-point tensor of the answer.
        dim: the axis of the points in the output.
        permutations: how many random orders.
        seed: of the orders and of the calls.
        tolerance: relative error allowed; by default that of `TOLERANCES`.

    Returns:
        The largest relative error.
    """
    check_points(points)

    def reorder(order: Tensor) -> Change:
        def change(name: str, x: Tensor) -> Tensor:
            if x.dim() <= dim or x.shape[dim] != points.shape[1]:
                raise ValueError(
                    f"axis {dim} of {name}, of shape {tuple(x.shape)}, does not run over the "
                    "points: say which axis does by dim, or which part of the answer by output"
                )
            return x.index_select(dim, order)

        return change

    cases = reordered(points, permutations, seed, reorder)
    kind = "permutation-equivariant"
    return compare(model, points, cases, kind, output, seed, tolerance, prefer_logits=False)


def assert_batch_independent(
    model: Model,
    points: Float[Tensor, "b n 3"],
    *,
    output: Output = None,
    seed: int = 0,
    tolerance: float | None = None,
) -> float:
    """Check that the answer for a cloud does not depend on the other clouds of the batch.

    Every cloud is tried alone and beside random clouds. In training, batch norm makes batch-mates
    matter on purpose, so a module is tried in eval mode, and put back into its own afterwards.

    Args:
        model: any callable on points, whose outputs have the batch as their first axis.
        points: the clouds to try.
        output: what to check, as in `assert_invariant`.
        seed: of the random clouds and of the calls.
        tolerance: relative error allowed; by default that of `TOLERANCES`.

    Returns:
        The largest relative error.
    """
    check_points(points)
    size = max(points.shape[0] - 1, 1)
    generator = torch.Generator().manual_seed(seed)
    mates = torch.randn(size, *points.shape[1:], generator=generator, dtype=torch.float64)
    mates = (mates * points.double().std(unbiased=False).cpu()).to(points)

    def only(i: int) -> Change:
        return lambda name, x: x[i : i + 1]

    def cases() -> Iterator[Case]:
        for i in range(points.shape[0]):
            cloud = points[i : i + 1]
            yield f"cloud {i} alone", cloud, only(i)
            yield f"cloud {i} beside {size} random clouds", torch.cat([cloud, mates]), only(i)

    modules = modules_of(model)
    modes = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.eval()
        kind = "independent of its batch"
        return compare(model, points, cases(), kind, output, seed, tolerance, first_row=True)
    finally:
        for part, training in modes:
            part.training = training
