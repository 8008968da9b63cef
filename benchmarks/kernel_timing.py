"""How a kernel alone is timed, against its plain specification and next to its floor.

The floor of a kernel is the sum over its passes of the longest of three times: that of its bytes
from and to device memory, that of its bytes from and to the L2 cache, and that of its operations,
each at the rate of an H200.

Forward and backward passes are recorded as CUDA graphs and replayed many times in a row, the way
that a recorded training step runs them: launching from Python would take longer than most of them
run. Inputs that fit the L2 cache stay there from one replay to the next, in the table as in a step,
so a small kernel can come out below the floor of its bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from timing import Replayed, measure
from torch import Tensor
from torch.nn import functional as F

MEMORY = 4.3e12  # bytes a second
CACHE = 5.5e12  # of the second level; what a multiprocessor holds itself comes faster
PRODUCTS = 4e14  # operations a second on tensor cores, in bfloat16
INSTRUCTIONS = 2.8e13  # of all lanes
TRIES = 5  # of other roundings of the inputs

# Why a kernel takes more than three times its floor, by words of its name and pass; the first that
# fits counts.
REASONS = {
    "rpr_conv tf32x3 backward": "float32 products without tensor cores, at half the rate of the "
    "floor: three TF32 products need more registers than there are, and took twice this time; the "
    "widest layer is slower than plain code, and kept since it stores no edges",
    "rpr_conv": "between products every channel of every edge passes batch norm, ReLU and sums, or "
    "their derivatives, in registers; two programs of four warps fill those of a multiprocessor, "
    "too few to hide one part of the work behind another",
    "vector_losses": "latency: a program waits for its indices, then for the vectors of k "
    "neighbours, and has nothing else to do; then one program adds all sums",
    "symmetric_frames": "latency: the least that a launch takes is several times so small a floor",
    "point_products": "launches: weights are packed, torch takes two products (four on the way "
    "back), and the benchmark joins them to compare; each takes at least a few us",
    "frame_conv": "about ten instructions for every channel of every edge (15 us), which the floor "
    "of its bytes leaves out",
}


class Pass(NamedTuple):
    """What one pass of a kernel must move and compute."""

    memory: float
    cache: float = 0.0
    operations: float = 0.0
    rate: float = PRODUCTS

    def seconds(self) -> float:
        """Return the least time."""
        return max(self.memory / MEMORY, self.cache / CACHE, self.operations / self.rate)


class Size(NamedTuple):
    """A batch."""

    b: int
    n: int
    k: int
    device: torch.device

    def draw(self, *shape: int) -> Tensor:
        """Draw numbers for every point, which ask for a gradient."""
        return torch.randn(self.b * self.n, *shape, device=self.device).requires_grad_()


class Problem(NamedTuple):
    """Two functions that must agree, and what they are differentiated by.

    The fused one may return more channels, zeros, behind those of the plain one.
    """

    fused: Callable[[], Any]
    plain: Callable[[], Any]
    inputs: Sequence[Tensor] = ()


class Case(NamedTuple):
    """A kernel at one width."""

    name: str
    make: Callable[[Size], Problem]
    forward: Sequence[Pass]
    backward: Sequence[Pass] = ()
    unit: float = 2.0**-23
    """Of the last place of the numbers it stores or multiplies."""
    chosen: float = 1e-2
    """Of a gradient, at most, where rounding chooses other maxima, or sides of a ReLU."""

    def tolerances(self) -> dict[str, float]:
        """Return how far output and gradients may be from the specification, by pass."""
        return {"forward": max(1e-4, 2 * self.unit), "backward": max(1e-4, self.chosen)}


class Timed(NamedTuple):
    """One of the two functions of a problem."""

    seconds: dict[str, float]
    output: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    launch: str


def time_case(case: Case, size: Size, budget: float = 0.1) -> list[dict[str, Any]]:
    """Return a row for the forward pass, and one for the backward pass where there is one."""
    torch.manual_seed(0)
    problem = case.make(size)
    with torch.no_grad():
        example = _tuple(problem.plain())
    cotangents = [torch.randn_like(x) for x in example if x.is_floating_point()]
    plain = _time(problem.plain, problem.inputs, cotangents, size.device, budget)
    fused = _time(problem.fused, problem.inputs, cotangents, size.device, budget)
    errors = {
        "forward": _difference(fused.output, plain.output),
        "backward": _difference(fused.gradients, plain.gradients) if problem.inputs else 0.0,
    }
    unit = _unit_off(problem, cotangents, plain.gradients) if problem.inputs else None
    rows = []
    for name, passes in {"forward": case.forward, "backward": case.backward}.items():
        if not passes:
            continue
        least = sum(p.seconds() for p in passes)
        over = fused.seconds[name] / least
        said = {*case.name.replace(",", "").split(), name}
        reasons = [text for words, text in REASONS.items() if said.issuperset(words.split())]
        rows.append(
            {
                "kernel": case.name,
                "pass": name,
                "fused us": 1e6 * fused.seconds[name],
                "plain us": 1e6 * plain.seconds[name],
                "speed-up": plain.seconds[name] / fused.seconds[name],
                "floor us": 1e6 * least,
                "over floor": over,
                "difference": errors[name],
                "plain, inputs a unit off": unit if name == "backward" else None,
                "launch": fused.launch if fused.launch == plain.launch else "mixed",
                "why over 3": reasons[0] if reasons and over > 3 else "",
            }
        )
    return rows


def _unit_off(problem: Problem, cotangents: Sequence[Tensor], plain: Sequence[Tensor]) -> float:
    """Return how far the plain gradients move where inputs are a unit of the last place off.

    No gradient in float32 is determined better: where rounding chooses the maximum or the side of a
    ReLU, that is not to 1e-4. The worst of some tries, since single edges make it.
    """
    given = [x.detach().clone() for x in problem.inputs]
    errors = []
    for _ in range(TRIES):
        with torch.no_grad():
            for x, x0 in zip(problem.inputs, given, strict=True):
                x.copy_(x0 * (1 + 2.0**-23 * torch.randn_like(x0).sign()))
        moved = torch.autograd.grad(_tuple(problem.plain()), problem.inputs, list(cotangents))
        errors.append(_difference(moved, plain))
    return max(errors)


def _time(
    function: Callable[[], Any],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    device: torch.device,
    budget: float,
) -> Timed:
    """Time a function and its derivative, recorded if that is possible."""

    def values() -> tuple[Tensor, ...]:
        return _tuple(function())

    def derivative(output: tuple[Tensor, ...]) -> Callable[[], tuple[Tensor, ...]]:
        wide = [
            F.pad(g, (0, x.shape[-1] - g.shape[-1]))
            for x, g in zip(output, cotangents, strict=True)
        ]
        return lambda: torch.autograd.grad(output, inputs, wide, retain_graph=True)

    def both() -> None:
        output = values()
        if inputs:
            derivative(output)()

    def pair(record: bool) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
        forward = Replayed(values, before=both) if record else values
        output = forward()  # replayed, so that what the derivative reads is there
        if not inputs:
            return forward, None
        backward = derivative(output)
        return forward, Replayed(backward, before=None) if record else backward

    launch = "cpu"
    if device.type == "cuda":
        try:
            (forward, backward), launch = pair(True), "graph"
        except RuntimeError as error:
            print(f"not recorded, but launched from Python: {error}", flush=True)
            launch = "eager"
    if launch != "graph":
        forward, backward = pair(False)
    output = forward()
    seconds = {"forward": measure(forward, device, budget).median}
    gradients: tuple[Tensor, ...] = ()
    if backward is not None:
        gradients = backward()
        seconds["backward"] = measure(backward, device, budget).median
    return Timed(seconds, output, gradients, launch)


def _tuple(x: Any) -> tuple[Tensor, ...]:
    return (x,) if isinstance(x, Tensor) else tuple(x)


def _difference(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the worst relative error of several tensors, or the share of other neighbourhoods.

    A tensor that ought to be zero, as the gradient of a bias before a batch norm, is measured
    against a thousandth of the longest one.
    """
    if not expected[0].is_floating_point():
        pairs = zip(actual, expected, strict=True)
        shares = [(a.sort(-1).values != b.sort(-1).values).any(-1) for a, b in pairs]
        return max(x.float().mean().item() for x in shares)
    least = 1e-3 * max(x.norm().item() for x in expected)
    errors = []
    for a, b in zip(actual, expected, strict=True):
        distance = (a[..., : b.shape[-1]].double() - b.double()).norm().item()
        errors.append(distance / max(b.norm().item(), least, 1e-300))
    return max(errors)
