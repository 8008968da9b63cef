"""`locotrans certify`: clouds and declarations for `certify`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.certify.cases import Kind
from locotrans.certify.checks import certify
from locotrans.certify.onnx_file import OnnxNetwork
from locotrans.certify.result import Certificate
from locotrans.certify.targets import OUTPUTS, Target, declared, outputs_of
from locotrans.counting import counted
from locotrans.data import load_dataset
from locotrans.training.predict.samples import load_sample

KINDS: dict[str, Kind] = {"invariant": "invariant", "equivariant": "equivariant"}


def load_clouds(
    files: Sequence[Path],
    data: str = "builtin",
    root: Path | None = None,
    split: str = "test",
    shapes: int = 8,
    points: int = 128,
    seed: int = 0,
) -> tuple[Float[Tensor, "b n 3"], str]:
    """Return clouds of files, or of a data set, and what they are called.

    Points of a file are chosen and normalised as for `locotrans predict`.
    """
    if not files:
        clouds = load_dataset(data, split, root=root, points=points, shapes=shapes, seed=seed)
        some = f"{counted(shapes, 'cloud')} of {counted(points, 'point')}"
        return clouds.points, f"{some} of {clouds.name} ({split})"
    found = []
    for path in files:
        sample = load_sample(path, points, seed)
        if sample.points is None:
            raise ValueError(f"{path} cannot be used: {sample.error}")
        found.append(torch.from_numpy(sample.points))
    return torch.stack(found), f"{counted(len(found), 'file')}, {counted(points, 'point')} of each"


def certify_target(
    target: Target,
    points: Float[Tensor, "b n 3"],
    *,
    keeps: Iterable[str] | None = None,
    breaks: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    **settings: Any,
) -> Certificate:
    """Hold a target to what it declares, unless told otherwise.

    Args:
        target: the network.
        points: the clouds.
        keeps: properties that must hold; by default those that the target declares.
        breaks: properties that must not, likewise.
        outputs: further outputs as NAME=invariant or NAME=equivariant, likewise.
        **settings: those of `certify`.
    """
    fixed = getattr(target.model, "fixed_points", None)
    if fixed is not None and fixed != points.shape[1]:
        raise ValueError(
            f"{target.name} takes clouds of {fixed} points, not {points.shape[1]}: "
            f"give --points {fixed}"
        )
    kept = target.keeps if keeps is None else tuple(keeps)
    broken = target.breaks if breaks is None else tuple(breaks)
    if keeps is not None:  # what a user says takes the place of what the target says
        broken = tuple(name for name in broken if name not in kept)
    if breaks is not None:
        kept = tuple(name for name in kept if name not in broken)
    kinds = outputs_of(target, points) if outputs is None else dict(map(_kind, outputs))
    return certify(
        target.model,
        points,
        keeps=kept,
        breaks=broken,
        outputs=kinds,
        target=target.name,
        **settings,
    )


def certify_exported(
    network: nn.Module, path: Path, points: Float[Tensor, "b n 3"], **settings: Any
) -> Certificate:
    """Certify an exported file, each of its outputs, by what the network it was made of keeps.

    What it breaks is reported: how much a reflection changes is a matter of weights and clouds.

    Args:
        network: the network.
        path: an .onnx or .pt2 file.
        points: the clouds.
        **settings: those of `certify`.
    """
    target = declared(network, str(path))
    model: Any
    if path.suffix == ".onnx":
        model = OnnxNetwork(path)
    else:
        program = torch.export.load(path).module()

        def model(points: Tensor) -> Any:
            first = torch.zeros(len(points), dtype=torch.long)
            return (
                program(points, first)
                if getattr(network.config, "categories", 0)
                else program(points)
            )

    given = model(points[:1])
    outputs = [f"{name}={kind}" for name, kind in OUTPUTS.items() if name in given]
    target = target._replace(model=model, breaks=(), ours=False)
    return certify_target(target, points, outputs=outputs, **settings)


def _kind(text: str) -> tuple[str, Kind]:
    name, _, kind = text.partition("=")
    if kind not in KINDS:
        raise ValueError(f"outputs are NAME=invariant or NAME=equivariant, got {text!r}")
    return name, KINDS[kind]
