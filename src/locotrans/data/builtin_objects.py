"""Vessels, tools and solids of the built-in set. Objects stand upright along z.

As among the furniture, families that share a helper differ in the placement of parts alone.
"""

import math
from typing import NamedTuple

from torch import Tensor

from locotrans.data.builtin_category import Draw, category
from locotrans.data.builtin_surfaces import (
    Profile,
    Surfaces,
    box,
    cylinder,
    lathe,
    row,
    sphere,
    torus,
)
from locotrans.geometry import axis_rotation

# poses of a handle: where the top of its arc (local x) points, and its plane stays upright
SIDEWAYS = axis_rotation("x", row(math.pi / 2))
UPWARDS = axis_rotation("y", row(-math.pi / 2))


class _Vessel(NamedTuple):
    radius: Tensor
    height: Tensor
    thickness: Tensor
    tube: Tensor

    def hollow(self, opening: int = 1) -> list[Surfaces]:
        """A cup from z = 0 to its height, open above, or below where ``opening`` is -1."""
        r, h, t = self.radius, self.height, self.thickness
        turn = None if opening > 0 else axis_rotation("x", row(math.pi))
        base = (0.0, 0.0, 0.0 if opening > 0 else h)
        wall: Profile = [(r, 0.0), (r, h), (r - t, h), (r - t, t)]
        # the two faces of the floor are apart, so they are two profiles
        floor = [lathe("floor", [(0.0, 0.0), (r, 0.0)], base, turn)]
        floor.append(lathe("floor", [(r - t, t), (0.0, t)], base, turn))
        return [lathe("wall", wall, base, turn), *floor]

    def handle(self, x: Tensor | float, z: Tensor, pose: Tensor) -> Surfaces:
        """Half a ring as wide as the vessel."""
        return torus("handle", self.radius - self.tube, self.tube, math.pi / 2, (x, 0.0, z), pose)


def _draw_vessel(draw: Draw) -> _Vessel:
    radius = draw(0.42, 0.55)
    return _Vessel(radius, radius * draw(2.0, 2.5), draw(0.05, 0.08), draw(0.1, 0.14))


@category("wall", "floor", "handle")
def mug(draw: Draw) -> list[Surfaces]:
    """A cup with its handle at the side."""
    v = _draw_vessel(draw)
    return [*v.hollow(), v.handle(v.radius, v.height / 2, SIDEWAYS)]


@category("wall", "floor", "handle")
def bucket(draw: Draw) -> list[Surfaces]:
    """The same cup with its handle over the opening."""
    v = _draw_vessel(draw)
    return [*v.hollow(), v.handle(0.0, v.height, UPWARDS)]


@category("wall", "floor", "handle")
def bell(draw: Draw) -> list[Surfaces]:
    """The same cup with its handle on the floor, hung up by it."""
    v = _draw_vessel(draw)
    return [*v.hollow(opening=-1), v.handle(0.0, v.height, UPWARDS)]


@category("body", "shoulder", "neck", "cap")
def bottle(draw: Draw) -> list[Surfaces]:
    """A cylinder that narrows to a neck with a cap."""
    body, height = draw(0.35, 0.5), draw(0.8, 1.2)
    slope, neck, length = draw(0.2, 0.35), draw(0.1, 0.15), draw(0.25, 0.4)
    top = height + slope
    return [
        lathe("body", [(0.0, 0.0), (body, 0.0), (body, height)], (0.0, 0.0, 0.0)),
        lathe("shoulder", [(body, height), (neck, top)], (0.0, 0.0, 0.0)),
        lathe("neck", [(neck, top), (neck, top + length)], (0.0, 0.0, 0.0)),
        cylinder("cap", neck * 1.3, 0.16, (0.0, 0.0, top + length)),
    ]


def _bar_and_balls(draw: Draw) -> tuple[Surfaces, Tensor, Tensor]:
    """A bar along x about the origin, its length, and the radius of the balls."""
    length, ball = draw(0.9, 1.4), draw(0.26, 0.36)
    along_x = axis_rotation("y", row(math.pi / 2))
    return cylinder("bar", draw(0.08, 0.12), length, (-length / 2, 0.0, 0.0), along_x), length, ball


@category("bar", "balls")
def dumbbell(draw: Draw) -> list[Surfaces]:
    """A bar with a ball at either end."""
    bar, length, ball = _bar_and_balls(draw)
    x = row(-1.0, 1.0) * (length / 2 + ball)
    return [bar, sphere("balls", ball, (x, 0.0, 0.0))]


@category("bar", "balls")
def skewer(draw: Draw) -> list[Surfaces]:
    """The same bar with both balls in a row at one end."""
    bar, length, ball = _bar_and_balls(draw)
    x = length / 2 + ball * row(1.0, 3.0)
    return [bar, sphere("balls", ball, (x, 0.0, 0.0))]


@category("fuselage", "wings", "tailplane", "fin")
def airplane(draw: Draw) -> list[Surfaces]:
    """A pointed fuselage along y with wings, and a tailplane and a fin at the rear."""
    r, half = draw(0.13, 0.18), draw(0.9, 1.1)
    along_y = axis_rotation("x", row(-math.pi / 2))
    hull: Profile = [(0.0, -half), (r, 0.3 - half), (r, half - 0.4), (0.0, half)]
    span, chord = draw(1.7, 2.3), draw(0.32, 0.45)
    tail, fin, t = draw(0.7, 0.9), draw(0.35, 0.5), 0.06
    rear = 0.25 - half
    return [
        lathe("fuselage", hull, (0.0, 0.0, 0.0), along_y),
        box("wings", (span, chord, t), (0.0, draw(0.05, 0.2), 0.0)),
        box("tailplane", (tail, 0.25, t), (0.0, rear, 0.0)),
        box("fin", (t, 0.25, fin), (0.0, rear, r + fin / 2)),
    ]


@category("long_cone", "short_cone")
def hourglass(draw: Draw) -> list[Surfaces]:
    """Two cones tip to tip."""
    r, long, short = draw(0.5, 0.7), draw(0.9, 1.2), draw(0.45, 0.65)
    origin = (0.0, 0.0, 0.0)
    return [
        lathe("long_cone", [(0.0, -long), (r, -long), (0.0, 0.0)], origin),
        lathe("short_cone", [(0.0, 0.0), (r, short), (0.0, short)], origin),
    ]


@category("long_cone", "short_cone")
def diamond(draw: Draw) -> list[Surfaces]:
    """The same cones base to base."""
    r, long, short = draw(0.5, 0.7), draw(0.9, 1.2), draw(0.45, 0.65)
    origin = (0.0, 0.0, 0.0)
    return [
        lathe("long_cone", [(0.0, -long), (r, 0.0)], origin),
        lathe("short_cone", [(r, 0.0), (0.0, short)], origin),
    ]
