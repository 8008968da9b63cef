"""Models by name: `create_model`, `list_models`, `model_config`."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from locotrans.models.baselines import (
    DGCNNConfig,
    PointNetConfig,
    VNClassifier,
    VNDGCNNConfig,
    build_dgcnn,
    build_pointnet,
)
from locotrans.models.locotrans import LIGHT, LocoTrans, LocoTransConfig


@dataclass(frozen=True)
class Entry:
    """A registered model: how it is built, and the config it is built with by default."""

    build: Callable[[int, Any], nn.Module]
    config: Any


_MODELS: dict[str, Entry] = {
    "dgcnn": Entry(build_dgcnn, DGCNNConfig()),
    "locotrans_dgcnn": Entry(LocoTrans, LocoTransConfig()),
    "locotrans_dgcnn_light": Entry(LocoTrans, LIGHT),
    "pointnet": Entry(build_pointnet, PointNetConfig()),
    "vn_dgcnn": Entry(VNClassifier, VNDGCNNConfig()),
}


def list_models() -> list[str]:
    """Return the names that `create_model` knows."""
    return sorted(_MODELS)


def model_config(name: str, **overrides: Any) -> Any:
    """Return the config dataclass of a model, with some fields replaced.

    Raises:
        ValueError: the model, or a field, is not known.
    """
    if name not in _MODELS:
        close = difflib.get_close_matches(name, _MODELS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown model {name!r}{hint or '.'} Known: {', '.join(list_models())}")
    config = _MODELS[name].config
    known = [field.name for field in fields(config)]
    for key in overrides:
        if key not in known:
            raise ValueError(f"{name} has no option {key!r}; its options: {', '.join(known)}")
    return replace(config, **overrides)


def create_model(name: str, num_classes: int = 40, **config: Any) -> nn.Module:
    """Build a model by name, with fresh weights.

    Args:
        name: one of `list_models()`.
        num_classes: how many classes to tell apart.
        **config: fields of the model's config to replace, for example ``k=10``.
    """
    if not isinstance(num_classes, int) or num_classes < 1:
        raise ValueError(f"num_classes must be an integer of at least 1, got {num_classes!r}")
    chosen = model_config(name, **config)
    return _MODELS[name].build(num_classes, chosen)
