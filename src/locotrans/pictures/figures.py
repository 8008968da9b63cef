"""Whole figures: labelled clouds, frames, poses with answers, curves of training."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from locotrans.pictures.drawing import (
    GREEN,
    INK,
    RED,
    Figure,
    draw_axes,
    draw_cloud,
    draw_labels,
    draw_up,
    label_colors,
    new_figure,
    show_sphere,
)

AXIS_COLORS = (RED, GREEN)  # of u1 and u2, as in the paper's Fig. 5


class Answer(NamedTuple):
    """What a network says of a pose."""

    who: str
    text: str
    right: bool


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


def frames_figure(
    clouds: Sequence[Float[Tensor, "_ 3"]],
    frames: Mapping[str, Sequence[Float[Tensor, "_ 3 3"]]],
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
        show_sphere(axes, points)
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


STYLES = ("-", "--", ":", "-.")
"""Of lines, where there are more than colours."""


def curves_figure(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw the loss and the accuracies of runs over their epochs.

    Args:
        curves: by the name of a run, what each epoch left: ``epoch``, ``total``, ``accuracy`` and,
            where it was evaluated, ``evaluation``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    figure = NewFigure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for number, (name, lines) in enumerate(curves.items()):
        color = f"C{number % 10}"
        epochs = [line["epoch"] for line in lines]
        style = {"color": color, "linestyle": STYLES[number // 10 % len(STYLES)]}
        style["marker"] = "." if len(lines) == 1 else ""  # one point is no line
        left.plot(epochs, [line["total"] for line in lines], label=name, **style)
        right.plot(epochs, [100 * line["accuracy"] for line in lines], alpha=0.4, **style)
        tested = [line for line in lines if "overall_accuracy" in line.get("evaluation", {})]
        right.plot(
            [line["epoch"] for line in tested],
            [100 * line["evaluation"]["overall_accuracy"] for line in tested],
            **{**style, "marker": "o"},
            markersize=3,
        )
    left.set(xlabel="epoch", ylabel="loss", yscale="log")
    right.set(xlabel="epoch", ylabel="accuracy in percent (pale: training batches; dots: held out)")
    right.yaxis.label.set_size("small")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.yaxis.set_major_formatter(ScalarFormatter())  # 2, not 2 x 10^0
    left.yaxis.set_minor_formatter(ScalarFormatter())
    figure.legend(loc="outside right center", fontsize="small")
    return figure
