"""Kernels that work on a few thousand numbers, and take the time of a launch: as `kernel_cases`."""

from collections.abc import Callable, Iterator, Sequence

import torch
from kernel_timing import Case, Pass, Problem, Size, Work
from torch import Tensor
from torch.nn import functional as F

from locotrans.models import model_config
from locotrans.nn.norm import BatchNorm

CLASSES, SMOOTHING = 40, 0.2


def norm_act_case(size: Size, c: int) -> Case:
    def make(size: Size) -> Problem:
        from locotrans.kernels.head import norm_act

        norm = BatchNorm(c).to(size.device)
        y = torch.randn(size.b, c, device=size.device).requires_grad_()
        return Problem(
            lambda: norm_act(y, norm.statistics()),
            lambda: F.leaky_relu(norm(y), 0.2),
            [y, *norm.parameters()],
        )

    return _case(f"norm_act {c}", make, 8 * size.b * c, 12 * size.b * c)


def cross_entropy_case(size: Size) -> Case:
    def make(size: Size) -> Problem:
        from locotrans.kernels.cross_entropy import cross_entropy

        logits = torch.randn(size.b, CLASSES, device=size.device).requires_grad_()
        labels = torch.arange(size.b, device=size.device) % CLASSES
        return Problem(
            lambda: cross_entropy(logits, labels, SMOOTHING)[None],
            lambda: F.cross_entropy(logits, labels, label_smoothing=SMOOTHING)[None],
            [logits],
        )

    entries = size.b * CLASSES
    return _case(f"cross_entropy {CLASSES}", make, 4 * entries + 8 * size.b, 8 * entries)


def pack_case(size: Size, kernel: str, d: int, e: int, widths: Sequence[int]) -> Case:
    """Make a case of packed weights: (d, c) of vectors and (e, c) of directions, c in parts."""
    c = sum(widths)

    def make(size: Size) -> Problem:
        from locotrans.kernels import vn_weights

        weights = [torch.randn(x, c, device=size.device).requires_grad_() for x in (d, e)]

        def plain() -> Tensor | tuple[Tensor, ...]:
            parts = [x.split(list(widths), dim=1) for x in weights]
            if kernel == "pack_layer":
                return torch.cat([torch.cat([_filled(x) for x in part], dim=1) for part in parts])
            (p1, p2), (q1, q2) = parts
            if kernel == "pack_edges":
                return torch.cat([_filled(x) for x in (p1, q1, p2 - p1, q2 - q1)])
            return tuple(torch.cat([_filled(x) for x in half]) for half in ((p1, q1), (p2, q2)))

        def fused() -> Tensor | tuple[Tensor, ...]:
            options = [widths] if kernel == "pack_layer" else []
            return getattr(vn_weights, kernel)(*weights, *options)

        return Problem(fused, plain, weights)

    return _case(f"{kernel} {c} to {d}", make, *[8 * (d + e) * c] * 2)


def launch_cases(size: Size) -> Iterator[Case]:
    """Yield them at the widths of the full network."""
    full = model_config("locotrans_dgcnn")
    yield norm_act_case(size, full.head_widths[0])
    yield cross_entropy_case(size)
    *_, c, d = full.vector_widths
    yield pack_case(size, "pack_edges", d, d, (c, c))
    d = full.vector_embedding
    yield pack_case(size, "pack_layer", d, 1, full.vector_widths)
    yield pack_case(size, "pack_halves", d, d, (d, d))


def _case(name: str, make: Callable[[Size], Problem], forward: float, backward: float) -> Case:
    """Make a case of so many bytes each way."""
    work = {"forward": Work(forward), "backward": Work(backward)}
    return Case(name, make, work, {key: [Pass(x.memory)] for key, x in work.items()})


def _filled(x: Tensor) -> Tensor:
    """Append zero rows and columns up to multiples of 8."""
    return F.pad(x, (0, -x.shape[1] % 8, 0, -x.shape[0] % 8))
