"""Two networks side by side, in one process and in turns.

    python benchmarks/compare.py locotrans_dgcnn edge_by_edge:full --batch 4
    python benchmarks/compare.py locotrans_dgcnn stranger:build --layout-b b3n --device cuda

A network is a model of ours by name, or ``module:function``, which is called without arguments and
returns an `nn.Module`, or any callable, on points of shape (b, n, 3), or (b, 3, n) with a layout of
b3n. The module is looked for in this folder and in the current one. What a network returns is a
tensor, something with ``logits``, or a tuple whose first entry is the tensor.

Inference is timed without gradients. A training step, forward, cross-entropy, backward and SGD, is
timed for two modules whose answers are logits, one row a shape; networks with losses of their own
take longer than that. Times are medians; the ratio is the median over rounds, with its extremes.
Memory is what a network adds to what was in use, both networks' weights among it.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import (
    Recorded,
    clouds,
    inference,
    interleaved,
    logits_of,
    markdown,
    peak_memory,
    ratio,
    relative_error,
    write_record,
)
from torch import Tensor, nn

from locotrans import create_model, list_models
from locotrans.kernels import float32_products
from locotrans.training.record import find_device

Row = dict[str, Any]
PRECISIONS = {"float32": ("highest", False), "tf32": ("high", False), "bf16": ("high", True)}


def load(spec: str, classes: int) -> Callable[[Tensor], Any]:
    """Build a network from its name or from ``module:function``."""
    torch.manual_seed(0)
    if spec in list_models():
        return create_model(spec, classes)
    module, colon, function = spec.partition(":")
    if not colon:
        known = ", ".join(list_models())
        raise ValueError(f"{spec!r} is neither module:function nor one of {known}")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return getattr(importlib.import_module(module), function)()


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
    build: Callable[[str], Callable[[], Any]], args: argparse.Namespace, what: str
) -> tuple[list[Row], list[Any]]:
    """Time two calls in turns; the ratio is that of each one's time to the first's.

    Args:
        build: returns the call of a network by its name.
        args: of the command.
        what: a title.

    Returns:
        A row for each, and what they answered.
    """
    calls, memory, answers = {}, {}, []
    for name in (f"a: {args.a}", f"b: {args.b}"):
        with peak_memory(args.device) as memory[name]:
            calls[name] = build(name)
            answers.append(calls[name]())
    samples = interleaved(calls, args.device, args.seconds, args.rounds)
    first, rows = samples[f"a: {args.a}"], []
    for name, sample in samples.items():
        timing, times = sample.summary(), ratio(sample, first)
        rows.append(
            {
                "network": name,
                "what": what,
                "launch": "graph" if name[0] in args.graph else "eager",
                "ms": 1000 * timing.median,
                "shapes/s": args.batch / timing.median,
                "time / first": times.median,
                "from-to": f"{times.low:.2f}-{times.high:.2f}",
                "added_gib": memory[name].get("added_gib"),
            }
        )
    return rows, answers


def compare(args: argparse.Namespace) -> list[Row]:
    """Return a row for each network and each of inference and training."""
    x = clouds(args.batch, args.points, args.device)
    labels = torch.arange(args.batch, device=args.device) % args.classes
    precision, bf16 = PRECISIONS[args.precision]
    networks: dict[str, Callable[[Tensor], Any]] = {}
    inputs = {}
    for side, spec in (("a", args.a), ("b", args.b)):
        model = load(spec, args.classes)
        if isinstance(model, nn.Module):
            model.to(args.device).eval()
        networks[f"{side}: {spec}"] = model
        layout = getattr(args, f"layout_{side}")
        inputs[f"{side}: {spec}"] = x.mT.contiguous() if layout == "b3n" else x

    def evaluation(name: str) -> Callable[[], Any]:
        graph = name[0] in args.graph
        return inference(networks[name], inputs[name], bf16=bf16, graph=graph)

    def training(name: str) -> Callable[[], Any]:
        model = networks[name]
        assert isinstance(model, nn.Module)
        step = training_step(model.train(), inputs[name], labels, bf16)
        return Recorded(step, warm_up=step) if name[0] in args.graph else step

    with float32_products(precision):
        rows, answers = side_by_side(evaluation, args, "inference")
        outputs = [logits_of(answer) for answer in answers]
        _describe(rows, networks, outputs)
        logits = all(y.dim() == 2 and len(y) == args.batch for y in outputs)
        modules = all(isinstance(model, nn.Module) for model in networks.values())
        if args.train and logits and modules:
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


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", help="a model's name, or module:function")
    parser.add_argument("b", help="likewise")
    for side in "ab":
        parser.add_argument(f"--layout-{side}", choices=("bn3", "b3n"), default="bn3")
    parser.add_argument("--device", default="auto", type=find_device)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--points", type=int, default=1024)
    parser.add_argument("--classes", type=int, default=40, help="of ours; and of the labels")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="float32")
    parser.add_argument(
        "--graph", choices=("", "a", "b", "ab"), default="", help="record these as CUDA graphs"
    )
    parser.add_argument("--train", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each part, about")
    parser.add_argument("--rounds", type=int, help="turns, instead of by the time")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU")
    parser.add_argument("--out", type=Path, help="JSON record, if one is wanted")
    parser.add_argument("--commit", help="for the record, where there is no git to ask")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> list[Row]:
    """Compare, print the table and write the record if one is wanted."""
    args = parse(argv)
    if args.device.type == "cpu":
        torch.set_num_threads(args.threads)
    rows = compare(args)
    print(markdown(rows))
    if args.out is not None:
        write_record(args.out, args, args.device, rows)
    return rows


if __name__ == "__main__":
    main()
