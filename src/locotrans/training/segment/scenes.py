"""A label for every point of a cloud of any size.

A scene is cut into overlapping spheres (`locotrans.data.spheres`), or into blocks of floor where
its up axis is known, a shape into random parts that each show all of it. Every input point gets the
votes of all the blocks that it was in; memory holds one batch of blocks and one row of votes a
point.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from locotrans.counting import counted
from locotrans.data.s3dis import cut_blocks
from locotrans.data.spheres import LEAST, cover

Ask = Callable[[Float[Tensor, "b n 3"], Float[Tensor, "b n 3"] | None], Float[Tensor, "b n c"]]
"""Gives the probabilities of every point of some blocks, from coordinates and perhaps colours."""
Report = Callable[[int, int], None]
"""Hears how many votes have been cast, of how many."""
EDGE = 0.01
"""What a vote counts at the surface of a sphere, where half of the surroundings are cut off; in the
middle it counts 1."""


class View(NamedTuple):
    """A block as the network sees it: which points, where they lie, and what their votes count."""

    rows: Int[np.ndarray, "n"]
    points: Float32[np.ndarray, "n 3"]
    weights: Float32[np.ndarray, "n"]
    done: int


def segment_scene(
    ask: Ask,
    points: Float[np.ndarray, "n 3"],
    colors: Float32[np.ndarray, "n 3"] | None = None,
    *,
    radius: float,
    size: int,
    least: int,
    turns: int = 2,
    batch_size: int = 8,
    seed: int = 0,
    report: Report | None = None,
) -> Float32[np.ndarray, "n c"]:
    """Return the probabilities of every point of a scene, in its order.

    Args:
        ask: the network.
        points: the scene, in the units that the network was trained in.
        colors: of every point, if the network takes them.
        radius: of the spheres.
        size: points of a block; a sphere with fewer repeats some, as in training.
        least: points that a block must have, the network's k.
        turns: spheres that every point is in, at least.
        batch_size: blocks at a time.
        seed: of the choice of spheres and of their points.
        report: called after each batch.

    Symmetry: the same blocks however the scene is turned or moved, hence the same labels with an
        invariant network, but for points at the surface of a sphere to within rounding.
    """
    if len(points) < least:
        raise ValueError(
            f"a scene of {counted(len(points), 'point')} is too small: a block needs {least}"
        )
    least = min(len(points), size, max(least, LEAST))
    places = points.astype(np.float64)
    total = turns * len(points)

    def views() -> Iterator[View]:
        for block in cover(places, radius, size, least=least, turns=turns, seed=seed):
            rows = np.resize(block.rows, size)
            local = (places[rows] - places[block.center]).astype(np.float32)
            square = (local**2).sum(1)
            weights = 1 + EDGE - square / max(float(square.max()), np.finfo(np.float32).tiny)
            yield View(rows, local, weights.astype(np.float32), block.done)

    return _vote(ask, views(), len(points), colors, batch_size, total, report)


def segment_blocks(
    ask: Ask,
    points: Float[np.ndarray, "n 3"],
    colors: Float32[np.ndarray, "n 3"] | None = None,
    *,
    block: float,
    ratio: int,
    size: int,
    batch_size: int = 8,
    seed: int = 0,
    report: Report | None = None,
) -> Float32[np.ndarray, "n c"]:
    """Return the probabilities of every point of a scene that is cut as S3DIS is in training.

    All points of a block are dealt out into random parts of ``size`` points.

    Args: as in `segment_scene`, and
        block: side of a block.
        ratio: blocks that a point is in, along a side.

    Symmetry: blocks stand on the floor; unlike spheres they depend on which way is up.
    Degenerate: blocks of a few points at the walls, which training leaves out, are answered too.
    """
    floor = points[:, 2].min()
    blocks = list(cut_blocks(points, block, ratio))
    total = sum(len(rows) for _, rows in blocks)
    rng = np.random.default_rng(seed)

    def views() -> Iterator[View]:
        done = 0
        weights = np.ones(size, np.float32)
        for corner, inside in blocks:
            done += len(inside)
            middle = np.array([*(corner + block / 2), floor])
            for rows in _deal(rng.permutation(inside), size):
                yield View(rows, (points[rows] - middle).astype(np.float32), weights, done)

    return _vote(ask, views(), len(points), colors, batch_size, total, report)


def _deal(rows: Int[np.ndarray, "n"], size: int) -> Int[np.ndarray, "parts size"]:
    """Deal points out into parts of one size; the last is filled up with some of the first."""
    count = -(-len(rows) // size)
    return np.resize(rows, count * size).reshape(count, size)


def segment_shape(
    ask: Ask,
    points: Float[np.ndarray, "n 3"],
    colors: Float32[np.ndarray, "n 3"] | None = None,
    *,
    size: int,
    least: int,
    batch_size: int = 8,
    seed: int = 0,
    report: Report | None = None,
) -> Float32[np.ndarray, "n c"]:
    """Return the probabilities of every point of a shape, in its order.

    The shape is normalised and dealt out into random parts of ``size`` points; one of fewer points
    is taken as it is.

    Args: as in `segment_scene`.

    Symmetry: the parts depend on the order of the points and the seed alone.
    """
    n = len(points)
    if n < least:
        raise ValueError(
            f"a shape of {counted(n, 'point')} is too small: the network needs {least}"
        )
    places = points.astype(np.float64)
    places = places - places.mean(0)
    length = float(np.linalg.norm(places, axis=1).max())
    if not length > 1e-9 * max(1.0, float(np.abs(points).max())):
        raise ValueError(f"its {n} points are all the same")
    local = (places / length).astype(np.float32)
    order = np.random.default_rng(seed).permutation(n)
    size = min(size, n)
    dealt = _deal(order, size)
    weights = np.ones(size, np.float32)

    def views() -> Iterator[View]:
        for number, rows in enumerate(dealt, start=1):
            yield View(rows, local[rows], weights, min(number * size, n))

    return _vote(ask, views(), n, colors, batch_size, n, report)


def _vote(
    ask: Ask,
    views: Iterator[View],
    count: int,
    colors: Float32[np.ndarray, "n 3"] | None,
    batch_size: int,
    total: int,
    report: Report | None,
) -> Float32[np.ndarray, "n c"]:
    votes: np.ndarray | None = None
    while batch := list(islice(views, batch_size)):
        points = torch.from_numpy(np.stack([view.points for view in batch]))
        tints = None
        if colors is not None:
            tints = torch.from_numpy(np.stack([colors[view.rows] for view in batch]))
        answers = ask(points, tints).float().cpu().numpy()
        if votes is None:
            votes = np.zeros((count, answers.shape[-1]), np.float32)
        for view, answer in zip(batch, answers, strict=True):
            np.add.at(votes, view.rows, view.weights[:, None] * answer)
        if report is not None:
            report(batch[-1].done, total)
    assert votes is not None
    if not np.isfinite(votes).all():
        raise ValueError("the network's answer is not a number")
    return votes / votes.sum(1, keepdims=True)
