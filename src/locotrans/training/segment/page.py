"""A labelled cloud as a page: one file that turns with the mouse and needs no server."""

import base64
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8

from locotrans.counting import counted
from locotrans.training.record import write_atomically

SHOWN = 100_000
"""Points of a page, at most."""


def write_page(
    path: Path,
    name: str,
    points: Float[np.ndarray, "n 3"],
    labels: Int[np.ndarray, "n"],
    palette: UInt8[np.ndarray, "classes 3"],
    names: tuple[str, ...],
    seed: int = 0,
) -> None:
    """Write a page of a labelled cloud, of some of its points if there are many.

    Args:
        path: the page.
        name: of the cloud.
        points: in any unit.
        labels: of the points.
        palette: the colour of each label.
        names: of the labels.
        seed: of the choice of points.
    """
    counts = np.bincount(labels, minlength=len(names))
    about = counted(len(points), "point")
    if len(points) > SHOWN:
        rows = np.random.default_rng(seed).choice(len(points), SHOWN, replace=False)
        points, labels = points[rows], labels[rows]
        about += f", {SHOWN:,} of them shown"
    centred = points.astype(np.float64) - (points.min(0) + points.max(0)) / 2
    radius = max(float(np.linalg.norm(centred, axis=1).max()), np.finfo(np.float32).tiny)
    state = {
        "name": name,
        "about": about + "; drag to turn, scroll to come nearer",
        "points": _text((32767 * centred / radius).round().astype("<i2")),
        "labels": _text(labels.astype("<u2")),
        "legend": [
            {
                "label": int(label),
                "name": names[label],
                "share": f"{counts[label] / counts.sum():.0%}",
                "color": palette[label].tolist(),
            }
            for label in np.argsort(-counts, kind="stable")
            if counts[label]
        ],
    }
    markup = (files("locotrans.training.segment") / "page.html").read_text()
    text = json.dumps(state, separators=(",", ":")).replace("<", "\\u003c")
    write_atomically(path, markup.replace("{{state}}", text).encode())


def _text(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()
