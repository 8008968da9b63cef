"""What can be certified: a model of ours, trained weights, anybody's function, an ONNX file."""

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.certify.cases import Kind
from locotrans.certify.checks import KEEPS
from locotrans.models import create_model, list_models
from locotrans.models.baselines import VNClassifier
from locotrans.models.segmentation_baselines import VNSegmenter
from locotrans.training.checkpoint import load_weights
from locotrans.training.config import parse_options

OUTPUTS: dict[str, Kind] = {
    "embedding": "invariant",
    "point_features": "invariant",
    "vectors": "equivariant",
    "frames": "equivariant",
}
"""What outputs of our networks are declared to do, where a network has them."""


class OneCategory(nn.Module):
    """A segmenter as a network on points alone: every shape of the first category, all grey."""

    def __init__(self, segmenter: nn.Module) -> None:
        super().__init__()
        self.segmenter = segmenter

    def forward(self, points: Float[Tensor, "b n 3"]) -> Any:
        """Segment clouds."""
        config: Any = self.segmenter.config
        category = torch.zeros(len(points), dtype=torch.long, device=points.device)
        return self.segmenter(
            points,
            category if config.categories else None,
            torch.full_like(points, 0.5) if config.colors else None,
        )


class Target(NamedTuple):
    """A network, and what it declares."""

    model: Callable[[Tensor], Any]
    name: str
    keeps: tuple[str, ...] = KEEPS
    breaks: tuple[str, ...] = ()
    ours: bool = False
    """One of our own networks, whose `OUTPUTS` are declared."""


def load_target(spec: str, options: Sequence[str] = (), classes: int = 40) -> Target:
    """Find a network by what a user calls it.

    Args:
        spec: the name of a model, which gets fresh weights (seed 0); a run folder or a .safetensors
            file; an .onnx file; or ``module:function``, where the function is the network, or
            makes one if it can be called without arguments.
        options: options of a named model as KEY=VALUE.
        classes: classes of a named model.
    """
    path = Path(spec)
    if spec in list_models():
        model, _ = load_network(spec, options, classes)
        return declared(model, f"{spec} (fresh weights)")
    if options:
        raise ValueError(f"options belong to a model by name; {spec} has its own")
    if path.suffix == ".onnx":
        from locotrans.certify.onnx_file import OnnxNetwork

        return Target(OnnxNetwork(path), spec)
    if path.exists():
        return declared(load_network(spec)[0], spec)
    if ":" in spec:
        return Target(_import(spec), spec)
    raise ValueError(
        f"{spec} is neither a file, nor module:function, nor a model; "
        f"models are {', '.join(list_models())}"
    )


def load_network(
    spec: str, options: Sequence[str] = (), classes: int = 40
) -> tuple[nn.Module, dict[str, Any]]:
    """Return one of our networks, by name or of a file of weights, and what is known of it.

    Args:
        spec: the name of a model, which gets fresh weights (seed 0), a run folder or a .safetensors
            file.
        options: options of a named model as KEY=VALUE.
        classes: classes of a named model.
    """
    if spec in list_models():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = create_model(spec, classes, **parse_options(spec, options))
        return model.eval(), {"model": spec, "num_classes": classes}
    path = Path(spec)
    if not path.exists():
        known = ", ".join(list_models())
        raise ValueError(f"{spec} is neither a file, nor a folder, nor a model; models are {known}")
    model, metadata = load_weights(path)
    keys = ("model", "num_classes", "class_names", "data", "points", "choice")
    return model, {key: metadata[key] for key in keys if key in metadata}


def declared(model: nn.Module, name: str) -> Target:
    """Say what one of our networks keeps and breaks."""
    config: Any = model.config
    keeps = (*KEEPS, "translation") if getattr(config, "center", False) else KEEPS
    breaks: tuple[str, ...] = ()
    if isinstance(model, VNClassifier | VNSegmenter):
        keeps = (*keeps, "reflection")
    elif hasattr(config, "frames"):
        breaks = ("reflection",)  # the third axis of a frame is a cross product
    if hasattr(config, "categories"):
        model = OneCategory(model)
    return Target(model, name, keeps, breaks, ours=True)


def _import(spec: str) -> Callable[[Tensor], Any]:
    """Return the network that ``module:function`` names or makes."""
    module, _, name = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{spec} cannot be imported: {error}") from None
    if not callable(found):
        raise ValueError(f"{spec} is not a function or a network, but {type(found).__name__}")
    network = found() if _makes_network(found) else found
    if not callable(network):
        raise ValueError(f"{spec} must return a network, it returned {type(network).__name__}")
    return network


def _makes_network(found: Any) -> bool:
    if isinstance(found, nn.Module):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:  # a builtin
        return False
    return all(
        p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters
    )


def outputs_of(target: Target, points: Float[Tensor, "b n 3"]) -> dict[str, Kind]:
    """Return which of `OUTPUTS` one of our networks has."""
    if not target.ours or not isinstance(target.model, nn.Module):
        return {}
    weight = next(target.model.parameters())
    with torch.no_grad():
        answer = target.model.eval()(points[:1].to(weight))
    return {name: kind for name, kind in OUTPUTS.items() if getattr(answer, name, None) is not None}
