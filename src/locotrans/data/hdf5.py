"""Clouds in HDF5 files: arrays ``data`` and ``label``, perhaps ``normal``, ``pid``, ``mask``.

The data set `hdf5` is a folder of them that is not one of the known releases: ``train.h5`` and
``test.h5`` (or ``train0.h5``, ``train1.h5``, ...), with the class names in ``shape_names.txt``.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from locotrans.data.clouds import CloudSet
from locotrans.data.readers.raw import without_offset
from locotrans.data.registry import register_dataset
from locotrans.data.roots import check_split, data_root, missing, read_lines
from locotrans.data.transforms import normalize
from locotrans.geometry import Axis

MOST = 100_000  # classes or parts; larger numbers are no labels
LARGEST = 64 * 2**30
"""Bytes of an array beyond which a file is refused instead of read."""

SHAPES = {"data": "s m 3", "label": "s", "normal": "s m 3", "pid": "s m", "mask": "s m"}


class FewerPointsError(ValueError):
    """The clouds of a file have fewer points than were asked for."""

    def __init__(self, path: Path, available: int, points: int) -> None:
        super().__init__(
            f"{path} has {available:,} points a shape, got points={points}; ask for fewer"
        )
        self.available = available


def read_arrays(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """Read arrays of one HDF5 file whole; labels come flat, ``(s, 1)`` or ``(s,)`` in the file.

    Raises:
        ValueError: for a file that is not HDF5, an array that is missing or has a wrong shape.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            absent = [key for key in needed if key not in file]
            if absent:
                raise ValueError(f"{path} has no array {absent[0]!r}; it holds {sorted(file)}")
            keys = [key for key in (*needed, *optional) if key in file]
            for key in keys:
                if not isinstance(file[key], h5py.Dataset):
                    raise ValueError(f"{path}: {key} is a group of arrays, not an array")
                if file[key].nbytes > LARGEST:
                    raise ValueError(f"{path}: {key} claims {file[key].nbytes:,} bytes")
            arrays = {key: file[key][()] for key in keys}
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError, KeyError) as error:  # h5py's for files that are damaged
        if isinstance(error, PermissionError | IsADirectoryError):
            raise
        raise ValueError(f"{path} is not a whole HDF5 file ({error}); fetch it again") from None
    if "label" in arrays and arrays["label"].ndim == 2 and arrays["label"].shape[1] == 1:
        arrays["label"] = arrays["label"][:, 0]
    _check_shapes(path, arrays)
    return arrays


def _check_shapes(path: Path, arrays: dict[str, Any]) -> None:
    s, m = (*arrays["data"].shape, 0, 0)[:2]
    for key, array in arrays.items():
        want = tuple({"s": s, "m": m, "3": 3}[axis] for axis in SHAPES[key].split())
        if array.shape != want or 0 in want:
            wanted = SHAPES["data"].replace(" ", ", ") if key == "data" else want
            raise ValueError(f"{path}: {key} has shape {array.shape}, expected ({wanted})")
        if array.dtype.kind not in "iufb":
            raise ValueError(f"{path}: {key} holds {array.dtype}, not numbers")
        if SHAPES[key][-1] != "3" and array.dtype.kind == "f" and (array % 1 != 0).any():
            raise ValueError(f"{path}: {key} must hold whole numbers")


def load_clouds(
    paths: Sequence[Path],
    points: int,
    *,
    needed: Sequence[str] = ("data", "label"),
    optional: Sequence[str] = (),
    order: Literal["first", "random"] = "random",
    seed: int = 0,
    check: Callable[[Path, dict[str, Any]], None] | None = None,
) -> dict[str, Tensor]:
    """Read files of equal clouds one after the other and keep ``points`` of each cloud.

    Args:
        paths: The files.
        points: Points to keep; the files must have as many.
        needed: Arrays that each file must have.
        optional: Arrays that are taken if each file has them.
        order: "first" takes the first points, as the authors' programs do where a release has
            its points in random order; "random" draws by ``seed``, the same places of every cloud.
        seed: Seed of that.
        check: Sees the arrays of each file, all of its points, and may refuse them.
    """
    parts = []
    for path in paths:
        parts.append(read_arrays(path, needed, optional))
        available = parts[-1]["data"].shape[1]
        if available != parts[0]["data"].shape[1]:
            raise ValueError(f"{path} has {available:,} points a shape, unlike {paths[0]}")
        if points > available:
            raise FewerPointsError(path, available, points)
        if check is not None:
            check(path, parts[-1])
    columns: Any = slice(points)
    if order == "random" and points < available:
        columns = np.sort(np.random.default_rng(seed).permutation(available)[:points])
    result = {}
    for key in (key for key in (*needed, *optional) if all(key in part for part in parts)):
        arrays = [part[key] if key == "label" else part[key][:, columns] for part in parts]
        whole = np.concatenate(arrays)
        if key == "data" and whole.dtype == np.float64:  # perhaps far from the origin
            whole = np.stack([without_offset(cloud)[0] for cloud in whole])
        joined = torch.from_numpy(whole)
        result[key] = joined.float() if SHAPES[key][-1] == "3" else joined.long()
    return result


def numbered(folder: Path, pattern: str) -> list[Path]:
    """List the files of a pattern, 2 before 10."""
    return sorted(folder.glob(pattern), key=lambda p: [int(n) for n in re.findall(r"\d+", p.stem)])


def read_ids(paths: Sequence[Path]) -> tuple[str, ...]:
    """Read where the shapes come from, if ``ply_data_train_0_id2file.json`` and so on are there."""
    names: list[str] = []
    for path in paths:
        stem, number = re.fullmatch(r"(.*?)(\d*)", path.stem).groups()  # type: ignore[union-attr]
        listing = path.with_name(f"{stem}_{number}_id2file.json")
        if not listing.exists():
            return ()
        names += json.loads(listing.read_text())
    return tuple(names)


@register_dataset("hdf5")
def load_hdf5(
    split: str,
    *,
    root: Path | None = None,
    points: int = 1024,
    seed: int = 0,
    up: str = "z",
) -> CloudSet:
    """Load a folder of ``{split}*.h5`` files with ``data`` and ``label``; clouds are normalised.

    Args:
        split: Whatever stands before ``.h5``.
        root: The folder.
        points: Points of each shape.
        seed: Seed of the choice of points.
        up: The axis that points up: the files do not say.
    """
    folder = data_root(root)
    paths = [
        p for p in numbered(folder, f"{split}*.h5") if re.fullmatch(r"\d*", p.stem[len(split) :])
    ]
    if not paths:
        there = sorted({re.sub(r"\d*$", "", p.stem) for p in folder.glob("*.h5")})
        if there:
            check_split(f"{folder}", split, there)
        home = "these are your own files; `shape_names.txt` beside them names the classes"
        raise missing("hdf5", folder, [f"{folder}/{split}.h5 with arrays data and label"], home)
    arrays = load_clouds(paths, points, optional=("normal", "pid", "mask"), seed=seed)
    names_file, labels = folder / "shape_names.txt", arrays["label"]
    for key, what in (("label", "classes"), ("pid", "parts")):
        if key in arrays and int(arrays[key].max()) >= MOST:
            raise ValueError(
                f"{folder}: {key} reaches {int(arrays[key].max()):,} in {split}*.h5; number the "
                f"{what} from 0, without gaps"
            )
    names = (
        read_lines(names_file) if names_file.exists() else map(str, range(int(labels.max()) + 1))
    )
    pid = arrays.get("pid")
    return CloudSet(
        name="hdf5",
        split=split,
        up=as_axis(up),
        points=normalize(arrays["data"]),
        labels=labels,
        class_names=tuple(names),
        normals=arrays.get("normal"),
        parts=pid,
        part_names=() if pid is None else tuple(map(str, range(int(pid.max()) + 1))),
        masks=None if "mask" not in arrays else arrays["mask"] >= 0,
    )


def as_axis(up: str) -> Axis:
    """Return ``up`` as an axis, or refuse it."""
    for axis in ("x", "y", "z"):
        if up == axis:
            return axis
    raise ValueError(f"up must be x, y or z, got {up!r}")
