"""`check` says what lies in a folder."""

import re

import h5py
import numpy as np
import pytest

from locotrans.cli import main
from locotrans.cli.shared import protocol_of
from locotrans.data import check, export, load_dataset
from locotrans.data.exports import LAYOUTS
from locotrans.training.evaluate import kept_rows


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "s3dis:raw"])
def test_every_layout_is_recognised(name, exported):
    report = check(exported(name))
    names = [found.name for found in report.sets]
    assert names == ([f"s3dis:area{n}" for n in range(1, 7)] if name == "s3dis" else [name])
    assert report.problems == []
    for found in report.sets:
        assert sum(part.shapes for part in found.splits) > 0
        if name != "s3dis":
            assert sum(part.shapes for part in found.splits) == 60
    assert any("test: " in line for line in report.lines())


def test_a_release_in_a_folder_of_its_name_is_found(exported):
    root = exported("scanobjectnn:obj_bg")
    (root / "ScanObjectNN").mkdir()
    (root / "h5_files").rename(root / "ScanObjectNN" / "h5_files")
    assert [found.name for found in check(root).sets] == ["scanobjectnn:obj_bg"]


def test_several_sets_and_what_is_wrong(exported):
    exported("modelnet40:hdf5")
    exported("scanobjectnn:obj_bg")
    root = exported("shapenetpart:pts")
    next(root.rglob("ply_data_train1.h5")).write_bytes(b"cut")
    report = check(root)
    assert [found.name for found in report.sets] == [
        "modelnet40:hdf5",
        "scanobjectnn:obj_bg",
        "shapenetpart:pts",
    ]
    (problem,) = report.problems
    assert "ply_data_train1.h5 is not a whole HDF5 file" in problem
    text = "\n".join(report.lines())
    assert "test: 20 shapes of 256 points, 20 of 20 classes" in text
    assert "problem: train: " in text
    assert "note: " in text


def test_notes_are_told_once(exported, capsys, caplog):
    root, note = exported("shapenetpart:pts"), "20 categories that are not those of ShapeNetPart"
    main(["data", "check", str(root)])
    told = capsys.readouterr()
    assert told.out.count(note) == told.out.count(" shapes, ") == 3  # splits
    assert (told.err, caplog.messages) == ("", [])
    load_dataset("shapenetpart:pts", "test", root=root)
    assert caplog.messages == [f"shapenetpart:pts (test): {note}"]


def test_scenes_have_blocks_and_rooms(exported):
    root = exported("s3dis")
    report = check(root)
    train = load_dataset("s3dis:area1", "train", root=root)
    rooms = len(list(root.rglob("Area_[2-6]_*.npy")))
    occurring = sum(bool((train.parts == kind).any()) for kind in range(13))
    assert report.sets[0].splits[0].line() == (
        f"train: {len(train)} blocks of {rooms} rooms, {occurring} of 13 classes"
    )
    text = "\n".join(report.lines())
    assert "    sampled points: ceiling " in text
    assert "shapes" not in text
    result = {"data": "s3dis", "split": "test", "samples": 5, "items": "blocks", "axis": None}
    line = protocol_of({**result, "rotation": "so3", "rotations_per_shape": 3})
    assert line == "s3dis test, 5 blocks, rotation so3, 3 per block"


def test_nothing_there(tmp_path):
    (tmp_path / "void").mkdir()
    assert check(tmp_path / "void").problems == [f"nothing is recognised under {tmp_path}/void"]
    with pytest.raises(FileNotFoundError, match="does not exist"):
        check(tmp_path / "nowhere")


def test_unknown_layout(tmp_path):
    with pytest.raises(ValueError, match=r"unknown layout .modelnet.; known: modelnet40:hdf5"):
        export("modelnet", tmp_path)


def test_exports_are_not_mixed(tmp_path):
    (tmp_path / "old.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty: name a new folder"):
        export("folder", tmp_path)


@pytest.fixture
def own(tmp_path):
    """Six clouds of 30 to 80 points in each of two class folders."""
    rng = np.random.default_rng(0)
    for kind in ("hat", "tie"):
        (tmp_path / "own" / kind).mkdir(parents=True)
        for i in range(6):
            np.save(tmp_path / "own" / kind / f"{i}.npy", rng.normal(size=(30 + 10 * i, 3)))
    return tmp_path / "own"


def test_the_sizes_are_those_of_the_files(own):
    text = "\n".join(check(own).lines())
    assert "train: 10 shapes of 30 to 80 points (median 55), 2 of 2 classes" in text
    assert "fewer than" not in text
    (own / "hat" / "large.xyz").write_text("0 1 2\n3 4 5\n" * 5000)
    assert "to 8,192 or more points" in "\n".join(check(own).lines())


def test_official_files_are_counted_as_they_are(exported):
    exported("modelnet40:hdf5", points=100)
    text = "\n".join(check(exported("shapenetpart:normal", points=100)).lines())
    assert "modelnet40:hdf5" in text
    assert "train: 40 shapes of 100 points" in text
    assert re.search(r"val: \d+ shapes, ", text)  # the text files are sampled


def test_what_belongs_to_no_class_is_told(own):
    for name in "abcd":
        np.save(own / f"{name}.npy", np.eye(3))
    (own / "readme.txt").write_text("hats and ties")
    text = "\n".join(check(own).lines())
    assert "4 files beside the class folders, of no class: a.npy, b.npy, c.npy, ..." in text
    for split in ("train", "test"):
        (own / "cap" / split).mkdir(parents=True)
        np.save(own / "cap" / split / "a.npy", np.eye(3))
    np.save(own / "cap" / "lost.npy", np.eye(3))
    text = "\n".join(check(own).lines())
    assert "1 file beside the folders of splits, of no split: cap/lost.npy" in text
    (own / "sock").mkdir()
    (own / "shoe").mkdir()
    assert f"class folders {own}/shoe, {own}/sock hold no files" in check(own).problems[0]


def test_every_bad_file_is_named_and_the_good_are_counted(own):
    for i in range(5):
        (own / "hat" / f"{i}.npy").write_bytes(b"")
    (own / "tie" / "README.txt").write_text("on ties\n")  # which is passed over
    report = check(own)
    assert sum(part.shapes for part in report.sets[0].splits) == 7
    assert len(report.problems) == 5
    assert all(any(f"hat/{i}.npy" in problem for problem in report.problems) for i in range(5))


def test_tables_of_points_are_not_tables_of_paths(own):
    (own / "log.csv").write_text("epoch,loss\n1,2\n")
    assert [found.name for found in check(own).sets] == ["folder"]
    for path in (own / "hat").iterdir():
        np.savetxt(path.with_suffix(".csv"), np.load(path), delimiter=",")
        path.unlink()
    (problem,) = check(own / "hat").problems
    assert "it holds 6 clouds: put them into a folder per class" in problem


def test_class_folders_of_h5_files_are_class_folders(own):
    with h5py.File(own / "tie" / "table1.h5", "w") as file:
        file["data"] = np.random.default_rng(0).normal(size=(3, 40, 3))
    report = check(own)
    assert [found.name for found in report.sets] == ["folder"]
    assert sum(part.shapes for part in report.sets[0].splits) == 15


def test_raw_rooms_are_told_what_to_do_with(exported):
    report = check(exported("s3dis:raw"))
    assert [found.name for found in report.sets] == ["s3dis:raw"]
    assert "locotrans data prepare-s3dis" in report.problems[0]


def test_a_file_and_no_root(own, own_cache):
    with pytest.raises(ValueError, match="is a file; name the folder"):
        check(own / "hat" / "0.npy")
    own_cache.mkdir(parents=True)
    assert check().problems == [f"nothing is recognised under {own_cache.parent}"]


@pytest.mark.parametrize("layout", ["hdf5", "normal"])
def test_a_set_may_be_named_without_its_layout(layout, exported):
    report = check(exported(f"shapenetpart:{layout}"), "shapenetpart")
    assert [part.split for part in report.sets[0].splits] == ["train", "val", "test"]
    assert report.problems == []


@pytest.mark.parametrize("suffix", ["xyz", "off"])
def test_files_that_are_there_twice_are_listed(suffix, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for split, count in (("train", 3), ("test", 2)):
        for kind in ("apple", "plum"):
            folder = tmp_path / "set" / split / kind
            folder.mkdir(parents=True)
            for number in range(count):
                rows = "\n".join(" ".join(map(str, x)) for x in rng.normal(size=(30, 3)))
                head, tail = (
                    ("OFF\n30 2 0\n", "\n3 0 1 2\n3 3 4 5") if suffix == "off" else ("", "")
                )
                (folder / f"{split}{number}.{suffix}").write_text(f"{head}{rows}{tail}\n")
    root, twins = tmp_path / "set", tmp_path / "twins.txt"
    main(["data", "check", str(root), "--twins", str(twins)])
    assert "0 twins (clouds of equal points) -> " in capsys.readouterr().out
    assert twins.read_text() == ""
    copied = (root / "train/apple" / f"train1.{suffix}").read_text()
    (root / "test/plum" / f"test0.{suffix}").write_text(copied)
    main(["data", "check", str(root), "--twins", str(twins)])
    assert "note: 1 shape has the points of shapes to train on" in capsys.readouterr().out
    assert twins.read_text() == f"test/plum/test0.{suffix}\n"


def test_clouds_of_one_file_that_are_in_another_are_twins(tmp_path, capsys):
    data = np.random.default_rng(0).normal(size=(4, 20, 3)).astype(np.float32)
    for split, rows in (("train", data[:3]), ("test", data[2:])):
        with h5py.File(tmp_path / f"{split}.h5", "w") as file:
            file["data"], file["label"] = rows, np.arange(len(rows))
    main(["data", "check", str(tmp_path), "--twins", str(tmp_path / "twins.txt")])
    assert "note: 1 shape has the points of shapes to train on" in capsys.readouterr().out
    names = (tmp_path / "twins.txt").read_text().split()
    assert names == ["test#0"]
    assert kept_rows(load_dataset("hdf5", "test", root=tmp_path, points=20), names).tolist() == [1]
