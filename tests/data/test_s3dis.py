"""Rooms and blocks."""

import json

import numpy as np
import pytest
import torch

from locotrans.data import load_dataset
from locotrans.data.s3dis import CLASSES, ROOMS, cut_blocks, title_of
from locotrans.data.s3dis_raw import prepare_s3dis


def test_folds_and_blocks(exported):
    root = exported("s3dis", points=512)
    train = load_dataset("s3dis:area5", "train", root=root, points=128)
    test = load_dataset("s3dis:area5", "test", root=root, points=128)
    folds = [load_dataset(f"s3dis:area{n}", "test", root=root, points=128) for n in (1, 2, 3, 4, 6)]
    assert sorted(name for fold in folds for name in fold.ids) == sorted(train.ids)
    assert all(name.startswith("Area_5") for name in test.ids)
    assert train.part_names == CLASSES
    assert train.points[..., :2].abs().max() <= 0.5 + 1e-5
    assert train.points[..., 2].min() >= 0
    assert 0 <= train.colors.min() <= train.colors.max() <= 1
    assert (train.parts == 1).any(1).all()  # each block has floor
    assert any("rooms of area 5, where the official release has 68" in note for note in test.notes)


def test_blocks_hold_every_point_once_and_overlap_by_stride():
    rng = np.random.default_rng(0)
    room = np.zeros((5000, 7), np.float32)
    room[:, :2] = rng.uniform((-3, 2), (0.5, 4.2), (5000, 2))
    rows = [rows for _, rows in cut_blocks(room, 1.0, 1)]
    assert sorted(np.concatenate(rows)) == list(range(5000))
    for corner, inside in cut_blocks(room, 1.0, 2):
        offset = room[inside, :2] - corner
        assert offset.min() > -1e-5
        assert offset.max() < 1 + 1e-5
    assert sum(len(inside) for _, inside in cut_blocks(room, 1.0, 2)) > 2.5 * 5000


def test_spheres_hold_every_point_and_unlabelled_points_stay(exported):
    root = exported("s3dis", points=512)
    path = next((root / "stanford_indoor3d").glob("Area_5*.npy"))
    room = np.load(path)
    room[::7, 6] = -1
    np.save(path, room)
    test = load_dataset("s3dis:area5,sphere=0.8", "test", root=root, points=256)
    assert test.name == "s3dis:area5,sphere=0.8"
    assert test.points.norm(dim=-1).max() <= 0.8 + 1e-4
    assert test.parts.min() == -1
    mine = [i for i, name in enumerate(test.ids) if name.startswith(path.stem)]
    assert len(test.points[mine].flatten(0, 1).unique(dim=0)) >= 1000
    assert sum((test.parts[i] == -1).sum() for i in mine) > 0
    with pytest.raises(ValueError, match="sphere must not be negative"):
        load_dataset("s3dis:area5,sphere=-1", "test", root=root)


@pytest.mark.parametrize("missing", [0, 1])
def test_only_a_whole_release_needs_no_title(missing, tmp_path):
    for area, count in ROOMS.items():
        for number in range(count - missing * (area == 5)):
            (tmp_path / f"Area_{area}_office_{number}.npy").touch()
    assert title_of(tmp_path, "area5") == "S3DIS Area 5 (204/67 of 204/68 rooms)" * missing
    split = {"train": [f"Area_6_office_{n}" for n in range(30)], "test": ["Area_6_office_30"] * 10}
    (tmp_path / "rooms_split.json").write_text(json.dumps(split))
    assert title_of(tmp_path, "") == "S3DIS Area 6 (30/10 rooms)"


def test_rooms_split_by_list(exported):
    root = exported("s3dis", points=512)
    folder = root / "stanford_indoor3d"
    rooms = sorted(path.stem for path in folder.glob("*.npy"))
    with pytest.raises(ValueError, match="name the test area, such as s3dis:area5"):
        load_dataset("s3dis", "test", root=root)
    (folder / "rooms_split.json").write_text(json.dumps({"train": rooms[2:], "test": rooms[:2]}))
    test = load_dataset("s3dis", "test", root=root, points=64)
    assert test.title == f"S3DIS Areas 2, 3, 4, 5, 6 / 1 ({len(rooms) - 2}/2 rooms)"
    assert {name.partition("@")[0] for name in test.ids} == set(rooms[:2])
    (folder / "rooms_split.json").write_text(json.dumps({"train": rooms}))
    with pytest.raises(ValueError, match=r"rooms_split.json has no split 'test'; it has train"):
        load_dataset("s3dis", "test", root=root)


def test_points_of_a_block_are_chosen_by_the_seed_and_the_room(exported):
    root = exported("s3dis", points=2048)
    folder = root / "stanford_indoor3d"
    name = "s3dis:area5,block=20,stride=20"
    room = sorted(folder.glob("Area_5_*.npy"))[0]
    for path in folder.glob("Area_5_*.npy"):  # all rooms alike
        np.save(path, np.load(room))
    first, other = (load_dataset(name, "test", root=root, points=64, seed=x) for x in (0, 1))
    assert not torch.equal(first.points, other.points)
    again = load_dataset(name, "test", root=root, points=64, seed=0)
    assert torch.equal(first.points, again.points)
    assert len(first) > 1
    assert not torch.equal(first.points[0], first.points[1])


def test_raw_release_gives_the_same_rooms(exported, tmp_path):
    arrays = exported("s3dis", points=300) / "stanford_indoor3d"
    raw = exported("s3dis:raw", points=300)
    broken = raw / "Area_1" / "office_1" / "Annotations" / "floor_1.txt"
    lines = broken.read_bytes().split(b"\n")
    lines[3] = lines[3].replace(b" ", b"\x10", 1)  # as in one file of the release
    broken.write_bytes(b"\n".join(lines))
    written = prepare_s3dis(raw, tmp_path / "made")
    assert {path.name for path in written} == {path.name for path in arrays.glob("*.npy")}
    for path in written:
        made, given = np.load(path), np.load(arrays / path.name)
        assert made.shape == given.shape
        key = lambda room: np.lexsort(np.round(room[:, [0, 1, 2, 6]], 2).T)  # noqa: E731
        given[:, :3] -= given[:, :3].min(0)
        assert np.allclose(made[key(made)][:, 6].mean(), given[key(given)][:, 6].mean())
        assert np.allclose(made[:, :3].max(0), given[:, :3].max(0), atol=2e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda room: room[:, :6], r"expected \(points, 7\)"),
        (lambda room: np.where(np.arange(7) == 6, 13, room), "labels span 13 to 13"),
        (lambda room: room * np.nan, "nan"),
        (lambda room: np.array([{"a": 1}] * 3), "not a whole array file"),
    ],
)
def test_bad_rooms_are_refused(exported, change, message):
    root = exported("s3dis", points=128)
    path = next((root / "stanford_indoor3d").glob("Area_1_*.npy"))
    np.save(path, change(np.load(path)), allow_pickle=True)
    with pytest.raises(ValueError, match=message) as error:
        load_dataset("s3dis:area1", "test", root=root, points=32)
    assert path.name in str(error.value)


def test_a_room_with_fewer_points_than_a_block_is_named(exported):
    root = exported("s3dis", points=128)
    path = next((root / "stanford_indoor3d").glob("Area_5_*.npy"))
    np.save(path, np.load(path)[:50])
    with pytest.raises(ValueError, match=rf"{path.name} has 50 points, and no block of 1 m has"):
        load_dataset("s3dis:area5", "test", root=root, points=32)
    whole = load_dataset("s3dis:area5,sphere=5.0", "test", root=root, points=64)
    assert sum(name.startswith(path.stem) for name in whole.ids) == 1  # it is there, as a sphere


def test_settings_of_blocks_are_checked(exported):
    root = exported("s3dis", points=128)
    with pytest.raises(ValueError, match="multiple of stride"):
        load_dataset("s3dis:area1,stride=0.7", "test", root=root)
    with pytest.raises(ValueError, match="area1 to area6, got 'area7'"):
        load_dataset("s3dis:area7", "test", root=root)
    for path in root.rglob("Area_5_*.npy"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="rooms of areas"):
        load_dataset("s3dis:area5", "test", root=root)
    half = load_dataset("s3dis:area1,stride=0.5", "test", root=root, points=32)
    assert len(half) > len(load_dataset("s3dis:area1", "test", root=root, points=32))
    assert torch.equal(half.labels, torch.zeros(len(half), dtype=torch.long))
