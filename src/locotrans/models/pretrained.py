"""Weights that come with the package, by the name of their model.

``weights/NAME.safetensors`` is a weights file as training writes it; ``NAME.json`` beside it holds
the SHA-256 of its bytes, and what was trained on what, with which result.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import nn

FOLDER = Path(__file__).parents[1] / "weights"
AGAIN = "install locotrans again or, if you packed them, `locotrans pack` their run again"
"""What to do about damaged files."""


def list_pretrained() -> list[str]:
    """Return the models whose weights come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def pretrained_weights(name: str) -> tuple[Path, dict[str, Any]]:
    """Return the weights file of a model and what is known of it, after checking the file.

    Raises:
        ValueError: if there are no weights for the model, or a file of theirs is damaged.
    """
    path, about = FOLDER / f"{name}.safetensors", FOLDER / f"{name}.json"
    if not path.exists() or not about.exists():
        known = ", ".join(list_pretrained()) or "none"
        raise ValueError(
            f"no trained weights come with locotrans for {name!r} (there are: {known}); train the "
            "model with `locotrans train`, and name the run folder or its weights.safetensors"
        )
    facts = read_description(about)
    if hashlib.sha256(path.read_bytes()).hexdigest() != facts["sha256"]:
        raise ValueError(f"{path} is damaged (its SHA-256 is not the one in {about.name}); {AGAIN}")
    return path, facts


def read_description(path: Path) -> dict[str, Any]:
    """Read what is known of a weights file.

    Raises:
        ValueError: if the description is damaged.
    """
    try:
        facts = json.loads(path.read_text())
    except ValueError as error:  # no JSON, or no text
        raise ValueError(f"{path} is damaged ({error}); {AGAIN}") from None
    if not isinstance(facts, dict) or not {"sha256", "config", "num_classes"} <= facts.keys():
        raise ValueError(f"{path} is damaged (it does not describe weights); {AGAIN}")
    return facts


def load_pretrained(model: nn.Module, path: Path) -> nn.Module:
    """Load the weights into a model of the right config, and put it into eval mode."""
    from safetensors.torch import load_file

    model.load_state_dict(load_file(path))
    return model.eval()


def agreed_config(
    name: str, facts: dict[str, Any], num_classes: int | None, config: dict[str, Any]
) -> dict[str, Any]:
    """Return the config that the weights were trained with, or refuse another.

    Raises:
        ValueError: naming the option that differs.
    """
    trained = {k: tuple(v) if isinstance(v, list) else v for k, v in facts["config"].items()}
    if num_classes not in (None, facts["num_classes"]):
        raise ValueError(
            f"the weights of {name} tell {facts['num_classes']} classes apart, not {num_classes}; "
            "leave num_classes out, or train with your own classes "
            f"(locotrans train --model {name} --start-from {name})"
        )
    for key, value in config.items():
        if key not in trained:
            raise ValueError(f"{name} has no option {key!r}; its options: {', '.join(trained)}")
        if (tuple(value) if isinstance(value, list) else value) != trained[key]:
            raise ValueError(
                f"the weights of {name} were trained with {key}={trained[key]!r}, not "
                f"{value!r}; leave it out, or train the model with it"
            )
    return trained
