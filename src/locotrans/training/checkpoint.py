"""Weights and checkpoints as safetensors: data only, nothing that could be executed.

A weights file holds the state dict under its own names, and in its header, as JSON, all that is
needed to build the model again. A checkpoint is a weights file with more in it: tensors whose
names contain a slash (``optimizer/...``, ``average/...``, ``epoch/...``) and the step in the
header.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from locotrans.data.parttable import with_words
from locotrans.models import create_model, list_pretrained, model_config, pretrained_weights
from locotrans.training.average import averaged
from locotrans.training.config import typed_fields
from locotrans.training.folder import CHECKPOINT, WEIGHTS
from locotrans.training.parts import refuse_parts
from locotrans.training.record import write_atomically

LONGEST = 400
"""Characters of what torch says of tensors that do not fit."""
HEADER = "locotrans"  # the header's key
FORMAT = 1


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and metadata to one file, atomically, with a checksum of the tensors."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    header = {**metadata, "format": FORMAT, "sha256": _digest(plain)}
    write_atomically(path, save(plain, {HEADER: json.dumps(header)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote, on the CPU.

    Raises:
        ValueError: if the file is truncated, damaged, or not one of ours.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file")
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] = dict(json.loads((file.metadata() or {})[HEADER]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        hint = "restore it from a copy, or train again in a new folder"
        if path.suffix in (".t7", ".pt", ".pth"):
            hint = f"if the authors' program wrote it: locotrans convert {path}"
        raise ValueError(f"{path} is damaged or not a safetensors file ({error}); {hint}") from None
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path} was not written by locotrans (its header has no {HEADER!r} entry); "
            "the authors' checkpoints become ours by `locotrans convert`"
        ) from None
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {header.get('format')}, this version reads {FORMAT}; "
            "use the version of locotrans that wrote it"
        )
    if header.get("sha256") != _digest(tensors):
        raise ValueError(
            f"{path} is damaged (its checksum does not match); "
            "restore it from a copy, or train again in a new folder"
        )
    return tensors, header


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_weights(target: Path | str) -> tuple[nn.Module, dict[str, Any]]:
    """Build the model of a run folder, a weights file or a checkpoint, in eval mode on the CPU.

    Weights that come with the package are found by their name, if nothing else has it.

    Of a checkpoint that keeps an average of the weights, the average is taken.

    Returns:
        The model, and the header: ``model``, ``config``, ``num_classes``, ``class_names``,
        ``data`` and what else was recorded; ``stored`` is added where numbers were rounded for the
        file: "float16" (`pack`).
    """
    path = find_weights(Path(target))
    tensors, metadata = read_tensors(path)
    try:
        name = metadata["model"]
        config = typed_fields(type(model_config(name)), metadata["config"])
        model = create_model(name, metadata["num_classes"], **config)
    except KeyError as error:
        raise ValueError(f"{path} does not describe a model: its header has no {error}") from None
    except ValueError as error:
        raise ValueError(f"{path} describes a model that cannot be built: {error}") from None
    load_state(model, averaged(tensors) or tensors, path)
    if any(x.dtype == torch.float16 for x in tensors.values()):
        metadata["stored"] = "float16"
    if "part_names" in metadata:
        metadata["part_names"] = with_words(metadata["part_names"])  # earlier files have numbers
    return model.eval(), metadata


def find_weights(target: Path) -> Path:
    """Return the weights of a run folder, those that come with the package, or the file itself."""
    if not target.exists():
        if str(target) in list_pretrained():
            return pretrained_weights(str(target))[0]
        refuse_parts(target)
        raise FileNotFoundError(
            f"{target}: there is no such run folder or weights file; name the folder that "
            "`locotrans train --out` wrote, a .safetensors file, or weights that come with "
            f"locotrans: {', '.join(list_pretrained())}"
        )
    if not target.is_dir():
        return target
    weights, checkpoint = target / WEIGHTS, target / CHECKPOINT
    if weights.exists():
        return weights
    if not (target / "config.json").exists():
        raise FileNotFoundError(
            f"{target} is not a run folder: it holds no weights.safetensors; name the folder that "
            "`locotrans train --out` wrote, or a .safetensors file"
        )
    refuse_parts(weights)
    as_it_stands = f", or name {checkpoint} to take it as it stands" if checkpoint.exists() else ""
    raise ValueError(f"{target} is not finished; repeat its train command{as_it_stands}")


def load_state(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load the model's part of a file into ``model``; names and shapes must match exactly."""
    state = {name: value for name, value in tensors.items() if "/" not in name}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= LONGEST else f"{reason[:LONGEST]}..."
        raise ValueError(
            f"{path} does not fit the model: {reason}. "
            "It was written by another version, or for other options of the model"
        ) from None


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's tensors under ``optimizer/<kind>/<parameter>``."""
    return {
        f"optimizer/{kind}/{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Give the optimiser the tensors that `optimizer_tensors` returned."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        if key.startswith("optimizer/"):
            _, kind, name = key.split("/")
            parameter = parameters[name]
            optimizer.state[parameter][kind] = value.to(parameter.device, copy=True)
