"""How a kernel alone is timed, against its plain specification and next to its floor.

The floor of a pass is what no implementation can be below: its inputs read once and its outputs
written once at the bandwidth of the memory, or its useful operations at the rate of the fastest
units that have its precision, whichever takes longer; rates are those of NVIDIA's data sheet for an
H200. Beside it stands what the kernels' own algorithm would take, pass by pass, at rates that are
reached in practice: this tells how much of the distance is the algorithm's. It is an estimate and
no bound, since a multiprocessor's own cache serves some of what it counts for the L2 cache.

Forward and backward passes are recorded as CUDA graphs and replayed many times in a row, the way
that a recorded training step runs them: launching from Python would take longer than most of them
run. Inputs that fit the L2 cache stay there from one replay to the next, in the table as in a step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from timing import Replayed, measure
from torch import Tensor
from torch.nn import functional as F

# of an H200, by its data sheet
MEMORY = 4.8e12  # bytes a second
PRODUCTS = 9.89e14  # operations a second on tensor cores, in bfloat16 or half precision
ARITHMETIC = 6.7e13  # operations a second in float32, elsewhere
# of an H200, in practice
REACHED_MEMORY = 4.3e12
CACHE = 5.5e12  # bytes a second of the second level; what a multiprocessor holds comes faster
REACHED_PRODUCTS = 4e14
INSTRUCTIONS = 2.8e13  # of all lanes
TRIES = 5  # of other roundings of the inputs
UNITS = 6  # times what these do to a gradient: as far as a float32 one may be from another

LAUNCH = "a launch: it alone takes a few us, and there is next to nothing to do"
# Why a pass takes more than three times its floor, by words of its kernel's name and its own; the
# first that fits counts.
REASONS = {
    "knn coordinates": "the selection: about 1,300 instructions of a warp find the k nearest of a "
    "row, and many of them wait for others",
    "knn": "distances are written and read again, some rows at a time, by way of the L2 cache, and "
    "about 1,000 instructions of a warp select the k nearest of a row",
    "farthest_points": "each point is chosen when the one before is known, by one program a cloud: "
    "about 1 us a point, on as many multiprocessors as there are clouds",
    "vn_edge_conv backward": "every edge gathers vectors and directions from the caches, once for "
    "the sums of the batch norm and once for the gradients, and adds as many atomically: at k = 20 "
    "that is 13 times the bytes of the floor",
    "vn_edge_conv": "every edge gathers vectors from the caches for the statistics of the batch, "
    "then again with directions for the output: at k = 20 that is 12 times the bytes of the floor",
    "vn_norm_act": "the statistics of the batch come before the output, so vectors are read twice; "
    "small tensors wait for several launches besides",
    "vn_norm_act_mean": "the statistics of the batch come before the output, and that before its "
    "mean: vectors are read three times",
    "rpr_conv tf32x3 backward": "float32 products without tensor cores, at 0.4 of the rate of the "
    "floor: three TF32 products need more registers than there are, and took twice this time; they "
    "are taken again for what was not stored, and stored edges go through memory; the widest layer "
    "is slower than plain code, and kept since it stores fewer edges",
    "rpr_conv evaluation": "edges go through memory between products that do not fit a program "
    "together; in registers, every channel of every edge passes batch norm and ReLU, with too few "
    "programs on a multiprocessor to hide this behind the products",
    "rpr_conv": "batch norm needs the statistics of all edges before its output exists, so the "
    "edges of every stage go through memory; between products every channel of every edge passes "
    "batch norm, ReLU and sums, or their derivatives, in registers, and two programs of four warps "
    "fill those of a multiprocessor, too few to hide one part of the work behind another",
    "pool_projections": "launches: one sums over some points of a shape at a time, another adds "
    "these sums; of few channels there is little to do in between",
    "embed_pool": "the statistics of the batch, or the sums of its gradient, come before the "
    "output, and the features do not fit the L2 cache: they are read twice",
    "vector_losses": "latency: a program waits for its indices, then for the vectors of k "
    "neighbours, and has nothing else to do; then one program adds all sums",
    "symmetric_frames": LAUNCH,
    "point_products": "launches: weights are packed, torch takes two products (four on the way "
    "back), and the benchmark joins them to compare; each takes at least a few us",
    "frame_conv": "about ten instructions for every channel of every edge (15 us); the maxima are "
    "written, and read again when the statistics of the batch are known",
    "edge_max backward": "every edge gathers a number a channel from the L2 cache for the part of "
    "the gradient that comes from the statistics, and adds one atomically: at k = 20 eight times "
    "the bytes of the floor",
    "edge_max": "every edge gathers a number a channel from the L2 cache: at k = 20 seven times "
    "the bytes of the floor",
    "norm_act": LAUNCH,
    "cross_entropy": LAUNCH,
    "pack_edges": LAUNCH,
    "pack_layer": LAUNCH,
    "pack_halves": LAUNCH,
}


class Work(NamedTuple):
    """What any implementation of a pass must do."""

    memory: float
    """Bytes of its inputs and outputs."""
    operations: float = 0.0
    rate: float = ARITHMETIC

    def seconds(self) -> float:
        """Return the least time."""
        return max(self.memory / MEMORY, self.operations / self.rate)


class Pass(NamedTuple):
    """What one pass over the data, of those that a kernel takes, moves and computes."""

    memory: float
    cache: float = 0.0
    operations: float = 0.0
    rate: float = REACHED_PRODUCTS

    def seconds(self) -> float:
        """Estimate the time."""
        return max(self.memory / REACHED_MEMORY, self.cache / CACHE, self.operations / self.rate)


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
    work: dict[str, Work]
    """By pass: "forward" and, where there is one, "backward"."""
    passes: dict[str, Sequence[Pass]]
    """What the chosen algorithm makes of each."""
    unit: float = 2.0**-23
    """Of the last place of the numbers it stores or multiplies."""
    chosen: float = 1e-2
    """How far a gradient of rounded numbers may be off, where other maxima are chosen."""

    def tolerance(self, row: Mapping[str, Any]) -> float:
        """Return how far the pass of a row of `time_case` may be from its specification."""
        if row["pass"] == "forward":
            return max(1e-4, 2 * self.unit)
        if self.unit > 2.0**-23:
            return self.chosen
        return max(1e-4, UNITS * row["plain, inputs a unit off"])


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
    unit = _unit_off(problem, cotangents) if problem.inputs else None
    plain = _time(problem.plain, problem.inputs, cotangents, size.device, budget)
    fused = _time(problem.fused, problem.inputs, cotangents, size.device, budget)
    errors = {
        "forward": _difference(fused.output, plain.output),
        "backward": _difference(fused.gradients, plain.gradients) if problem.inputs else 0.0,
    }
    rows = []
    for name, work in case.work.items():
        least = work.seconds()
        over = fused.seconds[name] / least
        rows.append(
            {
                "kernel": case.name,
                "pass": name,
                "fused us": 1e6 * fused.seconds[name],
                "plain us": 1e6 * plain.seconds[name],
                "speed-up": plain.seconds[name] / fused.seconds[name],
                "floor us": 1e6 * least,
                "over floor": over,
                "algorithm us": 1e6 * sum(p.seconds() for p in case.passes[name]),
                "difference": errors[name],
                "plain, inputs a unit off": unit if name == "backward" else None,
                "launch": fused.launch if fused.launch == plain.launch else "mixed",
                "why over 3": reason(case.name, name) if over > 3 else "",
            }
        )
    return rows


def reason(kernel: str, name: str) -> str:
    """Return why a pass of a kernel takes more than three times its floor; nothing if not known."""
    said = {*kernel.replace(",", "").split(), name}
    return next((text for words, text in REASONS.items() if said.issuperset(words.split())), "")


def _unit_off(problem: Problem, cotangents: Sequence[Tensor]) -> float:
    """Return how far the plain gradients move where inputs are a unit of the last place off.

    No gradient in float32 is determined better: where rounding chooses the maximum or the side of a
    ReLU, that is not to 1e-4. The worst of some tries, since single edges make it.
    """

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(_tuple(problem.plain()), problem.inputs, list(cotangents))

    given = [x.detach().clone() for x in problem.inputs]
    plain, errors = gradients(), []
    for _ in range(TRIES):
        with torch.no_grad():
            for x, x0 in zip(problem.inputs, given, strict=True):
                x.copy_(x0 * (1 + 2.0**-23 * torch.randn_like(x0).sign()))
        errors.append(_difference(gradients(), plain))
    with torch.no_grad():
        for x, x0 in zip(problem.inputs, given, strict=True):
            x.copy_(x0)
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
