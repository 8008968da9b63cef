"""One's own files: folders per class and tables."""

import numpy as np
import pytest

from locotrans.data import load_dataset
from locotrans.data.listing import list_folder


@pytest.fixture
def folder(tmp_path):
    """Ten clouds of each of three classes, in three formats."""
    rng = np.random.default_rng(0)
    for kind in ("apple", "pear", "plum"):
        (tmp_path / "own" / kind).mkdir(parents=True)
        for i in range(10):
            cloud = rng.normal(size=(100, 3)) * 1000 + 5
            path = tmp_path / "own" / kind / f"{i}"
            if i % 2:
                np.save(path.with_suffix(".npy"), cloud)
            else:
                np.savetxt(path.with_suffix(".xyz"), cloud)
    return tmp_path / "own"


def test_split_by_seed_and_share(folder):
    train = load_dataset("folder", "train", root=folder, points=64)
    test = load_dataset("folder", "test", root=folder, points=64)
    assert train.class_names == ("apple", "pear", "plum")
    assert train.class_counts == dict.fromkeys(train.class_names, 8)
    assert test.class_counts == dict.fromkeys(train.class_names, 2)
    assert not set(train.ids) & set(test.ids)
    assert train.points.norm(dim=-1).max() == pytest.approx(1, abs=1e-5)
    other = load_dataset("folder", "train", root=folder, points=64, seed=1)
    assert set(other.ids) != set(train.ids)
    half = load_dataset("folder:share=0.5,up=y", "test", root=folder, points=64)
    assert (len(half), half.up) == (15, "y")


def test_holes_of_scans_are_left_out_and_said_once(folder, caplog):
    scan = np.random.default_rng(0).normal(size=(100, 3))
    scan[::2] = np.nan
    np.save(folder / "plum" / "scan.npy", scan)
    sets = [load_dataset("folder:share=0.99", "train", root=folder, points=64) for _ in range(2)]
    assert all(clouds.points.isfinite().all() for clouds in sets)
    assert [text for text in caplog.messages if "nan" in text] == [
        "folder (train): 50 nan points of scans are left out"
    ]


def test_an_added_file_moves_few_others(folder):
    before = set(load_dataset("folder", "train", root=folder, points=8).ids)
    np.save(folder / "apple" / "new.npy", np.ones((20, 3)) * np.arange(20)[:, None])
    after = set(load_dataset("folder", "train", root=folder, points=8).ids)
    assert len(before ^ after) <= 2


@pytest.mark.parametrize("order", ["{kind}/{split}", "{split}/{kind}"])
def test_folders_say_the_split(folder, order):
    for kind in ("apple", "pear", "plum"):
        for path in sorted((folder / kind).iterdir()):
            place = folder / order.format(kind=kind, split="test" if path.stem in "01" else "train")
            place.mkdir(parents=True, exist_ok=True)
            path.rename(place / path.name)
        if order.startswith("{split}"):
            (folder / kind).rmdir()
    assert len(load_dataset("folder", "train", root=folder, points=8)) == 24
    test = load_dataset("folder", "test", root=folder, points=8)
    assert test.class_counts == {"apple": 2, "pear": 2, "plum": 2}


def test_few_points_repeat_and_are_noted(folder):
    clouds = load_dataset("folder", "test", root=folder, points=250)
    assert clouds.notes == ("6 files have fewer than 250 points and repeat some",)


def test_class_folder_without_files(folder):
    (folder / "quince").mkdir()
    (folder / "quince" / "notes.md").write_text("none yet")
    with pytest.raises(ValueError, match=r"quince holds no file of a known format; remove it"):
        load_dataset("folder", "train", root=folder)


def test_no_classes_and_no_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no class folders"):
        load_dataset("folder", "train", root=tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load_dataset("folder", "train", root=tmp_path / "nowhere")


def test_links_in_a_circle_end(folder):
    (folder / "apple" / "self").symlink_to(folder / "apple", target_is_directory=True)
    assert len(list_folder(folder)) == 30


def test_unreadable_files_are_counted_and_named(folder):
    (folder / "pear" / "0.xyz").write_text("not a cloud\n")
    (folder / "pear" / "1.npy").write_bytes(b"")
    for path in (folder / "pear").glob("[2-9].*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"1 of 17 files cannot be read: .*pear"):
        load_dataset("folder", "train", root=folder)


def write(folder, text):
    path = folder / "shapes.csv"
    path.write_text(text)
    return path


def test_table_without_split(folder):
    rows = "".join(
        f"{kind}/{i}.xyz,{n}\n" for n, kind in ((10, "apple"), (9, "pear")) for i in (0, 2, 4)
    )
    table = write(folder, "path, label\n" + rows)
    train = load_dataset("csv", "train", root=table, points=16)
    assert train.class_names == ("9", "10")  # as numbers
    assert len(train) + len(load_dataset("csv", "test", root=folder, points=16)) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "header with the columns path and label"),
        ("file,kind\na.xyz,1\n", "header with the columns path and label"),
        (
            "path,label\nnowhere.xyz,a\nalso/not.ply,b\n",
            r"2 files that are not there, .*nowhere.xyz",
        ),
        ("path,label\napple/0.xyz,\n", "line 2: path or label is empty"),
        ("path,label,split\napple/0.xyz,a,train\napple/2.xyz,a,\n", "1 of 2 files .* say their"),
        ("path,label,split\napple/0.xyz,a,train\n", "no files in split 'test'"),
        ("path,label,parts\napple/0.xyz,a,p.txt\napple/2.xyz,a,p.txt\n", "p.txt"),
    ],
)
def test_bad_tables(folder, text, message):
    with pytest.raises((ValueError, OSError), match=message):
        load_dataset("csv", "test", root=write(folder, text))


def test_part_file_of_another_length(folder):
    (folder / "p.txt").write_text("0\n1\n")
    table = write(folder, "path,label,parts,split\napple/0.xyz,a,p.txt,train\n")
    with pytest.raises(ValueError, match=r"p.txt has 2 lines for the 100 points"):
        load_dataset("csv", "train", root=table)


def test_share_is_checked(folder):
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        load_dataset("folder:share=1.5", "train", root=folder)
    with pytest.raises(ValueError, match="share must be a float, got 'half'"):
        load_dataset("folder:share=half", "train", root=folder)
    with pytest.raises(ValueError, match="up must be x, y or z"):
        load_dataset("folder:up=down", "train", root=folder, points=8)
