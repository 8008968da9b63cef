"""Several processes that train one network: what they have to know of each other.

Each has an equal share of every batch. Where an average over the batch enters the network (batch
norm) or a loss, it must be that of the whole batch, so that the result does not depend on how many
processes share it. With a single process, all of this does nothing.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, distributed


def processes() -> int:
    """Return how many processes train together: 1, unless torch.distributed runs."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return distributed.get_world_size()


def process() -> int:
    """Return the number of this process; 0 is the one that writes files."""
    return distributed.get_rank() if processes() > 1 else 0


def sum_over_processes(x: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Return the sum of a tensor of each process, the same for all; with one process, ``x`` itself.

    Gradient: none flows.
    """
    if processes() == 1:
        return x
    total = x.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total)
    return total


def mean_over_processes(x: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Return the mean of a tensor of each process, the same for all; with one, ``x`` itself.

    Gradient: none flows.
    """
    return x if processes() == 1 else sum_over_processes(x) / processes()


def count_over_processes(mask: Bool[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, ""]:
    """Return how often ``mask`` holds, as a mean over the processes; 1 where it nowhere does.

    Sums over the shares of a batch that are divided by it average to the mean over the whole batch.
    All processes must ask.
    """
    count = mean_over_processes(mask.sum().to(dtype))
    return torch.where(count > 0, count, 1)


def gather_processes(x: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "p *shape"]:
    """Return the tensors of all processes, stacked in order.

    Gradient: each process receives the sum of what all of them ask of its tensor.
    """
    return _Gather.apply(x)


def moments_over_processes(
    mean: Float[Tensor, " c"], var: Float[Tensor, " c"]
) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """Return mean and biased variance over all processes from those of each, in one exchange.

    Every process must have as many values as the others.

    Gradient: flows to every process.
    """
    means, variances = gather_processes(torch.stack([mean, var])).unbind(1)  # each (p, c)
    mean = means.mean(0)
    return mean, variances.mean(0) + (means - mean).square().mean(0)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        all_of_them = [torch.empty_like(x) for _ in range(processes())]
        distributed.all_gather(all_of_them, x.contiguous())
        return torch.stack(all_of_them)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        distributed.all_reduce(total)
        return total[process()]
