"""Files and random numbers to tensors: clouds, data sets by name, transforms."""

from locotrans.data import (  # noqa: F401 (each registers itself)
    builtin,
    hdf5,
    modelnet,
    own,
    s3dis,
    scanobjectnn,
    shapenetpart,
)
from locotrans.data.checks import check
from locotrans.data.clouds import CloudSet
from locotrans.data.exports import export
from locotrans.data.registry import list_datasets, load_dataset, register_dataset
from locotrans.data.transforms import (
    ROTATION_PROTOCOLS,
    RotationProtocol,
    drop_points,
    jitter,
    normalize,
    protocol_rotations,
    random_mirror,
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
    "check",
    "drop_points",
    "export",
    "jitter",
    "list_datasets",
    "load_dataset",
    "normalize",
    "protocol_rotations",
    "random_mirror",
    "random_order",
    "random_scale",
    "random_shift",
    "register_dataset",
    "rotate",
    "shuffle_points",
]
