"""Models by name: `create_model`, `list_models`, `model_config`, `model_task`."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

from torch import nn

from locotrans.backbones import PCT, PointMLP, PointNet2
from locotrans.models.baselines import (
    BackboneConfig,
    DGCNNConfig,
    PointNetConfig,
    VNClassifier,
    VNDGCNNConfig,
    build_backbone,
    build_dgcnn,
    build_pointnet,
)
from locotrans.models.locotrans import LocoTrans
from locotrans.models.locotrans_config import LIGHT, LocoTransConfig
from locotrans.models.other_backbones import (
    LocoTransBackboneConfig,
    LocoTransPCT,
    LocoTransPointMLP,
    LocoTransPointNet2,
)
from locotrans.models.pretrained import agreed_config, load_pretrained, pretrained_weights
from locotrans.models.segmentation import (
    LIGHT_PARTS,
    LocoTransSegmenter,
    LocoTransSegmenterConfig,
)
from locotrans.models.segmentation_baselines import (
    DGCNNSegmenter,
    DGCNNSegmenterConfig,
    VNDGCNNSegmenterConfig,
    VNSegmenter,
)

Task = Literal["classification", "parts", "scenes"]
"""A class for a shape, a part of its category for every point, a class for every point."""
CLASSES = 40  # ModelNet40's
SCENES: dict[str, Any] = {"k": 20, "head_widths": (512, 256), "categories": 0}
"""What DGCNN's network for scenes has otherwise than that for parts."""


@dataclass(frozen=True)
class Entry:
    """A registered model: how it is built, and the config it is built with by default."""

    build: Callable[[int, Any], nn.Module]
    config: Any
    task: Task = "classification"


_MODELS: dict[str, Entry] = {
    "dgcnn": Entry(build_dgcnn, DGCNNConfig()),
    "locotrans_dgcnn": Entry(LocoTrans, LocoTransConfig()),
    "locotrans_dgcnn_light": Entry(LocoTrans, LIGHT),
    "pointnet": Entry(build_pointnet, PointNetConfig()),
    "vn_dgcnn": Entry(VNClassifier, VNDGCNNConfig()),
}
for _name, _backbone, _network, _options in (
    ("pointnet2", PointNet2, LocoTransPointNet2, {"patches": (32, 64)}),
    ("pct", PCT, LocoTransPCT, {}),
    ("pointmlp", PointMLP, LocoTransPointMLP, {"patches": (24,) * 4, "widths": (128, 256, 512)}),
):
    _MODELS[_name] = Entry(partial(build_backbone, _backbone), BackboneConfig(**_options))
    _MODELS[f"locotrans_{_name}"] = Entry(_network, LocoTransBackboneConfig(**_options))
for _name, _build, _config, _suffix in (
    ("dgcnn", DGCNNSegmenter, DGCNNSegmenterConfig(), ""),
    ("vn_dgcnn", VNSegmenter, VNDGCNNSegmenterConfig(), ""),
    ("locotrans_dgcnn", LocoTransSegmenter, LocoTransSegmenterConfig(), ""),
    ("locotrans_dgcnn", LocoTransSegmenter, LIGHT_PARTS, "_light"),
):
    _MODELS[f"{_name}_partseg{_suffix}"] = Entry(_build, _config, "parts")
    _MODELS[f"{_name}_semseg{_suffix}"] = Entry(_build, replace(_config, **SCENES), "scenes")


def list_models(task: Task | None = None) -> list[str]:
    """Return the names that `create_model` knows, of all models or of those for a task."""
    return sorted(name for name, entry in _MODELS.items() if task in (None, entry.task))


def model_config(name: str, **overrides: Any) -> Any:
    """Return the config dataclass of a model, with some fields replaced; lists become tuples.

    Raises:
        ValueError: the model, or a field, is not known.
    """
    if name not in _MODELS:
        longer = [known for known in _MODELS if name and known.startswith(name)]
        close = longer or difflib.get_close_matches(name, _MODELS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown model {name!r}{hint or '.'} Known: {', '.join(list_models())}")
    config = _MODELS[name].config
    known = [field.name for field in fields(config)]
    for key in overrides:
        if key not in known:
            raise ValueError(f"{name} has no option {key!r}; its options: {', '.join(known)}")
    plain = {key: tuple(x) if isinstance(x, list) else x for key, x in overrides.items()}
    return replace(config, **plain)


def model_task(name: str) -> Task:
    """Return what a model does."""
    model_config(name)
    return _MODELS[name].task


def create_model(
    name: str, num_classes: int = CLASSES, *, pretrained: bool = False, **config: Any
) -> nn.Module:
    """Build a model by name, with fresh weights or with those that come with the package.

    Args:
        name: one of `list_models()`.
        num_classes: how many classes, or parts of all categories together, to tell apart; the
            default, with ``pretrained``, is what the weights tell apart.
        pretrained: load the weights of `list_pretrained()`, after checking their SHA-256; the model
            is then in eval mode.
        **config: fields of the model's config to replace, for example ``k=10``.
    """
    if not isinstance(num_classes, int) or isinstance(num_classes, bool) or num_classes < 1:
        raise ValueError(f"num_classes must be an integer of at least 1, got {num_classes!r}")
    if not pretrained:
        chosen = model_config(name, **config)
        return _MODELS[name].build(num_classes, chosen)
    model_config(name)  # a name that is not known is refused here
    path, facts = pretrained_weights(name)
    wanted = None if num_classes == CLASSES else num_classes
    trained = model_config(name, **agreed_config(name, facts, wanted, config))
    return load_pretrained(_MODELS[name].build(facts["num_classes"], trained), path)
