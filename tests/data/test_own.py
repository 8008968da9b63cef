"""One's own files: folders per class and tables."""

import shutil

import h5py
import numpy as np
import pytest

from locotrans.data import load_dataset
from locotrans.data.listing import Entry, list_folder
from locotrans.data.own_files import sources_of


@pytest.fixture
def folder(own_folder):
    return own_folder


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
    assert len(load_dataset("folder:share=0", "test", root=folder, points=64)) == 30
    with pytest.raises(ValueError, match="no files in split 'train'; add some, or change share"):
        load_dataset("folder:share=0", "train", root=folder, points=64)


def test_holes_of_scans_are_left_out_and_said_from_the_cache_too(folder, caplog):
    scan = np.random.default_rng(0).normal(size=(100, 3))
    scan[::2] = np.nan
    np.save(folder / "plum" / "scan.npy", scan)
    sets = [load_dataset("folder:share=0.99", "train", root=folder, points=64) for _ in range(2)]
    assert all(clouds.points.isfinite().all() for clouds in sets)
    said = "folder:share=0.99 (train): 50 nan points of scans are left out"
    assert [text for text in caplog.messages if "nan" in text] == [said] * 2  # once a load


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


def test_few_points_are_filled_up_and_noted(folder):
    clouds = load_dataset("folder", "test", root=folder, points=250)
    assert clouds.notes == (
        "6 files have fewer than 250 points: they are filled up with moved copies",
    )
    assert all(len(cloud.unique(dim=0)) == 250 for cloud in clouds.points)


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
        ("path,label,split\napple/0.xyz,a,train\n", "no files in split 'test'; .* are train"),
        ("path,label,split\napple/0.xyz,a,fold1\n", "no files in split 'test'; .* are fold1"),
        ("path,label\napple,a\n", "line 2: .*apple is a folder; name the files"),
        ("path,label\napple/0.xyz,a\napple/0.xyz,b\n", r"line 3: .* twice \(a, b\)"),
        ("path,label\napple/0,1.xyz,a\n", "line 2 has 3 values for 2 columns"),
        ("path,label\n", "but no rows"),
        ("path,label,parts\napple/0.xyz,a,apple/2.xyz\napple/4.xyz,a,\n", "1 of 2 rows name no"),
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
    with pytest.raises(ValueError, match="share must be 0, all for testing, or below 1"):
        load_dataset("folder:share=1.5", "train", root=folder)
    with pytest.raises(ValueError, match="share must be a float, got 'half'"):
        load_dataset("folder:share=half", "train", root=folder)
    with pytest.raises(ValueError, match="up must be x, y or z"):
        load_dataset("folder:up=down", "train", root=folder, points=8)


def test_the_seed_of_the_split_can_be_chosen_by_name(folder):
    named = load_dataset("folder:seed=1,up=y", "train", root=folder, points=64)
    given = load_dataset("folder:up=y", "train", root=folder, points=64, seed=1)
    assert named.ids == given.ids != load_dataset("folder", "train", root=folder, points=64).ids
    assert named.name == "folder:seed=1,up=y"
    with pytest.raises(ValueError, match="seed must be a int, got 'x'"):
        load_dataset("folder:seed=x", "train", root=folder)


def test_a_file_gives_the_same_points_whatever_stands_beside_it(folder):
    def plums():
        clouds = load_dataset("folder", "train", root=folder, points=64)
        return dict(zip(clouds.ids, clouds.points, strict=True))

    before = plums()
    np.save(folder / "apple" / "00.npy", np.random.default_rng(0).normal(size=(50, 3)))
    after = plums()
    both = before.keys() & after.keys()
    assert len(both) > 20
    assert all((before[name] == after[name]).all() for name in both)


def test_a_seg_file_that_changes_or_comes_later_is_noticed(folder):
    for path in folder.glob("*/*.*"):
        path.with_suffix(".seg").write_text("0\n1\n" * 50)
    assert load_dataset("folder", "train", root=folder, points=8).part_names == ("0", "1")
    for path in folder.glob("*/*.seg"):
        path.write_text("2\n-1\n" * 50)
    clouds = load_dataset("folder", "train", root=folder, points=8)
    assert clouds.part_names == ("0", "1", "2")
    assert clouds.parts.unique().tolist() == [-1, 2]
    for path in folder.glob("*/*.seg"):
        path.unlink()
    assert load_dataset("folder", "train", root=folder, points=8).parts is None
    for name in "01":  # one of them is for training
        (folder / "apple" / f"{name}.seg").write_text("0.5\n1\n" * 50)
    with pytest.raises(ValueError, match=r"seg, value 1: 0.5 is no part"):
        load_dataset("folder:share=0.99", "train", root=folder, points=8)


def test_the_buffer_of_a_gltf_file_is_a_source(tmp_path):
    path = tmp_path / "a.gltf"
    path.write_text('{"buffers": [{"uri": "my%20a.bin"}, {"uri": "data:x"}, {"uri": "gone.bin"}]}')
    (tmp_path / "my a.bin").write_bytes(b"0")
    assert sources_of([Entry(path, "a")]) == [path, tmp_path / "my a.bin"]
    path.write_text("{")
    assert sources_of([Entry(path, "a")]) == [path]


@pytest.mark.parametrize("label", [2_000_000_000, 3_000_000_000, -2])
def test_labels_that_are_no_parts_do_not_stop_classification(folder, label, caplog):
    for path in folder.glob("*/*.npy"):
        np.savez(path.with_suffix(".npz"), points=np.load(path), label=np.full(100, label))
        path.unlink()
    for path in folder.glob("*/*.xyz"):
        path.unlink()
    for _ in range(2):  # from the files, and from the cache
        clouds = load_dataset("folder", "train", root=folder, points=8)
        assert (clouds.parts, clouds.part_names) == (None, ())
    assert caplog.text.count("labels of points in 12 files are no parts (-1 to 4,095)") == 2


def test_points_without_any_label_have_no_parts(folder):
    for path in folder.glob("*/*.*"):
        path.with_suffix(".seg").write_text("-1\n" * 100)
    assert load_dataset("folder", "train", root=folder, points=8).parts is None


def test_parts_of_some_files_are_said_to_be_left_out(folder, caplog):
    for name in "01":  # one of them is for training
        (folder / "apple" / f"{name}.seg").write_text("0\n1\n" * 50)
    assert load_dataset("folder:share=0.99", "train", root=folder, points=8).parts is None
    assert "labels of points in 1 of 27 files are left out: others have none" in caplog.text
    assert "such as" in caplog.text
    assert "apple/2.xyz" in caplog.text or "apple/1.npy" in caplog.text


def test_names_of_parts_come_from_a_file_or_are_numbers(folder):
    for path in list(folder.glob("*/*.*")):
        core = "1" if path.parent.name == "apple" else "-1"
        path.with_suffix(".seg").write_text(f"0\n{core}\n" * 50)
    assert load_dataset("folder", "test", root=folder, points=8).part_names == ("0", "1")
    (folder / "part_names.txt").write_text("skin\napple/core\n")
    test = load_dataset("folder", "test", root=folder, points=8)
    assert test.part_names == ("skin", "apple/core")
    assert test.allowed_parts.tolist() == [[True, True], [True, False], [True, False]]


def test_classes_without_shapes_and_a_class_alone_are_told(folder, caplog):
    for kind, split in (("apple", "train"), ("apple", "test"), ("pear", "test")):
        place = folder / "set" / kind / split
        place.mkdir(parents=True)
        np.save(place / "a.npy", np.random.default_rng(0).normal(size=(20, 3)))
    load_dataset("folder", "train", root=folder / "set", points=8)
    assert "1 class has no shape here: pear" in caplog.text
    shutil.rmtree(folder / "set" / "pear")
    load_dataset("folder", "train", root=folder / "set", points=8)
    assert "there is one class only, apple" in caplog.text


def test_prose_in_a_folder_is_passed_over(folder, caplog):
    before = load_dataset("folder", "train", root=folder, points=8)
    (folder / "pear" / "readme.txt").write_text("Pears of 2024, scanned at home.\n")
    after = load_dataset("folder", "train", root=folder, points=8)
    assert after.ids == before.ids
    assert caplog.text.count("readme.txt is passed over") == 1


@pytest.mark.parametrize("extra", ["__MACOSX/x.ply", ".git/x.ply"])
@pytest.mark.parametrize("names", [("train", "test"), ("training", "Testing")])
def test_split_folders_are_no_classes(folder, extra, names):
    for split in names:
        for kind in ("apple", "plum"):
            place = folder / "set" / split / kind
            place.mkdir(parents=True)
            np.save(place / "a.npy", np.random.default_rng(0).normal(size=(20, 3)))
    other = folder / "set" / extra
    other.parent.mkdir()
    other.write_text("")
    clouds = load_dataset("folder", "test", root=folder / "set", points=8)
    assert clouds.class_counts == {"apple": 1, "plum": 1}
    (folder / "set" / "val").mkdir()
    with pytest.raises(ValueError, match=r"val holds no folder per class; if .*set is itself"):
        load_dataset("folder", "test", root=folder / "set", points=8)
    (folder / "set" / "val").rmdir()
    (folder / "set" / "notes").mkdir()
    with pytest.raises(ValueError, match=r"named as a split, beside notes/"):
        load_dataset("folder", "test", root=folder / "set", points=8)


def test_one_class_is_not_taken_for_two_named_train_and_test(folder):
    for split in ("train", "test"):
        (folder / "apple" / split).mkdir()
        (folder / "apple" / f"{'0' if split == 'test' else '2'}.xyz").rename(
            folder / "apple" / split / "a.xyz"
        )
    with pytest.raises(ValueError, match=r"no folder per class; if .*apple is itself.*sphere="):
        list_folder(folder / "apple")


@pytest.mark.parametrize("unit", [1e30, 1e-30, 1])
def test_units_do_not_matter(tmp_path, unit):
    cloud = np.random.default_rng(0).normal(size=(3, 40, 3)).astype(np.float32)
    (tmp_path / "own" / "a").mkdir(parents=True)
    for i in range(3):
        np.save(tmp_path / "own" / "a" / f"{i}.npy", cloud[i] * np.float32(unit))
    clouds = load_dataset("folder", "train", root=tmp_path / "own", points=8)
    assert clouds.points.norm(dim=-1).amax(1).tolist() == pytest.approx([1, 1])


def test_equal_points_are_reported_by_name(folder):
    np.save(folder / "plum" / "1.npy", np.full((30, 3), 7.1))
    with pytest.raises(ValueError, match=r"plum/1.npy: its 30 points are all the same") as caught:
        load_dataset("folder:share=0.99", "train", root=folder, points=8)
    assert f"`locotrans data check {folder}` names all" in str(caught.value)
    far = np.float32(5e6) + np.arange(90, dtype=np.float32).reshape(30, 3) % 2
    np.save(folder / "plum" / "1.npy", far)
    with pytest.raises(ValueError, match=r"1.npy: its 30 points differ by no more than rounding"):
        load_dataset("folder:share=0.99", "train", root=folder, points=8)
    assert "folder:skip=true leaves them out" in str(caught.value)


def test_files_that_cannot_be_read_can_be_skipped(folder):
    (folder / "plum" / "list.txt").write_text("1 2\n")
    np.save(folder / "pear" / "1.npy", np.zeros((30, 3)))
    for _ in range(2):  # from the files, and from the cache
        clouds = load_dataset("folder:skip=true,share=0.99", "train", root=folder, points=100)
        assert len(clouds) == 30 - 3 + 1 - 2 == len(clouds.ids)
        assert clouds.notes == (
            "2 files cannot be read and are left out: pear/1.npy, plum/list.txt",
        )
        assert [clouds.class_names[i] for i in clouds.labels] == [
            name.partition("/")[0] for name in clouds.ids
        ]
    assert clouds.name == "folder:share=0.99,skip=true"
    with pytest.raises(ValueError, match="skip must be true or false, got 'maybe'"):
        load_dataset("folder:skip=maybe", "train", root=folder)


def test_linked_folders_within_a_class_are_followed(folder, tmp_path):
    (tmp_path / "more").mkdir()
    np.save(tmp_path / "more" / "x.npy", np.random.default_rng(0).normal(size=(20, 3)))
    (folder / "plum" / "linked").symlink_to(tmp_path / "more", target_is_directory=True)
    assert len(list_folder(folder)) == 31


def test_h5_files_of_several_clouds(folder):
    with h5py.File(folder / "plum" / "many.h5", "w") as file:
        file["data"] = np.random.default_rng(0).normal(size=(4, 30, 3))
    entries = list_folder(folder)
    assert len(entries) == 34
    assert entries[-1].path.name == "many.h5#3"
    table = write(folder, "path,label,split\nplum/many.h5#3,a,test\nplum/many.h5#1,b,train\n")
    assert load_dataset("csv", "test", root=table, points=8).ids == ("plum/many.h5#3",)


@pytest.mark.parametrize(
    "text",
    [
        "Path,Label,Split\napple/0.xyz,a,Train\napple/2.xyz,b,Test\n",
        "path;label;split\napple/0.xyz;a;train\napple/2.xyz;b;test\n",
        "path\tlabel\tsplit\napple/0.xyz\ta\ttraining\napple/2.xyz\tb\ttesting\n",
        '"path","label","split"\r\n"apple/0.xyz","a","train"\r\n"apple/2.xyz","b","test"\r\n',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_tables_as_programs_write_them(folder, text, encoding):
    (folder / "shapes.csv").write_bytes(text.encode(encoding))
    clouds = load_dataset("csv", "test", root=folder / "shapes.csv", points=8)
    assert (clouds.ids, clouds.class_names) == (("apple/2.xyz",), ("a", "b"))


@pytest.mark.parametrize("name", ["folder", "csv"])
def test_without_a_root_one_is_asked_for(name, own_cache):
    (own_cache / "anything").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=rf"^{name}: name the .* as root \(--root\)"):
        load_dataset(name, "test")


def test_holes_have_lines_in_a_file_of_part_numbers_or_not(tmp_path):
    points = np.random.default_rng(0).random((40, 3))
    points[[3, 17]] = np.nan
    root = tmp_path / "set"
    for kind in ("cup", "mug"):
        (root / kind).mkdir(parents=True)
        for number in range(2):
            np.save(root / kind / f"{number}.npy", points)
            lines = np.arange(40) if number else np.delete(np.arange(40), [3, 17])
            np.savetxt(root / kind / f"{number}.seg", lines, fmt="%d")
    for split in ("train", "test"):
        data = load_dataset("folder:share=0.5", split, root=root, points=38)
        places = data.points - data.points.mean(1, keepdim=True)
        expected = np.delete(points, [3, 17], axis=0)
        expected -= expected.mean(0)
        expected /= np.linalg.norm(expected, axis=1).max()
        for cloud, parts in zip(places, data.parts, strict=True):
            assert sorted(parts.tolist()) == sorted(set(range(40)) - {3, 17})
            np.testing.assert_allclose(cloud[parts.argsort()], expected, atol=1e-5)


def test_a_part_of_another_class_at_any_point_of_a_file(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "part_names.txt").write_text("cup/handle\ncup/body\nrim\n")
    for kind in ("bowl", "cup"):
        for number in range(2):
            labels = np.full(9000, 2)  # more points than are kept of a file
            np.savez(tmp_path / f"{kind}{number}.npz", points=rng.random((9000, 3)), labels=labels)
    table = tmp_path / "list.csv"
    rows = [f"{kind}{i}.npz,{kind}" for kind in ("bowl", "cup") for i in range(2)]
    table.write_text("path,label\n" + "\n".join(rows))
    assert len(load_dataset("csv:share=0.99", "train", root=table, points=16)) == 2
    (tmp_path / "part_names.txt").write_text("cup/handle\ncup/body\n")  # 2 has a name no more
    with pytest.raises(ValueError, match=r"has the part number 2, .* names 2 parts"):
        load_dataset("csv:share=0.99", "train", root=table, points=16)
    (tmp_path / "part_names.txt").write_text("cup/handle\ncup/body\nrim\n")
    for number, message in ((0, "of class bowl, has points on cup/handle"), (7, "part number 7")):
        labels[-1] = number
        for name in ("bowl0", "bowl1"):
            np.savez(tmp_path / f"{name}.npz", points=rng.random((9000, 3)), labels=labels)
        with pytest.raises(ValueError, match=message):
            load_dataset("csv:share=0.99", "train", root=table, points=16)
    (tmp_path / "part_names.txt").unlink()
    assert len(load_dataset("csv:share=0.99", "train", root=table, points=16)) == 2
