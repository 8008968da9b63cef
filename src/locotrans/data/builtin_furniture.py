"""Furniture of the built-in set. Objects stand upright along z and face +y.

Families that share a helper have the same parts with the same proportions and differ in the
placement alone, never by a rotation of the whole: a network has to see where the parts are.
"""

import math
from typing import NamedTuple

from torch import Tensor

from locotrans.data.builtin_category import Draw, category
from locotrans.data.builtin_surfaces import Profile, Surfaces, box, cylinder, lathe, row
from locotrans.geometry import axis_rotation

# the four corners of a board, (1, p)
LEFT_RIGHT = row(-1.0, -1.0, 1.0, 1.0)
BACK_FRONT = row(-1.0, 1.0, -1.0, 1.0)


class _Board(NamedTuple):
    """A board in the plane z = 0 and the size of four legs; half sizes for width and depth."""

    width: Tensor
    depth: Tensor
    thickness: Tensor
    leg: Tensor  # across
    length: Tensor

    def board(self) -> Surfaces:
        size = (2 * self.width, 2 * self.depth, self.thickness)
        return box("board", size, (0.0, 0.0, 0.0))

    def corners(self) -> tuple[Tensor, Tensor]:
        """Centres of legs that stand flush with the corners, (s, 4) each."""
        x = (self.width - self.leg / 2) * LEFT_RIGHT
        return x, (self.depth - self.leg / 2) * BACK_FRONT


def _draw_board(draw: Draw) -> _Board:
    return _Board(
        width=draw(0.7, 1.0),
        depth=draw(0.4, 0.6),
        thickness=draw(0.08, 0.14),
        leg=draw(0.12, 0.18),
        length=draw(0.7, 1.1),
    )


@category("board", "legs")
def table(draw: Draw) -> list[Surfaces]:
    """A board on four legs."""
    b = _draw_board(draw)
    x, y = b.corners()
    z = -(b.thickness + b.length) / 2
    return [b.board(), box("legs", (b.leg, b.leg, b.length), (x, y, z))]


@category("board", "legs")
def split_table(draw: Draw) -> list[Surfaces]:
    """The table with the two legs of one end pointing up."""
    b = _draw_board(draw)
    x, y = b.corners()
    z = LEFT_RIGHT * (b.thickness + b.length) / 2
    return [b.board(), box("legs", (b.leg, b.leg, b.length), (x, y, z))]


@category("board", "legs")
def stretcher(draw: Draw) -> list[Surfaces]:
    """The table with its legs in the plane of the board, two at either end."""
    b = _draw_board(draw)
    x = LEFT_RIGHT * (b.width + b.length / 2)
    return [b.board(), box("legs", (b.length, b.leg, b.leg), (x, b.corners()[1], 0.0))]


@category("seat", "back", "legs")
def chair(draw: Draw) -> list[Surfaces]:
    """A seat, a back at its rear edge, and four legs."""
    width, depth, thickness = draw(0.42, 0.55), draw(0.42, 0.55), draw(0.08, 0.14)
    leg, length = draw(0.09, 0.14), draw(0.7, 1.0)
    slab, height = draw(0.08, 0.12), draw(0.8, 1.1)
    x, y = (width - leg / 2) * LEFT_RIGHT, (depth - leg / 2) * BACK_FRONT
    return [
        box("seat", (2 * width, 2 * depth, thickness), (0.0, 0.0, length + thickness / 2)),
        box(
            "back",
            (2 * width, slab, height),
            (0.0, slab / 2 - depth, length + thickness + height / 2),
        ),
        box("legs", (leg, leg, length), (x, y, length / 2)),
    ]


@category("seat", "back", "arm", "legs")
def chaise_right(draw: Draw) -> list[Surfaces]:
    """A long seat with a back and an arm at one end only; seat, back and arm are a handed corner.

    Three unequal boards at right angles cannot be turned into their mirror image.
    """
    width, depth, thickness = draw(0.8, 1.1), draw(0.38, 0.5), draw(0.16, 0.24)
    length, leg = draw(0.25, 0.4), draw(0.12, 0.16)
    slab, height = draw(0.12, 0.18), draw(0.8, 1.0)
    arm, arm_height = draw(0.14, 0.2), draw(0.4, 0.55)
    x, y = (width - leg / 2) * LEFT_RIGHT, (depth - leg / 2) * BACK_FRONT
    top = length + thickness
    return [
        box("seat", (2 * width, 2 * depth, thickness), (0.0, 0.0, length + thickness / 2)),
        box("back", (2 * width, slab, height), (0.0, slab / 2 - depth, top + height / 2)),
        box(
            "arm",
            (arm, 2 * depth - slab, arm_height),
            (width - arm / 2, slab / 2, top + arm_height / 2),
        ),
        box("legs", (leg, leg, length), (x, y, length / 2)),
    ]


@category("seat", "back", "arm", "legs")
def chaise_left(draw: Draw) -> list[Surfaces]:
    """The mirror image of `chaise_right`."""
    return [surfaces.mirrored() for surfaces in chaise_right(draw)]


@category("sides", "boards", "back")
def shelf(draw: Draw) -> list[Surfaces]:
    """Two sides with four boards between them and a back."""
    width, depth, height = draw(0.9, 1.3), draw(0.4, 0.6), draw(1.6, 2.2)
    t = draw(0.06, 0.1)
    inner = width - 2 * t
    levels = row(0.0, 1 / 3, 2 / 3, 1.0)
    return [
        box("sides", (t, depth, height), ((width - t) / 2 * row(-1.0, 1.0), 0.0, 0.0)),
        box("boards", (inner, depth, t), (0.0, 0.0, (height - t) * (levels - 0.5))),
        box("back", (width, t, height), (0.0, -(depth + t) / 2, 0.0)),
    ]


def _lamp(draw: Draw, wide_end: int) -> list[Surfaces]:
    foot, foot_height = draw(0.35, 0.5), draw(0.08, 0.14)
    pole, pole_height = draw(0.05, 0.08), draw(1.2, 1.6)
    narrow, wide, height = draw(0.14, 0.22), draw(0.5, 0.65), draw(0.5, 0.7)
    low, high = (narrow, wide) if wide_end > 0 else (wide, narrow)
    t = 0.03  # the shade is a closed shell, open above and below
    shell: Profile = [(low, 0.0), (high, height), (high - t, height), (low - t, 0.0), (low, 0.0)]
    return [
        cylinder("foot", foot, foot_height, (0.0, 0.0, 0.0)),
        cylinder("pole", pole, pole_height, (0.0, 0.0, foot_height)),
        lathe("shade", shell, (0.0, 0.0, foot_height + pole_height - height / 2)),
    ]


@category("foot", "pole", "shade")
def lamp_down(draw: Draw) -> list[Surfaces]:
    """A standing lamp whose shade opens downwards."""
    return _lamp(draw, wide_end=-1)


@category("foot", "pole", "shade")
def lamp_up(draw: Draw) -> list[Surfaces]:
    """The same lamp with the shade alone turned over, so that it opens upwards."""
    return _lamp(draw, wide_end=1)


@category("foot", "pole", "steps")
def stairs_right(draw: Draw) -> list[Surfaces]:
    """Steps that climb around a pole counter-clockwise seen from above: a right-handed screw."""
    pole, foot = draw(0.08, 0.12), draw(0.3, 0.4)
    length, width, thickness = draw(0.55, 0.8), draw(0.22, 0.3), draw(0.06, 0.09)
    rise, turn = draw(0.2, 0.26), draw(math.radians(28), math.radians(40))
    count = row(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    angle = turn * count
    reach = pole + length / 2
    z = rise * (count + 1)
    return [
        cylinder("foot", foot, 0.08, (0.0, 0.0, 0.0)),
        cylinder("pole", pole, rise * 8, (0.0, 0.0, 0.08)),
        box(
            "steps",
            (length, width, thickness),
            (reach * angle.cos(), reach * angle.sin(), z),
            axis_rotation("z", angle),
        ),
    ]


@category("foot", "pole", "steps")
def stairs_left(draw: Draw) -> list[Surfaces]:
    """The mirror image of `stairs_right`: a left-handed screw."""
    return [surfaces.mirrored() for surfaces in stairs_right(draw)]
