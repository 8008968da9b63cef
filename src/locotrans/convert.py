"""The authors' checkpoints as our networks."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from locotrans.models.locotrans import LocoTrans
from locotrans.models.locotrans_config import LIGHT, LocoTransConfig

_VN = {"map_to_feat.weight": "linear.weight", "map_to_dir.weight": "direction.weight"}
_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_EQUIVARIANT = "equivariant_branch"
_INVARIANT = "invariant_branch"
_RPR = {
    "basis_matrix": "basis",
    "dynamic_kernel.0": "kernel1",
    "dynamic_kernel.1": "kernel_norm",
    "dynamic_kernel.3": "kernel2",
    "act.0": "pose_norm",
    "act.2": "refine",
    "act.3": "refine_norm",
    "edge_conv.0": "linear",
    "edge_conv.1": "norm",
}
_MODULES = {
    "std_feature_vn.vn_lin": f"{_EQUIVARIANT}.invariants.projection.linear",
    "std_feature_vn.vn_lin2": f"{_EQUIVARIANT}.lcrf.projection.linear",
    "linear1_vn": f"{_EQUIVARIANT}.hidden.linear",
    "bn1_vn": f"{_EQUIVARIANT}.hidden.norm",
    "linear2_vn": "equivariant_head.hidden.linear",
    "bn2_vn": "equivariant_head.hidden.norm",
    "linear3_vn": "equivariant_head.logits",
    "conv1.0": f"{_INVARIANT}.first.linear",
    "conv1.1": f"{_INVARIANT}.first.norm",
    "bn1": f"{_INVARIANT}.first.norm",  # a second name of conv1.1, as bn5 of conv5.1
    "conv5.0": f"{_INVARIANT}.embed.linear",
    "conv5.1": f"{_INVARIANT}.embed.norm",
    "bn5": f"{_INVARIANT}.embed.norm",
    "linear1": f"{_INVARIANT}.hidden.linear",
    "bn6": f"{_INVARIANT}.hidden.norm",
    "linear2": "invariant_head.hidden.linear",
    "bn7": "invariant_head.hidden.norm",
    "linear3": "invariant_head.logits",
    "fc_fuse1": "fusion.merge",
    "fc_fuse2": "fusion.gate",
    "linear_fuse1": "fused_head.hidden.linear",
    "bn_fuse1": "fused_head.hidden.norm",
    "linear_fuse2": "fused_head.logits",
}
_UNUSED = re.compile(r"bn[2-4]\.\w+")
_PROJECTIONS = {
    "1": "invariants.projection.layer1",
    "2": "invariants.projection.layer2",
    "3": "lcrf.projection.layer1",
    "4": "lcrf.projection.layer2",
}


def our_name(name: str) -> str | None:
    """Return our name of a tensor of the authors' state dict, None if their network ignores it.

    Raises:
        ValueError: their networks have no such tensor.
    """
    name = name.removeprefix("module.")  # left by DataParallel
    if _UNUSED.fullmatch(name):
        return None
    if match := re.fullmatch(r"conv([1-5])_vn\.(.+)", name):
        layer = int(match[1])
        where = "embed" if layer == 5 else f"convs.{layer - 1}"
        return f"{_EQUIVARIANT}.backbone.{where}.{_vn_name(match[2], name)}"
    if match := re.fullmatch(r"std_feature_vn\.vn([1-4])\.(.+)", name):
        return f"{_EQUIVARIANT}.{_PROJECTIONS[match[1]]}.{_vn_name(match[2], name)}"
    module, _, leaf = name.rpartition(".")
    if match := re.fullmatch(r"pari_([2-4])\.(.+)", module):
        if match[2] in _RPR:
            return f"{_INVARIANT}.convs.{int(match[1]) - 2}.{_RPR[match[2]]}.{leaf}"
    elif module in _MODULES:
        return f"{_MODULES[module]}.{leaf}"
    raise ValueError(f"{name!r} is not a tensor of the authors' LocoTrans networks")


def _vn_name(rest: str, name: str) -> str:
    if rest in _VN:
        return _VN[rest]
    leaf = rest.removeprefix("batchnorm.bn.")
    if leaf in _NORM and leaf != rest:
        return f"norm.norm.{leaf}"
    raise ValueError(f"{name!r} is not a tensor of the authors' LocoTrans networks")


def _our_layout(name: str, tensor: Tensor) -> Tensor:
    """Drop the unit axes of convolutions, and order flattened vectors as we do.

    The authors flatten c vectors as (c, 3), we as (3, c): the inputs of the pose kernels, and of
    the equivariant head (there twice, the maximum and the mean).
    """
    if tensor.dim() > 2:
        tensor = tensor.flatten(1)
    if name.endswith("kernel1.weight"):
        return tensor.unflatten(1, (-1, 3)).mT.flatten(1)
    if name == f"{_EQUIVARIANT}.hidden.linear.weight":
        return tensor.unflatten(1, (2, -1, 3)).mT.flatten(1)
    return tensor


def from_authors(state_dict: Any) -> LocoTrans:
    """Build our network from the authors' state dict, full or light, in eval mode.

    The network is the same function: frames as printed, clouds not centred.

    Args:
        state_dict: their tensors by their names, for example from
            ``torch.load("model.t7", map_location="cpu", weights_only=True)``.

    Raises:
        ValueError: a tensor is unknown, missing, of the wrong shape, or not finite.
    """
    if not isinstance(state_dict, Mapping):
        raise ValueError(f"a state dict is a mapping of names, not {type(state_dict).__name__}")
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(state_dict.get(key), Mapping):
            raise ValueError(f"the state dict lies within, under {key!r}: give that entry alone")
    ours: dict[str, Tensor] = {}
    for name, tensor in state_dict.items():
        target = our_name(name)
        if target is not None:
            try:
                ours[target] = _our_layout(target, torch.as_tensor(tensor))
            except (TypeError, RuntimeError, IndexError) as error:
                raise ValueError(
                    f"{name!r} is of the wrong shape or not a tensor: {error}"
                ) from None
            if not ours[target].isfinite().all():
                raise ValueError(f"{name!r} holds nan or inf: the file is of a run that diverged")
    logits = ours.get("invariant_head.logits.weight")
    if logits is None:
        raise ValueError("the state dict has no 'linear3.weight': it is not a LocoTrans network")
    full = "fused_head.logits.weight" in ours
    base = LocoTransConfig() if full else LIGHT
    model = LocoTrans(len(logits), replace(base, frames="symmetric_printed", center=False))
    expected = model.state_dict()
    if missing := sorted(expected.keys() - ours.keys()):
        raise ValueError(f"the state dict lacks the tensors of ours called {', '.join(missing)}")
    for name, tensor in ours.items():
        if name not in expected:
            raise ValueError(f"{name} does not belong to the {'full' if full else 'light'} network")
        if expected[name].shape != tensor.shape:
            raise ValueError(
                f"{name} has the shape {tuple(tensor.shape)}, "
                f"where {tuple(expected[name].shape)} is expected"
            )
    if ours["invariant_head.logits.weight"].dtype == torch.float64:
        model = model.double()
    model.load_state_dict(ours)
    return model.eval()


def read_authors(path: Path) -> LocoTrans:
    """Build our network from a file that the authors' program saved; nothing in it is executed.

    Raises:
        ValueError: the file is damaged, holds more than tensors, or is not of their networks.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file")
    try:
        state_dict = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes the reader fail in any way
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path} is damaged, or not a state dict that torch.save wrote ({reason})"
        ) from None
    try:
        return from_authors(state_dict)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
