"""Records and evaluations as results: what was trained, how it was tested, and what came out.

Three kinds of JSON are read: the record of a run (``record.json``), what `eval --json` wrote, and
what `perturb --json` and `samplings --json` wrote. A result is identified by the recipe (a preset
and what departs from it), the model, its options, the rotations of training and testing, the
precision of training and of the stored weights, the data (how many clouds of the split, of how many
points), the number and the seed of the rotations, and the perturbation; results that differ in the
seed of training alone are aggregated.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from locotrans.models import model_config
from locotrans.training.config import TrainConfig, parse_options, typed_fields
from locotrans.training.evaluate import main_figure
from locotrans.training.presets import VARIED, base_config, deviations
from locotrans.training.record import read_json
from locotrans.training.report.others import writer_of
from locotrans.training.tasks import OWN


@dataclass(frozen=True)
class Key:
    """What identifies a result, the seed of training apart."""

    preset: str
    """Name of the preset, or "" for none."""
    departures: str
    """Where the run departs from it, such as "epochs 60"."""
    model: str
    options: tuple[tuple[str, str], ...]
    """Options of the model and weights of losses that are not the usual ones, sorted."""
    train: str
    test: str
    data: str
    split: str
    precision: str
    """Of training; an evaluation is always in float32."""
    stored: str = ""
    """What the weights were rounded to before they were measured: "float16" if they were packed."""
    whole: bool = False
    """Whether whole scenes were measured, every point once, instead of clouds cut from them."""
    samples: int = 0
    """Clouds that were measured, where it is told."""
    part_of: int = 0
    """Clouds of the whole split, where others were measured."""
    resized: int = 0
    """Points of these clouds, where they are not as many as in training."""
    rotations: int = 0
    """Rotations of each cloud, where it is told."""
    rotation_seed: int = 0
    """Seed of the rotations, and of perturbations."""
    perturbation: tuple[str, float] | None = None


@dataclass(frozen=True)
class Training:
    """What the record of a run tells beside its evaluation."""

    seconds: float
    """Time of training, with the evaluations in between."""
    device: str
    best_test_epoch: float | None = None
    """The main figure of the best test epoch, where several were measured."""
    test_epochs: int = 0
    """Of how many it is the best."""


@dataclass(frozen=True)
class Result:
    """One measurement of one trained network."""

    key: Key
    seed: int
    heads: Mapping[str, Mapping[str, float]]
    without_excluded: float | None = None
    """Accuracy, or mIoU, without the excluded shapes, where that was measured."""
    excluded: int = 0
    """How many these are."""
    training: Training | None = None
    """Where the run's own record is among the files."""
    sampled: Sequence[Mapping[str, Any]] = ()
    """The rows of `samplings`."""
    date: str = ""
    """When it was measured, where it is told."""
    trained_on: str = ""
    """Name of the data set that it was trained on."""


def read_results(paths: Sequence[Path]) -> list[Result]:
    """Read results from files or run folders; of the same measurement of a run the newest counts.

    Of a folder count its record and the evaluations that lie beside it. Where files do not tell
    their date, the newest is the one that is named last.

    Raises:
        ValueError: naming the file that is none of the kinds.
    """
    found: dict[tuple[Key, int], Result] = {}
    for file, document in documents(paths):
        for result in results_of(document, file):
            place = (result.key, result.seed)
            before = found.get(place, result)
            if result.training and before.training and result.training != before.training:
                raise ValueError(
                    f"{file} is the record of another run with the settings and the seed of one "
                    "that is named before it; name one of the two"
                )
            newest = result if result.date >= before.date else before
            training = result.training or before.training  # the record's, whichever is newer
            # without excluded shapes, too, whichever of the two measured it
            told = newest if newest.excluded else (result if result.excluded else before)
            found[place] = dataclasses.replace(
                newest,
                training=training,
                without_excluded=told.without_excluded,
                excluded=told.excluded,
            )
    return list(found.values())


def documents(paths: Sequence[Path]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the JSON files that are named, and those of run folders that hold results."""
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist; name run folders and JSON files of results")
        if not path.is_dir():
            yield path, read_json(path)
            continue
        record = path / "record.json"
        if not record.exists():
            raise ValueError(f"{path} is not a finished run: it has no record.json")
        yield record, read_json(record)
        for file in sorted(set(path.glob("*.json")) - {record}):
            if writer_of(file) is None:
                document = read_json(file)
                if {"training", "model"} <= document.keys():
                    yield file, document


def results_of(document: Mapping[str, Any], file: Path) -> Iterator[Result]:
    """Yield the results in a document."""
    try:
        if "evaluation" in document:
            settings, measured = document["config"], document["evaluation"]
            training = training_of(document)
        else:
            settings, measured, training = document["training"]["settings"], document, None
        config = TrainConfig(**typed_fields(TrainConfig, settings))
        date = document.get("environment", {}).get("date", "")
        if "rows" not in measured:
            facts: dict[str, Any] = {"date": date, "trained_on": config.data}
            if "without_excluded" in measured:
                rest = measured["without_excluded"]
                combined = rest["heads"]["combined"]
                facts |= {"without_excluded": combined[main_figure(combined)]}
                facts |= {"excluded": rest["excluded"]}
            key, heads = key_of(config, measured), measured["heads"]
            yield Result(key, config.seed, heads, training=training, **facts)
        elif "count" in measured["rows"][0]:
            rows = measured["rows"]
            key = key_of(config, measured, ("samplings", 0.0))
            yield Result(key, config.seed, rows[0]["heads"], sampled=rows, date=date)
        else:
            for row in measured["rows"]:
                key = key_of(config, measured, (row["name"], float(row["value"])))
                yield Result(key, config.seed, row["heads"], date=date)
    except KeyError as error:
        raise ValueError(
            f"{file} is neither a record of `train` nor what `eval`, `perturb` or `samplings` "
            f"wrote with --json: it has no {error}"
        ) from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def training_of(record: Mapping[str, Any]) -> Training:
    """Return what a record tells of the training."""
    figure = main_figure(record["evaluation"]["heads"]["combined"])
    best = record.get("best_test_epoch", {"of": 0})
    seconds, device = float(record["seconds"]), record["environment"]["device"]
    return Training(seconds, device, best.get(figure), best["of"])


def key_of(
    config: TrainConfig,
    measured: Mapping[str, Any],
    perturbation: tuple[str, float] | None = None,
) -> Key:
    """Identify a measurement of a run."""
    base = base_config(config.preset, config.model)
    ours, recipe = (parse_options(config.model, c.options) for c in (config, base))
    network, usual = (model_config(config.model, **given) for given in (ours, recipe))
    options = {
        name: _text(getattr(network, name))
        for name in {**ours, **recipe}
        if getattr(network, name) != getattr(usual, name)
    }
    for name in VARIED:
        if getattr(config, name) != getattr(base, name):
            options[name] = _text(getattr(config, name))
    departures = ", ".join(f"{name} {_text(x)}" for name, x in deviations(config).items())
    points, samples = measured.get("points", config.points), measured.get("samples", 0)
    whole = measured.get("split_size", samples)
    data = measured["data"]
    if "data_title" in measured:
        settings = [x for x in data.partition(":")[2].split(",") if "=" in x]
        data = ", ".join([measured["data_title"], *settings])
    if data.partition(":")[0] in OWN and measured["split"] != "validation":
        # the first digits of a checksum say which data they are
        data = f"{data} {measured.get('data_checksum', '')[:6]}".rstrip()
    return Key(
        preset=config.preset or "",
        departures=departures,
        model=config.model,
        options=tuple(sorted(options.items())),
        train=config.rotation,
        test=measured["rotation"],
        data=data,
        split=measured["split"],
        precision=config.precision,
        stored=measured.get("training", {}).get("stored", ""),
        whole=measured.get("items") == "scenes",
        samples=samples,
        part_of=0 if whole == samples else whole,
        resized=0 if points == config.points else points,
        rotations=measured.get("rotations_per_shape", 0),
        rotation_seed=measured.get("seed", 0),
        perturbation=perturbation,
    )


def _text(value: Any) -> str:
    """Write a setting as it is given to `train`."""
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def aggregate(values: Sequence[float]) -> str:
    """Write accuracies of several seeds in percent: mean, half the range, and how many."""
    percent = [100 * value for value in values]
    mean = sum(percent) / len(percent)
    if len(percent) == 1:
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {(max(percent) - min(percent)) / 2:.2f} ({len(percent)})"
