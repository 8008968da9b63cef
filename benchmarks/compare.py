"""Two networks side by side, in one process and in turns.

    python benchmarks/compare.py locotrans_dgcnn edge_by_edge:full --batch 4
    python benchmarks/compare.py locotrans_dgcnn stranger:build --layout-b b3n --precision-a bf16

A network is a model of ours by name, or ``module:function``, which is called without arguments and
returns an `nn.Module`, or any callable, on points of shape (b, n, 3), or (b, 3, n) with a layout of
b3n. The module is looked for in this folder and in the current one. What a network returns is a
tensor, something with ``logits``, or a tuple whose first entry is the tensor. Ours have the k that
they have by default; those for parts are told the first category.

Inference is timed without gradients. A training step, forward, cross-entropy, backward and SGD, is
timed for two modules whose answers are logits, one row a shape; networks with losses of their own
take longer than that. Times are medians; the ratio is the median over rounds, with its extremes.
Memory is what a network adds to what was in use, both networks' weights among it.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from network_timing import OfOneCategory
from timing import (
    Replayed,
    clouds,
    device_argument,
    inference,
    interleaved,
    logits_of,
    markdown,
    peak_memory,
    ratio,
    record_arguments,
    relative_error,
    write_record,
)
from torch import Tensor, nn

from locotrans import create_model, list_models
from locotrans.geometry.products import float32_products

Row = dict[str, Any]
Network = Callable[[Tensor], Any]
PRECISIONS = {"float32": ("highest", False), "tf32": ("high", False), "bf16": ("high", True)}


def find(spec: str, classes: int) -> Callable[[], Network]:
    """Return what builds the network that is named, or the function of ``module:function``."""
    if spec in list_models():
        return partial(ours, spec, classes)
    name, colon, function = spec.partition(":")
    if not colon:
        known = ", ".join(list_models())
        raise ValueError(f"{spec!r} is neither module:function nor one of {known}")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{spec!r}: cannot import {name!r}: {error}") from error
    if not callable(getattr(module, function, None)):
        raise ValueError(f"{spec!r}: {module.__file__} has no function {function!r}")
    return getattr(module, function)


def ours(name: str, classes: int) -> nn.Module:
    """Build a network that takes points alone."""
    model = create_model(name, classes)
    return OfOneCategory(model) if getattr(model.config, "categories", 0) else model


def load(build: Callable[[], Network]) -> Network:
    """Build a network, its weights the same each time."""
    torch.manual_seed(0)
    return build()


def neighbors_of(network: Any) -> int:
    """Return the k of a network, as far as it is one of ours or holds one; else 0."""
    parts = network.modules() if isinstance(network, nn.Module) else ()
    found = [getattr(getattr(part, "config", None), "k", 0) for part in parts]
    return max((k for k in found if isinstance(k, int)), default=0)


def training_step(
    model: nn.Module, points: Tensor, labels: Tensor, bf16: bool
) -> Callable[[], None]:
    """Return a call that takes one step of SGD by the cross-entropy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(points.device.type, torch.bfloat16, enabled=bf16):
            logits = logits_of(model(points))
        nn.functional.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    return step


def side_by_side(
    build: Callable[[str, bool], Callable[[], Any]], args: argparse.Namespace, what: str
) -> tuple[list[Row], list[Any]]:
    """Time two calls in turns; the ratio is that of each one's time to the first's.

    Args:
        build: returns the call of a network by its name, in bfloat16 or not.
        args: of the command.
        what: a title.

    Returns:
        A row for each, and what they answered.
    """
    calls, memory, answers = {}, {}, []
    for name in (f"a: {args.a}", f"b: {args.b}"):
        products, bf16 = PRECISIONS[precision_of(args, name)]
        with peak_memory(args.device) as memory[name], float32_products(products):
            calls[name] = float32_products(products)(build(name, bf16))
            answers.append(calls[name]())
    samples = interleaved(calls, args.device, args.seconds, args.rounds)
    first, rows = samples[f"a: {args.a}"], []
    for name, sample in samples.items():
        timing, times = sample.summary(), ratio(sample, first)
        rows.append(
            {
                "network": name,
                "what": what,
                "precision": precision_of(args, name),
                "launch": "graph" if name[0] in args.graph else "eager",
                "ms": 1000 * timing.median,
                "shapes/s": args.batch / timing.median,
                "time / first": times.median,
                "from-to": f"{times.low:.2f}-{times.high:.2f}",
                "added_gib": memory[name].get("added_gib"),
            }
        )
    return rows, answers


def precision_of(args: argparse.Namespace, name: str) -> str:
    """Return the precision of side a or b, by which the name begins."""
    return getattr(args, f"precision_{name[0]}")


def compare(args: argparse.Namespace, loaded: list[Network]) -> list[Row]:
    """Return a row for each network and each of inference and training."""
    x = clouds(args.batch, args.points, args.device)
    labels = torch.arange(args.batch, device=args.device) % args.classes
    networks: dict[str, Network] = {}
    inputs = {}
    for side, spec, model in zip("ab", (args.a, args.b), loaded, strict=True):
        if isinstance(model, nn.Module):
            model.to(args.device).eval()
        networks[f"{side}: {spec}"] = model
        layout = getattr(args, f"layout_{side}")
        inputs[f"{side}: {spec}"] = x.mT.contiguous() if layout == "b3n" else x

    def evaluation(name: str, bf16: bool) -> Callable[[], Any]:
        graph = name[0] in args.graph
        return inference(networks[name], inputs[name], bf16=bf16, graph=graph)

    def training(name: str, bf16: bool) -> Callable[[], Any]:
        model = networks[name]
        assert isinstance(model, nn.Module)
        step = training_step(model.train(), inputs[name], labels, bf16)
        return Replayed(step, before=step) if name[0] in args.graph else step

    rows, answers = side_by_side(evaluation, args, "inference")
    outputs = [logits_of(answer) for answer in answers]
    _describe(rows, networks, outputs)
    logits = all(y.dim() == 2 and len(y) == args.batch for y in outputs)
    modules = all(isinstance(model, nn.Module) for model in networks.values())
    if args.train and args.batch == 1:
        print("no training step: batch norms need two shapes or more")
    elif args.train and logits and modules:
        rows += side_by_side(training, args, "training step")[0]
    elif args.train:
        print("no training step: both must be modules that return (b, classes) logits")
    return rows


def _describe(rows: list[Row], networks: dict[str, Any], outputs: list[Tensor]) -> None:
    """Add parameters, and the difference of answers that have the same shape."""
    for row, model in zip(rows, networks.values(), strict=True):
        if isinstance(model, nn.Module):
            row["parameters"] = sum(p.numel() for p in model.parameters())
    if outputs[0].shape == outputs[1].shape:
        rows[1]["differs from first by"] = relative_error(outputs[1], outputs[0])


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[Network]]:
    """Return the arguments and the two networks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", help="a model's name, or module:function")
    parser.add_argument("b", help="likewise")
    for side in "ab":
        parser.add_argument(f"--layout-{side}", choices=("bn3", "b3n"), default="bn3")
        parser.add_argument(
            f"--precision-{side}",
            choices=tuple(PRECISIONS),
            default="float32",
            help="of products (default: float32)",
        )
    device = "cpu, cuda or cuda:N (default: the GPU if there is one)"
    parser.add_argument("--device", default="auto", type=device_argument, help=device)
    numbers = {
        "batch": (8, "shapes at a time"),
        "points": (1024, "of a shape"),
        "classes": (40, "of ours; and of the labels"),
        "rounds": (None, "turns, instead of by the time"),
        "threads": (2, "on the CPU"),
    }
    for name, (default, text) in numbers.items():
        text += "" if default is None else f" (default: {default})"
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    parser.add_argument(
        "--graph", choices=("", "a", "b", "ab"), default="", help="record these as CUDA graphs"
    )
    parser.add_argument("--train", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each part (default: 2)")
    record_arguments(parser)
    args = parser.parse_args(argv)
    for name in numbers:
        if (value := getattr(args, name)) is not None and value < 1:
            parser.error(f"argument --{name}: must be 1 or more, got {value}")
    if args.graph and args.device.type != "cuda":
        parser.error(f"argument --graph: CUDA graphs need a GPU, and --device is {args.device}")
    return args, build_both(args, parser)


def build_both(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Network]:
    """Return the two networks, or end the command with what is wrong about them."""
    try:
        builders = [find(spec, args.classes) for spec in (args.a, args.b)]
    except ValueError as error:
        parser.error(str(error))
    networks = [load(build) for build in builders]
    for spec, network in zip((args.a, args.b), networks, strict=True):
        if args.points < (k := neighbors_of(network)):
            parser.error(f"argument --points: {spec} needs {k} or more, its k; got {args.points}")
    return networks


def main(argv: list[str] | None = None) -> list[Row]:
    """Compare, print the table and write the record if one is wanted."""
    args, networks = parse(argv)
    if args.device.type == "cpu":
        torch.set_num_threads(args.threads)
    rows = compare(args, networks)
    print(markdown(rows))
    write_record(args, args.device, rows)
    return rows


if __name__ == "__main__":
    main()
