r"""The checks of a certificate.

**Error.** The largest change of an output, divided by its *spread*: the largest distance of that
output from its mean over the clouds. An error of 1 is as large as the difference between shapes.
**Tolerance.** `TOLERANCES`, by precision: in float64 whether the property holds at all, in float32
one per cent of what tells shapes apart, in TF32 and bfloat16 ten.
**Expectation.** A property that the network *keeps* must stay within the tolerance, one that it
*breaks* must exceed it, and any other is reported.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from locotrans.certify.battery import Battery
from locotrans.certify.cases import (
    Kind,
    alone,
    lattice,
    mirrored,
    permuted,
    radius_of,
    repeated,
    scaled,
    shifted,
    turned,
    with_repeats,
)
from locotrans.certify.network import Network, refusal
from locotrans.certify.result import Certificate, Expected, Row, relative_change
from locotrans.certify.search import Search, search_rotations
from locotrans.counting import counted
from locotrans.geometry import random_rotations

TOLERANCES = {"float64": 1e-8, "float32": 1e-2, "tf32": 1e-1, "bfloat16": 1e-1}
PROPERTIES = (
    "rotation",
    "permutation",
    "translation",
    "scale",
    "reflection",
    "batch",
    "duplicates",
    "ties",
    "float32",
    "tf32",
    "bfloat16",
)
"""What a network can keep or break. Batch: other clouds beside it. Duplicates: some points given
twice. Ties: rotations of a regular grid. The precisions: rotations when it computes in them."""
KEEPS = ("rotation", "permutation", "batch", "float32")
"""What a network is held to unless it says otherwise."""
CHUNK = 256  # rotations of the search between two reports


def certify(
    model: Callable[[Tensor], Any],
    points: Float[Tensor, "b n 3"],
    *,
    keeps: Iterable[str] = KEEPS,
    breaks: Iterable[str] = (),
    outputs: Mapping[str, Kind] | None = None,
    radius: float = 20.0,
    searched: int = 1,
    rotations: int = 8,
    precision: str | None = None,
    tolerance: float | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = 32,
    seed: int = 0,
    target: str = "the network",
    clouds: str = "",
    report: Callable[[int], None] | None = None,
) -> Certificate:
    """Measure what transformations of clouds do to a network's answer, and judge it.

    Args:
        model: a module or any callable on points (b, n, 3), whose outputs have the clouds as their
            first axis. The answer is ``logits``, or else the first floating-point output.
        points: clouds to try, best of different shapes.
        keeps: which of `PROPERTIES` must hold.
        breaks: which must not.
        outputs: further outputs, by name, that rotations leave alone ("invariant") or turn
            ("equivariant"); those of points, (b, n, c), must follow a permutation too.
        radius: guarantee of the search for the worst rotation, in degrees (`search_rotations`).
        searched: how many of the clouds are searched.
        rotations: random rotations, and random orders, of every cloud.
        precision: float64 or float32; by default float64 where the network takes it.
        tolerance: the error that is forgiven in that precision.
        device: where to compute.
        batch_size: clouds at a time.
        seed: of everything random.
        target: what to call the network.
        clouds: what to call the clouds.
        report: called with a number of rotations of the search as they are done.
    """
    kept, broken = tuple(keeps), tuple(breaks)
    expected = _expectations(kept, broken)
    if points.dim() != 3 or points.shape[-1] != 3 or points.numel() == 0:
        raise ValueError(f"points must have the shape (b, n, 3), got {tuple(points.shape)}")
    if not 1 <= searched <= len(points):
        raise ValueError(f"searched must be from 1 to the {len(points)} clouds, got {searched}")
    if rotations < 1:
        raise ValueError(f"at least one rotation is needed, got {rotations}")
    points = points.detach().cpu().double()
    if precision is None:
        precision = "float32" if refusal(model, "float64", points, device) else "float64"
    if precision not in ("float64", "float32"):
        raise ValueError(f"precision must be float64 or float32, got {precision!r}")
    network = Network(model, precision, device, batch_size)
    allowed = TOLERANCES[precision] if tolerance is None else tolerance
    battery = Battery(network, points, allowed, expected)
    generator = torch.Generator().manual_seed(seed)
    R = random_rotations(rotations, generator=generator, dtype=torch.float64)
    kinds = dict(outputs or {})
    for name in kinds:
        if name not in battery.reference:
            known = ", ".join(battery.reference)
            raise ValueError(f"the network's answer has no {name!r}; it has {known}")

    rows = battery.rows("rotation", "random rotations", turned(points, R, kinds), kinds)
    search = _search(battery, points[:searched], radius, report)
    rows.insert(1, battery.worst(search, points[:searched]))
    orders = permuted(points, rotations, seed)
    rows += battery.rows("permutation", "random orders of the points", orders, kinds)
    rows += _transformations(battery, points, R)
    rows += _special_clouds(battery, points, R)
    for name in ("float32", "tf32", "bfloat16"):
        if name == precision:  # the certificate's own, in which the first row was measured
            check = f"{rows[0].check} in {name}"
            rows.append(replace(rows[0], name=name, check=check, expected=expected(name)))
        else:
            rows.append(_precision(battery, model, name, points, R))
    facts = clouds or f"{counted(len(points), 'cloud')} of {counted(points.shape[1], 'point')}"
    return Certificate(target, facts, precision, tuple(rows), search, (*kept, *broken))


def _expectations(keeps: Iterable[str], breaks: Iterable[str]) -> Callable[[str], Expected]:
    kept, broken = set(keeps), set(breaks)
    for name in kept | broken:
        if name not in PROPERTIES:
            raise ValueError(f"unknown property {name!r}; known are {', '.join(PROPERTIES)}")
    if kept & broken:
        raise ValueError(f"{', '.join(sorted(kept & broken))} cannot be both kept and broken")
    return lambda name: "keeps" if name in kept else "breaks" if name in broken else "reported"


def _search(
    battery: Battery,
    points: Float[Tensor, "b n 3"],
    radius: float,
    report: Callable[[int], None] | None,
) -> Search:
    def errors(R: Tensor) -> Tensor:
        found = []
        for chunk in R.split(CHUNK):
            found.append(battery.errors(points, chunk))
            if report is not None:
                report(len(chunk))
        return torch.cat(found)

    return search_rotations(errors, radius)


def _transformations(
    battery: Battery, points: Float[Tensor, "b n 3"], R: Float[Tensor, "r 3 3"]
) -> Iterator[Row]:
    """Yield the rows of transformations that are neither rotations nor permutations."""
    yield from battery.rows("translation", "translation", shifted(points, R[0, 0]))
    yield from battery.rows("scale", "scale", scaled(points))
    yield from battery.rows("reflection", "reflection", mirrored(points, R))
    if len(points) > 1:
        yield from battery.rows("batch", "without the other clouds", alone(points))
    else:
        yield battery.skipped("batch", "without the other clouds", "there is one cloud only")


def _special_clouds(
    battery: Battery, points: Float[Tensor, "b n 3"], R: Float[Tensor, "r 3 3"]
) -> Iterator[Row]:
    """Yield the rows of clouds that make neighbours hard to tell: repeated points, a grid."""
    again, turns = "an eighth of the points given twice", "random rotations, points given twice"
    grid = "random rotations of a grid (ties)"
    if getattr(battery.network.model, "fixed_points", None) is not None:
        why = "the file takes one number of points only"
        for name, check in (("duplicates", again), ("rotation", turns), ("ties", grid)):
            yield battery.skipped(name, check, why)
        return
    yield from battery.rows("duplicates", again, repeated(points))
    doubled, cube = with_repeats(points), lattice(points.shape[1], radius_of(points))
    for name, check, clouds in (("rotation", turns, doubled), ("ties", grid, cube)):
        reference = battery.network(clouds)
        yield from battery.rows(name, check, turned(clouds, R), reference=reference)


def _precision(
    battery: Battery,
    model: Callable[[Tensor], Any],
    name: str,
    points: Float[Tensor, "b n 3"],
    R: Float[Tensor, "r 3 3"],
) -> Row:
    """Return the row of rotations in another precision."""
    device, check = battery.network.device, f"random rotations in {name}"
    if name == "tf32" and device.type != "cuda":
        return battery.skipped(name, check, "not measured here: TF32 needs a CUDA device")
    if why := refusal(model, name, points, device):
        return battery.skipped(name, check, why)
    network = Network(model, name, device, battery.network.batch_size)
    other = Battery(network, points, TOLERANCES[name], battery.expected)
    (row,) = other.rows(name, check, turned(points, R))
    before, after = (x.reference[x.answer] for x in (battery, other))
    apart = float(relative_change(after, before, battery.spread[battery.answer]).max())
    note = f"{row.note}; {apart:.1e} from the answer in {battery.network.precision}"
    return replace(row, note=note)
