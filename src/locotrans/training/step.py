"""One training step; on a CUDA device it is recorded once as a graph and then replayed."""

import inspect
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from locotrans.distributed import count_over_processes, mean_over_processes, processes
from locotrans.geometry.products import float32_products
from locotrans.losses import classification_losses
from locotrans.models.recorded import capture, warm_up
from locotrans.nn.norm import count_together
from locotrans.training.config import TrainConfig


class Step:
    """Forward, losses, backward and update for one batch.

    A step has about a thousand small kernels, and launching them from Python takes longer than
    they run; a recorded graph launches them all at once. Warming up changes weights, statistics and
    the state of the random numbers, so they are put back: recording leaves no trace.

    Where several processes train together, each takes its share of the batch, gradients are
    averaged, and nothing is recorded.

    Args:
        model: the network.
        config: the run's settings.
        device: where the network is.
        offsets: of the logits in the losses, if any (`frequency_offsets`).
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        device: torch.device,
        offsets: Float[Tensor, " classes"] | None = None,
    ) -> None:
        self.model = model
        self.network: nn.Module = model
        if processes() > 1:
            self.network = DistributedDataParallel(model)
        self.config = config
        self.device = device
        self.offsets = offsets
        self.placing = places_clouds(model)
        self._products = "high" if config.precision == "mixed" else "highest"
        recorded = device.type == "cuda" and processes() == 1
        self.lr = torch.tensor(config.lr, device=device) if recorded else config.lr
        self.optimizer = make_optimizer(model, config, self.lr, recorded)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(
        self,
        points: Float[Tensor, "b n 3"],
        labels: Int[Tensor, "b *n"],
        lr: float,
        **given: Tensor,
    ) -> dict[str, Tensor]:
        """Take the step, and return the losses by name and the accuracy of the batch.

        Args:
            points: the clouds, where the network is to see them.
            labels: of the clouds, or of their points (-1: none).
            lr: learning rate.
            **given: what the network is given beside the points.
        """
        if not isinstance(self.lr, Tensor):
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            names, figures = self._take(points, labels, given)
            return dict(zip(names, figures, strict=True))
        self.lr.fill_(lr)
        if self._graph is None:
            self._record(points, labels, given)
        assert self._graph is not None
        self._points.copy_(points)
        self._labels.copy_(labels)
        for name, x in given.items():
            self._given[name].copy_(x)
        self._graph.replay()
        return dict(zip(self._names, self._figures.clone(), strict=True))

    def _take(
        self, points: Float[Tensor, "b n 3"], labels: Int[Tensor, "b *n"], given: dict[str, Tensor]
    ) -> tuple[list[str], Float[Tensor, "m"]]:
        self.optimizer.zero_grad(set_to_none=True)
        with float32_products(self._products):
            figures = self._losses(points, labels, given)
            figures["total"].backward()
        self.optimizer.step()
        values = torch.stack([x.detach().float() for x in figures.values()])
        return list(figures), mean_over_processes(values)

    def answer(
        self, network: nn.Module, points: Float[Tensor, "b n 3"], given: dict[str, Tensor]
    ) -> Any:
        """Send a batch through the network, or one like it, in the precision of training."""
        mixed = self.config.precision == "mixed"
        placed = {"placed": True} if self.placing else {}
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=mixed)
        with float32_products(self._products), autocast, count_together():
            return network(points, **given, **placed)

    def _losses(
        self, points: Float[Tensor, "b n 3"], labels: Int[Tensor, "b *n"], given: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the losses by name and the accuracy."""
        config = self.config
        output = self.answer(self.network, points, given)
        losses = classification_losses(
            output,
            labels,
            smoothing=config.smoothing,
            orthogonality_weight=config.orthogonality_weight,
            consistency_weight=config.consistency_weight,
            offsets=self.offsets,
        )
        right = output.logits.argmax(-1) == labels
        count: Tensor | int = len(labels)
        if labels.dim() > 1:
            count = count_over_processes(labels >= 0, losses.total.dtype)
        figures = {k: v for k, v in losses._asdict().items() if v is not None}
        return figures | {"accuracy": right.sum() / count}

    def _record(
        self, points: Float[Tensor, "b n 3"], labels: Int[Tensor, "b *n"], given: dict[str, Tensor]
    ) -> None:
        """Record the step, with buffers that later batches are copied into."""
        self._points, self._labels = points.clone(), labels.clone()
        self._given = {name: x.clone() for name, x in given.items()}
        weights = {name: x.clone() for name, x in self.model.state_dict().items()}
        memory = {key: x.clone() for key, x in self._memory()}
        inputs = (self._points, self._labels, self._given)
        with torch.cuda.device(self.device), torch.random.fork_rng([self.device]):
            warm_up(lambda: self._take(*inputs))
            self.optimizer.zero_grad(set_to_none=True)
            self._graph, (self._names, self._figures) = capture(lambda: self._take(*inputs))
        for name, x in self.model.state_dict().items():
            x.copy_(weights[name])
        for key, x in self._memory():
            # before the first step there is none, which is the same as zero
            x.copy_(memory.get(key, torch.zeros_like(x)))

    def _memory(self) -> list[tuple[tuple[Tensor, str], Tensor]]:
        """Return what the optimiser remembers, by parameter and kind."""
        states = self.optimizer.state.items()
        return [((p, k), x) for p, s in states for k, x in s.items() if isinstance(x, Tensor)]


def places_clouds(model: nn.Module) -> bool:
    """Say whether a network centres its clouds, and can be told to take them where they stand.

    If it centred them in training, shifting them would augment nothing.
    """
    centres = getattr(getattr(model, "config", None), "center", False)
    return bool(centres) and "placed" in inspect.signature(model.forward).parameters


def frequency_offsets(
    labels: Int[Tensor, "s *n"], classes: int, balance: float
) -> Float[Tensor, " classes"]:
    """Return ``balance`` times the logarithm of the share of every class; -1 is no label."""
    counts = labels[labels >= 0].bincount(minlength=classes) + 1  # none is infinitely rare
    return balance * (counts / counts.sum()).log()


def make_optimizer(
    model: nn.Module, config: TrainConfig, lr: float | Tensor, recorded: bool
) -> torch.optim.Optimizer:
    """Build the config's optimiser, for a step that is recorded as a graph or not."""
    if config.optimizer == "adamw":
        return torch.optim.AdamW(
            model.parameters(),
            lr=lr,
            betas=(config.momentum, 0.999),
            weight_decay=config.weight_decay,
            fused=recorded or None,
            capturable=recorded,
        )
    return torch.optim.SGD(
        model.parameters(),
        lr=lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=recorded or None,
    )
