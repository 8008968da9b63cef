"""A moving average of the weights, which tests better than the weights of any one step."""

import copy
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class WeightAverage:
    """An exponential moving average of a network's weights, and until it settles of its statistics.

    After step t it becomes ``d a + (1 - d) w`` with ``d = min(decay, (1 + t) / (10 + t))``: the
    short memory at first lets go of the initial weights. It depends on the steps alone, and where
    it settles, so a run that is cut goes on exactly. Whole numbers (counts of batches) are copied.

    Args:
        model: the network that is trained.
        decay: d after a while; the memory is 1 / (1 - d) steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        mine, theirs = self.model.state_dict(), model.state_dict()
        numbers = [name for name, x in mine.items() if x.is_floating_point()]
        counts = [name for name, x in mine.items() if not x.is_floating_point()]
        self._numbers = [mine[k] for k in numbers], [theirs[k] for k in numbers]
        self._counts = [mine[k] for k in counts], [theirs[k] for k in counts]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step ``step`` (from 0), without waiting for the device."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(*self._numbers, weight)
        if self._counts[0]:
            torch._foreach_copy_(*self._counts)

    @torch.no_grad()
    def settle(self, passes: Iterable[Callable[[], object]]) -> None:
        """Take the running statistics anew: their means over batches that go through the network.

        An average of weights does not do what they do on average: the statistics that were averaged
        with them belong to other networks, the more so the higher the learning rate.

        Args:
            passes: each sends a batch through the network.
        """
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        before = [norm.momentum for norm in norms]
        for norm in norms:
            norm.train()
        for i, take in enumerate(passes):
            for norm in norms:
                norm.momentum = 1 / (i + 1)
            take()
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum
        self.model.eval()

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
