"""Data sets by name: a loader is a function, and registering it is one decorator."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from locotrans.data.clouds import CloudSet


@runtime_checkable
class Loader(Protocol):
    """What a data set has to be: a function from a split and its sizes to a `CloudSet`."""

    def __call__(
        self, split: str, *, root: Path | None, points: int, shapes: int | None, seed: int
    ) -> CloudSet:
        """Load a split; the arguments are those of `load_dataset`."""
        ...


_LOADERS: dict[str, Loader] = {}
L = TypeVar("L", bound=Loader)


def register_dataset(name: str) -> Callable[[L], L]:
    """Enter the decorated loader under ``name``; a name can be taken once only."""

    def enter(loader: L) -> L:
        if name in _LOADERS:
            raise ValueError(f"a data set named {name!r} is registered already")
        _LOADERS[name] = loader
        return loader

    return enter


def list_datasets() -> list[str]:
    """Return the names that `load_dataset` knows, sorted."""
    return sorted(_LOADERS)


def load_dataset(
    name: str,
    split: str,
    *,
    root: Path | str | None = None,
    points: int = 1024,
    shapes: int | None = None,
    seed: int = 0,
) -> CloudSet:
    """Load one split of a data set into memory.

    Args:
        name: One of `list_datasets`.
        split: "train" or "test".
        root: Folder that holds the files; the built-in set needs none.
        points: Points of each shape.
        shapes: How many shapes, for sets that are generated; None takes the usual number.
        seed: Seed of whatever the set draws at random.
    """
    if name not in _LOADERS:
        close = difflib.get_close_matches(name, _LOADERS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown data set {name!r}: {hint}known: {', '.join(list_datasets())}")
    if points < 1:
        raise ValueError(f"points must be at least 1, got {points}")
    if shapes is not None and shapes < 1:
        raise ValueError(f"shapes must be at least 1, got {shapes}")
    folder = None if root is None else Path(root)
    return _LOADERS[name](split, root=folder, points=points, shapes=shapes, seed=seed)
