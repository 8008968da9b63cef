"""Panels of a figure, and what is drawn into one: points, labels, axes."""

import io
import math
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry import axis_rotation

RED, GREEN, INK, PALE = "#d62728", "#2ca02c", "#22303c", "#c9d3dc"

Axes = Any  # matplotlib's classes, which are not imported here
Figure = Any


def view_rotation(azimuth: float = 35.0, elevation: float = 25.0) -> Float[Tensor, "3 3"]:
    """Return the rotation into the camera: x to the right, y up, z towards the viewer.

    The cloud is turned about z by ``azimuth`` degrees and seen from ``elevation`` degrees above.
    """
    turn, tilt = torch.tensor([math.radians(azimuth), math.radians(elevation - 90)]).unbind()
    return axis_rotation("x", tilt) @ axis_rotation("z", turn)


def new_figure(
    rows: int,
    columns: int,
    width: float,
    height: float,
    above: float = 0.0,
    below: float = 0.0,
    title: float = 0.55,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with a grid of empty panels, row by row, of the same scale along x and y.

    Sizes are in inches; ``above`` and ``below`` each panel there is room for text, and at the top
    for the ``title`` of the whole.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    cell = above + height + below
    total = title + rows * cell
    figure = NewFigure(figsize=(columns * width, total))
    FigureCanvasAgg(figure)
    panels = []
    for row in range(rows):
        bottom = below + (rows - 1 - row) * cell
        for column in range(columns):
            box = (column / columns, bottom / total, 1 / columns, height / total)
            axes = figure.add_axes(box)
            axes.set_aspect("equal", adjustable="datalim")
            axes.set_axis_off()
            panels.append(axes)
    return figure, panels


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG: whole, or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        figure.savefig(temporary, format="png", dpi=150, facecolor="white")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error


def cloud_png(points: Float[Tensor, "n 3"]) -> bytes:
    """Return a small picture of a cloud about the origin, as the bytes of a PNG file."""
    figure, (axes,) = new_figure(1, 1, 1.76, 1.76, title=0.0)
    draw_cloud(axes, points, size=6.0)
    show_sphere(axes, points)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, facecolor="white")
    return file.getvalue()


def draw_cloud(axes: Axes, points: Float[Tensor, "n 3"], size: float = 14.0) -> None:
    """Draw the points of a cloud, the near ones dark and the far ones pale."""
    seen = _drawn(points) @ view_rotation().mT
    seen = seen[seen[:, 2].argsort()]  # the nearest last, on top
    x, y, depth = seen.unbind(-1)
    axes.scatter(x, y, s=size, c=_shades(INK, depth), linewidths=0)


def _drawn(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return numbers of any device and type as matplotlib takes them."""
    return x.detach().cpu().float()


def draw_axes(
    axes: Axes,
    points: Float[Tensor, "n 3"],
    directions: Float[Tensor, "n 3"],
    color: str,
    length: float = 0.17,
) -> None:
    """Draw one unit vector at every point, as a line with a head."""
    view = view_rotation()
    start = _drawn(points) @ view.mT
    step = length * _drawn(directions) @ view.mT
    order = start[:, 2].argsort()
    start, step = start[order], step[order]
    x, y, depth = start.unbind(-1)
    shape = {"width": 0.008, "headwidth": 3.4, "headlength": 4.2, "headaxislength": 3.8}
    in_plane = {"angles": "xy", "scale_units": "xy", "scale": 1, "minlength": 0}
    axes.quiver(x, y, step[:, 0], step[:, 1], color=_shades(color, depth), **in_plane, **shape)


def draw_up(axes: Axes, up: Float[Tensor, "3"]) -> None:
    """Mark in the corner which way the object's up axis points in this pose."""
    x, y, _ = (view_rotation() @ up).tolist()
    corner, reach = (0.11, 0.13), 0.1
    tip = (corner[0] + reach * x, corner[1] + reach * y)
    style = {"arrowstyle": "-|>", "color": "#1f77b4", "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
    frame = axes.transAxes
    axes.annotate("", tip, corner, xycoords=frame, textcoords=frame, arrowprops=style)
    axes.text(0.11, -0.02, "up", color="#1f77b4", fontsize=8, ha="center", transform=frame)


def label_colors(count: int) -> Float[Tensor, "count 3"]:
    """Return colours for labels 0, 1, ...; neighbours differ in hue and in light."""
    from matplotlib.colors import hsv_to_rgb

    number = torch.arange(count, dtype=torch.float64)
    hue = (0.58 + 0.618034 * number) % 1  # the golden ratio: no two of the first dozens are near
    level = number.remainder(3)
    color = torch.stack([hue, torch.full_like(hue, 0.8), 0.95 - 0.2 * level], dim=-1)
    return torch.from_numpy(hsv_to_rgb(color.numpy())).float()


def draw_labels(
    axes: Axes,
    points: Float[Tensor, "n 3"],
    labels: Int[Tensor, "n"],
    count: int,
    size: float = 6.0,
) -> None:
    """Draw the points of a cloud in the colours of their labels, the nearest on top."""
    seen = _drawn(points) @ view_rotation().mT
    order = seen[:, 2].argsort()
    seen, known = seen[order], labels.cpu().long()[order]
    colors = label_colors(count)[known.clamp_min(0)]
    colors[known < 0] = 0.85  # unlabelled
    axes.scatter(seen[:, 0], seen[:, 1], s=size, c=colors.numpy(), linewidths=0)


def _shades(color: str, depth: Float[Tensor, "n"]) -> list[tuple[float, float, float]]:
    """Mix ``color`` with a pale one, the more the farther away."""
    from matplotlib.colors import to_rgb

    near, far = torch.tensor(to_rgb(color)), torch.tensor(to_rgb(PALE))
    share = (depth - depth.min()) / (depth.max() - depth.min()).clamp_min(1e-9)
    mixed = far + (0.3 + 0.7 * share)[:, None] * (near - far)
    return [tuple(row) for row in mixed.tolist()]


def show_sphere(axes: Axes, points: Float[Tensor, "n 3"]) -> None:
    """Show the sphere about the origin that holds the cloud: the same scale in every pose."""
    radius = 1.05 * float(_drawn(points).norm(dim=-1).max().clamp_min(1e-9))
    axes.set_xlim(-radius, radius)
    axes.set_ylim(-radius, radius)
