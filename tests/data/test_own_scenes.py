"""Scenes of one's own: spheres in the units of the files, wherever the files lie."""

import re

import numpy as np
import pytest
import torch

from locotrans.cli import main
from locotrans.data import load_dataset
from locotrans.data.checks import check
from locotrans.data.own_scenes import list_scenes


def write_scene(path, seed, size=(4.0, 3.0, 2.0), n=3000, shift=0.0):
    """Write a box of points, the lower half labelled 0, the upper 2, and some not at all."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, size, (n, 3))
    labels = np.where(points[:, 2] < size[2] / 2, 0, 2)
    labels[::50] = -1
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, points=points + shift, labels=labels, colors=rng.random((n, 3)))


@pytest.fixture
def scans(tmp_path):
    for number in range(5):
        write_scene(tmp_path / "scans" / f"room{number}.npz", number, shift=1e6 * number)
    return tmp_path / "scans"


def test_spheres_keep_the_units_and_hold_every_point(scans):
    train = load_dataset("folder:sphere=0.8", "train", root=scans, points=128)
    test = load_dataset("folder:sphere=0.8", "test", root=scans, points=128)
    assert (train.name, train.items, train.class_names) == (
        "folder:sphere=0.8",
        "spheres",
        ("scene",),
    )
    rooms = [{name.partition("@")[0] for name in data.ids} for data in (train, test)]
    assert [len(names) for names in rooms] == [4, 1]
    assert not rooms[0] & rooms[1]
    assert len(set(train.ids)) == len(train)
    reach = train.points.norm(dim=-1).amax(1)
    assert reach.median() == pytest.approx(0.8, rel=0.15)  # not 1
    assert train.part_names == ("0", "1", "2")
    assert train.colors is not None
    (name,) = rooms[1]
    with np.load(scans / name) as file:
        whole = torch.from_numpy(file["points"] - file["points"].mean(0))
        seen = torch.cat([test.colors[i] for i in range(len(test))]).unique(dim=0)
        assert len(seen) == len(whole) == 3000
    again = load_dataset("folder:sphere=0.8", "test", root=scans, points=128)  # from the cache
    assert again.checksum == test.checksum
    assert again.ids == test.ids


def test_folders_on_the_way_say_the_split(scans):
    for number, path in enumerate(sorted(scans.glob("*.npz"))):
        place = scans / "house" / ("test" if number < 2 else "Train") / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    test = load_dataset("folder:sphere=0.8", "test", root=scans, points=64)
    names = {name.partition("@")[0] for name in test.ids}
    assert names == {"house/test/room0.npz", "house/test/room1.npz"}
    with pytest.raises(ValueError, match="got 'other'"):
        load_dataset("folder:sphere=0.8", "other", root=scans)


def test_a_table_of_scenes(scans):
    rows = "".join(f"room{i}.npz,x,{'test' if i else 'train'}\n" for i in range(3))
    table = scans / "list.csv"
    table.write_text("path,label,split\n" + rows)
    (scans / "part_names.txt").write_text("floor\nwall\nroof\n")
    data = load_dataset("csv:sphere=0.8", "train", root=table, points=64)
    assert {name.partition("@")[0] for name in data.ids} == {"room0.npz"}
    assert data.part_names == ("floor", "wall", "roof")
    table.unlink()
    (scans / "part_names.txt").write_text("1 2 3\n4 5 6\n7 8 9\n")  # it might be a cloud
    assert len(list_scenes(scans)) == 5  # the names are no scene
    rows = "".join(f"room{i}.npz,kind{i}\n" for i in range(5))
    table.write_text("path,label\n" + rows)
    counts = [
        len(
            {
                name.partition("@")[0]
                for name in load_dataset("csv:sphere=0.8", split, root=table, points=64).ids
            }
        )
        for split in ("train", "test")
    ]
    assert counts == [4, 1]  # whatever the labels


def test_scenes_are_checked(scans, capsys):
    main(["data", "check", str(scans), "--data", "folder:sphere=0.8", "--classes"])
    shown = capsys.readouterr().out
    assert re.search(r"train: \d+ spheres of 4 rooms, 2 of 3 classes", shown)
    assert "note: 1 label below 2 occurs nowhere here, and counts as a class: 1" in shown
    np.savez(scans / "bare.npz", points=np.random.default_rng(0).random((200, 3)))
    np.savez(scans / "bad.npz", points=np.random.default_rng(0).random((200, 3)), labels=[1] * 9)
    with pytest.raises(SystemExit):
        main(["data", "check", str(scans), "--data", "folder:sphere=0.8,share=0.99"])
    told = capsys.readouterr()
    shown = told.out
    assert "problem: train: " in shown
    assert (shown + told.err).count("bare.npz has no label for each point") == 1
    assert re.search(r"error: \d problems?, named above", told.err)
    assert "a line each into bare.seg" in shown
    for path in scans.glob("*.npz"):
        np.savez(path, points=np.random.default_rng(0).random((500, 3)), labels=np.full(500, -1))
    with pytest.raises(ValueError, match=r"\(train\): no point has a label; all of them are -1"):
        load_dataset("folder:sphere=0.3", "train", root=scans, points=64)


def test_names_with_slashes_are_names_of_scenes(scans):
    (scans / "part_names.txt").write_text("room/floor\nroom/wall\nroom/roof\n")
    data = load_dataset("folder:sphere=0.8", "test", root=scans, points=64)
    assert data.allowed_parts.all()


def test_meshes_of_scenes_are_their_vertices(tmp_path):
    rng = np.random.default_rng(0)
    points = rng.uniform(0, (4, 3, 2), (9000, 3))
    for number in range(2):
        lines = ["ply", "format ascii 1.0", "element vertex 9000"]
        lines += [f"property float {axis}" for axis in "xyz"] + ["property int label"]
        lines += ["element face 1", "property list uchar int vertex_indices", "end_header"]
        lines += [f"{x} {y} {z} {int(z > 1)}" for x, y, z in points] + ["3 0 1 2"]
        (tmp_path / f"{number}.ply").write_text("\n".join(lines) + "\n")
    data = load_dataset("folder:sphere=0.8", "test", root=tmp_path, points=256)
    assert max(len(cloud.unique(dim=0)) for cloud in data.points) == 256
    (scene,) = data.scenes.files
    assert len(data.scenes.read(scene).points) == 9000


def test_scenes_that_cannot_be_learned_from(scans, caplog):
    np.savez(scans / "bare.npz", points=np.random.default_rng(0).random((200, 3)))
    with pytest.raises(ValueError, match=r"1 of \d files cannot be read: .*bare.npz has no label"):
        load_dataset("folder:sphere=0.8,share=0.99", "train", root=scans, points=64)
    some = load_dataset("folder:sphere=0.8,share=0.99,skip=true", "train", root=scans, points=64)
    assert any("1 file cannot be read and is left out: bare.npz" in note for note in some.notes)
    with pytest.raises(ValueError, match="sphere must be positive, got -1"):
        load_dataset("folder:sphere=-1", "train", root=scans)
    said = "labels of points in"
    assert not any(said in note for note in some.notes)
    (scans / "bare.npz").unlink()
    for sphere, words in (
        ("0.001", "most spheres of radius 0.001 hold fewer than 8 points of the scene; perhaps it"),
        ("900", "spheres have a radius of 900, and the scene is 4 wide; perhaps it is in metres"),
    ):
        with pytest.raises(ValueError, match=f"room0.npz: {words}.*or name another sphere"):
            load_dataset(f"folder:sphere={sphere}", "train", root=scans, points=128)
    caplog.clear()
    load_dataset("folder:sphere=0.35", "train", root=scans, points=128)
    assert "most spheres of radius 0.35 hold fewer than 100 points" in caplog.text
    (scans / "part_names.txt").write_text("floor\nwall\n")
    with pytest.raises(ValueError, match=r"room0.npz has the part number 2, and part_names.txt na"):
        load_dataset("folder:sphere=0.8", "train", root=scans, points=64)
    with pytest.raises(FileNotFoundError, match=r"no class folders.*--data folder:sphere=RADIUS"):
        load_dataset("folder", "train", root=scans)
    assert "--data folder:sphere=RADIUS" in "\n".join(check(scans).lines())
