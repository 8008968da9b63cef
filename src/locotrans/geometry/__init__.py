"""Mathematics without parameters: any batch shape, clean in float64."""

from locotrans.geometry.rotations import (
    AXES,
    Axis,
    axis_rotation,
    quaternion_to_matrix,
    random_axis_rotations,
    random_rotations,
    rotation_angle,
)
from locotrans.geometry.vectors import center, safe_length, safe_normalize

__all__ = [
    "AXES",
    "Axis",
    "axis_rotation",
    "center",
    "quaternion_to_matrix",
    "random_axis_rotations",
    "random_rotations",
    "rotation_angle",
    "safe_length",
    "safe_normalize",
]
