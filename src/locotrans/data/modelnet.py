"""ModelNet40: 12,311 models in 40 classes, in the three forms in which people have it."""

from collections.abc import Callable
from pathlib import Path

import torch

from locotrans.data.clouds import CloudSet
from locotrans.data.hdf5 import as_axis, load_clouds, numbered, read_ids
from locotrans.data.prepared import (
    Ragged,
    normalized,
    prepared,
    read_files,
    read_table,
    resample,
)
from locotrans.data.registry import register_dataset
from locotrans.data.roots import Layout, check_split, count_note, find_layout, missing, read_lines

_NAMES = (
    "airplane bathtub bed bench bookshelf bottle bowl car chair cone cup curtain desk door dresser "
    "flower_pot glass_box guitar keyboard lamp laptop mantel monitor night_stand person piano "
    "plant radio range_hood sink sofa stairs stool table tent toilet tv_stand vase wardrobe "
    "xbox"
)
CLASSES = tuple(_NAMES.split())
COUNTS = {"train": (9840, 9843), "test": (2468,)}
"""Official sizes; the HDF5 release lacks three of the 9,843 training shapes."""

LAYOUTS = (
    Layout(
        "hdf5",
        ("modelnet40_ply_hdf5_2048",),
        ("ply_data_t*.h5", "shape_names.txt"),
        "the HDF5 release with 2,048 points a shape, y up",
    ),
    Layout(
        "text",
        ("modelnet40_normal_resampled",),
        ("modelnet40_t*.txt",),
        "the text release with 10,000 points and normals, y up",
    ),
    Layout("off", ("ModelNet40",), ("*/t*/*.off",), "the original meshes, z up"),
)
HOME = (
    "the meshes (ModelNet40.zip) from modelnet.cs.princeton.edu; modelnet40_ply_hdf5_2048.zip and "
    "modelnet40_normal_resampled.zip are described at github.com/charlesq34/pointnet and /pointnet2"
)
UP = {"hdf5": "y", "text": "y", "off": "z"}
KEEP = 2048
"""Points that are prepared of each shape of the slow layouts, unless more are asked for."""


@register_dataset("modelnet40")
def load_modelnet40(
    split: str,
    *,
    root: Path | None = None,
    points: int = 1024,
    seed: int = 0,
    variant: str = "",
    up: str = "",
) -> CloudSet:
    """Load ModelNet40 from whichever of its layouts lies under ``root``.

    Differs: by layout, as the releases do. "hdf5": the first ``points`` as they are in the file
        (mean zero and greatest norm 1 for all 2,048). "text": the first points. "off": points
        drawn uniformly by area. The latter two are normalised after the choice.

    Args:
        split: "train" or "test".
        root: Folder that holds the release's folder, or that folder.
        points: Points of each shape.
        seed: Seed of the points on the meshes.
        variant: "hdf5", "text" or "off"; by default the first that is there.
        up: Another up axis than the release's, for files that were turned.
    """
    check_split("modelnet40", split, ("train", "test"))
    layout, folder = find_layout("modelnet40", root, LAYOUTS, variant, HOME)
    load = {"hdf5": _load_hdf5, "text": _load_text, "off": _load_off}[layout.name]
    clouds, labels, normals, names, ids = load(folder, split, points, seed)
    notes = count_note("shapes", len(labels), COUNTS[split])
    if names != CLASSES:
        notes.append(f"{len(names)} class names that are not those of ModelNet40")
    return CloudSet(
        name=f"modelnet40:{layout.name}",
        split=split,
        up=as_axis(up or UP[layout.name]),
        points=clouds,
        labels=labels,
        class_names=names,
        normals=normals,
        ids=ids,
        notes=tuple(notes),
    )


Loaded = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, tuple[str, ...], tuple[str, ...]]


def _load_hdf5(folder: Path, split: str, points: int, seed: int) -> Loaded:
    paths = numbered(folder, f"ply_data_{split}*.h5")
    if not paths:
        raise missing("modelnet40", folder, [f"{folder}/ply_data_{split}*.h5"], HOME)
    arrays = load_clouds(paths, points, optional=("normal",), order="first")
    names, ids = (
        tuple(read_lines(folder / "shape_names.txt")),
        read_ids(paths),
    )
    return arrays["data"], arrays["label"], arrays.get("normal"), names, ids


def _load_text(folder: Path, split: str, points: int, seed: int) -> Loaded:
    listing, names_file = folder / f"modelnet40_{split}.txt", folder / "modelnet40_shape_names.txt"
    if not listing.exists():
        raise missing("modelnet40", folder, [str(listing)], HOME)
    names = tuple(read_lines(names_file)) if names_file.exists() else CLASSES
    ids = tuple(read_lines(listing))
    classes = [name.rpartition("_")[0] for name in ids]
    paths = [Path(f"{folder}/{kind}/{name}.txt") for kind, name in zip(classes, ids, strict=True)]

    def read(path: Path, keep: int) -> Ragged:
        table = read_table(path, 6, rows=keep)
        return Ragged.of(points=table[:, :3], normals=table[:, 3:])

    return _load_slow("text", folder, split, points, paths, classes, names, ids, read)


def _load_off(folder: Path, split: str, points: int, seed: int) -> Loaded:
    from locotrans.data.readers import read_cloud

    paths = sorted(folder.glob(f"*/{split}/*.off"))
    if not paths:
        raise missing("modelnet40", folder, [f"{folder}/<class>/{split}/*.off"], HOME)
    names = tuple(sorted({path.parents[1].name for path in folder.glob("*/*/*.off")}))
    classes = [path.parents[1].name for path in paths]

    def read(path: Path, keep: int) -> Ragged:
        cloud = read_cloud(path, samples=keep, seed=seed)
        return Ragged.of(points=cloud.points, normals=cloud.normals)

    ids = tuple(f"{path.parents[1].name}/{path.stem}" for path in paths)
    return _load_slow(f"off{seed}", folder, split, points, paths, classes, names, ids, read)


def _load_slow(
    layout: str,
    folder: Path,
    split: str,
    points: int,
    paths: list[Path],
    classes: list[str],
    names: tuple[str, ...],
    ids: tuple[str, ...],
    read: Callable[[Path, int], Ragged],
) -> Loaded:
    unknown = sorted(set(classes) - set(names))
    if unknown:
        raise ValueError(f"modelnet40 in {folder}: no class is named {unknown[0]!r}")
    keep = max(points, KEEP)
    key = f"modelnet40-{layout}-{split}-{keep}"
    ragged = prepared(key, folder, paths, lambda: read_files(paths, lambda p: read(p, keep)))
    cloud = resample(ragged, points, order="first")
    labels = torch.tensor([names.index(kind) for kind in classes])
    return normalized(cloud.points), labels, cloud.normals, names, ids
