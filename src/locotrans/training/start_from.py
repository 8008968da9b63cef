"""A network begins where another ended, which serves where there is less to learn from."""

from pathlib import Path
from typing import Any

from torch import nn

from locotrans.data import CloudSet
from locotrans.models import list_pretrained, pretrained_weights
from locotrans.training.checkpoint import load_weights
from locotrans.training.config import to_json
from locotrans.training.tasks import is_numbered, is_segmenter

OPEN = ("categories", "dropout")
"""Options that may be others: the data decide on the first, and the second changes no weights."""


def locate(weights: str) -> str:
    """Return the name of weights that come with the package, or an absolute path."""
    if weights in list_pretrained() and not Path(weights).exists():
        return weights
    return str(Path(weights).absolute())


def load_start(weights: str) -> tuple[nn.Module, dict[str, Any]]:
    """Load what `locate` found, of whose names no file or folder may take the place."""
    if weights in list_pretrained():
        return load_weights(pretrained_weights(weights)[0])
    try:
        return load_weights(weights)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"start_from: {error}") from None


def take_over(
    model: nn.Module, name: str, start: tuple[nn.Module, dict[str, Any]], data: CloudSet
) -> dict[str, Any]:
    """Give a network the weights of another of its kind.

    Those that belong to single classes, the last layer of every head and what stands for the
    category of a shape, are taken over where both know the same classes in the same order.

    Args:
        model: the network.
        name: its name.
        start: the other one, and what is known of it.
        data: what the network will be trained on.

    Returns:
        What a record tells of the weights, with ``fresh``: the layers that were not taken over.

    Raises:
        ValueError: they are of another network; the message says how to build that one.
    """
    other, facts = start
    ours, theirs = to_json(model.config), to_json(other.config)
    options = [f"{k}={as_text(x)}" for k, x in theirs.items() if k not in OPEN and ours.get(k) != x]
    if facts["model"] != name:
        raise ValueError(
            f"start_from: these weights are of a {facts['model']}, not of a {name}: add "
            f"--model {facts['model']}"
        )
    if options:
        raise ValueError(
            f"start_from: these weights are of a {name} with other options: add --options "
            f"{' '.join(options)}, or leave out those that say otherwise"
        )
    fresh = []
    if not knows(facts, "part_names" if is_segmenter(model) else "class_names", data):
        fresh.append("logits")
    if getattr(model.config, "categories", 0) and not knows(facts, "class_names", data):
        fresh.append("category")
    kept = {
        key: value
        for key, value in other.state_dict().items()
        if not set(key.split(".")) & set(fresh)
    }
    model.load_state_dict(kept, strict=False)
    told = ("model", "data", "data_checksum", "epochs", "step", "sha256", "start")
    return {**{key: facts[key] for key in told if key in facts}, "fresh": fresh}


def knows(facts: dict[str, Any], kind: str, data: CloudSet) -> bool:
    """Say whether weights are of the classes, or parts, of a data set.

    Numbers mean the same in one data set only, and those of parts only with the same classes.
    """
    names, known = list(getattr(data, kind)), facts.get(kind) or []
    if not is_numbered(known):
        return known == names
    one, other = (x.partition(":")[0] for x in (facts.get("data") or "", data.name))
    whole = kind == "class_names" or knows(facts, "class_names", data)
    return len(known) == len(names) and one == other and whole


def described(start: dict[str, Any]) -> str:
    """Say in a few words which weights a run began with, whatever its seed."""
    earlier = f" after {described(start['start'])}" if "start" in start else ""
    return f"{start['model']} on {start.get('data', 'unknown data')}{earlier}"


def as_text(value: Any) -> str:
    """Write the value of an option as `parse_options` reads it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value).lower()
