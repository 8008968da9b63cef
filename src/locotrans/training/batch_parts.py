"""A batch normalised in parts: each has statistics of its own, all have one gradient.

So small batches on several devices are imitated, as the authors' program has them. Parts too small
to fill a GPU run side by side there.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from locotrans.distributed import mean_over_processes, processes


class Part(NamedTuple):
    """Some shapes of a batch: the clouds, their labels, and what else the network is given."""

    points: Float[Tensor, "b n 3"]
    labels: Int[Tensor, "b *n"]
    given: dict[str, Tensor]


def split_batch(
    count: int,
    points: Float[Tensor, "b n 3"],
    labels: Int[Tensor, "b *n"],
    given: dict[str, Tensor],
) -> list[Part]:
    """Return the batch as so many parts of one size."""
    chunks = {name: x.chunk(count) for name, x in given.items()}
    return [
        Part(p, y, {name: x[i] for name, x in chunks.items()})
        for i, (p, y) in enumerate(zip(points.chunk(count), labels.chunk(count), strict=True))
    ]


def side_streams(count: int, device: torch.device) -> list[torch.cuda.Stream]:
    """Return streams for the parts: none where there is one part, or no GPU."""
    if count == 1 or device.type != "cuda":
        return []
    return [torch.cuda.Stream(device) for _ in range(count)]


def differentiate_parts(
    model: nn.Module,
    losses: Callable[..., dict[str, Tensor]],
    parts: Sequence[Part],
    streams: Sequence[torch.cuda.Stream],
) -> dict[str, Tensor]:
    """Set a network's gradients to the mean over the parts, and return the mean figures.

    Each part starts from the network's running statistics, whose mean over the parts the network
    is left with.

    Args:
        model: the network.
        losses: gives the figures of a part by name, the loss as ``total``, from a function that
            answers as the network does, and the part.
        parts: the parts, of one size.
        streams: where they run, a stream each; empty: one after the other.
    """
    weights = [p for p in model.parameters() if p.requires_grad]
    buffers = dict(model.named_buffers())
    results = []
    for i, part in enumerate(parts):
        if streams:
            streams[i].wait_stream(torch.cuda.current_stream(streams[i].device))
        with torch.cuda.stream(streams[i]) if streams else nullcontext():
            own = {name: x.clone() for name, x in buffers.items()}
            figures = losses(partial(_call, model, own), *part)
            gradients = torch.autograd.grad(figures["total"], weights, allow_unused=True)
            figures = {name: x.detach() for name, x in figures.items()}
            results.append((figures, gradients, own))
    for stream in streams:
        torch.cuda.current_stream(stream.device).wait_stream(stream)

    used = [i for i, gradient in enumerate(results[0][1]) if gradient is not None]
    means = _means([[gradients[i] for i in used] for _, gradients, _ in results])
    for i, gradient in zip(used, _over_processes(means), strict=True):
        weights[i].grad = gradient
    for moving in (True, False):  # the others are counters, alike in all parts
        chosen = [name for name, x in buffers.items() if x.is_floating_point() == moving]
        states = [[own[name] for name in chosen] for _, _, own in results]
        if chosen:
            new = _means(states) if moving else states[0]
            torch._foreach_copy_([buffers[name] for name in chosen], new)
    names = list(results[0][0])
    means = _means([[figures[name] for name in names] for figures, _, _ in results])
    return dict(zip(names, means, strict=True))


def _call(model: nn.Module, buffers: dict[str, Tensor], *args: Tensor, **given: Any) -> Any:
    """Call a network with other buffers than its own, which it changes."""
    return functional_call(model, buffers, args, given)


def _means(rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return the means of tensors of the parts, in their memory."""
    total = list(rows[0])
    if total:
        for row in rows[1:]:
            torch._foreach_add_(total, list(row))
        torch._foreach_mul_(total, 1 / len(rows))
    return total


def _over_processes(gradients: list[Tensor]) -> list[Tensor]:
    """Return the means over the processes, in one exchange."""
    if processes() == 1:
        return gradients
    flat = mean_over_processes(torch.cat([x.flatten() for x in gradients]))
    sizes = [x.numel() for x in gradients]
    return [x.view_as(g) for x, g in zip(flat.split(sizes), gradients, strict=True)]
