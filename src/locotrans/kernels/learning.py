"""Training on the CPU by compiled loops: what its edge layers have in common.

Each has the plain PyTorch code of the layer as its specification. What an edge needs is gathered
and computed again in every pass, in the nearest cache; only what lies between two batch norms is
kept for the backward pass. So a step takes a fraction of the plain code's time, and of its memory.

Reference points are shared out among torch's threads by whole clouds, whose points are nobody
else's neighbours: threads never add to the same gradient.
"""

from jaxtyping import Float, Int
from torch import Tensor

from locotrans.distributed import moments_over_processes, processes
from locotrans.kernels.batch_norm import Norm


def check_edges(index: Int[Tensor, "m k"]) -> None:
    """Refuse edges that have no variance, as torch's batch norm does."""
    if index.numel() < 2:
        raise ValueError(f"batch statistics need at least two edges, not {index.numel()}")


def batch_moments(
    sums: Float[Tensor, "b 3 c"], norm: Norm, count: int
) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """Return mean and 1 / deviation of a batch, and let the running statistics follow.

    Args:
        sums: of each cloud, in float64: a shift, and the sums of x - shift and of its square.
        norm: the batch norm.
        count: values of a channel.
    """
    shift, first, second = sums.unbind(1)
    each = count / len(sums)
    means, variances = shift + first / each, second / each - (first / each).square()
    mean = means.mean(0)
    var = (variances.mean(0) + (means - mean).square().mean(0)).clamp_min(0)
    if processes() > 1:
        mean, var = moments_over_processes(mean, var)
        count *= processes()
    dtype = norm.running_mean.dtype
    norm.running_mean.lerp_(mean.to(dtype), norm.momentum)
    norm.running_var.lerp_((var * count / (count - 1)).to(dtype), norm.momentum)
    return mean.to(dtype), (var + norm.eps).rsqrt().to(dtype)
