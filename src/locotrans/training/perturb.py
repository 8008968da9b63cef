"""Accuracy on perturbed clouds: the paper's Tab. 9, and the severity ladders of `corruptions`.

A perturbed data set is made once, each shape from a seed of its own index, and goes through
`evaluate`: the perturbation comes first and every pose is a pose of the same perturbed cloud, so
that the agreement under rotations keeps its meaning. All perturbations of a shape share its seed,
which pairs them: the noise of sigma 0.02 is twice that of 0.01.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor, nn

from locotrans.data import CloudSet
from locotrans.data.corruptions import CORRUPTIONS, SEVERITIES, check_corruption, corrupt
from locotrans.data.transforms import RotationProtocol, drop_points, jitter
from locotrans.training.config import derive_seed
from locotrans.training.evaluate import evaluate
from locotrans.training.evening import evened
from locotrans.training.tasks import is_segmenter

NOISE = (0.0, 0.01, 0.02, 0.03)
"""Tab. 9, left: deviation of the noise, in radii of the cloud."""
DROPPED, DROPPED_OF = (0, 100, 200, 300), 1024
"""Tab. 9, right: points dropped, and of how many."""
LADDERS = tuple(name for name in CORRUPTIONS if name != "rotation")
"""The protocol turns the clouds already."""
PERTURBATION = 1  # key of derive_seed; that of the rotations is the index alone

Operation = Callable[..., Tensor]


class Case(NamedTuple):
    """One row of the result."""

    name: str
    parameter: str
    value: float
    severity: int | None
    """None for the paper's tables, 0 for the clouds as they are."""
    operation: Operation | None
    """Takes clouds and ``generator=``; None leaves the clouds as they are."""


def perturb(
    model: nn.Module,
    data: CloudSet,
    *,
    noise: Sequence[float] = NOISE,
    dropped: Sequence[int] | None = None,
    corruptions: Sequence[str] = LADDERS,
    severities: Sequence[int] = SEVERITIES,
    rotation: RotationProtocol = "so3",
    rotations_per_shape: int = 1,
    seed: int = 0,
    even: bool = False,
    batch_size: int = 32,
    device: torch.device | str = "cpu",
    report: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure a classifier under noise, dropped points and the severity ladders.

    Args:
        model: any classifier that `evaluate` takes.
        data: the shapes, normalised.
        noise: deviations of normal noise, without a cut-off (the paper names none).
        dropped: numbers of points dropped at random; the clouds get smaller. By default `DROPPED`,
            of clouds of fewer than `DROPPED_OF` points the same shares.
        corruptions: names of `CORRUPTIONS`.
        severities: which steps of their ladders.
        rotation: rotations of the perturbed clouds; the paper's are "so3".
        rotations_per_shape: poses of each shape; the paper's is one.
        seed: seed of the perturbations and rotations, which depend on it and on the shape's
            index alone.
        even: even the perturbed clouds out, to as many points as there were, for a network that
            was trained so.
        batch_size: shapes at a time; no effect on the result beyond rounding.
        device: where to compute.
        report: called as every case is done, with how many are done and how many there are.

    Returns:
        ``rows``, one for each case, with the figures of every head; what all rows share stands
        beside it. The clouds as they are come first, and are measured once. ``skipped`` says which
        cases would leave fewer points than the network has neighbours, and are left out.
    """
    if is_segmenter(model):
        raise ValueError("perturbations move and drop points, so only classifiers are measured")
    rows: list[dict[str, Any]] = []
    shared: dict[str, Any] = {}
    clean: dict[str, Any] | None = None
    size = data.points.shape[1]
    least = 1 if even else getattr(getattr(model, "config", None), "k", 1)
    if dropped is None:
        dropped = [count * min(size, DROPPED_OF) // DROPPED_OF for count in DROPPED]
    elif any(not 0 <= count <= size - least for count in dropped):
        raise ValueError(
            f"can drop 0 to {size - least} of {size} points, as the network looks at {least}; "
            f"dropped is {' '.join(map(str, dropped))}"
        )
    planned = list(_cases(noise, dropped, corruptions, severities))
    cases = [case for case in planned if size - _loss(case, size) >= least]
    skipped = [
        f"{case.name}, {case.parameter} {case.value:g}: leaves fewer than {least} of {size} points"
        for case in planned
        if case not in cases
    ]
    for case in cases:
        if case.operation is not None or clean is None:
            clouds = perturbed(data, case.operation, seed)
            result = evaluate(
                model,
                evened(clouds, size, device) if even else clouds,
                rotation,
                rotations_per_shape=rotations_per_shape,
                seed=seed,
                batch_size=batch_size,
                device=device,
            )
            figures = {key: result.pop(key) for key in (*result["heads"]["combined"], "heads")}
            figures |= {key: result.pop(key) for key in ("points", "data_checksum")}
            if case.operation is None:
                clean = figures
                shared = {**result, "data_checksum": figures["data_checksum"]}
        else:
            figures = clean
        rows.append({**case._asdict(), **figures})
        del rows[-1]["operation"]
        if report is not None:
            report(len(rows), len(cases))
    return {**shared, "points": size, "rows": rows, "skipped": skipped}


def perturbed(data: CloudSet, operation: Operation | None, seed: int) -> CloudSet:
    """Return the shapes after an operation, each with random numbers of its own index.

    What belongs to single points (normals, say) is left behind, since points vanish and move.
    """
    if operation is None:
        return data
    clouds = [
        operation(
            cloud[None],
            generator=torch.Generator().manual_seed(derive_seed(seed, index, PERTURBATION)),
        )
        for index, cloud in enumerate(data.points)
    ]
    return data.with_points(torch.cat(clouds))


def _loss(case: Case, size: int) -> int:
    """Return how many points of a cloud a case takes away."""
    if case.name == "dropped":
        return int(case.value)
    return round(case.value * size) if case.name == "drop" else 0


def _cases(
    noise: Sequence[float],
    dropped: Sequence[int],
    corruptions: Sequence[str],
    severities: Sequence[int],
) -> Iterator[Case]:
    """List the cases, after a look at whether all of them can be carried out."""
    if any(not sigma >= 0 for sigma in noise):
        raise ValueError(f"the noise must not be negative, got {tuple(noise)}")
    yield Case("none", "severity", 0, 0, None)
    for sigma in noise:
        add_noise = partial(jitter, sigma=sigma, clip=torch.inf)
        yield Case("noise", "sigma", sigma, None, add_noise if sigma > 0 else None)
    for count in dropped:
        drop = partial(drop_points, count=count)
        yield Case("dropped", "count", count, None, drop if count > 0 else None)
    for name in corruptions:
        for severity in severities:
            check_corruption(name, severity)
            ladder = CORRUPTIONS[name]
            step = partial(corrupt, name=name, severity=severity)
            value = ladder.levels[severity - 1] if severity > 0 else 0
            yield Case(name, ladder.parameter, value, severity, step if severity > 0 else None)


def perturbation_tables(result: dict[str, Any]) -> list[Table]:
    """Lay out what `perturb` returned: the accuracy of the combined head over each parameter."""
    tables, clean = [], result["rows"][0]
    for name, title in (("noise", "noise, sigma"), ("dropped", "points dropped")):
        rows = [row for row in result["rows"] if row["name"] == name]
        if rows:
            table = _table(title, [f"{row['value']:g}" for row in rows])
            table.add_row("accuracy", *(_percent(row["overall_accuracy"]) for row in rows))
            table.add_row("agreement", *(_percent(row["rotation_agreement"]) for row in rows))
            tables.append(table)
    ladders: dict[str, dict[int, str]] = {}
    for row in result["rows"]:
        if row["severity"]:
            steps = ladders.setdefault(row["name"], {})
            steps[row["severity"]] = _percent(row["overall_accuracy"])
    if ladders:
        severities = sorted({severity for steps in ladders.values() for severity in steps})
        table = _table("severity", ["0", *map(str, severities)])
        for name, steps in ladders.items():
            cells = [steps.get(severity, "") for severity in severities]
            table.add_row(name, _percent(clean["overall_accuracy"]), *cells)
        tables.append(table)
    return tables


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table()
    table.add_column(title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
