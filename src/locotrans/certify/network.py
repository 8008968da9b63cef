"""A network under test: any callable on points, asked in one precision, some clouds at a time."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.testing.answers import named_part, named_tensors, undisturbed

Answers = dict[str, Tensor]


class Network:
    """Gives the named outputs of a model, in float64 on the CPU, for clouds in float64.

    A module is copied, put into evaluation mode and moved; the user's own stays as it is. Every
    call starts from the same random state.

    Args:
        model: a module or any callable on points (b, n, 3).
        precision: of the points and weights: float64, float32, tf32 (products on a GPU) or
            bfloat16 (autocast).
        device: where to compute.
        batch_size: clouds at a time.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Any],
        precision: str = "float32",
        device: torch.device | str = "cpu",
        batch_size: int = 32,
    ) -> None:
        self.precision = precision
        self.device = torch.device(device)
        self.batch_size = batch_size
        self.dtype = torch.float64 if precision == "float64" else torch.float32
        if isinstance(model, nn.Module):
            model = copy.deepcopy(model).to(self.device, self.dtype).eval()
        self.model = model

    def __call__(self, points: Float[Tensor, "b n 3"]) -> Answers:
        """Return every floating-point output by name; the first is the answer."""
        parts: list[Answers] = []
        with undisturbed(self.model, points), _products(self.precision, self.device):
            for chunk in points.split(self.batch_size):
                torch.manual_seed(0)
                answer = self.model(chunk.to(self.device, self.dtype))
                parts.append(self._outputs(answer, len(chunk)))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _outputs(self, answer: Any, clouds: int) -> Answers:
        found = {
            name: value.double().cpu()
            for name, value in named_tensors(answer, "output")
            if value.is_floating_point()
        }
        if named_part(answer, "logits") is not None:
            found = {"logits": found["logits"], **found}
        if not found:
            raise ValueError("the network's answer holds no floating-point tensor")
        first = next(iter(found))
        by_cloud = {name: x for name, x in found.items() if x.dim() > 0 and len(x) == clouds}
        if first not in by_cloud:
            raise ValueError(
                f"the first axis of {first}, of shape {tuple(found[first].shape)}, does not run "
                f"over the {clouds} clouds: give a network on points (b, n, 3)"
            )
        return by_cloud


def refusal(
    model: Callable[[Tensor], Any],
    precision: str,
    points: Float[Tensor, "b n 3"],
    device: torch.device | str,
) -> str:
    """Say why a model cannot be asked in a precision; nothing if it can.

    What a bare function does under autocast, or with TF32, is not known; of float64 it must keep
    the precision.
    """
    if not isinstance(model, nn.Module) and precision in ("tf32", "bfloat16"):
        return f"only a module can be asked in {precision}"
    network = Network(model, precision, device)
    try:
        with undisturbed(network.model, points), _products(precision, network.device):
            answer = network.model(points[:1].to(network.device, network.dtype))
    except Exception as error:  # a foreign network may refuse in any way
        return f"in {precision} it raises {type(error).__name__}: {' '.join(str(error).split())}"
    kinds = [x.dtype for _, x in named_tensors(answer, "output") if x.is_floating_point()]
    if precision == "float64" and kinds[:1] != [torch.float64]:
        return "it does not keep the precision of float64"
    return ""


@contextmanager
def _products(precision: str, device: torch.device) -> Iterator[None]:
    """Compute products as a precision says; float32 is true float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
