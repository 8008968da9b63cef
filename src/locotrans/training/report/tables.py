"""Tables of everything that was measured, a row or a table for each way of measuring."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from locotrans.counting import counted
from locotrans.data.s3dis import ROOMS
from locotrans.metrics import pooled_scene_figures
from locotrans.training.evaluate import TITLES, main_figure
from locotrans.training.report.collect import Key, Result, aggregate

RUN = ["model", "options", "precision", "protocol"]
"""The columns that say what was trained, and how it was tested."""


def groups(results: Sequence[Result]) -> Iterator[tuple[Key, list[Result]]]:
    """Yield the results that differ in their seed alone."""
    keys = sorted({r.key for r in results}, key=lambda k: (k.model, k.options, str(k)))
    for key in keys:
        yield key, [r for r in results if r.key == key]


def run_cells(key: Key) -> list[str]:
    """Say what was trained and how it was tested, in the columns `RUN`."""
    options = " ".join(f"{name}={value}" for name, value in key.options)
    precision = f"{key.precision}{stored_note(key)}"
    return [key.model, options, precision, f"{key.train}/{key.test}"]


def stored_note(key: Key) -> str:
    """Say where weights were not measured as they were trained, but as they are shipped."""
    return f", weights in {key.stored}" if key.stored else ""


def data_cell(key: Key) -> str:
    """Say what was measured."""
    some = f"{key.samples:,} of " if key.part_of else ""
    cloud = "scene" if key.whole else "cloud"
    count = f", {some}{counted(key.part_of or key.samples, cloud)}" if key.samples else ""
    count += ", every point once" if key.whole else ""
    points = f" of {counted(key.resized, 'point')}" if key.resized else ""
    poses = 0 if key.test == "none" else key.rotations
    rotations = f", {counted(poses, 'rotation')} each" if poses else ""
    seed = f", rotation seed {key.rotation_seed}" if key.rotation_seed else ""
    return f"{key.data} {key.split}{count}{points}{rotations}{seed}"


def run_title(key: Key) -> str:
    """Say the same in a line; float32 goes without saying."""
    model, options, _, protocol = run_cells(key)
    numbers = ", mixed precision" if key.precision == "mixed" else ""
    return f"{model} {options}".rstrip() + f"{numbers}{stored_note(key)}, {protocol}"


def all_runs(results: Sequence[Result]) -> list[str]:
    """Write everything that was evaluated on clouds as they are."""
    rows = []
    for key, same in groups([r for r in results if r.key.perturbation is None]):
        if "class_accuracy" not in same[0].heads["combined"] or is_segmentation(same[0]):
            continue
        figures = [
            figure_cell(same, name)
            for name in ("overall_accuracy", "class_accuracy", "rotation_agreement")
        ]
        rows.append([*run_cells(key), data_cell(key), *figures, without_cell(same)])
    header = [*RUN, "data", "overall", "class mean", "agreement"]
    table = markdown([*header, "overall, without excluded shapes"], rows)
    return ["### All evaluations", "", *table, ""] if rows else []


def figure_cell(results: Sequence[Result], name: str) -> str:
    """Write a figure of the answer, where there is one: none of agreement if nothing was turned."""
    combined = [result.heads["combined"] for result in results]
    if name not in combined[0] or (name, results[0].key.test) == ("rotation_agreement", "none"):
        return ""
    return aggregate([figures[name] for figures in combined])


def without_cell(results: Sequence[Result]) -> str:
    """Write the figure without the excluded shapes, where that was measured, and their number."""
    without = [r.without_excluded for r in results if r.without_excluded is not None]
    counts = sorted({str(r.excluded) for r in results if r.without_excluded is not None})
    some = f" ({len(without)} of {len(results)})" if len(without) < len(results) else ""
    return f"{aggregate(without)} without {' or '.join(counts)}{some}" if without else ""


def is_segmentation(result: Result) -> bool:
    """Say whether points were labelled."""
    return not {"miou", "instance_miou"}.isdisjoint(result.heads["combined"])


def segmentations(results: Sequence[Result]) -> list[str]:
    """Write every evaluation of labelled points, and the IoU of every category or class."""
    rows, names = [], []
    shares: dict[str, dict[str, str]] = {}
    for key, same in groups([r for r in results if is_segmentation(r)]):
        combined = [r.heads["combined"] for r in same]
        figures = [figure_cell(same, name) for name in TITLES]
        rows.append([*run_cells(key), data_cell(key), *figures, without_cell(same)])
        names.append(f"{run_title(key)}, {data_cell(key)}")
        for name, each in tables_of(combined).items():
            shares.setdefault(name, {})[names[-1]] = aggregate(each)
    if not rows:
        return []
    header = [*RUN, "data", *TITLES.values(), "(instance) mIoU, without excluded shapes"]
    lines = ["### Segmentation", "", *markdown(header, rows), ""]
    cells = [[name, *(by.get(run, "") for run in names)] for name, by in shares.items()]
    return [*lines, "IoU of every category or class:", "", *markdown(["", *names], cells), ""]


def tables_of(figures: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the IoU of every category or class, over the seeds."""
    found: dict[str, list[float]] = {}
    for each in figures:
        for name, share in {**each.get("categories", {}), **each.get("classes", {})}.items():
            found.setdefault(name, []).append(share if isinstance(share, float) else share["iou"])
    return found


def six_folds(results: Sequence[Result]) -> list[str]:
    """Write what the six folds of S3DIS give together, where all were run."""
    folds: dict[tuple[Key, int], dict[str, Result]] = {}
    for result in results:
        area = re.search(r"s3dis:area\d", result.key.data)
        whole_test = (result.key.split, result.key.part_of) == ("test", 0)
        # a network is told by the area that it was not trained on
        if area and area.group() in result.trained_on and whole_test and is_segmentation(result):
            place = (whole_key(result.key), result.seed)
            folds.setdefault(place, {})[area.group()] = result
    whole: dict[Key, list[dict[str, Any]]] = {}
    for (key, _), by in folds.items():
        if len(by) == len(ROOMS):
            combined: list[Mapping[str, Any]] = [x.heads["combined"] for x in by.values()]
            tables = [figures["classes"] for figures in combined]
            whole.setdefault(key, []).append(pooled_scene_figures(tables))
    rows = [
        [
            f"{key.preset or 'no preset'}{', but ' * bool(key.departures)}{key.departures}"
            + ", whole scenes" * key.whole,
            *run_cells(key),
            *(
                aggregate([x[figure] for x in same])
                for figure in ("miou", "overall_accuracy", "class_accuracy")
            ),
            ", ".join(f"{name} {aggregate(each)}" for name, each in tables_of(same).items()),
        ]
        for key, same in sorted(whole.items(), key=lambda item: str(item[0]))
    ]
    header = ["recipe", *RUN, "mIoU", "overall", "class mean", "IoU of every class"]
    title = "## S3DIS, six folds: each area by a network that was trained on the other five"
    return [title, "", *markdown(header, rows), ""] if rows else []


def whole_key(key: Key) -> Key:
    """Identify a measurement but for the area that it was made on."""
    departures = re.sub(r"s3dis:area\d", "s3dis:area", key.departures)
    departures = re.sub(r"data s3dis:area(, |$)", "", departures).removesuffix(", ")
    data = re.sub(r"area\d", "area", key.data)
    return replace(key, departures=departures, data=data, samples=0)


def best_epochs(results: Sequence[Result]) -> list[str]:
    """Write the best test epochs beside the last, where they were recorded."""
    rows = []
    for key, same in groups(results):
        found = [(r, r.training.best_test_epoch) for r in same if r.training is not None]
        best = [(r, value) for r, value in found if value is not None]
        if best:
            figure = main_figure(same[0].heads["combined"])
            last = aggregate([r.heads["combined"][figure] for r, _ in best])
            chosen = aggregate([value for _, value in best])
            counts = sorted({str(r.training.test_epochs) for r, _ in best if r.training})
            figures = [TITLES[figure], last, chosen, " or ".join(counts)]
            rows.append([*run_cells(key), data_cell(key), *figures])
    header = [*RUN, "data", "figure", "last epoch", "best test epoch", "of so many"]
    title = "### Best test epoch (chosen on the test set: for comparison with papers only)"
    return [title, "", *markdown(header, rows), ""] if rows else []


def training_times(results: Sequence[Result]) -> list[str]:
    """Write how long the training of every network took, and on what."""
    times: dict[tuple[str, ...], list[float]] = {}
    for key, same in groups(results):
        model, options, precision, _ = run_cells(key)
        for training in (r.training for r in same if r.training is not None):
            run = (model, options, precision, key.train, training.device)
            times.setdefault(run, []).append(training.seconds)
    rows = [[*run, ", ".join(f"{x / 60:.1f}" for x in each)] for run, each in times.items()]
    header = ["model", "options", "precision", "rotation", "device", "minutes of every run"]
    title = "### Time of training, with the evaluations in between"
    return [title, "", *markdown(header, rows), ""] if rows else []


def perturbed_clouds(results: Sequence[Result]) -> list[str]:
    """Write the accuracy under every perturbation, a table for each network."""
    tables: dict[str, list[list[str]]] = {}
    found = [r for r in results if r.key.perturbation is not None and not r.sampled]
    for key, same in sorted(groups(found), key=lambda group: group[0].perturbation or ()):
        name, value = key.perturbation or ("", 0.0)
        figures = [
            aggregate([r.heads["combined"][figure] for r in same])
            for figure in ("overall_accuracy", "rotation_agreement")
        ]
        title = f"### Perturbations: {run_title(key)}, {data_cell(key)}"
        tables.setdefault(title, []).append([name, f"{value:g}", *figures])
    header = ["perturbation", "value", "overall", "agreement"]
    return [
        line for title, rows in tables.items() for line in (title, "", *markdown(header, rows), "")
    ]


def sampled_clouds(results: Sequence[Result]) -> list[str]:
    """Write the accuracy on clouds that were sampled in other ways."""
    lines = []
    for key, same in groups([r for r in results if r.sampled]):
        rows = []
        for index, row in enumerate(same[0].sampled):
            each = [result.sampled[index] for result in same]
            accuracy = aggregate([x["overall_accuracy"] for x in each])
            rows.append(
                [row["name"], str(row["count"]), accuracy, aggregate([x["loss"] for x in each])]
            )
        title = f"### Samplings: {run_title(key)}, {data_cell(key)}"
        lines += [title, "", *markdown(["sampling", "points", "overall", "loss"], rows), ""]
    return lines


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a Markdown table."""
    return [
        f"| {' | '.join(header)} |",
        "|" + "---|" * len(header),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
