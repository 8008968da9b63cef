"""A network begins where another ended, which serves where there is less to learn from."""

from pathlib import Path
from typing import Any

from torch import nn

from locotrans.data import CloudSet
from locotrans.models import list_pretrained
from locotrans.models.pretrained import pretrained_weights
from locotrans.training.checkpoint import load_weights
from locotrans.training.config import to_json
from locotrans.training.tasks import is_segmenter

OPEN = ("categories", "dropout")
"""Options that may be others: the data decide on the first, and the second changes no weights."""


def start_from(model: nn.Module, name: str, weights: str, data: CloudSet) -> dict[str, Any]:
    """Give a network the weights of another of its kind.

    Those that belong to single classes, the last layer of every head and what stands for the
    category of a shape, are taken over where both know the same classes in the same order.

    Args:
        model: the network.
        name: its name.
        weights: run folder, weights file, or the name of weights that come with the package.
        data: what it will be trained on.

    Returns:
        What is known of the weights, for a record, with ``fresh``: the layers that they left out.

    Raises:
        ValueError: they are of another network; the message says how to build that one.
    """
    path = Path(weights)
    if not path.exists() and weights in list_pretrained():
        path = pretrained_weights(weights)[0]
    other, facts = load_weights(path)
    ours, theirs = to_json(model.config), to_json(other.config)
    options = [f"{key}={as_text(x)}" for key, x in theirs.items() if ours.get(key) != x]
    options = [option for option in options if option.partition("=")[0] not in OPEN]
    if facts["model"] != name:
        raise ValueError(
            f"start: {weights} is a {facts['model']}, not a {name}: add --model {facts['model']}"
        )
    if options:
        raise ValueError(
            f"start: {weights} has other options: add --options {' '.join(options)}, or leave out "
            "those that say otherwise"
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
    shown = {key: facts.get(key) for key in ("model", "data", "data_checksum", "epochs", "sha256")}
    return {"weights": weights, **shown, "fresh": fresh}


def knows(facts: dict[str, Any], kind: str, data: CloudSet) -> bool:
    """Say whether weights are of a data set's classes, or parts; they may only be numbered."""
    names = list(getattr(data, kind))
    return facts.get(kind) in (names, [str(number) for number in range(len(names))])


def as_text(value: Any) -> str:
    """Write the value of an option as `parse_options` reads it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value).lower()
