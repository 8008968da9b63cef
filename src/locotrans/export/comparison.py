"""Run a file against the network that it was made of: do the answers agree, and which is faster?"""

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.export.files import (
    example,
    least_points,
    load_exported,
    plain_code,
    with_category,
)

TOLERANCE = 1e-4  # relative difference between a file and the network
ROUNDING = 3.0  # times the rounding of torch is what a file may differ from float64, too
DRAWS = 8  # clouds a rounding away, that the rounding is measured on
ALLOWED = f"{TOLERANCE:g}; or as much from float64, or {ROUNDING:g} x torch's own"


class Comparison(NamedTuple):
    """An output of a file against that of the network that it was made of.

    Differences are the largest of any entry, relative to the output's largest entry. Where two
    neighbours are nearly as far, or the two vectors of a point nearly parallel, rounding decides on
    the graph, or on the frame, and float32 itself is off by more than the tolerance. So an output
    that is not torch's is compared with the network in float64: it may be three times as far from
    that as torch in float32 is, on the clouds and on some that are one rounding away from them (on
    one cloud alone, torch may be right by chance). Measured with a small full network on 240 clouds
    of 6 to 64 points, frames of the file were at most 1.9 times as far from float64 as that, and 23
    times as far as torch on the cloud alone.
    """

    clouds: str
    batch: int
    points: int
    output: str
    error: float
    """From torch in float32."""
    exact_error: float | None = None
    """From torch in float64; None where no output is off from torch in float32."""
    torch_error: float | None = None
    """The largest of torch in float32 from float64."""

    @property
    def passes(self) -> bool:
        """Whether the file's output is the network's."""
        if self.error <= TOLERANCE:
            return True
        if self.exact_error is None or self.torch_error is None:
            return False
        allowed = max(TOLERANCE, ROUNDING * self.torch_error)
        return math.isfinite(self.exact_error) and self.exact_error <= allowed


def compare(
    network: nn.Module, path: Path, outputs: Sequence[str], clouds: Float[Tensor, "b n 3"]
) -> list[Comparison]:
    """Run a file against its network, on random clouds of several sizes and on given ones.

    A row for each of these and each output.

    Args:
        network: what the file was made of.
        path: the file.
        outputs: names of its outputs.
        clouds: taken all together, and the first alone.
    """
    file, k = load_exported(path), least_points(network)
    network = copy.deepcopy(network).float().cpu().eval()
    sizes = ((1, k), (3, k + 1), (2, 4 * k + 1), (5, 100 + k))
    cases = [("random", example(network, b, n)) for b, n in sizes]
    parts = (clouds, clouds[:1]) if len(clouds) > 1 else (clouds,)
    cases += [("given", with_category(network, part)) for part in parts]
    wide = copy.deepcopy(network).double()
    found = []
    for name, inputs in cases:
        with plain_code():
            answer, values = network(*inputs), file(*inputs)
        batch, points = inputs[0].shape[:2]
        rows = [
            Comparison(name, batch, points, x, _difference(value, getattr(answer, x)))
            for x, value in zip(outputs, values, strict=True)
        ]
        if not all(row.passes for row in rows):
            with plain_code():
                exact = wide(inputs[0].double(), *inputs[1:])
                rounded = [answer, *(network(*near) for near in _a_rounding_away(inputs))]
            for i, (row, value) in enumerate(zip(rows, values, strict=True)):
                right = getattr(exact, row.output)
                rows[i] = row._replace(
                    exact_error=_difference(value, right),
                    torch_error=max(_difference(getattr(x, row.output), right) for x in rounded),
                )
        found += rows
    return found


def latency(
    network: nn.Module, path: Path, sizes: Sequence[tuple[int, int]], rounds: int = 5
) -> list[dict[str, float]]:
    """Time a file and its network side by side on the CPU, in processor time.

    The two take turns; a row has the medians and the median of the ratios, network over file.
    """
    file = load_exported(path)
    network = copy.deepcopy(network).float().cpu().eval()
    rows = []
    for batch, points in sizes:
        inputs = example(network, batch, points)
        samples: list[tuple[float, float]] = []
        with torch.inference_mode():
            for _ in range(rounds + 1):
                times = [_processor_time(call, inputs) for call in (network, file)]
                samples.append((times[0], times[1]))
        samples = samples[1:]  # the first warms up
        torch_times, file_times = zip(*samples, strict=True)
        rows.append(
            {
                "batch": batch,
                "points": points,
                "torch_ms": 1000 * statistics.median(torch_times),
                "file_ms": 1000 * statistics.median(file_times),
                "ratio": statistics.median(a / b for a, b in samples),
            }
        )
    return rows


def _processor_time(call: Callable[..., Any], inputs: tuple[Tensor, ...]) -> float:
    start = time.process_time()
    call(*inputs)
    return time.process_time() - start


def _a_rounding_away(inputs: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    points, *rest = inputs
    generator = torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        noise = 2 * torch.rand(points.shape, generator=generator) - 1
        yield points * (1 + torch.finfo(points.dtype).eps * noise), *rest


def _difference(value: Tensor, expected: Tensor) -> float:
    if value.shape != expected.shape:
        return math.inf
    error = float((value - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    return error if math.isfinite(error) else math.inf
