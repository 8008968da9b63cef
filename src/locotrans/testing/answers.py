"""Asking a network without disturbing it, and the tensors of its answer by name."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Model = Callable[[Tensor], Any]
Output = str | Callable[[Any], Any] | None
"""What to check of an answer: an attribute or key of it, a function of it, or None: the default."""


@contextmanager
def undisturbed(model: Model, points: Tensor) -> Iterator[None]:
    """Leave buffers and the global random state as they were found; track no gradient."""
    buffers = [(b, b.clone()) for module in modules_of(model) for b in module.buffers()]
    devices = [points.device] if points.is_cuda else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        try:
            yield
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)


def modules_of(model: Any) -> list[nn.Module]:
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


def ask(
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
