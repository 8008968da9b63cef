"""The paper's tables, each cell of ours beside theirs.

The paper's figures, and what each cell of ours asks for, are data (``paper.json``).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from locotrans.training.report.collect import Result, aggregate
from locotrans.training.report.tables import markdown

PAPER = Path(__file__).with_name("paper.json")
MARK = "†"
"""Stands in the paper's tables behind a figure of networks trained in mixed precision."""
Cost = Callable[[str, tuple[tuple[str, str], ...]], tuple[int, int]]
"""Gives the parameters and FLOPs of a model with options."""


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
    in training do not count, nor a part of the split, nor packed weights: these are of a run, but
    not what it ended with. All networks of a cell were measured in one way, on one layout of the
    data set: of several, in that of the most clouds, then of the most networks and rotations.
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
        and (result.key.split, result.key.part_of, result.key.resized) == ("test", 0, 0)
        and not result.key.stored
        and head in result.heads
    ]
    ways = Counter(map(_way, found))
    way = max(sorted(ways), key=lambda x: (x[0], ways[x], x[1], -x[2]), default=None)
    texts = []
    for precision, mark in (("float32", ""), ("mixed", f" {MARK}")):
        values = [
            result.heads[head][figure]
            for result in found
            if result.key.precision == precision and _way(result) == way
        ]
        texts += [aggregate(values) + mark] if values else []
    return "; ".join(texts)


def _way(result: Result) -> tuple[int, int, int, str]:
    """Say how a network was measured: clouds, rotations of each, their seed, and the layout."""
    key = result.key
    return key.samples, key.rotations, key.rotation_seed, key.data


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
