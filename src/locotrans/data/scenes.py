"""The whole scenes that the blocks or spheres of a data set were cut from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int

from locotrans.data.cloud import Cloud


class Scene(NamedTuple):
    """All points of one scene."""

    points: Float64[np.ndarray, "n 3"]
    labels: Int[np.ndarray, "n"]
    """-1 where none is known."""
    colors: Float32[np.ndarray, "n 3"] | None = None
    """From 0 to 1."""


@dataclass(frozen=True)
class Scenes:
    """The scenes of a split, to be read one at a time, and how they are cut."""

    files: tuple[Path, ...]
    read: Callable[[Path], Scene]
    sphere: float = 0.0
    """Radius of the spheres; 0 for blocks of floor."""
    block: float = 1.0
    """Side of the blocks."""
    ratio: int = 1
    """Blocks that a point is in, along a side."""


def read_scene(path: Path, samples: int, seed: int) -> Cloud:
    """Read all points of a scene; of a mesh the vertices, which are those of the scan.

    A mesh of fewer vertices than ``samples``, without labels, is drawn from as a shape is.
    """
    from locotrans.data.readers import read_cloud, read_mesh

    cloud = read_mesh(path)
    if cloud.faces is None or cloud.labels is not None or len(cloud) >= samples:
        return cloud
    return read_cloud(path, samples=samples, seed=seed)
