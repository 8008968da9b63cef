"""Draw the pictures of the guide from a finished demonstration, whose folder is the argument."""

import json
import math
import shutil
import sys
from pathlib import Path

import torch

from locotrans.data import load_dataset, rotate
from locotrans.geometry import axis_rotation, gather, gram_schmidt_frame, symmetric_frame
from locotrans.pictures import (
    GREEN,
    INK,
    RED,
    draw_axes,
    draw_cloud,
    new_figure,
    save_figure,
    view_rotation,
)
from locotrans.training.checkpoint import load_weights

IMAGES = Path(__file__).parent / "images"
BLUE = "#1f77b4"


def vectors(model, cloud):
    """Draw one vector channel on a shape in two poses."""
    R = axis_rotation("x", torch.tensor(1.0)) @ axis_rotation("y", torch.tensor(0.7))
    poses = torch.stack([cloud, rotate(cloud[None], R[None])[0]])
    v = layer_vectors(model, poses)
    figure, panels = new_figure(1, 2, 3.4, 3.0, above=0.3)
    for axes, points, arrows, title in zip(
        panels, poses, v, ("as it stands", "turned"), strict=True
    ):
        draw_cloud(axes, points, size=8)
        draw_axes(axes, points, arrows / arrows.norm(dim=-1).max(), BLUE, length=0.35)
        axes.set_title(title, fontsize=10, color=INK)
        axes.scatter([-1.1, 1.1], [-1.1, 1.1], s=0)  # the same scale in both
    return figure


def layer_vectors(model, points):
    """Return the first channel of the second vector layer."""
    branch = model.equivariant_branch
    return branch(points - points.mean(1, keepdim=True)).features.layers[1][..., 0]


def lcrf():
    """Draw two vectors at 50 degrees and the axes of either frame."""
    half = math.radians(25)
    v1 = torch.tensor([math.cos(half), -math.sin(half), 0.0])
    v2 = torch.tensor([math.cos(half), math.sin(half), 0.0])
    figure, panels = new_figure(1, 2, 3.0, 2.8, above=0.1)
    frames = {"Gram-Schmidt": gram_schmidt_frame(v1, v2), "LCRF": symmetric_frame(v1, v2)}
    for axes, (name, U) in zip(panels, frames.items(), strict=True):
        for v, text in ((v1, "$v_1$"), (v2, "$v_2$")):
            arrow(axes, v, "#9aa7b2", text, 4.0, 1.35)
        for i, color in ((0, RED), (1, GREEN)):
            arrow(axes, U[:, i], color, f"$u_{i + 1}$", 2.0, 1.14)
        axes.text(0.6, -1.25, name, fontsize=11, color=INK, ha="center")
        axes.scatter([-0.4, 1.6], [-1.3, 1.1], s=0)  # makes room
    return figure


def arrow(axes, tip, color, text, width, away):
    """Draw an arrow from the origin, with its name behind the tip."""
    x, y = tip[0].item(), tip[1].item()
    style = {"arrowstyle": "-|>", "color": color, "lw": width, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (x, y), (0, 0), arrowprops=style)
    axes.text(away * x, away * y, text, color=color, fontsize=12, ha="center", va="center")


def consistency(record):
    """Draw the consistency of both axes for both kinds of frames."""
    names = {"LocoTrans, Gram-Schmidt": "Gram-Schmidt", "LocoTrans": "LCRF"}
    figure, (axes,) = new_figure(1, 1, 4.8, 2.0)
    bars(axes, 2)
    axes.set_ylim(-0.18, 0.8)
    for i, (key, name) in enumerate(names.items()):
        for j, (axis, color) in enumerate((("u1", RED), ("u2", GREEN))):
            value = record["frame_consistency"][key][axis]
            axes.bar(i + 0.36 * (j - 0.5), value, 0.32, color=color)
            text = f"$u_{j + 1}$  {value:.2f}"
            axes.text(i + 0.36 * (j - 0.5), value + 0.01, text, ha="center", fontsize=9)
        axes.text(i, -0.07, name, ha="center", va="top", fontsize=11, color=INK)
    return figure


def fusion(record):
    """Draw the accuracy of the heads."""
    heads = record["networks"]["LocoTrans"]["record"]["evaluation"]["heads"]
    shown = ["invariant", "equivariant", "invariant+equivariant"]
    figure, (axes,) = new_figure(1, 1, 4.8, 2.0)
    bars(axes, 3)
    for i, name in enumerate(shown):
        value = heads[name]["overall_accuracy"]
        axes.bar(i, value, 0.5, color=(BLUE, "#e08a1e", INK)[i])
        axes.text(i, value + 0.02, f"{100 * value:.1f}%", ha="center", fontsize=10)
        label = name.replace("+", " + ")
        axes.text(i, -0.05, label, ha="center", va="top", fontsize=9, color=INK)
    axes.set_ylim(-0.15, 1.1)
    return figure


def bars(axes, count):
    """Prepare a panel for bars: a base line, no box."""
    axes.set_aspect("auto")
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_xlim(-0.6, count - 0.4)


def relative_pose(model, cloud):
    """Draw two patches with their frames."""
    output = model(cloud[None])
    neighbors, U, seen = output.neighbors[0], output.frames[0], view_rotation()
    depth = (cloud @ seen.mT)[:, 2]
    r = int((depth + cloud[:, 2]).argmax())  # well in sight
    j = int(((cloud - cloud[r]).norm(dim=-1) - 0.6).abs().argmin())
    figure, (axes,) = new_figure(1, 1, 4.0, 3.6)
    draw_cloud(axes, cloud, size=8)
    patches = gather(cloud[None], torch.stack([neighbors[r], neighbors[j]])[None])[0] @ seen.mT
    for at, patch, color in ((r, patches[0], RED), (j, patches[1], BLUE)):
        axes.scatter(patch[:, 0], patch[:, 1], s=46, c=color, alpha=0.55, linewidths=0)
        start = (cloud[at] @ seen.mT).tolist()
        for i in range(3):
            x, y, _ = (seen @ U[at, :, i]).tolist()
            tip = (start[0] + 0.3 * x, start[1] + 0.3 * y)
            style = {"arrowstyle": "-|>", "color": color, "lw": 2.0, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", tip, start[:2], arrowprops=style)
            where = (start[0] + 0.36 * x, start[1] + 0.36 * y)
            axes.text(*where, f"$u_{i + 1}$", color=color, fontsize=10, ha="center", va="center")
    axes.margins(0.2)
    return figure


@torch.inference_mode()
def main(demo: Path) -> None:
    """Draw all of them."""
    record = json.loads((demo / "demo.json").read_text())
    model, _ = load_weights(next(demo.glob("seed_*/locotrans")))
    test = load_dataset("builtin", "test", points=128, shapes=300)
    cloud = test.points[int((test.labels == test.class_names.index("chair")).nonzero()[0])]
    dense = load_dataset("builtin", "test", points=512, shapes=300)
    save_figure(vectors(model, cloud), IMAGES / "vectors.png")
    save_figure(lcrf(), IMAGES / "lcrf.png")
    save_figure(consistency(record), IMAGES / "consistency.png")
    chair = dense.points[int((dense.labels == dense.class_names.index("chair")).nonzero()[0])]
    save_figure(relative_pose(model, chair), IMAGES / "rpr.png")
    save_figure(fusion(record), IMAGES / "fusion.png")
    for name in ("poses.png", "frames_perturbed.png"):
        shutil.copyfile(demo / name, IMAGES / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
