"""Files and random numbers to tensors: clouds, data sets by name, transforms."""

from locotrans.data import builtin  # noqa: F401 (registers itself)
from locotrans.data.clouds import CloudSet
from locotrans.data.registry import list_datasets, load_dataset, register_dataset
from locotrans.data.transforms import (
    ROTATION_PROTOCOLS,
    RotationProtocol,
    drop_points,
    jitter,
    normalize,
    protocol_rotations,
    random_order,
    random_scale,
    random_shift,
    rotate,
    shuffle_points,
)

__all__ = [
    "ROTATION_PROTOCOLS",
    "CloudSet",
    "RotationProtocol",
    "drop_points",
    "jitter",
    "list_datasets",
    "load_dataset",
    "normalize",
    "protocol_rotations",
    "random_order",
    "random_scale",
    "random_shift",
    "register_dataset",
    "rotate",
    "shuffle_points",
]
