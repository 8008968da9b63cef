r"""Networks as files that need no Python: ONNX, and torch.export's ``.pt2``.

**Sizes.** A file takes any batch, and clouds of any size from k points on; memory grows with the
square of the size, since all distances are computed at once.
**Neighbours.** Distances, candidates and the tie rule are those of `locotrans.geometry.neighbors`
(no k-d tree, no kernel). What differs: of more than k + 32 candidates that tie, ONNX takes those of
the lowest index and torch any; and other roundings may order near-ties in another way.
"""

import copy
import json
import logging
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from locotrans.certify.onnx_file import INSTALL, OnnxNetwork
from locotrans.kernels import set_kernels

SUFFIXES = (".onnx", ".pt2")
TOLERANCE = 1e-4  # relative difference between a file and the network
ROUNDING = 3.0  # times the rounding of torch is what a file may differ from float64, too
DRAWS = 8  # clouds a rounding away, that the rounding is measured on
ALLOWED = f"{TOLERANCE:g}; or as much from float64, or {ROUNDING:g} x torch's own"
HEADER = "locotrans"  # key of the file's metadata


class Exportable(nn.Module):
    """A network of ours as a function from tensors to a few named tensors."""

    def __init__(self, network: nn.Module, outputs: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        self.outputs = tuple(outputs)

    def forward(
        self, points: Float[Tensor, "b n 3"], category: Int[Tensor, "b"] | None = None
    ) -> dict[str, Tensor]:
        """Return the outputs by name."""
        answer = self.network(points) if category is None else self.network(points, category)
        return {name: getattr(answer, name) for name in self.outputs}


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


def export_network(
    network: nn.Module,
    path: Path,
    *,
    outputs: Sequence[str] = ("logits",),
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a network of ours, in float32 and evaluation mode, as .onnx or .pt2.

    Args:
        network: one of `create_model`; a segmenter with categories gets a second input, category.
        path: file to write; its suffix says which format.
        outputs: fields of the network's answer to give, in order.
        metadata: plain values to put into the file, under the key "locotrans".

    Raises:
        ValueError: another suffix, an output that the network has not, or, for ONNX, packages that
            are not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in {' or '.join(SUFFIXES)}")
    if path.suffix == ".onnx":
        _require_onnx(path)
    network = network.float().cpu().eval()
    inputs = example(network, 2, least_points(network) + 3)
    with plain_code():
        answer = network(*inputs)
        for name in outputs:
            if getattr(answer, name, None) is None:
                fields = [key for key, value in answer._asdict().items() if value is not None]
                raise ValueError(f"the network gives no {name!r}; it gives {', '.join(fields)}")
        batch = torch.export.Dim("batch", min=1)
        points = torch.export.Dim("points", min=least_points(network))
        shapes: tuple[Any, ...] = ({0: batch, 1: points}, {0: batch})[: len(inputs)]
        program = torch.export.export(
            Exportable(network, outputs), inputs, dynamic_shapes=shapes, strict=False
        )
        header = json.dumps(dict(metadata or {}))
        _write(path, lambda file: _save(program, file, path.suffix, outputs, header))


def example(network: nn.Module, batch: int, points: int) -> tuple[Tensor, ...]:
    """Return random clouds, and a category for each where a network wants one."""
    clouds = torch.randn(batch, points, 3, generator=torch.Generator().manual_seed(0))
    return with_category(network, clouds)


def with_category(network: nn.Module, points: Float[Tensor, "b n 3"]) -> tuple[Tensor, ...]:
    """Return the inputs of a network: points, and categories that take turns."""
    if getattr(network.config, "colors", False):
        raise ValueError("networks with colours cannot be exported")
    categories = getattr(network.config, "categories", 0)
    return (points, torch.arange(len(points)) % categories) if categories else (points,)


def least_points(network: nn.Module) -> int:
    """Return the size of the smallest cloud that a network takes: its k."""
    return int(getattr(network.config, "k", 1))


def load_exported(path: Path) -> Callable[..., tuple[Tensor, ...]]:
    """Return a file as a function of tensors."""
    if path.suffix == ".onnx":
        file = OnnxNetwork(path)

        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            return tuple(file(*inputs).values())

        return run
    module = torch.export.load(path).module()
    return lambda *inputs: tuple(module(*inputs).values())


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
    network = network.eval()
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
    network = network.eval()
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


@contextmanager
def plain_code() -> Iterator[None]:
    """Run without gradients and without the kernels, which cannot be exported."""
    before = set_kernels("off")
    try:
        with torch.no_grad():
            yield
    finally:
        set_kernels(before)


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


def _save(program: Any, file: Path, suffix: str, outputs: Sequence[str], header: str) -> None:
    if suffix == ".pt2":
        torch.export.save(program, file, extra_files={HEADER: header})
        return
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)  # what they say is about their own inside
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            onnx = torch.onnx.export(
                program, dynamo=True, verbose=False, output_names=list(outputs), optimize=True
            )
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
    if onnx is None:
        raise ValueError(f"torch gave no ONNX program for {file}")
    onnx.model.metadata_props[HEADER] = header
    onnx.save(str(file), external_data=False)


def _write(path: Path, save: Callable[[Path], None]) -> None:
    """Write to a temporary name of the same suffix, and rename."""
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it first")
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        save(temporary)
        temporary.replace(path)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _require_onnx(path: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(f"{path} needs {error.name}: {INSTALL}") from None
