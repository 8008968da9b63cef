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

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.geometry.rotations import random_rotations, rotation_angle, rotation_axis

Model = Callable[[Tensor], Any]
Output = str | Callable[[Any], Any] | None
"""What to check of an answer: an attribute or key of it, a function of it, or None: the default."""

TOLERANCES = {
    torch.float64: 1e-8,
    torch.float32: 1e-3,
    torch.float16: 5e-2,
    torch.bfloat16: 1e-1,
}
"""The relative error that is forgiven, by the dtype of the points."""


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
    _check_points(points)
    matrices = _matrices(rotations, seed)

    def transformed() -> Iterator[tuple[str, Tensor, _Change]]:
        for i, R in enumerate(matrices):
            yield f"{describe_matrix(R)} ({i + 1} of {len(matrices)})", turn(points, R), _same

    return _compare(model, points, transformed(), "invariant", output, seed, tolerance)


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
    _check_points(points)
    matrices = _matrices(rotations, seed)

    def rotate(R: Tensor) -> _Change:
        def change(name: str, x: Tensor) -> Tensor:
            axis = dim if dim is not None else (-2 if x.dim() >= 4 else -1)
            if x.shape[axis] != 3:
                raise ValueError(
                    f"axis {axis} of {name}, of shape {tuple(x.shape)}, does not hold vectors: "
                    "say which axis does by dim, or which part of the answer by output"
                )
            return (x.movedim(axis, -1).double() @ R.to(x.device).mT).movedim(-1, axis)

        return change

    def transformed() -> Iterator[tuple[str, Tensor, _Change]]:
        for i, R in enumerate(matrices):
            yield f"{describe_matrix(R)} ({i + 1} of {len(matrices)})", turn(points, R), rotate(R)

    return _compare(
        model, points, transformed(), "equivariant", output, seed, tolerance, prefer_logits=False
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
    _check_points(points)

    def transformed() -> Iterator[tuple[str, Tensor, _Change]]:
        for i, order in enumerate(_orders(points, permutations, seed)):
            yield f"permutation {i + 1} of {permutations}", points[:, order], _same

    return _compare(model, points, transformed(), "permutation-invariant", output, seed, tolerance)


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
    _check_points(points)

    def reorder(order: Tensor) -> _Change:
        def change(name: str, x: Tensor) -> Tensor:
            if x.dim() <= dim or x.shape[dim] != points.shape[1]:
                raise ValueError(
                    f"axis {dim} of {name}, of shape {tuple(x.shape)}, does not run over the "
                    "points: say which axis does by dim, or which part of the answer by output"
                )
            return x.index_select(dim, order)

        return change

    def transformed() -> Iterator[tuple[str, Tensor, _Change]]:
        for i, order in enumerate(_orders(points, permutations, seed)):
            yield f"permutation {i + 1} of {permutations}", points[:, order], reorder(order)

    kind = "permutation-equivariant"
    return _compare(
        model, points, transformed(), kind, output, seed, tolerance, prefer_logits=False
    )


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
    _check_points(points)
    size = max(points.shape[0] - 1, 1)
    generator = torch.Generator().manual_seed(seed)
    mates = torch.randn(size, *points.shape[1:], generator=generator, dtype=torch.float64)
    mates = (mates * points.double().std(unbiased=False).cpu()).to(points)

    def only(i: int) -> _Change:
        return lambda name, x: x[i : i + 1]

    def transformed() -> Iterator[tuple[str, Tensor, _Change]]:
        for i in range(points.shape[0]):
            cloud = points[i : i + 1]
            yield f"cloud {i} alone", cloud, only(i)
            yield f"cloud {i} beside {size} random clouds", torch.cat([cloud, mates]), only(i)

    modules = _modules(model)
    modes = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.eval()
        kind = "independent of its batch"
        return _compare(model, points, transformed(), kind, output, seed, tolerance, first_row=True)
    finally:
        for part, training in modes:
            part.training = training


# how the expected answer follows from the one for the clouds as they were
_Change = Callable[[str, Tensor], Tensor]


def _same(name: str, x: Tensor) -> Tensor:
    return x


def _compare(
    model: Model,
    points: Tensor,
    transformed: Iterator[tuple[str, Tensor, _Change]],
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
        reference = _call(model, points, output, seed, prefer_logits)
        for what, clouds, change in transformed:
            answer = _call(model, clouds, output, seed, prefer_logits)
            if answer.keys() != reference.keys():
                raise AssertionError(f"the answer has other parts under {what}")
            for name, value in answer.items():
                expected = change(name, reference[name])
                error = _relative_error(value[:1] if first_row else value, expected)
                if error > worst or not where:
                    worst, where = error, f"{name} under {what}"
    if worst > tolerance:
        raise AssertionError(
            f"not {kind}: the relative error of {where} is {worst:.2e}, "
            f"above the tolerance {tolerance:.0e} (points in {points.dtype})"
        )
    return worst


@contextmanager
def undisturbed(model: Model, points: Tensor) -> Iterator[None]:
    """Leave buffers and the global random state as they were found; track no gradient."""
    buffers = [(b, b.clone()) for module in _modules(model) for b in module.buffers()]
    devices = [points.device] if points.is_cuda else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        try:
            yield
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)


def _modules(model: Any) -> list[nn.Module]:
    """Return the modules behind a callable: itself, its object, or what a function refers to."""
    found: list[nn.Module] = []
    seen: set[int] = set()
    ahead = [model]
    while ahead:
        x = ahead.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, nn.Module):
            found.append(x)
        elif isinstance(x, functools.partial):
            ahead += [x.func, *x.args, *x.keywords.values()]
        elif inspect.ismethod(x):
            ahead.append(x.__self__)
        elif isinstance(x, tuple | list):
            ahead += x
        elif inspect.isfunction(x):
            names = inspect.getclosurevars(x)
            # of what is global only the modules: its functions lead all over the program
            ahead += [y for y in names.globals.values() if isinstance(y, nn.Module)]
            ahead += names.nonlocals.values()
    return found


def _call(
    model: Model, points: Tensor, output: Output, seed: int, prefer_logits: bool
) -> dict[str, Tensor]:
    """Return the chosen tensors of the model's answer by name."""
    torch.manual_seed(seed)  # the same dropout in every call
    answer = model(points)
    if output is None and prefer_logits and named_part(answer, "logits") is not None:
        output = "logits"
    if isinstance(output, str):
        chosen = named_part(answer, output)
        if chosen is None:
            raise ValueError(f"the model's answer has no {output!r}")
        named = dict(named_tensors(chosen, output))
    else:
        name = getattr(output, "__name__", "output")
        named = dict(named_tensors(answer if output is None else output(answer), name))
    if output is None:
        named = {name: x for name, x in named.items() if x.is_floating_point()}
    if not named:
        kind = f"{type(answer).__module__}.{type(answer).__qualname__}".removeprefix("builtins.")
        raise ValueError(
            f"the model's answer, of type {kind}, holds no "
            f"{'floating-point ' if output is None else ''}tensor to check"
        )
    return named


def named_part(answer: Any, name: str) -> Any:
    """Return an attribute or key of an answer, or None."""
    return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)


def named_tensors(x: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """List the tensors in a nest of tuples, lists, mappings and dataclasses."""
    if isinstance(x, Tensor):
        # a copy: a model may answer with a buffer of its own, and write to it in the next call
        yield name, x.detach().clone()
        return
    if isinstance(x, Mapping):
        parts = [(str(key), value) for key, value in x.items()]
    elif isinstance(x, tuple) and hasattr(x, "_fields"):
        parts = list(zip(x._fields, x, strict=True))
    elif isinstance(x, tuple | list):
        parts = [(str(i), value) for i, value in enumerate(x)]
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        parts = [(field.name, getattr(x, field.name)) for field in dataclasses.fields(x)]
    else:
        return
    for key, value in parts:
        yield from named_tensors(value, key if name == "output" else f"{name}.{key}")


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


def _matrices(rotations: int | Tensor, seed: int) -> Tensor:
    """Return matrices in float64 on the CPU."""
    if isinstance(rotations, Tensor):
        if rotations.dim() not in (2, 3) or rotations.shape[-2:] != (3, 3):
            raise ValueError(f"rotations must be (r, 3, 3) or (3, 3), got {tuple(rotations.shape)}")
        matrices = rotations.detach().cpu().double().reshape(-1, 3, 3)
    else:
        generator = torch.Generator().manual_seed(seed)
        matrices = random_rotations(rotations, generator=generator, dtype=torch.float64)
    if len(matrices) == 0:
        raise ValueError("at least one rotation is needed")
    return matrices


def turn(points: Tensor, R: Tensor) -> Tensor:
    """Rotate in float64, so that in any dtype the model is tested, and not the rotation."""
    return (points.double() @ R.to(points.device).mT).to(points.dtype)


def _orders(points: Tensor, count: int, seed: int) -> list[Tensor]:
    if count < 1:
        raise ValueError("at least one permutation is needed")
    generator = torch.Generator().manual_seed(seed)
    n = points.shape[1]
    return [torch.randperm(n, generator=generator).to(points.device) for _ in range(count)]


def describe_matrix(R: Tensor) -> str:
    """Say what a matrix does: its angle and axis if it is a rotation, else its entries."""
    identity = torch.eye(3, dtype=R.dtype)
    if (R @ R.mT - identity).abs().max() > 1e-6 or torch.linalg.det(R) < 0:
        rows = "; ".join(" ".join(f"{x:.3f}" for x in row) for row in R.tolist())
        return f"the matrix [{rows}], which is not a rotation,"
    angle = rotation_angle(R)
    x, y, z = rotation_axis(R).tolist()
    return f"a rotation by {math.degrees(angle):.1f} degrees about ({x:.3f}, {y:.3f}, {z:.3f})"


def _check_points(points: Tensor) -> None:
    if points.dim() != 3 or points.shape[-1] != 3 or points.numel() == 0:
        raise ValueError(f"points must have the shape (b, n, 3), got {tuple(points.shape)}")
    if points.dtype not in TOLERANCES:
        raise ValueError(f"points must be floating-point numbers, got {points.dtype}")
