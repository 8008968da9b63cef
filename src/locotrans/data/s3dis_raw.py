"""From the raw S3DIS release to one array a room."""

import io
import os
from pathlib import Path

import numpy as np
from jaxtyping import Float

from locotrans.data.registry import log
from locotrans.data.s3dis import CLASSES

BAD_SHARE = 0.001
"""Share of unreadable lines up to which a file is still taken, without them."""


def prepare_s3dis(raw: Path, out: Path) -> list[Path]:
    """Turn ``Area_N/room/Annotations/*.txt`` into ``Area_N_room.npy``: x y z r g b label.

    The room's least coordinates become zero. Objects of kinds that are not among the 13 classes
    (stairs) count as clutter. Rooms that are there already are left alone.

    Args:
        raw: The unpacked ``Stanford3dDataset_v1.2_Aligned_Version``, or a folder that holds it.
        out: Folder for the arrays, such as ``stanford_indoor3d``.
    """
    folders = sorted(raw.glob("Area_*/*/Annotations")) or sorted(raw.glob("*/Area_*/*/Annotations"))
    if not folders:
        raise FileNotFoundError(
            f"no Area_*/*/Annotations under {raw}: expected the unpacked "
            "Stanford3dDataset_v1.2_Aligned_Version"
        )
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for folder in folders:
        target = out / f"{folder.parents[1].name}_{folder.parent.name}.npy"
        if not target.exists():
            temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
            with temporary.open("wb") as file:
                np.save(file, read_annotations(folder))
            temporary.replace(target)
        written.append(target)
    return written


def read_annotations(folder: Path) -> Float[np.ndarray, "n 7"]:
    """Read the objects of a room: one text file each, named by class."""
    paths = sorted(folder.glob("*.txt"))
    if not paths:
        raise FileNotFoundError(f"{folder} holds no .txt files; unpack the release again")
    objects = []
    for path in paths:
        kind = path.stem.rpartition("_")[0]
        label = CLASSES.index(kind if kind in CLASSES else "clutter")
        table = _read_object(path)
        objects.append(np.column_stack([table, np.full(len(table), label, np.float32)]))
    room = np.concatenate(objects)
    room[:, :3] -= room[:, :3].min(0)
    return room.astype(np.float32)


def _read_object(path: Path) -> Float[np.ndarray, "n 6"]:
    """Read lines of six numbers; the release has a few with a stray control character."""
    text = path.read_bytes().translate(_CONTROL_TO_SPACE)
    try:
        table = np.loadtxt(io.BytesIO(text), ndmin=2)
        if table.shape[1] == 6:
            return table
    except ValueError:
        pass
    rows, bad = [], 0
    for line in text.decode("latin-1").splitlines():
        try:
            row = [float(word) for word in line.split()]
        except ValueError:
            row = []
        if len(row) == 6:
            rows.append(row)
        elif line.strip():
            bad += 1
    if not rows or bad > max(1, BAD_SHARE * len(rows)):
        raise ValueError(f"{path}: {bad} of {bad + len(rows)} lines are not x y z r g b")
    log.warning("%s: left out %d lines that are not x y z r g b", path, bad)
    return np.array(rows)


_CONTROL_TO_SPACE = bytes(
    32 if byte < 32 and byte not in (9, 10, 13) else byte for byte in range(256)
)
