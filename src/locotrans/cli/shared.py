"""What several commands need: weights and test data, files of results, tables."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from locotrans.counting import counted, listed

if TYPE_CHECKING:
    import torch
    from rich.table import Table
    from torch import nn

    from locotrans.data import CloudSet

SEGMENTER = "locotrans_dgcnn_partseg_light"
CLASSIFIER = "locotrans_dgcnn_light"


@contextmanager
def progress_of(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar in a terminal; yields what is to be told how many are done, and of how many."""
    from rich.console import Console
    from rich.progress import Progress

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def load_test(
    weights: Path,
    data: str | None,
    root: Path | None,
    split: str,
    points: int | None,
    shapes: int | None,
    json: Path | None,
) -> tuple["nn.Module", dict[str, Any], "CloudSet"]:
    """Load trained weights, their header, and the data set to measure them on."""
    from locotrans.data import load_dataset
    from locotrans.models import model_task
    from locotrans.training import load_weights
    from locotrans.training.record import check_writable

    if json is not None:
        if not json.parent.is_dir():
            raise ValueError(f"--json {json}: there is no folder {json.parent}; make it first")
        check_writable(json)
    model, metadata = load_weights(weights)
    for key in ("data", "points", "class_names"):
        if key not in metadata:
            raise ValueError(f"{weights} does not say what it was trained on: it has no {key!r}")
    name = data or metadata["data"]
    points = metadata["points"] if points is None else points
    shapes = trained_shapes(metadata, data, split) if shapes is None else shapes
    if root is None and is_trained_on(metadata, data):
        root = trained_root(weights)
    clouds = load_dataset(name, split, root=root, points=points, shapes=shapes)
    parts = model_task(metadata["model"]) != "classification"
    clouds = (with_parts_of if parts else with_classes_of)(metadata, clouds)
    numbers = [str(i) for i in range(len(clouds.class_names))]  # where no names are known
    same = metadata["class_names"] in (list(clouds.class_names), numbers)
    if parts:
        same = same and list(clouds.part_names) == metadata.get("part_names")
    if not same:
        raise ValueError(
            f"{weights} tells other classes apart than data set {name!r} has "
            f"({other_names(metadata, clouds)}); evaluate it on data such as it was trained on"
        )
    return model, metadata, clouds


def is_trained_on(metadata: dict[str, Any], data: str | None) -> bool:
    """Say whether a data set, as a user names it or not at all, is the one of the weights."""
    return data in (None, metadata["data"], metadata.get("settings", {}).get("data"))


def trained_root(weights: Path) -> Path | None:
    """Return the folder of the data that a run was trained on, if it still is there."""
    from locotrans.training.presets import read_config

    if not weights.exists():  # the name of those that come with the package
        return None
    config = (weights if weights.is_dir() else weights.parent) / "config.json"
    try:
        root = read_config(config).root if config.is_file() else None
    except ValueError:  # of another version
        return None
    return root if root is not None and root.exists() else None


def with_classes_of(metadata: dict[str, Any], clouds: "CloudSet") -> "CloudSet":
    """Number the classes as the weights do, if these know all of them."""
    import torch

    known, names = metadata["class_names"], clouds.class_names
    if list(names) == known or not set(names) <= set(known):
        return clouds
    numbers = torch.tensor([known.index(name) for name in names])
    labels = numbers[clouds.labels]
    return replace(clouds, labels=labels, class_names=tuple(known), given_checksum=clouds.source)


def with_parts_of(metadata: dict[str, Any], clouds: "CloudSet") -> "CloudSet":
    """Name parts as the weights do, if the data know their numbers alone."""
    from locotrans.training.tasks import is_numbered

    known = tuple(metadata.get("part_names") or ())
    count = len(clouds.part_names)
    if not 0 < count <= len(known) or not is_numbered(clouds.part_names):
        return clouds
    return replace(clouds, part_names=known, given_checksum=clouds.source)


def trained_shapes(metadata: dict[str, Any], data: str | None, split: str) -> int | None:
    """Return how many shapes of a split a run was told to take, if it is a split of its data."""
    if not is_trained_on(metadata, data):
        return None
    settings = metadata.get("settings", {})
    fields = {settings.get("train_split"): "shapes", "test": "test_shapes"}
    return settings.get(fields.get(split))


def other_names(metadata: dict[str, Any], clouds: "CloudSet") -> str:
    """Say which classes or parts are only in the weights, or only in the data."""
    said = []
    for what, theirs in (("classes", clouds.class_names), ("parts", clouds.part_names)):
        known = metadata.get("class_names" if what == "classes" else "part_names") or []
        for where, names in (
            ("the weights", [name for name in known if name not in theirs]),
            ("the data", [name for name in theirs if name not in known]),
        ):
            if names and known:
                said.append(f"{what} of {where} alone: {listed(names)}")
    return "; ".join(said) or "in another order"


def write_result(
    path: Path | None,
    result: dict[str, Any],
    weights: Path,
    metadata: dict[str, Any],
    device: "torch.device",
) -> None:
    """Write a measurement to the file of ``--json``, with what it was measured of."""
    from locotrans.training.record import environment, write_json

    if path is not None:
        facts = {"weights": str(weights), "training": metadata, "environment": environment(device)}
        write_json(path, {**result, "model": metadata["model"], **facts})


def shipped_file(name: Path | str) -> Path:
    """Return the weights that come with the package for a model."""
    from locotrans.models import pretrained_weights

    return pretrained_weights(str(name))[0]


def weights_or_shipped(weights: Path | None, *, parts: bool = False) -> Path:
    """Return the weights that were named, or those that come with the package.

    Of the latter, those of the network for parts, or else those of the classifier.
    """
    return weights or shipped_file(SEGMENTER if parts else CLASSIFIER)


def print_evaluation(result: dict[str, Any]) -> None:
    """Print what `evaluate` returned as a table of heads."""
    from rich.console import Console
    from rich.table import Table

    from locotrans.training.evaluate import TITLES

    table = Table()
    table.add_column("head")
    shown = [key for key in TITLES if key in result]
    for key in shown:
        table.add_column(TITLES[key], justify="right")
    rows = list(result["heads"].items())
    if "without_excluded" in result:
        others = result["without_excluded"]["heads"].items()
        rows += [(f"{head}, without the excluded", figures) for head, figures in others]
    for head, figures in rows:
        table.add_row(head, *(f"{100 * figures[key]:.2f}%" for key in shown))
    console = Console()
    console.print(protocol_of(result), soft_wrap=True, markup=False)
    console.print(table)
    if "categories" in result:
        shares = {name: [iou] for name, iou in result["categories"].items()}
        console.print(table_of("category", ["mIoU"], shares))
    if "classes" in result:
        shares = {name: [row["iou"], row["accuracy"]] for name, row in result["classes"].items()}
        console.print(table_of("class", ["IoU", "accuracy"], shares))


def table_of(what: str, columns: Sequence[str], rows: dict[str, list[float]]) -> "Table":
    """Lay out shares by name."""
    from rich.table import Table

    table = Table()
    table.add_column(what)
    for column in columns:
        table.add_column(column, justify="right")
    for name, shares in rows.items():
        table.add_row(name, *(f"{100 * share:.2f}%" for share in shares))
    return table


def protocol_of(result: dict[str, Any]) -> str:
    """Say in a line what was measured how."""
    axis = f" (about the {result['axis']} axis)" if result["axis"] else ""
    item = result.get("items", "shapes")[:-1]
    once = " (every point once)" if item == "scene" else ""
    data = result.get("data_title", result["data"])
    return (
        f"{data} {result['split']}, {counted(result['samples'], item)}{once}, "
        f"rotation {result['rotation']}{axis}, {result['rotations_per_shape']} per {item}"
    )
