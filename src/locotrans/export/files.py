"""Write a network to a file, and take a file as a function."""

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from locotrans.certify.onnx_file import INSTALL, OnnxNetwork
from locotrans.kernels import set_kernels
from locotrans.models.baselines import BackboneConfig

SUFFIXES = (".onnx", ".pt2")
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
        ValueError: another suffix, a network or an output that a file cannot hold, or, for ONNX,
            packages that are not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in {' or '.join(SUFFIXES)}")
    if isinstance(network.config, BackboneConfig):
        raise ValueError(
            "networks on PointNet++, PCT and PointMLP cannot be exported: a file cannot choose "
            "farthest points of clouds of any size; export one on DGCNN"
        )
    if path.suffix == ".onnx":
        _require_onnx(path)
    network = copy.deepcopy(network).float().cpu().eval()  # the caller keeps theirs
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


@contextmanager
def plain_code() -> Iterator[None]:
    """Run without gradients and without the kernels, which cannot be exported."""
    before = set_kernels("off")
    try:
        with torch.no_grad():
            yield
    finally:
        set_kernels(before)


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
