"""Mathematics without parameters: any batch shape, clean in float64."""

from locotrans.geometry.frames import (
    FrameKind,
    gram_schmidt_frame,
    handcrafted_frame,
    printed_symmetric_frame,
    symmetric_frame,
)
from locotrans.geometry.neighbors import farthest_points, gather, knn, knn_features
from locotrans.geometry.rotations import (
    AXES,
    Axis,
    axis_rotation,
    quaternion_to_matrix,
    random_axis_rotations,
    random_rotations,
    rotation_angle,
    rotation_axis,
)
from locotrans.geometry.vectors import center, safe_length, safe_normalize

__all__ = [
    "AXES",
    "Axis",
    "FrameKind",
    "axis_rotation",
    "center",
    "farthest_points",
    "gather",
    "gram_schmidt_frame",
    "handcrafted_frame",
    "knn",
    "knn_features",
    "printed_symmetric_frame",
    "quaternion_to_matrix",
    "random_axis_rotations",
    "random_rotations",
    "rotation_angle",
    "rotation_axis",
    "safe_length",
    "safe_normalize",
    "symmetric_frame",
]
