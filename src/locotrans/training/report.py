"""`locotrans report`: the paper's tables beside ours, from records.

The paper's figures are data (``paper.json``). Each recipe has tables of its own, so that the
paper's and ours are never mixed; a cell that was not run stays empty.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from locotrans.training.presets import PRESETS
from locotrans.training.results import Key, Result, aggregate

PAPER = Path(__file__).with_name("paper.json")
MAIN = "modelnet40"
"""The preset whose tables are shown even where nothing was run."""
NOTE = """\
Accuracy in percent. Ours: the last epoch, over all fixed rotations of every test shape; several
seeds as mean ± half of the range (count). The paper's figures are those of the epoch that was best
on the test set. Empty: not run. Networks are trained in float32, or where it says so in mixed
precision, and are always evaluated in float32."""
MARK = "†"
"""Stands in the paper's tables behind a figure of networks trained in mixed precision."""

SEGMENTATION = {
    "instance_miou": "instance mIoU",
    "class_miou": "class mIoU",
    "miou": "mIoU",
    "overall_accuracy": "overall",
    "rotation_agreement": "agreement",
}
RUN = ["model", "options", "precision", "protocol"]
"""The columns that say what was trained, and how it was tested."""
Cost = Callable[[str, tuple[tuple[str, str], ...]], tuple[int, int]]


def render(results: Sequence[Result], curves: Path | None = None, cost: Cost | None = None) -> str:
    """Write the report as Markdown.

    Args:
        results: what `read_results` found.
        curves: a picture of training curves to show.
        cost: gives the parameters and FLOPs of a model with options; by default they are counted.
    """
    paper = json.loads(PAPER.read_text())
    cost = cost or network_cost
    recipes = sorted({(r.key.preset, r.key.departures) for r in results} | {(MAIN, "")})
    lines = ["# Results", "", NOTE, "", f"The paper: {paper['paper']}.", ""]
    if curves is not None:
        lines += [f"![training curves]({curves})", ""]
    for preset, departures in recipes:
        mine = [r for r in results if (r.key.preset, r.key.departures) == (preset, departures)]
        title = PRESETS[preset].title if preset in PRESETS else "the defaults"
        but = f", but {departures}" if departures else ""
        lines += [f"## {preset or 'No preset'}: {title}{but}", ""]
        for table in paper["tables"]:
            data = table.get("data", paper["data"])
            text, filled = paper_table(table, data, mine, cost)
            if filled or ((preset, departures) == (MAIN, "") and data == paper["data"]):
                lines += text
        lines += [*all_runs(mine), *segmentations(mine), *best_epochs(mine)]
        lines += [*perturbed_clouds(mine), *sampled_clouds(mine)]
    return "\n".join(lines).rstrip() + "\n"


def paper_table(
    table: Mapping[str, Any], data: str, results: Sequence[Result], cost: Cost
) -> tuple[list[str], bool]:
    """Write one table of the paper; say too whether a cell of it was run."""
    filled = False
    rows = []
    for row in table["rows"]:
        cells = [row["title"]]
        for column in table["columns"]:
            text = ""
            if "paper" in column:
                value = row.get("paper", {}).get(column["paper"])
                text = "" if value is None else f"{value:g}" if value >= 100 else f"{value}"
            elif "ours" in row:
                query = {**column["ours"], **row["ours"]}
                if "cost" in query:
                    options = tuple(sorted(query.get("options", {}).items()))
                    parameters, flops = cost(query["model"], options)
                    value = parameters if query["cost"] == "parameters" else flops
                    text = f"{value / 1e6:.2f}" if value < 1e8 else f"{value / 1e6:.0f}"
                else:
                    text = cell(query, data, results)
                    filled |= text != ""
            cells.append(text)
        rows.append(cells)
    header = ["", *(column["title"] for column in table["columns"])]
    lines = [f"### Tab. {table['table']}: {table['title']}", "", *markdown(header, rows), ""]
    if any(MARK in text for cells in rows for text in cells):
        lines += [f"{MARK} trained in mixed precision", ""]
    return lines, filled


def cell(query: Mapping[str, Any], data: str, results: Sequence[Result]) -> str:
    """Write the figure that a query asks for, or nothing if it was not run.

    Networks trained in float32 and in mixed precision are two figures. Clouds of other sizes than
    in training do not count, nor evaluations of fewer clouds than another.
    """
    perturbation = tuple(query["perturbation"]) if "perturbation" in query else None
    options = tuple(sorted(query.get("options", {}).items()))
    head, figure = query.get("head", "combined"), query.get("figure", "overall_accuracy")
    found = [
        result
        for result in results
        if (result.key.model, result.key.options) == (query["model"], options)
        and (result.key.train, result.key.test) == (query["train"], query["test"])
        and result.key.perturbation == perturbation
        and data in (result.key.data, result.key.data.partition(":")[0])
        and (result.key.split, result.key.resized) == ("test", 0)
        and head in result.heads
    ]
    most = max((result.key.samples for result in found), default=0)
    texts = []
    for precision, mark in (("float32", ""), ("mixed", f" {MARK}")):
        values = [
            result.heads[head][figure]
            for result in found
            if (result.key.precision, result.key.samples) == (precision, most)
        ]
        texts += [aggregate(values) + mark] if values else []
    return "; ".join(texts)


def groups(results: Sequence[Result]) -> Iterator[tuple[Key, list[Result]]]:
    """Yield the results that differ in their seed alone."""
    keys = sorted({r.key for r in results}, key=lambda k: (k.model, k.options, str(k)))
    for key in keys:
        yield key, [r for r in results if r.key == key]


def run_cells(key: Key) -> list[str]:
    """Say what was trained and how it was tested, in the columns `RUN`."""
    options = " ".join(f"{name}={value}" for name, value in key.options)
    return [key.model, options, key.precision, f"{key.train}/{key.test}"]


def data_cell(key: Key) -> str:
    """Say what was measured."""
    count = f", {key.samples:,} clouds" if key.samples else ""
    points = f" of {key.resized:,} points" if key.resized else ""
    return f"{key.data} {key.split}{count}{points}"


def run_title(key: Key) -> str:
    """Say the same in a line; float32 goes without saying."""
    model, options, precision, protocol = run_cells(key)
    numbers = ", mixed precision" if precision == "mixed" else ""
    return f"{model} {options}".rstrip() + f"{numbers}, {protocol}"


def all_runs(results: Sequence[Result]) -> list[str]:
    """Write everything that was evaluated on clouds as they are."""
    rows = []
    for key, same in groups([r for r in results if r.key.perturbation is None]):
        if "class_accuracy" not in same[0].heads["combined"] or is_segmentation(same[0]):
            continue
        figures = [
            aggregate([r.heads["combined"][name] for r in same])
            for name in ("overall_accuracy", "class_accuracy", "rotation_agreement")
        ]
        without = [r.without_excluded for r in same if r.without_excluded is not None]
        last = aggregate(without) if without else ""
        rows.append([*run_cells(key), data_cell(key), *figures, last])
    header = [*RUN, "data", "overall", "class mean", "agreement"]
    table = markdown([*header, "overall, without excluded"], rows)
    return ["### All evaluations", "", *table, ""] if rows else []


def is_segmentation(result: Result) -> bool:
    """Say whether points were labelled."""
    return not {"miou", "instance_miou"}.isdisjoint(result.heads["combined"])


def segmentations(results: Sequence[Result]) -> list[str]:
    """Write every evaluation of labelled points, and the IoU of every category or class."""
    rows, names = [], []
    shares: dict[str, dict[str, str]] = {}
    for key, same in groups([r for r in results if is_segmentation(r)]):
        combined = [r.heads["combined"] for r in same]
        figures = [
            aggregate([x[name] for x in combined]) if name in combined[0] else ""
            for name in SEGMENTATION
        ]
        rows.append([*run_cells(key), data_cell(key), *figures])
        names.append(run_title(key))
        for name, each in tables_of(combined).items():
            shares.setdefault(name, {})[names[-1]] = aggregate(each)
    if not rows:
        return []
    header = [*RUN, "data", *SEGMENTATION.values()]
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


def best_epochs(results: Sequence[Result]) -> list[str]:
    """Write the best test epochs beside the last, where they were recorded."""
    rows = []
    for key, same in groups([r for r in results if r.best_test_epoch is not None]):
        last = aggregate([r.heads["combined"]["overall_accuracy"] for r in same])
        best = aggregate([r.best_test_epoch for r in same if r.best_test_epoch is not None])
        rows.append([*run_cells(key), last, best])
    header = [*RUN, "last epoch", "best test epoch"]
    title = "### Best test epoch (chosen on the test set: for comparison with papers only)"
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
        title = f"### Samplings: {run_title(key)}"
        lines += [title, "", *markdown(["sampling", "points", "overall", "loss"], rows), ""]
    return lines


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a Markdown table."""
    return [
        f"| {' | '.join(header)} |",
        "|" + "---|" * len(header),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


@cache
def network_cost(
    model: str, options: tuple[tuple[str, str], ...], points: int = 1024
) -> tuple[int, int]:
    """Count the parameters, and the FLOPs for one cloud (2 a multiply-add)."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from locotrans.kernels import set_kernels
    from locotrans.models import create_model, model_config
    from locotrans.training.config import parse_options

    known = vars(model_config(model))
    texts = [f"{name}={value.lower()}" for name, value in options if name in known]
    network = create_model(model, 40, **parse_options(model, texts)).eval()
    cloud = torch.randn(1, points, 3, generator=torch.Generator().manual_seed(0))
    before = set_kernels("off")  # what a kernel computes is not counted
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(cloud)
    finally:
        set_kernels(before)
    return sum(p.numel() for p in network.parameters()), counter.get_total_flops()


def read_curves(runs: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """Read the metrics of run folders, a line an epoch, by name, or by path if two share a name."""
    folders = [run for run in runs if run.is_dir() and (run / "metrics.jsonl").exists()]
    unique = len({run.name for run in folders}) == len(folders)
    curves = {}
    for run in folders:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        curves[run.name if unique else str(run)] = [json.loads(line) for line in lines]
    return curves
