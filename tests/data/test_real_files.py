"""Real files in the official layouts, under LOCOTRANS_DATA; each set is tested if it is there.

Counts are those of the releases; where a smaller set in the same layout stands in for a release,
those of that set.
"""

import os
import time
from pathlib import Path

import pytest
import torch

from locotrans.data import load_dataset
from locotrans.data.parttext import read_lists

ROOT = Path(os.environ.get("LOCOTRANS_DATA", "/nonexistent"))
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not ROOT.is_dir(), reason="LOCOTRANS_DATA is not set"),
]

SETS = [
    # name, folder, points, up, classes, occurring, counts by split
    ("modelnet40:hdf5", "modelnet40_ply_hdf5_2048", 1024, "y", 40, 40, (9843, 2468)),
    ("scanobjectnn:obj_bg,up=z", "h5_files", 1024, "z", 18, 15, (255, 75)),
    ("hdf5", "s3dis_objects", 2048, "z", 8, 8, (292, 120)),
    ("hdf5", "dales", 1024, "z", 5, 5, (300, 199)),
    ("hdf5", "shrec16", 1024, "z", 30, 30, (480, 120)),
    ("shapenetpart:hdf5", "hdf5_data", 2048, "y", 16, 16, (12137, 2874)),
    ("shapenetpart:normal", "psb", 2048, "y", 19, 19, (228, 152)),
]


MODELNET40 = """airplane 626 100, bathtub 106 50, bed 515 100, bench 173 20, bookshelf 572 100,
bottle 335 100, bowl 64 20, car 197 100, chair 889 100, cone 167 20, cup 79 20, curtain 138 20,
desk 200 86, door 109 20, dresser 200 86, flower_pot 149 20, glass_box 171 100, guitar 155 100,
keyboard 145 20, lamp 124 20, laptop 149 20, mantel 284 100, monitor 465 100, night_stand 200 86,
person 88 20, piano 231 100, plant 240 100, radio 104 20, range_hood 115 100, sink 128 20,
sofa 680 100, stairs 124 20, stool 90 20, table 392 100, tent 163 20, toilet 344 100,
tv_stand 267 100, vase 475 100, wardrobe 87 20, xbox 103 20"""
"""Training and test shapes of each class in the release."""


TEXT_FOLDERS = {
    "normal": "shapenetcore_partanno_segmentation_benchmark_v0_normal",
    "pts": "shapenetcore_partanno_segmentation_benchmark_v0",
}


def need(name: str) -> Path:
    if not (ROOT / name).exists():
        pytest.skip(f"{ROOT / name} is not there")
    return ROOT / name


@pytest.mark.parametrize(("name", "folder", "points", "up", "classes", "occurring", "counts"), SETS)
def test_counts_and_ranges(name, folder, points, up, classes, occurring, counts):
    root = need(folder)
    sets = [load_dataset(name, split, root=root, points=points) for split in ("train", "test")]
    assert tuple(len(clouds) for clouds in sets) == counts
    labels = torch.cat([clouds.labels for clouds in sets])
    assert labels.unique().numel() == occurring
    for clouds in sets:
        assert clouds.num_classes == classes
        assert clouds.up == up
        assert clouds.points.shape[1:] == (points, 3)
        radius = clouds.points.norm(dim=-1).amax(1)
        assert 0.5 < radius.min() <= radius.max() < 1.01  # one ModelNet40 shape has 0.53


def upright(points, labels, kind) -> list[float]:
    """Share of the points in the fullest of 40 slices across each axis: a table top is one."""
    cloud = points[labels == kind]
    slices = ((cloud + 1) * 20).long().clamp(0, 39)
    full = torch.nn.functional.one_hot(slices, 40).sum(1).amax(-1)  # s 3
    return (full / cloud.shape[1]).mean(0).tolist()


@pytest.mark.parametrize(
    ("name", "folder", "kind"),
    [
        ("modelnet40", "modelnet40_ply_hdf5_2048", "table"),
        ("shapenetpart:hdf5", "hdf5_data", "Table"),
        ("hdf5", "s3dis_objects", "table"),
        ("scanobjectnn:obj_bg,up=z", "h5_files", "table"),
    ],
)
def test_table_tops_lie_across_the_up_axis(name, folder, kind):
    clouds = load_dataset(name, "test", root=need(folder), points=1024)
    share = upright(clouds.points, clouds.labels, clouds.class_names.index(kind))
    assert "xyz"[share.index(max(share))] == clouds.up


def test_modelnet40_loads_in_seconds():
    root = need("modelnet40_ply_hdf5_2048")
    start = time.perf_counter()
    sets = [load_dataset("modelnet40", split, root=root) for split in ("train", "test")]
    seconds = time.perf_counter() - start
    assert sum(len(clouds) for clouds in sets) == 12311
    assert all(clouds.class_counts[kind] > 0 for clouds in sets for kind in clouds.class_names)
    assert seconds < 5


def test_modelnet40_has_the_shapes_of_each_class():
    rows = [row.split() for row in MODELNET40.split(",")]
    for column, split in enumerate(("train", "test"), start=1):
        clouds = load_dataset("modelnet40", split, root=need("modelnet40_ply_hdf5_2048"))
        assert clouds.class_counts == {row[0]: int(row[column]) for row in rows}


def test_shapenetpart_whole():
    root = need("hdf5_data")
    sets = {
        s: load_dataset("shapenetpart:hdf5", s, root=root, points=2048) for s in ("val", "test")
    }
    assert len(sets["val"]) == 1870
    for clouds in sets.values():
        assert len(clouds.part_names) == 50
        assert not any("another category" in note for note in clouds.notes)
    assert sets["test"].parts.unique().tolist() == list(range(50))
    assert "23 shapes stand in train too" in sets["test"].notes


@pytest.mark.parametrize(
    ("layout", "few"), [("normal", (39, 6, 8)), ("pts", (13, 0, 3))], ids=["normal", "pts"]
)
def test_shapenetpart_text_layouts(layout, few):
    """The whole release, or 69 shapes of it: 53 with normals, 16 without, of all 16 categories."""
    root = need(TEXT_FOLDERS[layout])
    lists = read_lists(root)
    counts = tuple(len(lists[split]) for split in ("train", "val", "test"))
    assert counts in ((12137, 1870, 2874), few)
    kinds, ids = torch.zeros(16, dtype=torch.long), set()
    for split in (name for name, listed in lists.items() if listed):
        clouds = load_dataset(f"shapenetpart:{layout}", split, root=root, points=2500)
        assert clouds.ids == tuple(lists[split])
        assert (clouds.num_classes, len(clouds.part_names)) == (16, 50)
        assert clouds.points.shape == (len(clouds), 2500, 3)
        assert clouds.allowed_parts[clouds.labels].gather(1, clouds.parts).all()
        assert (clouds.normals is None) == (layout == "pts")
        kinds += clouds.labels.bincount(minlength=16)
        ids |= set(clouds.ids)
    assert kinds.min() >= 1
    if counts == few:
        assert len(ids) == sum(few) == {"normal": 53, "pts": 16}[layout]
        assert layout == "normal" or kinds.tolist() == [1] * 16


def test_psb_parts():
    clouds = load_dataset("shapenetpart:normal", "train", root=need("psb"), points=2048)
    assert len(clouds.part_names) == 94
    assert not any(name.startswith("part/") for name in clouds.part_names)
    assert clouds.normals.norm(dim=-1).mean() == pytest.approx(1, abs=0.02)


def test_s3dis_rooms():
    root = need("stanford_indoor3d")
    if not (root / "rooms_split.json").exists():
        pytest.skip("the whole set has no rooms_split.json")
    train = load_dataset("s3dis", "train", root=root, points=1024)
    test = load_dataset("s3dis", "test", root=root, points=1024)
    rooms = [{name.partition("@")[0] for name in clouds.ids} for clouds in (train, test)]
    assert [len(names) for names in rooms] == [30, 10]
    assert train.parts.unique().tolist() == list(range(13))
    assert train.items == "blocks"
    assert train.points[..., :2].abs().max() < 0.501
    assert load_dataset("s3dis:area6", "test", root=root, points=64).part_names == train.part_names


def test_modelnet40_dense():
    clouds = load_dataset("hdf5:up=y", "test", root=need("modelnet40_dense"), points=8192)
    assert (len(clouds), clouds.up) == (489, "y")
