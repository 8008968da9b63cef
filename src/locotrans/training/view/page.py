"""The page: markup, style and script in one file, with the first cloud in it."""

import json
from importlib.resources import files
from typing import Any

import torch

from locotrans.geometry import random_rotations
from locotrans.training.view.scenes import Viewer


def render(state: dict[str, Any]) -> str:
    """Return the page for a state; names in it cannot end the script that they stand in."""
    folder = files("locotrans.training.view")
    markup, script = ((folder / name).read_text() for name in ("page.html", "page.js"))
    text = json.dumps(state, separators=(",", ":")).replace("<", "\\u003c")
    return markup.replace("{{state}}", text).replace("{{script}}", script)


def live_page(viewer: Viewer, number: int, limit: int) -> str:
    """Return the page that asks the server; it may send files of up to ``limit`` bytes."""
    return render({**viewer.state(number), "live": True, "limit": limit})


def saved_page(viewer: Viewer, number: int, poses: int = 12) -> str:
    """Return a page that holds the answers for the file's own pose and for random ones.

    Args:
        viewer: the networks.
        number: the scene.
        poses: random poses; they depend on the viewer's seed alone.
    """
    if poses < 1:
        raise ValueError(f"the number of poses must be at least 1, got {poses}")
    state = viewer.state(number)
    R = random_rotations(poses, generator=torch.Generator().manual_seed(viewer.seed))
    own = {"rotation": torch.eye(3).flatten().tolist(), "answers": state["answers"]}
    others = [
        {
            "rotation": [round(x, 6) for x in rotation.flatten().tolist()],
            "answers": viewer.answers(number, rotation, state["category"]),
        }
        for rotation in R
    ]
    return render({**state, "live": False, "poses": [own, *others]})
