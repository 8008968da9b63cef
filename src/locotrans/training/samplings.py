"""Accuracy on clouds that were sampled in other ways and numbers than those of training.

Every shape of a dense data set is sampled, brought to the network's number of points as `predict`
does it, normalised, and goes through `evaluate`. The reference is the sampling of training: random
points, as many as the network takes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.table import Table
from torch import nn

from locotrans.data import CloudSet, normalize
from locotrans.data.samplings import SAMPLINGS
from locotrans.data.transforms import RotationProtocol
from locotrans.training.config import derive_seed
from locotrans.training.evaluate import evaluate
from locotrans.training.predict.samples import Choice, choose_points
from locotrans.training.tasks import is_segmenter

COUNTS = (512, 1024, 2048, 4096, 8192)
SAMPLING = 2  # key of derive_seed


def measure_samplings(
    model: nn.Module,
    data: CloudSet,
    points: int,
    *,
    counts: Sequence[int] = COUNTS,
    rotation: RotationProtocol = "so3",
    rotations_per_shape: int = 1,
    seed: int = 0,
    choice: Choice = "random",
    batch_size: int = 32,
    device: torch.device | str = "cpu",
    report: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure a classifier on resamplings of dense shapes.

    Args:
        model: any classifier that `evaluate` takes.
        data: the shapes, with at least as many points as the largest count.
        points: the network's number of points.
        counts: points of the sampled clouds (of a voxel grid: at most).
        rotation: rotations of the sampled clouds.
        rotations_per_shape: poses of each shape.
        seed: seed of the samplings and rotations.
        choice: how the network's points are chosen of them.
        batch_size: shapes at a time.
        device: where to compute.
        report: called with the number of rows that are done, and of all.

    Returns:
        ``rows``, the reference first, each with the figures of every head and with ``loss``, the
        overall accuracy less than that of the reference; what all rows share stands beside it.
    """
    if is_segmenter(model):
        raise ValueError("sampled points have no labels, so only classifiers are measured")
    dense = data.points.shape[1]
    if max(counts, default=1) > dense or points > dense or min(counts, default=1) < 1:
        raise ValueError(
            f"{data.name} has {dense} points a shape; counts must be from 1 to that, "
            f"got {tuple(counts)} for a network of {points}"
        )
    rows: list[dict[str, Any]] = []
    shared: dict[str, Any] = {}
    cases = [("area-uniform", points), *((m, c) for m in SAMPLINGS for c in counts)]
    for number, (method, count) in enumerate(cases):
        result = evaluate(
            model,
            resampled(data, method, count, points, seed, choice),
            rotation,
            rotations_per_shape=rotations_per_shape,
            seed=seed,
            batch_size=batch_size,
            device=device,
        )
        figures = {key: result.pop(key) for key in (*result["heads"]["combined"], "heads")}
        result.pop("data_checksum")
        shared = {**result, "data_checksum": data.checksum}
        reference = rows[0] if rows else figures
        loss = reference["overall_accuracy"] - figures["overall_accuracy"]
        name = method if number else "reference"
        rows.append({"name": name, "count": count, "loss": loss, **figures})
        if report is not None:
            report(len(rows), len(cases))
    return {**shared, "rows": rows}


def resampled(
    data: CloudSet, method: str, count: int, points: int, seed: int, choice: Choice = "random"
) -> CloudSet:
    """Sample every shape, each with random numbers of its own index, and bring it to ``points``."""
    clouds = []
    for index, cloud in enumerate(data.points):
        generator = torch.Generator().manual_seed(derive_seed(seed, index, SAMPLING))
        sampled = SAMPLINGS[method](cloud, count, generator=generator)
        clouds.append(torch.from_numpy(choose_points(sampled.numpy(), points, seed, choice)))
    return data.with_points(normalize(torch.stack(clouds)))


def samplings_table(result: dict[str, Any]) -> Table:
    """Lay out what `measure_samplings` returned."""
    table = Table()
    table.add_column("sampling")
    for column in ("points", "overall", "class mean", "loss", "agreement"):
        table.add_column(column, justify="right")
    for row in result["rows"]:
        shares = ("overall_accuracy", "class_accuracy", "loss", "rotation_agreement")
        texts = (f"{100 * row[key]:.2f}%" for key in shares)
        table.add_row(row["name"], str(row["count"]), *texts)
    return table
