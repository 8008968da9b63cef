"""Data sets by name: a loader is a function, and registering it is one decorator.

A name may carry settings after a colon: a bare word is the variant, the rest are KEY=VALUE, as in
``scanobjectnn:pb_t50_rs`` or ``folder:up=y,seed=3``. So a config file, a checkpoint and a record
say with one string which data were used.
"""

import difflib
import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from locotrans.data.clouds import CloudSet

log = logging.getLogger("locotrans.data")
COMMON = ("split", "root", "points", "shapes", "seed")


@runtime_checkable
class Loader(Protocol):
    """What a data set has to be: a function from a split and its size to a `CloudSet`.

    A set that is generated takes ``shapes`` besides, how many. Further keyword arguments with a
    default (a text or a number) are settings of the data set.
    """

    def __call__(self, split: str, *, root: Path | None, points: int, seed: int) -> CloudSet:
        """Load a split; the arguments are those of `load_dataset`."""
        ...


_LOADERS: dict[str, Loader] = {}
L = TypeVar("L", bound=Loader)
T = TypeVar("T")


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
    log_notes: bool = True,
    **settings: Any,
) -> CloudSet:
    """Load one split of a data set into memory.

    Args:
        name: One of `list_datasets`, perhaps with settings: ``scanobjectnn:obj_bg,up=z``.
        split: "train" or "test"; some sets have "val" and "trainval".
        root: Folder that holds the files; by default the environment variable LOCOTRANS_DATA,
            then ~/.cache/locotrans. The built-in set needs none.
        points: Points of each shape.
        shapes: How many shapes; None takes all, or for a generated set the usual number. Of files
            it is a random choice by ``seed``, in the order of the files.
        seed: Seed of whatever the set draws at random; a seed in the name, as in
            ``folder:seed=3``, goes before.
        log_notes: Log as warnings what is worth a word, which is in ``notes`` as well.
        **settings: Settings of the data set, such as ``up="y"``; they override the name's.
    """
    base, options = parse_name(name)
    if base not in _LOADERS:
        close = difflib.get_close_matches(base, _LOADERS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown data set {base!r}: {hint}known: {', '.join(list_datasets())}")
    if points < 1:
        raise ValueError(f"points must be at least 1, got {points}")
    if shapes is not None and shapes < 1:
        raise ValueError(f"shapes must be at least 1, got {shapes}")
    seed = _as_type(base, "seed", options.pop("seed", seed), seed)
    typed = _typed_settings(base, {**options, **settings})
    folder = None if root is None else Path(root)
    loader: Callable[..., CloudSet] = _LOADERS[base]
    if "shapes" in inspect.signature(loader).parameters:
        loader = partial(loader, shapes=shapes)
    clouds = loader(split, root=folder, points=points, seed=seed, **typed)
    shown = {**typed, **({"seed": seed} if "seed" in parse_name(name)[1] else {})}
    kept = [f"{key}={_as_text(value)}" for key, value in sorted(shown.items()) if key != "variant"]
    if kept:
        joint = "," if ":" in clouds.name else ":"
        clouds = replace(clouds, name=f"{clouds.name}{joint}{','.join(kept)}")
    if shapes is not None:
        clouds = _some(clouds, shapes, seed)
    for note in clouds.notes if log_notes else ():
        log.warning("%s (%s): %s", clouds.name, split, note)
    return clouds


def parse_name(name: str) -> tuple[str, dict[str, str]]:
    """Take the settings off a name: ``"a:b,up=y"`` gives ``"a", {"variant": "b", "up": "y"}``."""
    base, _, text = name.partition(":")
    options: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        key, value = (key.strip(), value.strip()) if equals else ("variant", item.strip())
        if key in options:
            raise ValueError(f"data set {name!r} gives {key} twice")
        options[key] = value
    return base, options


def _typed_settings(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Check settings against the loader's keyword arguments, and give them their types."""
    parameters = inspect.signature(_LOADERS[name]).parameters
    defaults = {key: p.default for key, p in parameters.items() if key not in COMMON}
    for key, value in options.items():
        if key not in defaults:
            known = ", ".join([*defaults, "seed"])
            raise ValueError(f"{name} has no setting {key!r} (got {value!r}); it has: {known}")
        options[key] = _as_type(name, key, value, defaults[key])
    return options


def _as_type(name: str, key: str, value: Any, like: T) -> T:
    """Give a setting the type of its default."""
    if isinstance(like, bool) and _as_text(value) in ("true", "false"):
        return type(like)(_as_text(value) == "true")
    try:
        if isinstance(like, bool):
            raise ValueError
        return type(like)(value)  # type: ignore[call-arg]
    except (TypeError, ValueError):
        kind = "true or false" if isinstance(like, bool) else f"a {type(like).__name__}"
        raise ValueError(f"{name}: {key} must be {kind}, got {value!r}") from None


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _some(clouds: CloudSet, shapes: int, seed: int) -> CloudSet:
    if len(clouds) < shapes:
        raise ValueError(f"{clouds.name} ({clouds.split}) has {len(clouds)} shapes, not {shapes}")
    if len(clouds) == shapes:
        return clouds
    chosen = np.random.default_rng(seed).choice(len(clouds), shapes, replace=False)
    return clouds.subset(sorted(chosen.tolist()))
