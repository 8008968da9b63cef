"""What a training run is: one frozen dataclass, the source of config files and of flags.

A field's docstring is its help text on the command line.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from locotrans.data.filling import NEAREST
from locotrans.data.transforms import RotationProtocol
from locotrans.models import model_config
from locotrans.training.evening import NEAR

# What may differ when a run is taken up again: none of it changes which weights come out
# (the data themselves are compared by checksum).
MOVABLE = frozenset({"root", "device", "out", "checkpoint_seconds"})

AT_LEAST_ONE = ("points", "epochs", "scale")
BELOW_ONE = ("smoothing", "momentum", "averaging", "validation")
NOT_NEGATIVE = (
    *BELOW_ONE,
    *("lr", "final_lr", "warm_up", "weight_decay", "balance"),
    *("orthogonality_weight", "consistency_weight"),
    *("shift", "jitter", "seed", "evaluate_every", "checkpoint_seconds", "decay_every", "decay"),
)


@dataclass(frozen=True)
class TrainConfig:
    """A training run; the defaults are the paper's recipe."""

    preset: str | None = None
    """Recipe that gives the defaults of all other settings (see `locotrans list`)."""
    model: str = "locotrans_dgcnn_light"
    """Model to train (see `locotrans list`)."""
    options: tuple[str, ...] = ()
    """Options of the model as KEY=VALUE, for example k=10 frames=gram_schmidt, beside those of the
    preset."""
    start_from: str | None = None
    """Weights to begin with instead of random ones: a run folder, a weights file, or the name of
    weights that come with the package. Layers that belong to single classes begin anew, unless the
    classes are the same. A tenth of the usual --lr keeps what the others know."""
    data: str = "builtin"
    """Data set to train on (see `locotrans list`); settings follow a colon, as in folder:up=y."""
    root: Path | None = None
    """Folder that holds the data set's files; built-in sets need none."""
    train_split: str = "train"
    """Split to train on, for example trainval of shapenetpart."""
    points: int = 1024
    """Points per shape."""
    shapes: int | None = None
    """Training shapes to take, or to generate for a set that is generated; by default all, or its
    usual number."""
    test_shapes: int | None = None
    """Test shapes, likewise."""
    validation: float = 0.0
    """Share of the training shapes, chosen by the seed, to evaluate on instead of the test split;
    they are not trained on, and the test split is not read. 0: off."""
    draw_from: int | None = None
    """Points of each shape to draw --points from, anew in every step; by default always the same
    points."""
    resample: int | None = None
    """Thin each shape in every step to a random number of its points, from this many (half or more)
    to all, more often nearly all, and fill it up again with moved copies, as smaller clouds are in
    evaluation (or see --even); not for labelled points. By default all points are kept."""
    even: bool = False
    """Even each cloud out: farthest points of its own and others between near ones; with
    --resample, of those that are kept, in eight versions made at the start. The weights say so, and
    `eval`, `predict` and others even out what they are given. Not for labelled points."""
    rotation: RotationProtocol = "z"
    """Random rotation of each shape: z (about the data set's up axis), so3 or none."""
    epochs: int = 250
    """Passes over the training set."""
    batch_size: int = 32
    """Shapes per step; the last partial batch of an epoch is dropped."""
    lr: float = 0.1
    """Learning rate of the first step, or at the end of the warm-up."""
    final_lr: float = 0.001
    """Learning rate that the cosine schedule ends at."""
    warm_up: float = 0.0
    """Epochs in which the learning rate rises to --lr, before the cosine; 0: none."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """Optimiser: sgd (with momentum) or adamw."""
    decay_every: int = 0
    """Epochs after which the learning rate is multiplied by --decay; 0: the cosine schedule."""
    decay: float = 0.3
    """Factor of the learning rate, if it goes in steps."""
    momentum: float = 0.9
    """Momentum of SGD, or the first beta of AdamW (the second is 0.999)."""
    weight_decay: float = 1e-4
    """Weight decay, of all parameters: added to the gradient (sgd) or decoupled from it (adamw)."""
    averaging: float = 0.0
    """Decay, a step, of a moving average of the weights, such as 0.999; the average is what is
    evaluated and stored as the result, with batch norms that saw up to 100 batches as it is. 0: the
    weights themselves."""
    smoothing: float = 0.2
    """Label smoothing: the share of probability given to the other classes."""
    balance: float = 0.0
    """How far rare classes are taught as if all were equally frequent: this, times the logarithm of
    a class's share of the labels, is added to its logits in the losses, not in answers; --smoothing
    is then spread in that proportion. 1: wholly; 0: off."""
    orthogonality_weight: float = 0.1
    """Weight of the orthogonality loss."""
    consistency_weight: float = 0.1
    """Weight of the consistency loss."""
    scale: float = 1.5
    """Each axis is scaled by a factor uniform in [1/scale, scale]; 1 is off."""
    shift: float = 0.2
    """Each axis is shifted by an amount uniform in [-shift, shift]; 0 is off."""
    jitter: float = 0.0
    """Deviation of the normal noise that every coordinate gets, cut off at five times as much; the
    greatest norm of a shape is about 1. 0 is off."""
    mirror: bool = False
    """Mirror half of the shapes, at random in every step, in a plane that holds the up axis."""
    shuffle: bool = True
    """Shuffle the points of each shape."""
    precision: Literal["float32", "mixed"] = "float32"
    """Numbers: float32, or, on a GPU only, mixed: products by TF32 and bfloat16, edges in bfloat16;
    an evaluation is in float32."""
    seed: int = 0
    """Seed of everything random."""
    evaluate_every: int = 0
    """Epochs between evaluations on the test split; 0: after the last epoch only."""
    evaluate_rotation: RotationProtocol = "so3"
    """Rotation of the shapes in these evaluations."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints; 0: after every step."""
    device: str = "auto"
    """Device: auto, cpu, cuda or cuda:INDEX."""
    out: Path = Path("runs/train")
    """Run folder; a run that was cut is taken up again where its checkpoint stands."""

    def __post_init__(self) -> None:
        for name in AT_LEAST_ONE:
            _require(self, name, 1)
        _require(self, "batch_size", 2)  # batch norm needs two
        for name in NOT_NEGATIVE:
            _require(self, name, 0)
        for name in BELOW_ONE:
            if not getattr(self, name) < 1:
                raise ValueError(f"{name} must be below 1, got {getattr(self, name)}")
        if not self.warm_up < self.epochs:
            raise ValueError(f"warm_up must be below the {self.epochs} epochs, got {self.warm_up}")
        for name in ("shapes", "test_shapes"):
            if getattr(self, name) is not None:
                _require(self, name, 1)
        if self.draw_from is not None and self.draw_from <= self.points:
            raise ValueError(
                f"draw_from must exceed the {self.points} points to draw, got {self.draw_from}"
            )
        if self.even and self.draw_from is not None:
            raise ValueError("even takes clouds of as many points as it makes; leave draw_from out")
        if self.resample is not None:
            least = max((NEAR if self.even else NEAREST) + 1, -(-self.points // 2))
            if not least <= self.resample < self.points:
                raise ValueError(
                    f"resample must be {least} to {self.points - 1}: half of the {self.points} "
                    f"points or more, and not all, got {self.resample}"
                )


def _require(config: TrainConfig, name: str, least: int) -> None:
    value = getattr(config, name)
    if not value >= least:  # also catches nan
        raise ValueError(f"{name} must be at least {least}, got {value}")


def to_json(config: Any) -> dict[str, Any]:
    """Return a config dataclass as plain JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def portable(config: TrainConfig) -> dict[str, Any]:
    """Return a run's settings as JSON values, less where it lay and what it ran on."""
    return {name: value for name, value in to_json(config).items() if name not in MOVABLE}


def differing_keys(one: TrainConfig, other: TrainConfig) -> list[str]:
    """Name the fields by which two configs describe different runs."""
    one, other = (dataclasses.replace(x, options=tuple(sorted(x.options))) for x in (one, other))
    names = [field.name for field in dataclasses.fields(TrainConfig) if field.name not in MOVABLE]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def join_options(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Return the options of both; where both name one, that of the second counts."""
    return tuple({option.partition("=")[0]: option for option in (*first, *second)}.values())


def parse_options(model: str, options: Sequence[str]) -> dict[str, Any]:
    """Read KEY=VALUE texts by the types of the fields of the model's config."""
    config_class = type(model_config(model))
    values = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"option {option!r} must be KEY=VALUE, for example k=10")
        values[key] = value
    try:
        return typed_fields(config_class, values)
    except ValueError as error:
        raise ValueError(f"options of {model}: {error}") from None


def typed_fields(config_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert plain JSON values or texts to the types of a dataclass's fields.

    Raises:
        ValueError: for a key that the class does not have, or a value that does not fit.
    """
    hints = typing.get_type_hints(config_class)
    result = {}
    for key, value in values.items():
        if key not in hints:
            raise ValueError(f"unknown key {key!r}; known keys: {', '.join(hints)}")
        try:
            result[key] = _convert(value, hints[key])
        except (TypeError, ValueError):
            raise ValueError(f"{key} must be {_kind(hints[key])}, got {value!r}") from None
    return result


def _kind(hint: Any) -> str:
    """Return the name of a type, for an error."""
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    return getattr(hint, "__name__", str(hint)).replace("typing.", "")


def _convert(value: Any, hint: Any) -> Any:
    """Return ``value``, a JSON value or a text such as "10" or "64,128", as type ``hint``."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return choices[[str(choice) for choice in choices].index(str(value))]
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, choices)
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else list(value)
        each = [choices[0]] * len(items) if choices[-1] is Ellipsis else choices
        return tuple(_convert(item, kind) for item, kind in zip(items, each, strict=True))
    if hint is type(None) and value in (None, "none"):
        return None
    if hint is bool and value in (True, False, "true", "false"):
        return value in (True, "true")
    if hint in (int, float) and isinstance(value, (int, float, str)) and value is not True:
        number = hint(value)
        if isinstance(value, str) or number == value:
            return number
    if hint in (str, Path) and isinstance(value, str):
        return hint(value)
    raise TypeError


def _convert_union(value: Any, choices: tuple[Any, ...]) -> Any:
    for choice in sorted(choices, key=lambda kind: kind is not type(None)):  # None first
        try:
            return _convert(value, choice)
        except (TypeError, ValueError):
            continue
    raise TypeError


# keys of derive_seed: one stream of random numbers for each purpose of a run
INITIAL_WEIGHTS, EPOCH_ORDER, STEP, VALIDATION, EVENING, SETTLE = range(6)


def derive_seed(seed: int, *key: int) -> int:
    """Return an independent seed for each key, so that randomness is a function of its place."""
    if seed < 0:
        raise ValueError(f"the seed must not be negative, got {seed}")
    return int(np.random.SeedSequence((seed, *key)).generate_state(1, np.uint64)[0])
