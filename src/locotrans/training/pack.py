"""A finished run becomes weights that can be shipped: small, described, with a model card."""

import hashlib
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

import torch

from locotrans.counting import counted
from locotrans.models import model_task, pretrained
from locotrans.training.checkpoint import find_weights, read_tensors, write_tensors
from locotrans.training.evaluate import TITLES
from locotrans.training.presets import PRESETS, deviations, read_config
from locotrans.training.record import read_json, write_atomically, write_json
from locotrans.training.start_from import described


def pack(run: Path, out: Path | None = None, *, replace: bool = False) -> Path:
    """Write ``NAME.safetensors``, ``NAME.json`` and the card ``NAME.md`` of a finished run.

    Matrices are stored as float16; vectors (biases, batch norms and their statistics) stay float32.

    Args:
        run: run folder of `train`.
        out: folder to write into; by default that of the package.
        replace: overwrite weights of the same model that are there.

    Returns:
        The weights file.
    """
    out = pretrained.FOLDER if out is None else out
    if not (run / "record.json").exists():
        raise ValueError(f"{run} is not a finished run: it has no record.json; finish it first")
    record = read_json(run / "record.json")
    tensors, header = read_tensors(find_weights(run))
    path = out / f"{header['model']}.safetensors"
    if path.exists() and not replace:
        raise ValueError(
            f"{path} is there already: name another folder (--out), or --replace its weights"
        )
    small = {
        name: x.half() if x.is_floating_point() and x.dim() > 1 else x
        for name, x in tensors.items()
    }
    for name, x in small.items():
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise ValueError(f"{run}: {name} does not fit into float16")
    out.mkdir(parents=True, exist_ok=True)
    write_tensors(path, small, {k: v for k, v in header.items() if k not in ("format", "sha256")})
    kept = ("model", "config", "num_classes", "class_names", "part_names", "data", "points", "up")
    facts = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        **{key: header[key] for key in (*kept, "rotation")},
        "preprocessing": preprocessing(header),
        "data_checksums": record["data_checksums"],
        "record": record,
    }
    config = read_config(run / "config.json")
    config = replace_fields(config, start_from=record["config"].get("start_from"))
    recipe = "the defaults of locotrans"
    if config.preset:
        recipe = f"the preset {config.preset} ({PRESETS[config.preset].title})"
    departures = ", ".join(f"{key} {value}" for key, value in deviations(config).items())
    recipe += f", but {departures}" if departures else ""
    text = card(facts, recipe)
    write_json(path.with_suffix(".json"), facts)
    write_atomically(path.with_suffix(".md"), text.encode())
    return path


def began_with(record: dict[str, Any]) -> list[str]:
    """Write a line for the card on the weights that the run began with, if it did."""
    if "start" not in record:
        return []
    start = record["start"]
    return [
        f"- **Began** with the weights of a {described(start)} (tensors SHA-256 "
        f"{start['sha256']}); the terms of their data apply, too."
    ]


def preprocessing(header: dict[str, Any]) -> str:
    """Say what has to be done to a cloud before the network sees it."""
    task, count = model_task(header["model"]), header["points"]
    if task == "scenes":
        return (
            f"{count} points of a block of the scene, about {header['radius']:.2g} in radius, in "
            "the units of the data; any pose. `locotrans segment` cuts whole scenes."
        )
    shape = f"{count} points of the surface, mean at the origin, greatest norm 1; any pose"
    if task == "parts":
        return f"{shape}; and the shape's category. `locotrans segment` takes shapes of any size."
    if header.get("choice") == "even":
        return (
            f"{shape}. Before that they are evened out, which `locotrans predict` does, and "
            "`locotrans.training.evening.even_points`."
        )
    return f"{shape}. Other numbers of points are brought to {count} by `locotrans predict`."


def purpose(facts: dict[str, Any]) -> tuple[str, str]:
    """Say what the network does, and what it does not know."""
    task, kinds = model_task(facts["model"]), ", ".join(facts["class_names"])
    if task == "parts":
        count = len(facts["class_names"])
        does = f"Labels {facts['num_classes']} parts of shapes of {count} categories: {kinds}."
        return does, "It knows no other categories, and has to be told the shape's."
    if task == "scenes":
        kinds = ", ".join(facts["part_names"])
        does = f"Labels the points of scenes by {facts['num_classes']} classes: {kinds}."
    else:
        does = f"Tells {facts['num_classes']} classes apart: {kinds}."
    limit = "It knows no other classes: what is none of them is given one of them all the same."
    return does, limit


def card(facts: dict[str, Any], recipe: str) -> str:
    """Write the model card."""
    record = facts["record"]
    evaluation, environment = record["evaluation"], record["environment"]
    does, limit = purpose(facts)
    shown = [key for key in TITLES if key in evaluation]
    samples = counted(evaluation["samples"], evaluation.get("items", "shapes")[:-1])
    rows = [
        f"| {head} | {' | '.join(f'{100 * figures[key]:.2f}' for key in shown)} |"
        for head, figures in evaluation["heads"].items()
    ]
    lines = [
        f"# {facts['model']}",
        "",
        does,
        "",
        f"- **Trained** on {facts['data']} (rotation {facts['rotation']}, up axis {facts['up']}), "
        f"{counted(record['config']['epochs'], 'epoch')}, seed {record['seed']}, "
        f"{record['config']['precision']}, by {recipe}; "
        f"{record['seconds']:.0f} s on {environment['device']}, torch {environment['torch']}.",
        f"- **Chosen**: {record['selection']}; the test split selected nothing.",
        f"- **Input**: {facts['preprocessing']}",
        f"- **Data**: SHA-256 {record['data_checksums']['train']} (train), "
        f"{evaluation['data_checksum']} ({evaluation['split']}). The data set's own terms "
        "apply to what is made from it.",
        *began_with(record),
        f"- **File**: SHA-256 {facts['sha256']}; matrices in float16.",
        "",
        f"In percent, on {samples} ({evaluation['split']} split), rotation "
        f"{evaluation['rotation']}, {evaluation['rotations_per_shape']} each (of the float32 "
        'weights; "combined" is the answer):',
        "",
        f"| head | {' | '.join(TITLES[key] for key in shown)} |",
        "|---|" + "---|" * len(shown),
        *rows,
        "",
        limit,
    ]
    return "\n".join(lines) + "\n"
