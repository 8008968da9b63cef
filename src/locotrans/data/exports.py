"""The built-in set in the layouts of the official releases, to try every path without the data."""

from collections.abc import Callable
from pathlib import Path

from locotrans.data import export_parts, export_shapes
from locotrans.data.builtin import load_builtin

LAYOUTS: dict[str, Callable[..., None]] = {
    "modelnet40:hdf5": export_shapes.modelnet_hdf5,
    "modelnet40:text": export_shapes.modelnet_text,
    "modelnet40:off": export_shapes.modelnet_off,
    "scanobjectnn:obj_only": export_shapes.scanobjectnn,
    "scanobjectnn:obj_bg": export_shapes.scanobjectnn,
    "scanobjectnn:pb_t50_rs": export_shapes.scanobjectnn,
    "hdf5": export_shapes.hdf5,
    "folder": export_shapes.folder,
    "csv": export_shapes.table,
    "shapenetpart:hdf5": export_parts.parts_hdf5,
    "shapenetpart:normal": export_parts.parts_normal,
    "shapenetpart:pts": export_parts.parts_pts,
    "s3dis": export_parts.rooms,
    "s3dis:raw": export_parts.raw_rooms,
}


def export(
    layout: str,
    out: Path | str,
    *,
    train: int = 200,
    test: int = 60,
    points: int = 2048,
    seed: int = 0,
) -> Path:
    """Write the built-in set as files of an official layout, and return their root.

    The classes and parts are those of the built-in set, so the loaders note that they are not the
    official ones. ``s3dis:raw`` is what `prepare_s3dis` reads.

    Args:
        layout: One of `LAYOUTS`: a name that `load_dataset` takes with the root returned.
        out: Folder to write into, new or empty.
        train: Training shapes.
        test: Test shapes.
        points: Points of each shape.
        seed: Seed of the shapes.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; known: {', '.join(LAYOUTS)}")
    root = Path(out)
    if root.is_dir() and any(root.iterdir()):
        raise ValueError(f"{root} is not empty: name a new folder, so that nothing old is mixed in")
    root.mkdir(parents=True, exist_ok=True)
    sets = {
        split: load_builtin(split, points=points, shapes=count, seed=seed)
        for split, count in (("train", train), ("test", test))
    }
    LAYOUTS[layout](root, sets, layout.partition(":")[2])
    return root
