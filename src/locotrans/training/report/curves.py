"""The curves of training: what every epoch of a run left."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from locotrans.training.record import read_metrics


def read_curves(runs: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """Read the metrics of run folders, a line an epoch, by name, or by path if two share a name."""
    folders = [run for run in runs if run.is_dir() and (run / "metrics.jsonl").exists()]
    unique = len({run.name for run in folders}) == len(folders)
    curves = {}
    for run in folders:
        curves[run.name if unique else str(run)] = read_metrics(run / "metrics.jsonl")
    return curves
