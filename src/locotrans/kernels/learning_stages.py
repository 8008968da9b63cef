"""The edges of a batch and the batch norms between their products, for `learning_rpr`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.distributed import processes, sum_over_processes
from locotrans.kernels import learning_rpr_loops
from locotrans.kernels.batch_norm import Norm
from locotrans.kernels.cpu import CACHE, as_arrays
from locotrans.kernels.learning import batch_moments
from locotrans.kernels.threads import share_out

# of the number of a cloud, some of its edges, and their first point and the one behind the last
Part = Callable[[int, slice, tuple[int, int]], None]
Turn = Callable[[slice], Tensor]


@dataclass(frozen=True)
class Edges:
    """The edges of a batch."""

    index: Int[Tensor, "m k"]
    n: int
    """Points of a cloud."""
    width: int
    """Numbers that an edge has at most."""

    @property
    def count(self) -> int:
        """Return how many there are."""
        return self.index.numel()

    def a_cloud(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return zeros, for what is added up over each cloud."""
        return torch.zeros(len(self.index) // self.n, *shape, dtype=dtype)

    def sums(self, rows: int, channels: int) -> Tensor:
        """Return zeros for sums of many numbers."""
        return self.a_cloud(rows, channels, dtype=torch.float64)

    def in_parts(self, begin: Callable[[int], Part]) -> None:
        """Go through all edges, those of a few points at a time.

        Args:
            begin: gives each thread what does a part, told how many edges that has at most.
        """
        (m, k), n = self.index.shape, self.n
        step = max(1, min(n, CACHE // (k * self.width)))

        def work(first: int, last: int) -> None:
            part = begin(step * k)
            for cloud in range(first // n, last // n):
                for start in range(cloud * n, (cloud + 1) * n, step):
                    stop = min(start + step, (cloud + 1) * n)
                    part(cloud, slice(start * k, stop * k), (start, stop))

        share_out(work, m, unit=n)


class Stage(NamedTuple):
    """A batch norm of one batch, with a ReLU behind it."""

    x: Float[Tensor, "e c"]
    """What comes before it: all edges or, of the last one, those that are chosen."""
    mean: Float[Tensor, " c"]
    rstd: Float[Tensor, " c"]
    scale: Float[Tensor, " c"]
    shift: Float[Tensor, " c"]

    @classmethod
    def of(cls, x: Tensor, sums: Float[Tensor, "b 3 c"], norm: Norm, count: int) -> "Stage":
        """Return it, given the moments of all edges, and let the running statistics follow."""
        mean, rstd = batch_moments(sums, norm, count)
        scale = norm.weight * rstd
        return cls(x, mean, rstd, scale, norm.bias - scale * mean)

    def rectified(self) -> Callable[[slice, Tensor], Tensor]:
        """Return what gives the edges behind it, some at a time, in a buffer."""
        x, scale, shift = as_arrays(self.x, self.scale, self.shift)

        def write(rows: slice, buffer: Tensor) -> Tensor:
            out = buffer[: rows.stop - rows.start]
            learning_rpr_loops.rectify(x[rows], scale, shift, out.numpy())
            return out

        return write

    def before(
        self, dx: Float[Tensor, "e c"], sums: Float[Tensor, "b 2 c"], count: int
    ) -> tuple[Turn, tuple[Any, ...]]:
        """Return what turns the gradient behind the batch norm into that before it, and its own.

        Args:
            dx: the gradient of all edges, which is turned in place, some at a time.
            sums: of it, and of it times x - mean.
            count: edges of this process.
        """
        of_norm, c1, c2 = self.means(sums, count)
        q = self.scale * c2 * self.rstd
        x, dx_, *terms = as_arrays(self.x, dx, self.scale, q, self.scale * c1 - q * self.mean)

        def turn(rows: slice) -> Tensor:
            learning_rpr_loops.norm_backward(dx_[rows], x[rows], *terms)
            return dx[rows]

        return turn, of_norm

    def means(
        self, sums: Float[Tensor, "b 2 c"], count: int
    ) -> tuple[tuple[Any, ...], Tensor, Tensor]:
        """Return the gradients of a norm, and the means of dy and of dy x over all edges.

        Args:
            sums: of dy, and of dy times x - mean.
            count: edges of this process.
        """
        total = sums.sum(0)
        total[1] *= self.rstd
        dbeta, dgamma = total.to(self.scale.dtype).unbind()
        c1, c2 = (sum_over_processes(total) / (count * processes())).to(self.scale.dtype).unbind()
        return Norm.gradients(dgamma, dbeta), c1, c2
