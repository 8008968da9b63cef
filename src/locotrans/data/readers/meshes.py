"""Triangles: fans from polygons, and points drawn from a surface in proportion to its area."""

from collections.abc import Iterable

import numpy as np
import torch

from locotrans.data.cloud import Cloud
from locotrans.data.readers.raw import Array
from locotrans.data.readers.source import Source


def fan(polygons: Iterable[tuple[Array, Array]]) -> Array:
    """Split polygons into triangles (a, b, c), (a, c, d), ... in the order of their rows.

    Args:
        polygons: For each number of corners, the rows (m,) and their corners (m, corners).
            Fewer than three corners have no surface and are left out.
    """
    rows, triangles = [np.empty(0, np.int64)], [np.empty((0, 3), np.int64)]
    for row, corners in polygons:
        count = corners.shape[1] - 2
        if count < 1 or len(corners) == 0:
            continue
        first = np.repeat(corners[:, :1], count, axis=1)
        parts = np.stack([first, corners[:, 1:-1], corners[:, 2:]], axis=-1)
        triangles.append(parts.reshape(-1, 3).astype(np.int64))
        rows.append(np.repeat(row, count))
    order = np.argsort(np.concatenate(rows), kind="stable")
    return np.concatenate(triangles)[order]


def sample_mesh(source: Source, mesh: Cloud, samples: int, seed: int) -> Cloud:
    """Draw points uniformly from the surface of a mesh; the same seed gives the same points.

    Normals are those of the faces (counter-clockwise corners face outwards), colours are
    interpolated between the corners, labels are those of the nearest corner.
    """
    assert mesh.faces is not None
    corners = mesh.points.numpy().astype(np.float64)[mesh.faces.numpy()]  # (f, corner, 3)
    cross = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    length = np.linalg.norm(cross, axis=1)
    total = length.cumsum()
    if not total[-1] > 0:
        raise source.error(f"its {len(total)} triangles have no area", "write points, or a surface")
    rng = np.random.default_rng(seed)
    # side="right" and the last face with an area: faces without one are never drawn
    face = np.searchsorted(total, rng.random(samples) * total[-1], side="right")
    face = np.minimum(face, np.searchsorted(total, total[-1]))
    root, along = np.sqrt(rng.random(samples)), rng.random(samples)
    weights = np.stack([1 - root, root * (1 - along), root * along], axis=1)  # (samples, corner)
    points = np.einsum("sk,skd->sd", weights, corners[face])
    normals = cross[face] / length[face, None]
    index = mesh.faces.numpy()[face]
    colors = labels = None
    if mesh.colors is not None:
        mixed = np.einsum("sk,skd->sd", weights, mesh.colors.numpy()[index])
        colors = torch.from_numpy(mixed.clip(0, 1).astype(np.float32))
    if mesh.labels is not None:
        nearest = index[np.arange(samples), weights.argmax(axis=1)]
        labels = torch.from_numpy(mesh.labels.numpy()[nearest])
    return Cloud(
        points=torch.from_numpy(points.astype(np.float32)),
        normals=torch.from_numpy(normals.astype(np.float32)),
        colors=colors,
        labels=labels,
        offset=mesh.offset,
        sampled=True,
        path=mesh.path,
    )
