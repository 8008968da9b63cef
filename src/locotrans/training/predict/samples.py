"""One file becomes the cloud that a network was trained for.

An answer is a function of the file, the weights and the seed: the random numbers of every file
start from the same seed, whatever stands beside it.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32

from locotrans.data import CloudSet
from locotrans.data.own_files import KEEP, check_extent
from locotrans.data.prepared import draw, fill
from locotrans.data.spread import spread_points
from locotrans.training.evening import candidates, evened
from locotrans.training.predict.files import reason_of

Choice = Literal["random", "farthest", "even"]


def trained_choice(metadata: Mapping[str, Any]) -> Choice:
    """Say how points are chosen for a network, by the header of its weights."""
    return "even" if metadata.get("choice") == "even" else "random"


def as_trained(
    data: CloudSet, metadata: Mapping[str, Any], device: torch.device | str = "cpu"
) -> CloudSet:
    """Return the clouds of a set as a network wants them, by the header of its weights."""
    if trained_choice(metadata) == "random":
        return data
    return evened(data, data.points.shape[1], device)


class Sample(NamedTuple):
    """A file as the network sees it, or the reason why it cannot."""

    path: Path
    size: int | None = None
    """Points in the file; of a mesh, as many as are drawn from its surface."""
    points: Float32[np.ndarray, "n 3"] | None = None
    """Mean zero, greatest norm 1; times ``radius``, plus ``center``: the file's coordinates."""
    center: Float[np.ndarray, "3"] | None = None
    radius: float | None = None
    error: str | None = None
    """Without the path."""
    holes: int = 0
    """Points of nan in the file, which are left out."""
    seconds: float = 0.0
    """Processor time that reading took."""


def load_sample(
    path: Path,
    count: int,
    seed: int = 0,
    max_bytes: int = 4 * 2**30,
    choice: Choice = "random",
    *,
    filled: bool = True,
) -> Sample:
    """Read a file, choose ``count`` of its points, and normalise them.

    Nothing that a file can hold raises: the reason goes into ``error``.

    Args:
        path: the file.
        count: points to choose.
        seed: seed of their choice.
        max_bytes: as in `read_cloud`.
        choice: how they are chosen: see `choose_points`.
        filled: fill a cloud up that is too small; otherwise all its points are taken.
    """
    start = time.thread_time()
    try:
        sample = _load(path, count, seed, max_bytes, choice, filled)
    except Exception as error:  # also what a reader did not foresee must not end a long run
        sample = Sample(path, error=reason_of(error, path))
    return sample._replace(seconds=time.thread_time() - start)


def _load(
    path: Path, count: int, seed: int, max_bytes: int, choice: Choice, filled: bool
) -> Sample:
    from locotrans.data.readers import read_cloud

    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):  # as `walk` gives it
        raise OSError(f"{path}: is a folder that cannot be listed: change its permissions")
    # from a surface, as many points are drawn as for training
    cloud = read_cloud(path, samples=max(count, KEEP), seed=seed, max_bytes=max_bytes)
    size = len(cloud)
    chosen = choose_points(cloud.points.numpy(), count, seed, choice, filled=filled)
    check_extent(path, torch.from_numpy(chosen), size)
    chosen = chosen.astype(np.float64)
    center = chosen.mean(0)
    radius = float(np.linalg.norm(chosen - center, axis=1).max())
    points = ((chosen - center) / radius).astype(np.float32)
    return Sample(path, size, points, center + cloud.offset, radius, holes=cloud.holes)


def choose_points(
    points: Float[np.ndarray, "n 3"],
    count: int,
    seed: int = 0,
    choice: Choice = "random",
    *,
    filled: bool = True,
) -> Float[np.ndarray, "m 3"]:
    """Choose ``count`` points of a cloud of any size.

    "random" chooses what the data sets `folder` and `csv` choose of the same file by the same
    seed, so that an answer is the one that `eval` counts; it depends on the order of the points.
    "farthest" takes farthest points, which depend neither on the order nor on the pose, and even
    out the density of a scan (`spread_points`; a tenth of a second for 100,000 points). Measured
    with a small network on clouds of the built-in set, 7 times as dense at one end as at the other:
    89% right, 67% for the random choice; 82% and 78% after training on such clouds, whose points
    were chosen at random. On even clouds the random choice was better, 90% to 87% and 83% to 80%.

    "even" does so too, and where points are few adds others between them (`even_points`): for
    networks trained with ``--even``.

    A cloud that is too small is filled up with moved copies of its points (`fill_points`; the
    data sets have plain copies where a file's points are labelled), or not, without ``filled``; of
    points in one place "farthest" and "even" take one.
    """
    if choice == "even":
        points = candidates(torch.from_numpy(points)[None], count)[0].numpy()
    if choice != "random":
        points = points[spread_points(points, count)]
    else:
        keep = max(count, KEEP)
        if len(points) > keep:
            points = points[draw(len(points), keep, seed)]
        points = points[draw(len(points), count, seed)]
    return fill(torch.from_numpy(points), count, seed).numpy() if filled else points
