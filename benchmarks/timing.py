"""What the benchmarks share: clouds, clocks, CUDA graphs, peak memory, tables and records."""

import argparse
import gc
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from locotrans.models.recorded import Recorded, capture, warm_up
from locotrans.training.record import environment, find_device, write_json

WARM_UP = 3  # calls before anything is timed or recorded
ROUNDS = (5, 50)  # at least, at most, that a median is taken of


class Timing(NamedTuple):
    """Seconds of one call."""

    median: float
    low: float
    high: float


def clouds(b: int, n: int, device: torch.device | str = "cpu", seed: int = 0) -> Tensor:
    """Draw points on the surfaces of four random ellipsoids a cloud: flat neighbourhoods."""
    generator = torch.Generator().manual_seed(seed)
    directions = nn.functional.normalize(torch.randn(b, n, 3, generator=generator), dim=-1)
    sizes = 0.1 + 0.4 * torch.rand(b, 4, 3, generator=generator)
    places = 0.5 * torch.randn(b, 4, 3, generator=generator)
    part = torch.randint(4, (b, n, 1), generator=generator).expand(-1, -1, 3)
    return (directions * sizes.gather(1, part) + places.gather(1, part)).to(device)


def seconds_of(call: Callable[[], Any], device: torch.device, repeats: int = 1) -> float:
    """Time a call, by CUDA events on a GPU; the mean of several calls in a row, if asked."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 1000 / repeats


def measure(
    call: Callable[[], Any],
    device: torch.device,
    budget: float = 0.5,
    rounds: int | None = None,
) -> Timing:
    """Time a call for about ``budget`` seconds, or some rounds, after a warm-up.

    On a GPU calls of less than 5 ms are timed several in a row: their time is that of a busy queue.
    """
    return interleaved({"": call}, device, budget, rounds)[""].summary()


class Samples(NamedTuple):
    """Seconds of one call, round by round."""

    seconds: list[float]

    def summary(self) -> Timing:
        """Return the median and the extremes."""
        return Timing(statistics.median(self.seconds), min(self.seconds), max(self.seconds))


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    device: torch.device,
    budget: float = 0.5,
    rounds: int | None = None,
) -> dict[str, Samples]:
    """Time calls in turns, so that a load that comes and goes falls on all of them alike."""
    repeats, total = {}, 0.0
    for name, call in calls.items():
        for _ in range(WARM_UP if device.type == "cuda" else 1):
            call()
        once = seconds_of(call, device)
        repeats[name] = max(1, min(50, math.ceil(0.005 / once))) if device.type == "cuda" else 1
        total += once * repeats[name]
    if rounds is None:
        rounds = max(ROUNDS[0], min(ROUNDS[1], math.ceil(budget / total)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(seconds_of(call, device, repeats[name]))
    return {name: Samples(seconds) for name, seconds in samples.items()}


def ratio(one: Samples, other: Samples) -> Timing:
    """Return how many times longer ``one`` takes than ``other``, from rounds side by side."""
    return Samples([a / b for a, b in zip(one.seconds, other.seconds, strict=True)]).summary()


class Replayed:
    """A call recorded as a CUDA graph; calling it replays the graph into the same ``result``.

    Args:
        call: what to record.
        before: what to call a few times before; None if that has been done.
    """

    def __init__(self, call: Callable[[], Any], before: Callable[[], Any] | None) -> None:
        if before is not None:
            warm_up(before)
        self.graph, self.result = capture(call)

    def __call__(self) -> Any:
        """Replay the graph."""
        self.graph.replay()
        return self.result


def inference(
    model: Callable[[Tensor], Any], points: Tensor, *, bf16: bool = False, graph: bool = False
) -> Callable[[], Any]:
    """Return a call that runs a network on fixed points without gradients.

    As a graph, a module is a `Recorded` one, with the copies that this makes of what it takes and
    returns; any other callable is recorded by itself.
    """

    @torch.inference_mode()
    def call(network: Callable[[Tensor], Any] = model) -> Any:
        with torch.autocast(points.device.type, torch.bfloat16, enabled=bf16):
            return network(points)

    if not graph:
        return call
    if isinstance(model, nn.Module):
        return partial(call, Recorded(model))
    return Replayed(call, before=call)


@contextmanager
def peak_memory(device: torch.device) -> Iterator[dict[str, float]]:
    """Measure the most memory that torch had in use, in GiB; on a GPU only.

    ``added_gib`` leaves out what was in use before. What a CUDA graph needs is taken when it is
    recorded, so recording belongs inside.
    """
    peak: dict[str, float] = {}
    gc.collect()
    before = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    yield peak
    if device.type == "cuda":
        most = torch.cuda.max_memory_allocated(device)
        peak["peak_gib"] = round(most / 2**30, 3)
        peak["added_gib"] = round((most - before) / 2**30, 3)
        peak["reserved_gib"] = round(torch.cuda.max_memory_reserved(device) / 2**30, 3)


def logits_of(output: Any) -> Tensor:
    """Return the tensor that a network answers with: the output, its ``logits``, or its first."""
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple | list) else output


def relative_error(x: Tensor, reference: Tensor) -> float:
    """Return the largest difference over the largest entry of the reference."""
    x, reference = x.detach().double().cpu(), reference.detach().double().cpu()
    return float((x - reference).abs().max() / reference.abs().max().clamp_min(1e-300))


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table; a column for every key that any row has."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    lines += ["| " + " | ".join(_cell(row.get(key)) for key in keys) + " |" for row in rows]
    return "\n".join(lines)


def _cell(x: Any) -> str:
    if x is None:
        return ""
    if isinstance(x, float):
        return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"
    return f"{x:,}" if isinstance(x, int) and not isinstance(x, bool) else str(x)


def where(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return where something is measured; ``args`` may name a commit, where git knows none."""
    found = environment(device) | {"platform": platform.system()}
    return found | ({"commit": args.commit} if getattr(args, "commit", None) else {})


def arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a command for its record."""
    plain = (str, int, float, list, dict, type(None))
    return {
        key: x if isinstance(x, plain) else str(x)
        for key, x in vars(args).items()
        if key not in ("out", "commit")
    }


def device_argument(name: str) -> torch.device:
    """Return the device that an argument names."""
    try:
        return find_device(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def cloud_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of what a trained network is measured on."""
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--points", type=int, help="by default as the first was trained")
    parser.add_argument("--shapes", type=int, help="shapes to generate, for a generated set")
    parser.add_argument("--seed", type=int, default=0, help="of the poses")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="auto", type=device_argument)


def record_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `write_record`."""
    parser.add_argument("--out", type=Path, help="JSON file of the record (default: none)")
    parser.add_argument("--commit", help="for the record, where there is no git to ask")


def write_record(args: argparse.Namespace, device: torch.device, results: Any) -> None:
    """Write results, the command's arguments and where they were measured, if ``--out`` is given.

    Nothing is written where nobody asked for it: a trial must not replace a record.
    """
    if args.out is None:
        print("\nno record: --out FILE writes one")
        return
    args.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"environment": where(args, device), "arguments": arguments(args)}
    write_json(args.out, record | {"results": results})
    print(f"\nrecord: {args.out}")
