"""The whole report: a part for each recipe.

Each recipe has tables of its own, so that the paper's and ours are never mixed; a cell that was not
run stays empty.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from locotrans.models import model_task
from locotrans.training.presets import PRESETS
from locotrans.training.report.collect import Result
from locotrans.training.report.paper import PAPER, Cost, network_cost, paper_table
from locotrans.training.report.tables import (
    all_runs,
    best_epochs,
    perturbed_clouds,
    sampled_clouds,
    segmentations,
    six_folds,
    training_times,
)

MAIN = "modelnet40"
"""The preset whose tables are shown where nothing or only others that classify were run."""
NOTE = """\
Accuracy in percent. Ours: the last epoch, over all fixed rotations of every test shape; several
seeds as mean ± half of the range (count). The paper's figures are those of the epoch that was best
on the test set. Empty: not run. Networks are trained in float32, or where it says so in mixed
precision, and are always evaluated in float32.

A protocol names the rotations of training and of testing: z about the up axis, so3 any, none.
Agreement is the share of the rotated shapes (or of their points) with the answer that they have
unrotated. "Without excluded shapes" leaves out those that `eval --exclude` was told, as many as it
says."""


def render(results: Sequence[Result], curves: Path | None = None, cost: Cost | None = None) -> str:
    """Write the report as Markdown.

    Args:
        results: what `read_results` found.
        curves: a picture of training curves to show.
        cost: gives the parameters and FLOPs of a model with options; by default they are counted.
    """
    paper = json.loads(PAPER.read_text())
    cost = cost or network_cost
    recipes = {(r.key.preset, r.key.departures) for r in results}
    if not results or any(model_task(r.key.model) == "classification" for r in results):
        recipes.add((MAIN, ""))
    lines = ["# Results", "", NOTE, "", f"The paper: {paper['paper']}.", ""]
    if curves is not None:
        lines += [f"![training curves]({curves})", ""]
    for preset, departures in sorted(recipes):
        mine = [r for r in results if (r.key.preset, r.key.departures) == (preset, departures)]
        title = PRESETS[preset].title if preset in PRESETS else "the defaults"
        but = f", but {departures}" if departures else ""
        lines += [f"## {preset or 'No preset'}: {title}{but}", ""]
        for table in paper["tables"]:
            data = table.get("data", paper["data"])
            # fewer clouds than the official test split has are not that set, whatever their layout
            whole = [r for r in mine if r.key.samples >= paper["least_clouds"][data]]
            text, filled = paper_table(table, data, whole, cost)
            if filled or ((preset, departures) == (MAIN, "") and data == paper["data"]):
                lines += text
        lines += [*all_runs(mine), *segmentations(mine), *best_epochs(mine)]
        lines += [*training_times(mine), *perturbed_clouds(mine), *sampled_clouds(mine)]
    lines += six_folds(results)
    return "\n".join(lines).rstrip() + "\n"
