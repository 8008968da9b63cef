"""A moving average of the weights, which tests better than the weights of any one step."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class WeightAverage:
    """An exponential moving average of a network's weights and running statistics.

    After step t it becomes ``d a + (1 - d) w`` with ``d = min(decay, (1 + t) / (10 + t))``: the
    short memory at first lets go of the initial weights. It depends on nothing but the steps, so a
    run that is cut goes on exactly. Whole numbers (counts of batches) are copied.

    Args:
        model: the network that is trained.
        decay: d after a while; the memory is 1 / (1 - d) steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        pairs = list(
            zip(self.model.state_dict().values(), model.state_dict().values(), strict=True)
        )
        self._numbers = [pair for pair in pairs if pair[0].is_floating_point()]
        self._counts = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step ``step`` (from 0), without waiting for the device."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        averages, weights = (list(x) for x in zip(*self._numbers, strict=True))
        torch._foreach_lerp_(averages, weights, weight)
        for mine, theirs in self._counts:
            mine.copy_(theirs)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold, under ``average/<name>``."""
        return {f"average/{name}": value for name, value in self.model.state_dict().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` returned, from among the tensors of a checkpoint."""
        self.model.load_state_dict(averaged(tensors))


def averaged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the averaged state dict of a checkpoint; empty where none was kept."""
    prefix = "average/"
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
