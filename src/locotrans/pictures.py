"""Pictures of clouds: plain drawings of points, frames and poses, made by matplotlib.

The projection is parallel; what is nearer is darker and lies on top. matplotlib is imported by the
functions that need it, and draws into memory (Agg): no window, no global state.
"""

import io
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry import axis_rotation

RED, GREEN, INK, PALE = "#d62728", "#2ca02c", "#22303c", "#c9d3dc"
AXIS_COLORS = (RED, GREEN)  # of u1 and u2, as in the paper's Fig. 5

Axes = Any  # matplotlib's classes, which are not imported here
Figure = Any


class Answer(NamedTuple):
    """What a network says of a pose."""

    who: str
    text: str
    right: bool


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
    _show_sphere(axes, points)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, facecolor="white")
    return file.getvalue()


def draw_cloud(
    axes: Axes,
    points: Float[Tensor, "n 3"],
    view: Float[Tensor, "3 3"] | None = None,
    size: float = 14.0,
) -> None:
    """Draw the points of a cloud, the near ones dark and the far ones pale."""
    seen = (points @ (view_rotation() if view is None else view).mT).cpu()
    seen = seen[seen[:, 2].argsort()]  # the nearest last, on top
    x, y, depth = seen.unbind(-1)
    axes.scatter(x, y, s=size, c=_shades(INK, depth), linewidths=0)


def draw_axes(
    axes: Axes,
    points: Float[Tensor, "n 3"],
    directions: Float[Tensor, "n 3"],
    color: str,
    view: Float[Tensor, "3 3"] | None = None,
    length: float = 0.17,
) -> None:
    """Draw one unit vector at every point, as a line with a head."""
    view = view_rotation() if view is None else view
    start = (points @ view.mT).cpu()
    step = (length * directions @ view.mT).cpu()
    order = start[:, 2].argsort()
    start, step = start[order], step[order]
    x, y, depth = start.unbind(-1)
    shape = {"width": 0.008, "headwidth": 3.4, "headlength": 4.2, "headaxislength": 3.8}
    in_plane = {"angles": "xy", "scale_units": "xy", "scale": 1, "minlength": 0}
    axes.quiver(x, y, step[:, 0], step[:, 1], color=_shades(color, depth), **in_plane, **shape)


def draw_up(axes: Axes, up: Float[Tensor, "3"], view: Float[Tensor, "3 3"] | None = None) -> None:
    """Mark in the corner which way the object's up axis points in this pose."""
    x, y, _ = ((view_rotation() if view is None else view) @ up).tolist()
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
    view: Float[Tensor, "3 3"] | None = None,
    size: float = 6.0,
) -> None:
    """Draw the points of a cloud in the colours of their labels, the nearest on top."""
    seen = (points @ (view_rotation() if view is None else view).mT).cpu()
    order = seen[:, 2].argsort()
    seen, known = seen[order], labels.cpu()[order]
    colors = label_colors(count)[known.clamp_min(0)]
    colors[known < 0] = 0.85  # unlabelled
    axes.scatter(seen[:, 0], seen[:, 1], s=size, c=colors.numpy(), linewidths=0)


def labels_figure(
    clouds: Sequence[Sequence[Float[Tensor, "n 3"]]],
    labels: Sequence[Sequence[Int[Tensor, "n"]]],
    names: Sequence[str],
    titles: Sequence[str] = (),
) -> Figure:
    """Draw labelled clouds in a grid: a row for each shape, a column for each answer (Fig. 4).

    Args:
        clouds: for each row, the clouds.
        labels: and the labels of their points.
        names: of the labels; those that occur are explained below.
        titles: of the columns.
    """
    columns = len(clouds[0])
    side = max(2.3, 5.0 / columns)
    figure, panels = new_figure(len(clouds), columns, side, side, above=0.3, below=0.05)
    pairs = [pair for row in zip(clouds, labels, strict=True) for pair in zip(*row, strict=True)]
    for number, (axes, (points, known)) in enumerate(zip(panels, pairs, strict=True)):
        draw_labels(axes, points, known, len(names))
        axes.margins(0.05)
        if titles and number < columns:
            axes.set_title(titles[number], fontsize=10, color=INK)
    occurring = sorted({x for _, known in pairs for x in known.unique().tolist() if x >= 0})
    _explain(figure, {names[x]: label_colors(len(names))[x].tolist() for x in occurring})
    return figure


def _explain(figure: Figure, colors: Mapping[str, Sequence[float]]) -> None:
    """Write names in their colours across the top of a figure."""
    columns = max(1, int(figure.get_figwidth() // 1.6))
    step = min(0.16, 0.5 / max(1, -(-len(colors) // columns)))  # inches between lines
    for place, (name, color) in enumerate(colors.items()):
        line, column = divmod(place, columns)
        x, y = (column + 0.1) / columns, 1 - step * (line + 0.8) / figure.get_figheight()
        size = min(8.0, 58 * step)
        figure.text(x, y, f"\u25cf {name}", fontsize=size, va="center", color=color)


def curves_figure(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw the loss and the accuracies of runs over their epochs.

    Args:
        curves: by the name of a run, what each epoch left: ``epoch``, ``total``, ``accuracy`` and,
            where it was evaluated, ``evaluation``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.ticker import MaxNLocator

    figure = NewFigure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for number, (name, lines) in enumerate(curves.items()):
        color = f"C{number % 10}"
        epochs = [line["epoch"] for line in lines]
        left.plot(epochs, [line["total"] for line in lines], color=color, label=name)
        right.plot(epochs, [100 * line["accuracy"] for line in lines], color=color, alpha=0.4)
        tested = [line for line in lines if "overall_accuracy" in line.get("evaluation", {})]
        right.plot(
            [line["epoch"] for line in tested],
            [100 * line["evaluation"]["overall_accuracy"] for line in tested],
            "o-",
            color=color,
            markersize=3,
        )
    left.set(xlabel="epoch", ylabel="loss", yscale="log")
    right.set(xlabel="epoch", ylabel="accuracy in percent (pale: training batches; dots: held out)")
    right.yaxis.label.set_size("small")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(fontsize="small")
    return figure


def frames_figure(
    clouds: Sequence[Float[Tensor, "n 3"]],
    frames: Mapping[str, Sequence[Float[Tensor, "n 3 3"]]],
    notes: Mapping[str, Sequence[str]],
    title: str = "",
) -> Figure:
    """Draw the first axis (red) and the second (green) of the frames at every point.

    Each cloud has a row, with two panels for each kind of frames: one axis does not hide the other.

    Args:
        clouds: the clouds.
        frames: for each kind, the frames of every cloud, with the axes as columns.
        notes: for each kind, a line to print above either axis.
        title: title of the whole.
    """
    figure, panels = new_figure(len(clouds), 2 * len(frames), 3.2, 2.7, above=0.45)
    content = product(range(len(clouds)), frames, range(2))
    for axes, (row, kind, i) in zip(panels, content, strict=True):
        draw_cloud(axes, clouds[row], size=8.0)
        draw_axes(axes, clouds[row], frames[kind][row][:, :, i], AXIS_COLORS[i])
        axes.margins(0.16)
        if row == 0:
            text = f"{kind}, $u_{i + 1}$\n{notes[kind][i]}"
            axes.set_title(text, fontsize=11, color=AXIS_COLORS[i])
    figure.suptitle(title, fontsize=12, color=INK, y=0.99)
    return figure


def poses_figure(
    poses: Sequence[Float[Tensor, "n 3"]],
    ups: Sequence[Float[Tensor, "3"]],
    answers: Sequence[Sequence[Answer]],
    names: Sequence[str],
    title: str = "",
) -> Figure:
    """Draw one shape in several poses, with the networks' answers under each.

    Args:
        poses: the cloud in each pose.
        ups: where the object's up axis points in each pose.
        answers: the answers for each pose; the right ones are green, the wrong ones red.
        names: title of each pose.
        title: title of the whole.
    """
    lines = max(map(len, answers), default=0)
    figure, panels = new_figure(1, len(poses), 2.3, 2.3, above=0.3, below=0.15 + 0.45 * lines)
    for axes, points, up, said, name in zip(panels, poses, ups, answers, names, strict=True):
        draw_cloud(axes, points)
        _show_sphere(axes, points)
        draw_up(axes, up)
        axes.set_title(name, fontsize=10, color=INK)
        for line, answer in enumerate(said):
            y = -0.08 - 0.195 * line  # in heights of a panel
            here: dict[str, Any] = {"ha": "center", "va": "top", "transform": axes.transAxes}
            axes.text(0.5, y, answer.who, fontsize=8, color="#5c6b77", **here)
            color = GREEN if answer.right else RED
            axes.text(0.5, y - 0.06, answer.text, fontsize=12, color=color, weight="bold", **here)
    figure.suptitle(title, fontsize=12, color=INK, y=0.98)
    return figure


def _shades(color: str, depth: Float[Tensor, "n"]) -> list[tuple[float, float, float]]:
    """Mix ``color`` with a pale one, the more the farther away."""
    from matplotlib.colors import to_rgb

    near, far = torch.tensor(to_rgb(color)), torch.tensor(to_rgb(PALE))
    share = (depth - depth.min()) / (depth.max() - depth.min()).clamp_min(1e-9)
    mixed = far + (0.3 + 0.7 * share)[:, None] * (near - far)
    return [tuple(row) for row in mixed.tolist()]


def _show_sphere(axes: Axes, points: Float[Tensor, "n 3"]) -> None:
    """Show the sphere about the origin that holds the cloud: the same scale in every pose."""
    radius = 1.05 * float(points.norm(dim=-1).max().clamp_min(1e-9))
    axes.set_xlim(-radius, radius)
    axes.set_ylim(-radius, radius)
