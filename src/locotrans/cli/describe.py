"""What there is: `info` and `list`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tyro

from locotrans.training.config import parse_options
from locotrans.training.presets import list_presets

if TYPE_CHECKING:
    from torch import Tensor, nn


def info(
    model: tyro.conf.Positional[str],
    /,
    options: tuple[str, ...] = (),
    classes: int = 40,
    points: int = 1024,
    depth: int = 2,
) -> None:
    """Print the parameters, the FLOPs and the flow of shapes of a model.

    Args:
        model: Model (see `locotrans list`).
        options: Options of the model as KEY=VALUE.
        classes: Classes to tell apart.
        points: Points of the cloud that is sent through.
        depth: How deep to follow modules within modules.
    """
    import torch
    from rich.console import Console
    from rich.table import Table
    from torch.utils.flop_counter import FlopCounterMode

    from locotrans import create_model
    from locotrans.kernels import set_kernels

    network = create_model(model, classes, **parse_options(model, options)).eval()
    cloud = torch.randn(1, points, 3, generator=torch.Generator().manual_seed(0))
    given: dict[str, Tensor] = {}
    if getattr(network.config, "categories", 0):
        given["category"] = torch.zeros(1, dtype=torch.long)
    if getattr(network.config, "colors", False):
        given["colors"] = torch.zeros_like(cloud)
    before = set_kernels("off")  # what a kernel computes is not counted
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            flow = shape_flow(network, cloud, depth, **given)
    finally:
        set_kernels(before)
    table = Table(title=f"{model}, one cloud of {points} points")
    table.add_column("module", no_wrap=True)
    table.add_column("output")
    table.add_column("parameters", justify="right")
    for name, shape, parameters in flow:
        table.add_row(name, shape, f"{parameters:,}")
    console = Console()
    console.print(table)
    console.print(network.config)
    console.print(f"parameters {sum(p.numel() for p in network.parameters()):,}", highlight=False)
    total = counter.get_total_flops()
    console.print(f"FLOPs {total:,} (products only, 2 per multiply-add)", highlight=False)


def shape_flow(
    model: "nn.Module", points: "Tensor", depth: int, **given: "Tensor"
) -> list[tuple[str, str, int]]:
    """Run the model and list the modules in order of their answers: name, shape, parameters."""
    from torch import Tensor

    flow = []

    def watch(name: str) -> Callable[..., None]:
        def note(module: "nn.Module", _: Any, output: Any) -> None:
            values = (output,) if isinstance(output, Tensor) else output
            names = getattr(values, "_fields", [""] * len(values))
            shapes = [
                f"{field} {tuple(value.shape)}".strip()
                for field, value in zip(names, values, strict=True)
                if isinstance(value, Tensor)
            ]
            flow.append((name, "\n".join(shapes), sum(p.numel() for p in module.parameters())))

        return note

    handles = [
        module.register_forward_hook(watch(name or "(whole)"))
        for name, module in model.named_modules()
        if level(name) <= depth
    ]
    model(points, **given)
    for handle in handles:
        handle.remove()
    return flow


def level(name: str) -> int:
    """Return how deep a module lies; the entries of a list lie where the list's owner does."""
    parts = name.split(".")
    return sum(not part.isdigit() for part in (parts[:-2] if parts[-1].isdigit() else parts))


def list_names() -> None:
    """List the models, the data sets and the presets."""
    from locotrans import list_models
    from locotrans.data import list_datasets

    print("models:   ", " ".join(list_models("classification")))
    print("parts:    ", " ".join(list_models("parts")))
    print("scenes:   ", " ".join(list_models("scenes")))
    print("data sets:", " ".join(list_datasets()))
    print("presets:  ", " ".join(list_presets()))
