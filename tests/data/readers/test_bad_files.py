"""Whatever is wrong with a file is a ReadError that names the file and a remedy."""

import contextlib
import errno
import io
import json
import os
import resource
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from data.readers import writers
from locotrans.data.readers import FORMATS, ReadError, read_cloud

# a text that ends early may be a shorter text: only some of these notice
TEXT = {".xyz", ".txt", ".csv", ".obj"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return writers.write_all(tmp_path_factory.mktemp("files"))


def message(path, match=None, **options):
    with pytest.raises(ReadError, match=match) as caught:
        read_cloud(path, **options)
    text = str(caught.value)
    assert Path(str(path)).name in text
    assert text.count(": ") >= 2  # file: problem: remedy
    return text


NAMES = [
    *("text.ply", "little.ply", "big.ply", "mixed.ply", "mixed_binary.ply", "mesh.ply"),
    *("text.pcd", "binary.pcd", "compressed.pcd", "plain.xyz", "tabs.txt", "commas.csv"),
    *("count.pts", "scene.gltf", "mesh.off", "mesh.obj", "mesh.stl", "mesh_text.stl", "mesh.glb"),
    *("array.npy", "stored.npz", "packed.npz", "one.h5", "scan.las", "scan.laz", "scan14.laz"),
]


@pytest.mark.parametrize("name", NAMES)
def test_truncated_at_every_tenth(files, tmp_path, name):
    data = files[name].read_bytes()
    for tenth in range(10):
        path = tmp_path / f"cut{files[name].suffix}"
        path.write_bytes(data[: len(data) * tenth // 10])
        if files[name].suffix in TEXT and tenth:
            with contextlib.suppress(ReadError):
                assert len(read_cloud(path, samples=10)) <= 50
        else:
            message(path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_empty_wrong_magic_folder(tmp_path, suffix):
    (tmp_path / f"empty{suffix}").touch()
    message(tmp_path / f"empty{suffix}", "is empty")
    wrong = tmp_path / f"wrong{suffix}"
    wrong.write_bytes(bytes(range(256)) * 8)
    message(wrong)
    wrong.write_bytes(b"Not Found\n<html>\n" * 200)
    message(wrong)
    (tmp_path / f"folder{suffix}").mkdir()
    message(tmp_path / f"folder{suffix}", "is a folder: name a file in it")


@pytest.mark.parametrize("suffix", FORMATS)
def test_may_not_be_read(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"secret{suffix}"
    path.write_bytes(b"1 2 3\n")

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    message(path, "may not be read: change its permissions")


def test_paths_that_lead_nowhere(tmp_path):
    (tmp_path / "loop.ply").symlink_to(tmp_path / "loop.ply")
    message(tmp_path / "loop.ply", "loop of symbolic links")
    message(tmp_path / "missing.ply", "no such file: check the path")
    (tmp_path / "file").write_text("1")
    message(tmp_path / "file" / "a.ply", "not a folder")
    message(tmp_path / ("a" * 300 + ".ply"), "too long")
    with pytest.raises(ReadError, match="null byte: check the path"):
        read_cloud("a\0b.ply")
    os.mkfifo(tmp_path / "pipe.xyz")  # opening it would wait for ever
    message(tmp_path / "pipe.xyz", "no regular file")


def test_unknown_formats_list_the_known(tmp_path):
    (tmp_path / "a.docx").write_text("hello")
    text = message(tmp_path / "a.docx", "format is unknown")
    assert all(suffix in text for suffix in FORMATS)
    (tmp_path / "noname").write_text("1 2 3\n")
    message(tmp_path / "noname", "known are .ply")


def test_another_format_than_the_suffix_says(files, tmp_path):
    (tmp_path / "a.ply").write_bytes(files["stored.npz"].read_bytes())
    message(tmp_path / "a.ply", r"is named .ply, but begins as .npz does: rename it .npz")


def test_a_size_limit(files):
    message(files["text.ply"], "larger max_bytes", max_bytes=1000)


def test_text_takes_more_memory_than_its_size(tmp_path):
    path = tmp_path / "a.xyz"
    path.write_text("1 2 3\n" * 10)
    read_cloud(path, max_bytes=360)
    message(path, "its text as numbers would take 360 bytes, the limit is 359", max_bytes=359)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["npy", "npz", "h5", "xyz", "ply", "pcd", "off", "obj", "stl"])
def test_nan_and_infinity(tmp_path, kind, bad):
    points = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    points[4, 1] = points[7, 2] = bad
    path = tmp_path / f"a.{kind}"
    lines = "".join(f"{x} {y} {z}\n" for x, y, z in points.tolist())
    if kind == "npy":
        np.save(path, points)
    elif kind == "npz":
        np.savez(path, points=points)
    elif kind == "h5":
        with writers.h5py.File(path, "w") as file:
            file["points"] = points
    elif kind == "stl":
        rows = np.zeros(3, [("n", "<f4", 3), ("c", "<f4", (3, 3)), ("a", "<u2")])
        rows["c"] = points.reshape(3, 3, 3)
        path.write_bytes(bytes(80) + struct.pack("<I", 3) + rows.tobytes())
    else:
        head = {
            "xyz": "",
            "obj": "",
            "off": "OFF\n9 0 0\n",
            "ply": "ply\nformat ascii 1.0\nelement vertex 9\nproperty float x\nproperty float y\n"
            "property float z\nend_header\n",
            "pcd": "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 9\nPOINTS 9\nDATA ascii\n",
        }[kind]
        if kind == "obj":
            lines = "".join(f"v {line}\n" for line in lines.splitlines())
        path.write_text(head + lines)
    place = "line 5" if kind == "xyz" else "point 4"
    message(path, f"2 of 9 points are nan or infinite, first at {place}: remove these points")


def test_normals_labels_and_colours_are_checked_too(tmp_path):
    points = np.zeros((5, 3))
    normals = np.ones((5, 3))
    normals[3, 0] = np.nan
    np.savez(tmp_path / "a.npz", points=points, normals=normals)
    message(tmp_path / "a.npz", "normals of 1 of 5 points are nan or infinite, first at point 3")
    np.savez(tmp_path / "b.npz", points=points, labels=np.arange(5) + 0.5)
    message(tmp_path / "b.npz", "label 0.5 at point 0")
    np.savez(tmp_path / "c.npz", points=points, colors=points - 1)
    message(tmp_path / "c.npz", "colours span -1 to -1")
    np.savez(tmp_path / "d.npz", points=points, normals=np.zeros((4, 3)))
    message(tmp_path / "d.npz", r"normals has the shape \(4, 3\), but there are 5 points")
    np.savez(tmp_path / "e.npz", points=points, labels=np.zeros(4, int))
    message(tmp_path / "e.npz", r"save \(5,\) integers")


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("suffix", ["npy", "xyz", "ply", "pcd", "las"])
def test_one_point_and_equal_points_are_fine(tmp_path, suffix, count):
    path = tmp_path / f"a.{suffix}"
    points = np.full((count, 3), 0.25, np.float32)
    lines = "0.25 0.25 0.25\n" * count
    head = "property float x\nproperty float y\nproperty float z\nend_header\n"
    if suffix == "npy":
        np.save(path, points)
    elif suffix == "las":
        data = writers.laspy.LasData(writers.laspy.LasHeader())
        data.x, data.y, data.z = points.T
        data.write(str(path))
    elif suffix == "ply":
        path.write_text(f"ply\nformat ascii 1.0\nelement vertex {count}\n{head}{lines}")
    elif suffix == "pcd":
        path.write_text(
            f"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH {count}\nPOINTS {count}\nDATA ascii\n"
            + lines
        )
    else:
        path.write_text(lines)
    assert read_cloud(path).points.tolist() == points.tolist()


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ((3, 300), "3 rows of 300 columns: transpose it"),
        ((3, 13), "3 rows of 13 columns: transpose it"),
        ((3, 50), "3 rows of 50 columns: transpose it"),
        ((50,), r"shape \(50,\): save"),
        ((2, 50, 3), r"shape \(2, 50, 3\)"),
        ((50, 2), "50 rows of 2 columns"),
        ((0, 3), "holds no points"),
        ((), r"shape \(\)"),
    ],
)
def test_misshaped_arrays(tmp_path, shape, match):
    np.save(tmp_path / "a.npy", np.zeros(shape))
    message(tmp_path / "a.npy", match)


def test_misshaped_hdf5(tmp_path):
    cases = {
        "3 rows of 64 columns: transpose": {"points": np.zeros((3, 64))},
        "has no array points": {"clouds": np.zeros((5, 3))},
        r"points have the shape \(5,\)": {"points": np.zeros(5)},
        "2 columns": {"data": np.zeros((5, 2))},
        "not numbers": {"data": np.array([[b"a", b"b", b"c"]])},
        r"normal has the shape \(4, 3\)": {"data": np.zeros((5, 3)), "normal": np.zeros((4, 3))},
        "but there are 2 clouds": {"data": np.zeros((2, 5, 3)), "pid": np.zeros((3, 5))},
        "holds no points": {"points": np.zeros((0, 3))},
    }
    for match, arrays in cases.items():
        with writers.h5py.File(tmp_path / "a.h5", "w") as file:
            for name, array in arrays.items():
                file[name] = array
        message(f"{tmp_path}/a.h5#0", match)


def test_hdf5_links_to_other_files_are_not_followed(files, tmp_path):
    with writers.h5py.File(tmp_path / "a.h5", "w") as file:
        file["points"] = writers.h5py.ExternalLink(str(files["one.h5"]), "/points")
    message(tmp_path / "a.h5", "has no array points")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("pickle-was-run",)


def test_pickles_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    array = np.array([Evil()], dtype=object)
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    np.savez(tmp_path / "a.npz", points=array)
    for name in ("a.npy", "a.npz"):
        message(tmp_path / name, "pickled objects, which could run code")
    assert not (tmp_path / "pickle-was-run").exists()


def npy_header(shape, dtype="<f4"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def zip_bomb(path, size, *, lie=None):
    """A small npz whose points unpack to ``size`` bytes, or claim ``lie``."""
    archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("points.npy", "w") as file:
        file.write(npy_header((size // 12, 3)))
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    if lie is not None:
        data = path.read_bytes()
        place = data.index(b"PK\1\2") + 24
        path.write_bytes(data[:place] + struct.pack("<I", lie) + data[place + 4 :])


def test_zip_bombs(tmp_path):
    zip_bomb(tmp_path / "a.npz", 70 << 20)
    assert (tmp_path / "a.npz").stat().st_size < 200_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message(tmp_path / "a.npz", "zip bomb")
    message(tmp_path / "a.npz", "unpacking would take", max_bytes=1 << 20)
    zip_bomb(tmp_path / "b.npz", 8 << 20, lie=1000)  # declared small
    message(tmp_path / "b.npz")
    zip_bomb(tmp_path / "c.npz", 1 << 20, lie=60 << 20)  # declared large
    message(tmp_path / "c.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


HUGE = 10**12


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        ("npy", npy_header((HUGE, 3))),
        ("npy", npy_header((2**62, 2**62))),
        ("npy", npy_header((-5, 3))),
        ("npy", npy_header((HUGE, 3), "V0")),
        ("ply", f"ply\nformat ascii 1.0\nelement vertex {HUGE}\nproperty float x\nend_header\n0\n"),
        (
            "ply",
            f"ply\nformat binary_little_endian 1.0\nelement vertex {HUGE}\nproperty float x\n"
            "property float y\nproperty float z\nend_header\n0000000000000000",
        ),
        ("ply", f"ply\nformat ascii 1.0\nelement vertex {HUGE}\nend_header\n0\n"),
        (
            "ply",
            f"ply\nformat ascii 1.0\nelement face {HUGE}\nelement vertex 1\nproperty float x\n"
            "property list uint uint y\nend_header\n0 4000000000\n",
        ),
        ("off", f"OFF\n{HUGE} 0 0\n0 0 0\n"),
        ("off", f"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n{HUGE} 0 1 2\n"),
        ("obj", f"v 0 0 0\nf 1 1 {HUGE}\n"),
        ("stl", bytes(80) + struct.pack("<I", 2**32 - 1) + bytes(50)),
        ("xyz", f"{HUGE}\n0 0 0\n"),
        (
            "pcd",
            f"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 1\nPOINTS {HUGE}\nDATA binary\n"
            "000000000000",
        ),
        (
            "pcd",
            b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 1\nPOINTS 300000000\n"
            b"DATA binary_compressed\n" + struct.pack("<II", 12, 3_600_000_000) + bytes(12),
        ),
        (
            "gltf",
            json.dumps(
                {
                    "accessors": [{"componentType": 5126, "count": HUGE, "type": "VEC3"}],
                    "bufferViews": [],
                }
            ),
        ),
        ("gltf", json.dumps({"buffers": [{"uri": "/dev/zero", "byteLength": HUGE}]})),
        ("gltf", json.dumps({"buffers": [{"uri": "../secret", "byteLength": 5}]})),
        ("gltf", json.dumps({"nodes": [{"children": [1, 1]}, {}]})),
        ("gltf", "[" * 100_000),
    ],
)
def test_promises_are_checked_before_memory_is_taken(tmp_path, suffix, data):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert time.perf_counter() - start < 2


def test_hdf5_that_claims_too_much(tmp_path):
    with writers.h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("points", (HUGE, 3), "f4", chunks=(1000, 3))
    message(tmp_path / "a.h5", "points would take 12,000,000,000,000 bytes")


def test_las_that_claims_too_much(files, tmp_path):
    for name in ("scan.las", "scan.laz"):
        data = bytearray(files[name].read_bytes())
        data[107:111] = struct.pack("<I", 2**31)
        (tmp_path / name).write_bytes(data)
        message(tmp_path / name)


@pytest.mark.parametrize(
    ("suffix", "text", "match"),
    [
        ("off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 3\n", "vertices that do not exist"),
        ("off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 0.5\n", "whole numbers"),
        ("off", "OFF\n3 1 0\n0 0 0\n1 0 0\n2 0 0\n3 0 1 2\n", "no area"),
        ("off", "4OFF\n1 0 0\n0 0 0 0\n", "not with OFF"),
        ("obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 0 1 2\n", "vertex 0; the first is 1"),
        ("obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\nf -4 1 2\n", "vertices that do not exist"),
        ("obj", "v 0 0\n", "2 numbers"),
        ("obj", "vn 0 0 1\n", "no vertices"),
        ("stl", "solid a\nendsolid a\n", "no triangles"),
        ("ply", "ply\nformat ascii 2.0\nelement cell 1\nend_header\n", "no element vertex"),
        ("ply", "ply\nelement vertex 1\nproperty float x\nend_header\n1\n", "no format"),
        ("ply", "ply\nformat ascii 1.0\nelement vertex x\nend_header\n", "not ply"),
        (
            "pcd",
            "FIELDS x y\nSIZE 4 4\nTYPE F F\nWIDTH 1\nPOINTS 1\nDATA ascii\n1 2\n",
            "no columns",
        ),
        ("pcd", "FIELDS x\nSIZE 4\nTYPE F\nWIDTH 1\nPOINTS 1\nDATA zip\n1 2\n", "DATA is 'zip'"),
        ("pcd", "FIELDS x\nSIZE 3\nTYPE F\nWIDTH 1\nPOINTS 1\nDATA ascii\n1 2\n", "TYPE and SIZE"),
    ],
)
def test_damaged_meshes_and_headers(tmp_path, suffix, text, match):
    path = tmp_path / f"a.{suffix}"
    path.write_text(text)
    message(path, match)


def test_las_without_laspy_names_the_extra(files, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "laspy", None)
    message(files["scan.las"], r"needs laspy and lazrs: pip install 'locotrans\[las\]'")


def test_arguments_are_checked(files):
    with pytest.raises(ValueError, match="samples must be at least 1"):
        read_cloud(files["mesh.ply"], samples=0)
