"""ShapeNetPart: 16 categories, 50 parts; the HDF5 release and the two text releases.

Parts are numbered over all categories, 0 to 49, and the label of a shape is its category.
"""

from pathlib import Path
from typing import Any

import torch

from locotrans.data.clouds import CloudSet
from locotrans.data.hdf5 import as_axis, load_clouds, numbered, read_ids
from locotrans.data.parttable import PartTable, read_table_of_parts
from locotrans.data.parttext import load_text, overlap_notes
from locotrans.data.prepared import Clouds, normalized
from locotrans.data.registry import register_dataset
from locotrans.data.roots import Layout, check_split, count_note, find_layout, missing

LISTS = ("train", "val", "test")
SPLITS = {"train": ("train",), "val": ("val",), "trainval": ("train", "val"), "test": ("test",)}
COUNTS = {"train": (12137,), "val": (1870,), "trainval": (14007, 13998), "test": (2874,)}
LAYOUTS = (
    Layout(
        "hdf5",
        ("hdf5_data", "shapenet_part_seg_hdf5_data"),
        ("ply_data_t*.h5", "all_object_categories.txt"),
        "the HDF5 release with 2,048 points a shape",
    ),
    Layout(
        "normal",
        ("shapenetcore_partanno_segmentation_benchmark_v0_normal",),
        ("synsetoffset2category.txt", "train_test_split/*.json", "*/*.txt"),
        "the text release with normals",
    ),
    Layout(
        "pts",
        ("shapenetcore_partanno_segmentation_benchmark_v0",),
        ("synsetoffset2category.txt", "train_test_split/*.json", "*/points/*.pts"),
        "the first text release, .pts and .seg files",
    ),
)
HOME = (
    "shapenetcore_partanno_segmentation_benchmark_v0_normal.zip and "
    "shapenet_part_seg_hdf5_data.zip are described at github.com/charlesq34/pointnet2 and "
    "/pointnet; ShapeNet itself, with its terms of use, is at shapenet.org"
)


@register_dataset("shapenetpart")
def load_shapenetpart(
    split: str,
    *,
    root: Path | None = None,
    points: int = 2048,
    seed: int = 0,
    variant: str = "",
    up: str = "y",
) -> CloudSet:
    """Load ShapeNetPart from whichever of its layouts lies under ``root``; clouds are normalised.

    A folder in one of these layouts with other categories is read too: its parts are numbered as
    in its ``catid_partid_to_overallid.json``, or (in text) as they stand in the files, where they
    may begin anew in every category. A label that is no part of a shape's category is refused, at
    whichever point of its file.

    Args:
        split: "train", "val", "trainval" or "test", by the official lists.
        root: Folder that holds the release's folder, or that folder.
        points: Points of each shape. The text releases have about 2,600, some fewer: those repeat
            points.
        seed: Seed of the choice of points.
        variant: "hdf5", "normal" or "pts"; by default the first that is there.
        up: The axis that points up.
    """
    check_split("shapenetpart", split, tuple(SPLITS))
    layout, folder = find_layout("shapenetpart", root, LAYOUTS, variant, HOME)
    if layout.name == "hdf5":
        clouds, labels, table, ids = _load_hdf5(folder, split, points, seed)
        names = {split: read_ids(numbered(folder, f"ply_data_{split}*.h5")) for split in LISTS}
        notes = overlap_notes(names, SPLITS[split])
    else:
        lists = SPLITS[split]
        clouds, labels, table, ids, notes = load_text(folder, layout.name, lists, points, seed)
    if clouds.parts is None:
        raise ValueError(f"{folder} has no part labels")
    if table.official:
        notes += count_note("shapes", len(labels), COUNTS[split])
    else:
        notes.append(f"{len(table.categories)} categories that are not those of ShapeNetPart")
    return CloudSet(
        name=f"shapenetpart:{layout.name}",
        split=split,
        up=as_axis(up),
        points=normalized(clouds.points),
        labels=labels,
        class_names=table.categories,
        normals=clouds.normals,
        parts=clouds.parts,
        part_names=table.part_names,
        ids=ids,
        notes=tuple(notes),
    )


def _load_hdf5(
    folder: Path, split: str, points: int, seed: int
) -> tuple[Clouds, torch.Tensor, PartTable, tuple[str, ...]]:
    paths = [path for part in SPLITS[split] for path in numbered(folder, f"ply_data_{part}*.h5")]
    for part in SPLITS[split]:
        if not any(path.name.startswith(f"ply_data_{part}") for path in paths):
            raise missing("shapenetpart", folder, [f"{folder}/ply_data_{part}*.h5"], HOME)
    table = read_table_of_parts(folder, "all_object_categories.txt")
    if table is None:
        raise missing("shapenetpart", folder, [f"{folder}/catid_partid_to_overallid.json"], HOME)
    known = table

    def check(path: Path, arrays: dict[str, Any]) -> None:
        labels, parts = (torch.from_numpy(arrays[key]).long() for key in ("label", "pid"))
        names = read_ids([path]) or [f"shape {row}" for row in range(len(labels))]
        try:
            known.check(labels, parts, names)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    needed = ("data", "label", "pid")
    arrays = load_clouds(paths, points, needed=needed, optional=("normal",), seed=seed, check=check)
    clouds = Clouds(arrays["data"], arrays.get("normal"), None, arrays["pid"])
    return clouds, arrays["label"], table, read_ids(paths)
