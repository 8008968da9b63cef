"""Every layout of every data set, written from the built-in set and read by its loader."""

import h5py
import numpy as np
import pytest
import torch

from locotrans.data import list_datasets, load_dataset, normalize
from locotrans.data.builtin import load_builtin
from locotrans.data.export_shapes import y_up
from locotrans.data.exports import LAYOUTS

SETS = [name for name in LAYOUTS if not name.startswith("s3dis")]
UP = {"modelnet40:off": "z", "hdf5": "z", "folder": "z", "csv": "z"}
EXACT = ["modelnet40:hdf5", "modelnet40:text", "shapenetpart:hdf5"]


@pytest.fixture(scope="module")
def original():
    return {
        "train": load_builtin("train", points=256, shapes=40),
        "test": load_builtin("test", points=256, shapes=20),
    }


def test_every_data_set_can_be_exported():
    assert {name.partition(":")[0] for name in LAYOUTS} == set(list_datasets()) - {"builtin"}


@pytest.mark.parametrize("name", SETS)
def test_layout_gives_back_the_built_in_set(name, exported, original):
    root = exported(name)
    train = load_dataset(name, "train", root=root, points=128)
    test = load_dataset(name, "test", root=root, points=256)
    val = load_dataset(name, "val", root=root, points=64) if "part" in name else []
    assert (len(train) + len(val), len(test)) == (40, 20)
    assert train.points.shape == (len(train), 128, 3)
    assert train.up == test.up == UP.get(name, "y")
    assert set(train.class_names) == set(original["train"].class_names)
    assert test.class_counts == dict.fromkeys(test.class_names, 1)
    assert train.name == test.name == name
    assert load_dataset(name, "train", root=root, points=128).checksum == train.checksum
    order = [test.class_names.index(kind) for kind in original["test"].class_names]
    row = test.labels.tolist().index(order[7])
    turned = original["test"].points[7] if train.up == "z" else y_up(original["test"].points[7])
    if not name.startswith(("modelnet40:off", "scanobjectnn:obj_bg", "scanobjectnn:pb")):
        far = torch.cdist(test.points[row], normalize(turned)).amin(1).max()
        assert far < 1e-3  # the same points, whatever their order


@pytest.mark.parametrize("name", EXACT)
def test_points_come_in_the_order_of_the_files(name, exported, original):
    clouds = load_dataset(name, "test", root=exported(name), points=256)
    assert torch.allclose(clouds.points, y_up(original["test"].points), atol=1e-4)
    assert clouds.labels.tolist() == original["test"].labels.tolist()


def test_meshes_are_sampled_near_the_surface(exported, original):
    clouds = load_dataset("modelnet40:off", "test", root=exported("modelnet40:off"), points=512)
    kind = clouds.class_names.index(original["test"].class_names[3])
    cloud = clouds.points[clouds.labels.tolist().index(kind)]
    assert torch.cdist(cloud, original["test"].points[3]).amin(1).max() < 0.1
    assert clouds.normals.norm(dim=-1).allclose(torch.ones(20, 512), atol=1e-4)


@pytest.mark.parametrize("layout", ["hdf5", "normal", "pts"])
def test_parts_are_numbered_over_all_categories(layout, exported, original):
    root = exported(f"shapenetpart:{layout}")
    clouds = load_dataset("shapenetpart", "test", root=root, points=256)
    assert clouds.name == f"shapenetpart:{layout}"
    counts = [row.bincount(minlength=len(clouds.part_names)) for row in clouds.parts]
    truth = original["test"].parts
    assert len(clouds.part_names) == len(original["test"].part_names)
    for row, parts in zip(counts, truth, strict=True):
        assert row.tolist() == parts.bincount(minlength=len(clouds.part_names)).tolist()
    both = load_dataset("shapenetpart", "trainval", root=root, points=64)
    assert len(both) == 40


def test_mask_tells_object_from_background(exported):
    only = load_dataset(
        "scanobjectnn:obj_only", "test", root=exported("scanobjectnn:obj_only"), points=256
    )
    scene = load_dataset(
        "scanobjectnn:obj_bg", "test", root=exported("scanobjectnn:obj_bg"), points=256
    )
    assert only.masks.all()
    assert scene.masks.float().mean() == 0.75
    floor = scene.points[0, ~scene.masks[0], 1]  # y is up
    assert floor.max() - floor.min() < 1e-5


def test_part_labels_beside_files(exported, original):
    clouds = load_dataset("csv", "test", root=exported("csv") / "shapes.csv", points=256)
    assert clouds.part_names == original["test"].part_names
    kind = clouds.class_names.index(original["test"].class_names[0])
    row = clouds.labels.tolist().index(kind)
    assert sorted(clouds.parts[row].tolist()) == sorted(original["test"].parts[0].tolist())


def test_small_files_of_labelled_points_repeat_them_evenly(exported):
    clouds = load_dataset(
        "shapenetpart:normal", "test", root=exported("shapenetpart:normal", points=100), points=250
    )
    _, counts = clouds.points[0].unique(dim=0, return_counts=True)
    assert len(counts) == 100
    assert set(counts.tolist()) == {2, 3}


def test_settings_are_part_of_the_name_and_change_the_set(exported):
    root = exported("hdf5")
    clouds = load_dataset("hdf5", "test", root=root, points=64, up="y")
    assert (clouds.up, clouds.name) == ("y", "hdf5:up=y")
    again = load_dataset(clouds.name, "test", root=root, points=64)
    assert again.checksum == clouds.checksum
    some = load_dataset("hdf5", "train", root=root, points=64, shapes=7)
    assert (len(some), some.split_size) == (7, 40)
    assert some.checksum == load_dataset("hdf5", "train", root=root, points=64, shapes=7).checksum
    assert (
        load_dataset("hdf5", "train", root=root, points=64, seed=1).checksum
        != load_dataset("hdf5", "train", root=root, points=64).checksum
    )


def test_root_by_environment(exported, monkeypatch):
    monkeypatch.setenv("LOCOTRANS_DATA", str(exported("modelnet40:hdf5")))
    assert len(load_dataset("modelnet40", "test", points=16)) == 20


def test_official_lists_that_overlap_are_noted(exported):
    root = exported("shapenetpart:normal")
    folder = next(root.iterdir()) / "train_test_split"
    train = (folder / "shuffled_train_file_list.json").read_text()
    (folder / "shuffled_test_file_list.json").write_text(train)
    clouds = load_dataset("shapenetpart", "test", root=root, points=16)
    assert "32 shapes stand in train too" in clouds.notes


def test_compressed_chunks_are_read(tmp_path):
    with h5py.File(tmp_path / "train.h5", "w") as file:
        data = np.random.default_rng(0).normal(size=(6, 32, 3)).astype(np.float32)
        file.create_dataset("data", data=data, compression="gzip", chunks=(2, 8, 3))
        file.create_dataset("label", data=np.arange(6, dtype=np.int8)[:, None], compression="gzip")
    clouds = load_dataset("hdf5", "train", root=tmp_path, points=32)
    assert torch.equal(clouds.points, normalize(torch.from_numpy(data)))
    assert clouds.class_names == tuple("012345")
