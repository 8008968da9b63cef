"""A finished run becomes weights that can be shipped: small, described, with a model card."""

import hashlib
from pathlib import Path
from typing import Any

import torch

from locotrans.models import pretrained
from locotrans.training.checkpoint import read_tensors, write_tensors
from locotrans.training.presets import PRESETS, deviations, read_config
from locotrans.training.record import read_json, write_atomically, write_json


def pack(run: Path, out: Path | None = None) -> Path:
    """Write ``NAME.safetensors``, ``NAME.json`` and the card ``NAME.md`` of a finished run.

    Matrices are stored as float16; vectors (biases, batch norms and their statistics) stay float32.

    Args:
        run: run folder of `train`.
        out: folder to write into; by default that of the package.

    Returns:
        The weights file.
    """
    out = pretrained.FOLDER if out is None else out
    if not (run / "record.json").exists():
        raise ValueError(f"{run} is not a finished run: it has no record.json; finish it first")
    record = read_json(run / "record.json")
    tensors, header = read_tensors(run / "weights.safetensors")
    small = {
        name: x.half() if x.is_floating_point() and x.dim() > 1 else x
        for name, x in tensors.items()
    }
    for name, x in small.items():
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise ValueError(f"{run}: {name} does not fit into float16")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{header['model']}.safetensors"
    write_tensors(path, small, {k: v for k, v in header.items() if k not in ("format", "sha256")})
    kept = ("model", "config", "num_classes", "class_names", "data", "points", "up", "rotation")
    facts = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        **{key: header[key] for key in kept},
        "preprocessing": preprocessing(header),
        "data_checksums": record["data_checksums"],
        "record": record,
    }
    write_json(path.with_suffix(".json"), facts)
    config = read_config(run / "config.json")
    recipe = PRESETS[config.preset].title if config.preset else "the defaults of locotrans"
    departures = ", ".join(f"{key} {value}" for key, value in deviations(config).items())
    recipe += f", but {departures}" if departures else ""
    write_atomically(path.with_suffix(".md"), card(facts, recipe).encode())
    return path


def preprocessing(header: dict[str, Any]) -> str:
    """Say what has to be done to a cloud before the network sees it."""
    return (
        f"{header['points']} points of the surface, mean at the origin, greatest norm 1; any pose. "
        f"Other numbers of points are brought to {header['points']} by `locotrans predict`."
    )


def card(facts: dict[str, Any], recipe: str) -> str:
    """Write the model card."""
    record = facts["record"]
    evaluation, environment = record["evaluation"], record["environment"]
    rows = [
        f"| {head} | {100 * x['overall_accuracy']:.2f} | {100 * x['class_accuracy']:.2f} "
        f"| {100 * x['rotation_agreement']:.2f} |"
        for head, x in evaluation["heads"].items()
    ]
    lines = [
        f"# {facts['model']}",
        "",
        f"Tells {facts['num_classes']} classes apart: {', '.join(facts['class_names'])}.",
        "",
        f"- **Trained** on {facts['data']} (rotation {facts['rotation']}, up axis {facts['up']}), "
        f"{record['config']['epochs']} epochs, seed {record['seed']}, "
        f"{record['config']['precision']}, by {recipe}; "
        f"{record['seconds']:.0f} s on {environment['device']}, torch {environment['torch']}.",
        f"- **Chosen**: {record['selection']}; the test split selected nothing.",
        f"- **Input**: {facts['preprocessing']}",
        f"- **Data**: SHA-256 {record['data_checksums']['train']} (train), "
        f"{record['data_checksums']['test']} ({evaluation['split']}). The data set's own terms "
        "apply to what is made from it.",
        f"- **File**: SHA-256 {facts['sha256']}; matrices in float16.",
        "",
        f"Accuracy in percent on {evaluation['samples']} shapes ({evaluation['split']} split), "
        f"rotation {evaluation['rotation']}, {evaluation['rotations_per_shape']} a shape (of the "
        'float32 weights; "combined" is the answer):',
        "",
        "| head | overall | class mean | rotation agreement |",
        "|---|---|---|---|",
        *rows,
        "",
        "It knows no other classes: what is none of them is given one of them all the same.",
    ]
    return "\n".join(lines) + "\n"
