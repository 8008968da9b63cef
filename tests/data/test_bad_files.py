"""Files that are missing or broken end in an error that names them and says what to do."""

import json

import h5py
import numpy as np
import pytest

from locotrans.data import load_dataset
from locotrans.data.parttext import read_lists

NAMES = ["modelnet40", "scanobjectnn:pb_t50_rs", "shapenetpart", "s3dis:area5", "hdf5"]


@pytest.mark.parametrize("name", NAMES)
def test_missing_files_say_what_where_and_from_whom(name, tmp_path, monkeypatch):
    for root in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError) as error:
            load_dataset(name, "train", root=root)
        text = str(error.value)
        assert str(root) in text
        assert "Where to get them: " in text
        assert "LOCOTRANS_DATA" in text
        assert ("no such folder" in text) == (root != tmp_path)
    monkeypatch.setenv("LOCOTRANS_DATA", str(tmp_path / "set"))
    with pytest.raises(FileNotFoundError, match="set"):
        load_dataset(name, "train")


def test_one_missing_split_is_named(exported):
    root = exported("modelnet40:hdf5")
    for path in root.rglob("ply_data_train*.h5"):
        path.unlink()
    assert len(load_dataset("modelnet40", "test", root=root, points=8)) == 20
    with pytest.raises(FileNotFoundError, match=r"ply_data_train\*\.h5"):
        load_dataset("modelnet40", "train", root=root, points=8)


def test_missing_text_files_are_counted(exported):
    root = exported("modelnet40:text")
    gone = sorted(root.rglob("chair_*.txt"))
    for path in gone:
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of 40 files .* the first is .*chair_0001.txt"):
        load_dataset("modelnet40", "train", root=root, points=8)


DATA, LABEL = np.zeros((4, 8, 3), np.float32), np.zeros((4, 1), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": DATA}, r"has no array 'label'; it holds \['data'\]"),
        ({"points": DATA, "label": LABEL}, "has no array 'data'"),
        ({"data": DATA[..., :2], "label": LABEL}, r"data has shape \(4, 8, 2\)"),
        ({"data": DATA[0], "label": LABEL}, r"data has shape \(8, 3\)"),
        ({"data": DATA.transpose(0, 2, 1), "label": LABEL}, r"data has shape \(4, 3, 8\)"),
        ({"data": DATA, "label": LABEL[:3]}, r"label has shape \(3,\), expected \(\(4,\)\)"),
        ({"data": DATA[:0], "label": LABEL[:0]}, r"data has shape \(0, 8, 3\)"),
        ({"data": DATA, "label": LABEL + 0.5}, "label must hold whole numbers"),
        ({"data": DATA, "label": np.array([b"a"] * 4)}, "not numbers"),
        ({"data": DATA * np.nan, "label": LABEL}, "nan or infinity"),
        ({"data": DATA, "label": LABEL + 7}, "labels span 7 to 7, but class_names has 2 names"),
        ({"data": DATA, "label": LABEL, "mask": LABEL}, r"mask has shape \(4, 1\)"),
    ],
)
def test_misshaped_hdf5(arrays, message, tmp_path):
    (tmp_path / "shape_names.txt").write_text("a\nb\n")
    with h5py.File(tmp_path / "train.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    with pytest.raises(ValueError, match=message) as error:
        load_dataset("hdf5", "train", root=tmp_path, points=8)
    assert "train" in str(error.value)


def test_hdf5_that_claims_to_be_huge(tmp_path):
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file.create_dataset("data", shape=(10**7, 10**5, 3), dtype="f4", chunks=(1, 1024, 3))
        file["label"] = LABEL
    with pytest.raises(ValueError, match="claims 12,000,000,000,000 bytes"):
        load_dataset("hdf5", "train", root=tmp_path)


@pytest.mark.parametrize("tenth", range(10))
def test_truncated_hdf5(tenth, exported):
    root = exported("modelnet40:hdf5")
    path = next(root.rglob("ply_data_test0.h5"))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * tenth // 10])
    with pytest.raises(ValueError, match=r"ply_data_test0.h5 is not a whole HDF5 file"):
        load_dataset("modelnet40", "test", root=root, points=8)


def test_more_points_than_stored(exported):
    with pytest.raises(ValueError, match="has 256 points a shape, got points=257; ask for fewer"):
        load_dataset("modelnet40", "test", root=exported("modelnet40:hdf5"), points=257)


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("modelnet40", "val", "modelnet40 has the splits train, test; got 'val'"),
        ("modelnet40:ply", "train", "layouts hdf5, text, off; got 'ply'"),
        ("scanobjectnn", "train", "different tasks; name one: scanobjectnn:obj_only"),
        ("scanobjectnn:hardest", "train", "different tasks; got 'hardest'"),
        ("scanobjectnn:obj_bg", "val", "splits train, test; got 'val'"),
        ("shapenetpart", "tests", "splits train, val, trainval, test"),
        ("s3dis:area5", "area5", "splits train, test"),
        ("modelnet40:hdf5,off", "train", "gives variant twice"),
        ("builtin:up=y", "train", "builtin has no setting 'up'"),
        ("scanobjectn:obj_bg", "train", "did you mean 'scanobjectnn'"),
    ],
)
def test_unknown_names(name, split, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_dataset(name, split, root=tmp_path)


def test_text_with_a_wrong_line_is_named(exported):
    root = exported("modelnet40:text")
    path = next(root.rglob("chair_0003.txt"))
    lines = path.read_text().splitlines()
    for wrong, message in (("1,2,3", "3 numbers, expected 6"), ("1,2,x,4,5,6", "not numbers")):
        path.write_text("\n".join([*lines[:4], wrong, *lines[5:]]))
        with pytest.raises(ValueError, match=rf"chair_0003.txt, line 5: {message}"):
            load_dataset("modelnet40", "test", root=root, points=8)
    path.write_text("\r\n".join([*lines, "", ""]))
    assert len(load_dataset("modelnet40", "test", root=root, points=8)) == 20


def test_part_numbers_out_of_range(exported):
    root = exported("shapenetpart:pts")
    path = next(root.rglob("*.seg"))
    count = len(path.read_text().splitlines())
    path.write_text("99\n" * count)
    lists = read_lists(path.parents[2])
    listed = [s for s, shapes in lists.items() if f"{path.parents[1].name}/{path.stem}" in shapes]
    message = rf"{path.name} has the part number 99, and \w+ has the parts 1[, \d]*; correct it"
    with pytest.raises(ValueError, match=message):
        load_dataset("shapenetpart", *listed, root=root, points=256)
    path.write_text("1\n" * (count - 1))
    with pytest.raises(ValueError, match=rf"its .seg file {count - 1} labels"):
        load_dataset("shapenetpart", "test", root=root)


def own_parts(folder, *labels, layout="normal"):
    """Write categories in a text layout, a shape of each in every split, with these labels."""
    (folder / "train_test_split").mkdir(parents=True)
    names = ["Thing", "Other"][: len(labels)]
    listing = "".join(f"{name} 00{number}\n" for number, name in enumerate(names))
    (folder / "synsetoffset2category.txt").write_text(listing)
    for split in ("train", "val", "test"):
        path = folder / "train_test_split" / f"shuffled_{split}_file_list.json"
        path.write_text(json.dumps([f"shape_data/00{i}/{split}" for i in range(len(names))]))
        for number, own in enumerate(labels):
            place = folder / f"00{number}"
            rows = np.random.default_rng(0).normal(size=(len(own), 7))
            rows[:, 6] = own
            for sub in ("points", "points_label"):
                (place / sub).mkdir(parents=True, exist_ok=True)
            if layout == "normal":
                np.savetxt(place / f"{split}.txt", rows)
            else:
                np.savetxt(place / "points" / f"{split}.pts", rows[:, :3])
                np.savetxt(place / "points_label" / f"{split}.seg", rows[:, 6])
    return folder


@pytest.mark.parametrize(("layout", "first"), [("normal", 0), ("normal", 1), ("pts", 1)])
def test_part_numbers_that_begin_anew_in_every_category(tmp_path, layout, first):
    one, other = np.arange(40) % 3 + first, np.arange(40) % 2 + first
    one[:4] = -1
    root = own_parts(tmp_path, one, other, layout=layout)
    clouds = load_dataset(f"shapenetpart:{layout}", "test", root=root, points=40)
    assert clouds.part_names == ("Thing/1", "Thing/2", "Thing/3", "Other/1", "Other/2")
    assert clouds.parts[0].unique().tolist() == [-1, 0, 1, 2]
    assert clouds.parts[1].unique().tolist() == [3, 4]
    assert clouds.parts[1].bincount().tolist() == [0, 0, 0, 20, 20]


@pytest.mark.parametrize(("layout", "first"), [("normal", 0), ("pts", 1)])
def test_part_numbers_over_all_categories(tmp_path, layout, first):
    one, other = np.array([0, 1] * 20) + first, np.array([2, 3] * 20) + first
    root = own_parts(tmp_path, one, other, layout=layout)
    clouds = load_dataset(f"shapenetpart:{layout}", "test", root=root, points=8)
    assert clouds.part_names[first:] == ("Thing/1", "Thing/2", "Other/1", "Other/2")
    assert clouds.allowed_parts.sum(1).tolist() == [2, 2]  # no part that is not there
    assert clouds.parts[1].unique().tolist() == other[:2].tolist()


def test_part_numbers_of_two_categories_that_meet_are_refused(tmp_path):
    root = own_parts(tmp_path / "mixed", [0, 1] * 20, [2, 3] * 19 + [0, 2])
    with pytest.raises(ValueError, match="Thing and Other both have a part 0, and parts are not"):
        load_dataset("shapenetpart:normal", "test", root=root, points=8)


@pytest.mark.parametrize("layout", ["hdf5", "normal", "pts"])
def test_a_part_of_another_category_at_any_point_of_a_file(layout, exported):
    root = exported(f"shapenetpart:{layout}")
    if layout == "hdf5":
        with h5py.File(next(root.rglob("ply_data_test0.h5")), "r+") as file:
            pid, kinds = file["pid"][:], file["label"][:, 0]
            pid[0, -1] = pid[kinds != kinds[0]][0, 0]
            file["pid"][:] = pid
        message = "test0.h5: 1 shape has points on parts of another category: shape 0, of"
    else:
        folder = next(root.glob("*"))
        shape = read_lists(folder)["test"][0]
        if layout == "normal":
            path = folder / f"{shape}.txt"
            rows = np.loadtxt(path)
            rows[-1, 6] = 0 if rows[0, 6] > 5 else 40
            np.savetxt(path, rows)
        else:
            path = folder / shape.replace("/", "/points_label/")
            path = path.with_suffix(".seg")
            path.write_text("\n".join([*path.read_text().split()[:-1], "40"]))
        message = rf"{path.name} has the part number \d+, and \w+ has the parts"
    with pytest.raises(ValueError, match=message):
        load_dataset("shapenetpart", "test", root=root, points=2)


def test_points_without_a_label_among_parts(tmp_path):
    some = own_parts(tmp_path / "some", [0, -1, 1, 1] * 10)
    clouds = load_dataset("shapenetpart:normal", "test", root=some, points=40)
    assert clouds.part_names == ("Thing/1", "Thing/2")
    assert sorted(clouds.parts.unique().tolist()) == [-1, 0, 1]
    none = own_parts(tmp_path / "none", [-1] * 40)
    with pytest.raises(ValueError, match="no point of any shape has a label; all of them are -1"):
        load_dataset("shapenetpart:normal", "test", root=none, points=8)


@pytest.mark.parametrize("number", [12.4, 100_000, -2, float("nan")])
def test_numbers_that_are_no_parts_are_refused_wherever_they_stand(tmp_path, number):
    root = own_parts(tmp_path, [0] * 39 + [number])
    with pytest.raises(ValueError, match=r"\.txt.*(part numbers are whole, from 0 to|nan)"):
        load_dataset("shapenetpart:normal", "test", root=root, points=2)


def test_the_shape_with_an_unknown_part_or_category_is_named(exported):
    root = exported("shapenetpart:hdf5")
    path = next(root.rglob("ply_data_test0.h5"))
    for field, message in (("pid", "the part number 200"), ("label", "the category number 200")):
        with h5py.File(path, "r+") as file:
            values = file[field][:]
            kept = values.copy()
            values[3] = 200
            file[field][:] = values
        with pytest.raises(
            ValueError, match=rf"ply_data_test0.h5: shape 3 has {message}, expected"
        ):
            load_dataset("shapenetpart", "test", root=root, points=8)
        with h5py.File(path, "r+") as file:
            file[field][:] = kept


def test_lists_that_are_no_lists(exported):
    root = exported("shapenetpart:normal")
    path = next(root.rglob("shuffled_val_file_list.json"))
    for content in (json.dumps([1, 2]), "{", json.dumps(3)):
        path.write_text(content)
        with pytest.raises(ValueError, match="must be a JSON list of category/shape"):
            load_dataset("shapenetpart", "test", root=root)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"shuffled_val_file_list.json is missing"):
        load_dataset("shapenetpart", "test", root=root)
