"""`check` says what lies in a folder."""

import pytest

from locotrans.data import check, export
from locotrans.data.exports import LAYOUTS


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "s3dis:raw"])
def test_every_layout_is_recognised(name, exported):
    report = check(exported(name))
    names = [found.name for found in report.sets]
    assert names == (["s3dis:area1", "s3dis:area2"] if name == "s3dis" else [name])
    assert report.problems == []
    for found in report.sets:
        assert sum(part.shapes for part in found.splits) > 0
        if name != "s3dis":
            assert sum(part.shapes for part in found.splits) == 60
    assert any("test: " in line for line in report.lines())


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
