"""Labelled clouds to files: ply, npz, and las where the extra is installed."""

import io
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Float32, Int, UInt8

from locotrans.data.cloud import Cloud
from locotrans.training.record import write_atomically

Format = Literal["ply", "npz", "las"]
FORMATS: tuple[Format, ...] = get_args(Format)


def write_labels(
    path: Path,
    cloud: Cloud,
    labels: Int[np.ndarray, "n"],
    confidence: Float32[np.ndarray, "n"],
    palette: UInt8[np.ndarray, "classes 3"],
    names: tuple[str, ...],
) -> None:
    """Write a cloud with the label of every point, in the order and units of its file.

    ``.ply`` has the properties label, confidence, and the label's colour; ``.npz`` points, labels,
    confidence, names and the colours of the file; ``.las`` the label as classification, its colour,
    the confidence as a further field and, in the header, the names (15 letters of each); of a las
    or laz all other fields but waveforms stay, and its colours if it has any. Coordinates are in
    double precision where single would lose the shape. Points of nan keep their places, with the
    label -1, no confidence and black; a las has no room for them.

    Raises:
        ValueError: if a label does not fit, or laspy is missing.
    """
    points = coordinates(cloud)
    if path.suffix == ".las":
        content = _las(points, cloud, labels, confidence, palette, names)
    else:
        points, confidence = _whole(cloud, points, np.nan), _whole(cloud, confidence, 0)
        labels = _whole(cloud, labels, -1)
        if path.suffix == ".npz":
            content = _npz(points, cloud, labels, confidence, names)
        else:
            black = np.zeros((1, 3), np.uint8)  # where the label -1 points to
            content = _ply(points, labels, confidence, np.concatenate([palette, black]), names)
    write_atomically(path, content)


def _whole(cloud: Cloud, values: np.ndarray, hole: float | int) -> np.ndarray:
    """Return values of points as those of all points of the file, the holes among them."""
    if cloud.rows is None:
        return values
    result = np.full((len(cloud) + cloud.holes, *values.shape[1:]), hole, values.dtype)
    result[cloud.rows.numpy()] = values
    return result


def coordinates(cloud: Cloud) -> Float[np.ndarray, "n 3"]:
    """Return the coordinates of the file."""
    points = cloud.points.numpy()
    return points.astype(np.float64) + cloud.offset if any(cloud.offset) else points


def _ply(
    points: Float[np.ndarray, "n 3"],
    labels: Int[np.ndarray, "n"],
    confidence: Float32[np.ndarray, "n"],
    palette: UInt8[np.ndarray, "classes 3"],
    names: tuple[str, ...],
) -> bytes:
    kind = "double" if points.dtype == np.float64 else "float"
    fields = [(axis, points.dtype.newbyteorder("<").str) for axis in "xyz"]
    fields += [(color, "|u1") for color in ("red", "green", "blue")]
    table = np.empty(len(points), [*fields, ("label", "<i4"), ("confidence", "<f4")])
    for column, axis in enumerate("xyz"):
        table[axis] = points[:, column]
    for column, color in enumerate(("red", "green", "blue")):
        table[color] = palette[labels, column]
    table["label"], table["confidence"] = labels, confidence
    lines = ["ply", "format binary_little_endian 1.0"]
    lines += [f"comment label {number} {_plain(name)}" for number, name in enumerate(names)]
    lines += [f"element vertex {len(points)}"]
    lines += [f"property {kind} {axis}" for axis in "xyz"]
    lines += [f"property uchar {color}" for color in ("red", "green", "blue")]
    lines += ["property int label", "property float confidence", "end_header"]
    return ("\n".join(lines) + "\n").encode() + table.tobytes()


def _plain(name: str) -> str:
    return " ".join(name.encode("ascii", "replace").decode().split())


def _npz(
    points: Float[np.ndarray, "n 3"],
    cloud: Cloud,
    labels: Int[np.ndarray, "n"],
    confidence: Float32[np.ndarray, "n"],
    names: tuple[str, ...],
) -> bytes:
    arrays = {"points": points, "labels": labels.astype(np.int32), "confidence": confidence}
    if cloud.colors is not None:
        arrays["colors"] = _whole(cloud, cloud.colors.numpy(), 0)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays, names=np.array(names, np.str_))
    return file.getvalue()


def _las(
    points: Float[np.ndarray, "n 3"],
    cloud: Cloud,
    labels: Int[np.ndarray, "n"],
    confidence: Float32[np.ndarray, "n"],
    palette: UInt8[np.ndarray, "classes 3"],
    names: tuple[str, ...],
) -> bytes:
    try:
        import laspy
        from laspy.vlrs.known import ClassificationLookupVlr
    except ImportError:
        raise ValueError("writing las needs laspy: pip install 'locotrans[las]'") from None
    if int(labels.max()) > 255:
        raise ValueError(f"las has room for labels up to 255, got {int(labels.max())}")
    colored = False
    if cloud.path is not None and cloud.path.suffix.lower() in (".las", ".laz"):
        las = laspy.read(cloud.path)
        fields = set(las.point_format.dimension_names)
        colored = "red" in fields and any(np.any(las[x]) for x in ("red", "green", "blue"))
        if (
            las.point_format.id < 6 or "red" not in fields
        ):  # labels beyond 31, or colours, need room
            degrees = np.asarray(las.scan_angle_rank) if "scan_angle_rank" in fields else None
            las = laspy.convert(las, point_format_id=7)
            if degrees is not None:
                las.scan_angle = np.round(degrees / 0.006).astype(np.int16)
    else:
        header = laspy.LasHeader(point_format=7, version="1.4")
        low, high = points.min(0).astype(np.float64), points.max(0).astype(np.float64)
        header.offsets = low
        # whole numbers of 31 bits: the finest power of ten that spans the cloud
        header.scales = 10.0 ** np.ceil(np.log10(np.maximum(high - low, 1e-6) / 2**31))
        las = laspy.LasData(header)
        las.x, las.y, las.z = points.astype(np.float64).T
    las.classification = labels.astype(np.uint8)
    if not colored:
        for column, color in enumerate(("red", "green", "blue")):
            setattr(las, color, palette[labels, column].astype(np.uint16) * 257)
    if "confidence" not in las.point_format.dimension_names:
        las.add_extra_dim(laspy.ExtraBytesParams("confidence", "f4"))
    las.confidence = confidence
    lookup = ClassificationLookupVlr()
    for number in range(256):  # all that the format has room for
        lookup[number] = _plain(names[number])[:15] if number < len(names) else ""
    las.header.vlrs.extract(type(lookup).__name__)  # names of other classes
    las.header.vlrs.append(lookup)
    file = io.BytesIO()
    las.write(file, do_compress=False)
    return file.getvalue()
