"""Pictures of clouds: plain drawings of points, frames and poses, made by matplotlib.

The projection is parallel; what is nearer is darker and lies on top. matplotlib is imported by the
functions that need it, and draws into memory (Agg): no window, no global state.
"""

from locotrans.pictures.drawing import (
    GREEN,
    INK,
    RED,
    cloud_png,
    draw_axes,
    draw_cloud,
    draw_labels,
    draw_up,
    label_colors,
    new_figure,
    save_figure,
    view_rotation,
)
from locotrans.pictures.figures import (
    AXIS_COLORS,
    Answer,
    curves_figure,
    frames_figure,
    labels_figure,
    poses_figure,
)

__all__ = [
    "AXIS_COLORS",
    "GREEN",
    "INK",
    "RED",
    "Answer",
    "cloud_png",
    "curves_figure",
    "draw_axes",
    "draw_cloud",
    "draw_labels",
    "draw_up",
    "frames_figure",
    "label_colors",
    "labels_figure",
    "new_figure",
    "poses_figure",
    "save_figure",
    "view_rotation",
]
