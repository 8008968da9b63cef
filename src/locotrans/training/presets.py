"""Named recipes: the hyperparameters of a training run, without what a table varies.

A preset says which data, schedule, optimiser and augmentation, and perhaps some options of the
model; the model, its other options, the training rotation, the precision and the seed are the run's
own. `deviations` tells a run that follows its preset from one that bears its name with other
settings, so that tables never mix the two; they tell options that are not the preset's.
"""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from locotrans.models import list_models, model_task
from locotrans.training.config import MOVABLE, TrainConfig, join_options, typed_fields

VARIED = ("orthogonality_weight", "consistency_weight")  # by ablations, beside the model's options
# What a preset leaves open: which network and protocol, in which numbers, how a run is measured.
OPEN = MOVABLE | {
    *("preset", "model", "options", "rotation", "seed", "precision"),
    *("evaluate_every", "evaluate_rotation"),
    *VARIED,
}


@dataclass(frozen=True)
class Preset:
    """A recipe: settings for all models, and what differs for some."""

    title: str
    settings: Mapping[str, Any]
    by_model: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model: str = TrainConfig.model
    """What is trained unless a run says otherwise; all models for the same task can be."""


# ShapeNetPart and S3DIS as DGCNN's segmentation networks see them; the paper does not say more
UNTOUCHED = {"scale": 1.0, "shift": 0.0}
STEPS: dict[str, Any] = {
    "epochs": 250,
    "batch_size": 16,
    "optimizer": "sgd",
    "lr": 0.1,
    "decay_every": 30,
    "decay": 0.3,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "smoothing": 0.2,
    "orthogonality_weight": 0.1,
    "consistency_weight": 0.1,
}
"""The paper's schedule for segmentation; momentum, weight decay and smoothing are those of
classification, and the batch and the steps of scenes those of parts."""

MODELNET40: dict[str, Any] = {
    "data": "modelnet40",
    "points": 1024,
    "epochs": 250,
    "batch_size": 32,
    "optimizer": "sgd",
    "lr": 0.1,
    "final_lr": 0.001,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "smoothing": 0.2,
    "orthogonality_weight": 0.1,
    "consistency_weight": 0.1,
    "scale": 1.5,
    "shift": 0.2,
    "shuffle": True,
}
"""The paper's recipe for ModelNet40."""

SHIFTS = {"locotrans_dgcnn_light": {"shift": 0.15}}

EVEN: dict[str, Any] = {
    "final_lr": 0.02,
    "averaging": 0.9998,
    "scale": 1.1,
    "shift": 0.0,
    "mirror": True,
    "even": True,
    "resample": 768,
}
"""Our own recipe for ModelNet40, chosen on held-out training shapes (`docs/differences.md`).

Stretched shapes lose the proportions that tell them apart where nothing says what is up; a shift
hides where a cloud's mean is, which evaluation moves to the origin.
"""

SHAPENETPART: dict[str, Any] = {
    "data": "shapenetpart",
    "train_split": "trainval",
    "points": 2048,
    **STEPS,
    **UNTOUCHED,
}
"""The paper's recipe for ShapeNetPart, on train and val as DGCNN's."""

ADAMW: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 0.002,
    "final_lr": 1e-5,
    "decay_every": 0,
    "weight_decay": 0.01,
    "smoothing": 0.0,
    "options": ("dropout=0.2",),
}

PRESETS: dict[str, Preset] = {
    "modelnet40": Preset("the paper's recipe for ModelNet40", MODELNET40, SHIFTS),
    "modelnet40_even": Preset(
        "our own recipe for ModelNet40: clouds evened out and mirrored, weights averaged",
        {**MODELNET40, **EVEN},
    ),
    "shapenetpart": Preset(
        "the paper's recipe for ShapeNetPart, on train and val as DGCNN",
        SHAPENETPART,
        model="locotrans_dgcnn_partseg_light",
    ),
    "shapenetpart_adamw": Preset(
        "our own recipe for ShapeNetPart: AdamW, a cosine, labels not smoothed, less dropout",
        {**SHAPENETPART, **ADAMW, "epochs": 100},
        model="locotrans_dgcnn_partseg_light",
    ),
    "s3dis_area5": Preset(
        "S3DIS tested on area 5, in DGCNN's blocks of floor",
        {"data": "s3dis:area5", "points": 4096, **STEPS, **UNTOUCHED},
        model="locotrans_dgcnn_semseg_light",
    ),
    "s3dis_spheres": Preset(
        "rooms in spheres, as `locotrans segment` cuts them; split by rooms_split.json",
        {"data": "s3dis:sphere=1.0", "points": 4096, **STEPS, **UNTOUCHED},
        model="locotrans_dgcnn_semseg_light",
    ),
    "psb": Preset(
        "small data: the Princeton Segmentation Benchmark in ShapeNetPart's text layout",
        {"data": "shapenetpart:normal", "points": 2048, **STEPS, "epochs": 300, "decay_every": 60},
        model="locotrans_dgcnn_partseg_light",
    ),
    "builtin_parts": Preset(
        "parts of the built-in shapes, without any files",
        {**STEPS, "points": 1024, "epochs": 30, "batch_size": 32, "decay_every": 0},
        model="locotrans_dgcnn_partseg_light",
    ),
}


def list_presets() -> list[str]:
    """Return the names that `preset_config` knows."""
    return sorted(PRESETS)


def preset_config(name: str, model: str | None = None) -> TrainConfig:
    """Return the settings of a preset for a model, or for its own.

    Raises:
        ValueError: the preset is not known, or is for another task.
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ValueError(f"unknown preset {name!r}{hint} Known: {', '.join(list_presets())}")
    preset = PRESETS[name]
    model = model or preset.model
    if model_task(model) != model_task(preset.model):
        suited = ", ".join(list_models(model_task(preset.model)))
        raise ValueError(f"preset {name!r} is not for model {model!r}, but for {suited}")
    settings = {**preset.settings, **preset.by_model.get(model, {})}
    return TrainConfig(preset=name, model=model, **settings)


def read_config(path: Path, model: str | None = None) -> TrainConfig:
    """Read a config file, JSON or TOML.

    Keys that it leaves out are those of the preset that it names, or the defaults.

    Args:
        path: the file.
        model: the model to train, if not that of the file: presets differ by it.
    """
    try:
        parse = tomllib.loads if path.suffix == ".toml" else json.loads
        values = parse(path.read_text())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OSError(f"cannot read the config file {path}: {reason}; check the path") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a readable config file: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold one object of keys and values")
    try:
        settings = typed_fields(TrainConfig, values)
        if model is not None:
            settings["model"] = model
        recipe = base_config(settings.get("preset"), settings.get("model"))
        settings["options"] = join_options(recipe.options, settings.get("options", ()))
        return replace(recipe, **settings)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def base_config(preset: str | None, model: str | None) -> TrainConfig:
    """Return the settings of a preset or, without one, the defaults."""
    if preset is not None:
        return preset_config(preset, model)
    return TrainConfig(model=model or TrainConfig.model)


def deviations(config: TrainConfig) -> dict[str, Any]:
    """Return the settings by which a run departs from its preset, or from the defaults.

    What a preset leaves open (model, options, training rotation, seed, precision, how often to
    evaluate, where the run lies) is no departure.
    """
    recipe = base_config(config.preset, config.model)
    names = [f.name for f in dataclasses.fields(TrainConfig) if f.name not in OPEN]
    return {n: getattr(config, n) for n in names if getattr(config, n) != getattr(recipe, n)}
