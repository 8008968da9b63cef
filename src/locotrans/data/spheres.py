"""Scenes of any size, cut into overlapping spheres of a fixed number of points.

Which spheres, and which of their points, depends on the order of the points and on a seed, never
on the coordinates themselves: a scene that is turned or moved is cut the same way, but for points
that lie on the surface of a sphere to within rounding.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

SLACK = 1e-6
"""Points that lie outside by this share of the radius are inside: on a regular grid many points
are at the same distance, and rounding must not part them."""
LEAST = 100
"""Points of a block, at least, where there are as many."""
COMPANY = 8
"""Points that most points of a scene have within a sphere's radius, if that fits the scene."""


class Block(NamedTuple):
    """Some points of a sphere."""

    center: int
    """The point in the middle."""
    rows: Int[np.ndarray, "m"]
    """Which points, the one in the middle among them."""
    done: int
    """Points that have all their turns by now, summed over the turns."""


def cover(
    points: Float[np.ndarray, "n 3"],
    radius: float,
    size: int,
    *,
    least: int = 1,
    turns: int = 1,
    seed: int = 0,
) -> Iterator[Block]:
    """Yield spheres until every point has been in ``turns`` of them.

    The middle is the next point, in a random order, that still lacks a turn. Of the points inside,
    those are chosen that have had the fewest turns, in another random order.

    Args:
        points: the scene.
        radius: of the spheres.
        size: points that are chosen of each, at most.
        least: a sphere with fewer points inside is widened to this many.
        turns: of every point.
        seed: of the two orders.

    Symmetry: see the top of the file.
    """
    from scipy.spatial import cKDTree

    if not radius > 0 or size < 1:
        raise ValueError(f"radius and size must be positive, got {radius} and {size}")
    if least > min(len(points), size):
        raise ValueError(
            f"a scene of {len(points)} points, in blocks of {size}, gives no block of {least}"
        )
    tree = cKDTree(points)
    rng = np.random.default_rng(seed)
    had = np.zeros(len(points), np.int32)
    done = 0
    for turn in range(turns):
        order, rank = rng.permutation(len(points)), rng.permutation(len(points))
        for center in order:
            if had[center] > turn:
                continue
            inside = tree.query_ball_point(points[center], radius * (1 + SLACK))
            rows = np.array(inside, np.int64)
            if len(rows) < least:
                rows = np.atleast_1d(tree.query(points[center], least)[1])
            rows = rows[np.lexsort((rank[rows], had[rows], rows != center))][:size]
            done += int((had[rows] < turns).sum())
            had[rows] += 1
            yield Block(int(center), rows, done)


def cut_spheres(
    points: Float[np.ndarray, "n 3"], radius: float, size: int, seed: int
) -> Iterator[tuple[int, Int[np.ndarray, "m"], Float32[np.ndarray, "m 3"]]]:
    """Yield spheres of ``size`` points, to learn from, that together hold every point of a scene.

    Each is its middle, its points, of which a sphere of fewer repeats some, and where they lie, as
    seen from the middle.
    """
    least = min(LEAST, len(points), size)
    for block in cover(points, radius, size, least=least, seed=seed):
        rows = np.resize(block.rows, size)
        yield block.center, rows, (points[rows] - points[block.center]).astype(np.float32)


def doubt_radius(points: Float[np.ndarray, "n 3"], radius: float) -> str | None:
    """Say why spheres of a radius hardly fit a scene, if that is so; it may be in another unit.

    Either most points are alone in a sphere about them, or all are in the smallest part of one.
    """
    from scipy.spatial import cKDTree

    places = points.astype(np.float64)
    extent = float(np.ptp(places, axis=0).max())
    some = np.random.default_rng(0).permutation(len(places))[:256]
    company = min(COMPANY, len(places))
    distances = cKDTree(places).query(places[some], [company])[0]
    if np.median(distances) > radius:
        likely = "perhaps the scan is too sparse for them"
        for times, unit in ((1000, "millimetres"), (100, "centimetres")):
            if extent > 1.5 * times * radius:  # a room is some radii wide
                likely = f"perhaps it is in {unit} for metres: divide it by {times:,}"
                break
        what = f"most spheres of radius {radius:.3g} hold fewer than {company} points of the scene"
        return f"{what}; {likely}"
    if extent < radius / 20:
        likely = "perhaps it is in metres for millimetres: multiply it by 1,000"
        return (
            f"spheres have a radius of {radius:.3g}, and the scene is {extent:.3g} wide; {likely}"
        )
    return None
