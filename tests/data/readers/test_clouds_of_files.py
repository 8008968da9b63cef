"""Every format gives back what another library, or hand-made bytes, put into the file."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from data.readers import writers
from locotrans.data import readers
from locotrans.data.readers import FORMATS, ReadError, read_cloud, read_mesh

# with all of points, normals, colours and labels
FULL = (
    *("text.ply", "little.ply", "big.ply", "text.pcd", "binary.pcd", "compressed.pcd"),
    *("plain.xyz", "tabs.txt", "commas.csv", "count.pts", "stored.npz", "packed.npz", "one.h5"),
)
MESHES = ("ply", "off", "obj", "stl", "glb")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return writers.write_all(tmp_path_factory.mktemp("files"))


def near(tensor, array, tolerance=1e-6):
    assert tensor.shape == array.shape
    np.testing.assert_allclose(tensor.numpy(), array, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", FULL)
def test_everything_comes_back(files, name):
    points, normals, colors, labels = writers.cloud_arrays()
    cloud = read_cloud(files[name])
    assert cloud.points.dtype == torch.float32
    assert len(cloud) == 50
    near(cloud.points, points, 0)
    near(cloud.normals, normals, 0)
    near(cloud.colors, colors / 255)
    assert cloud.labels.dtype == torch.int64
    near(cloud.labels, labels, 0)
    assert cloud.faces is None
    assert cloud.offset == (0, 0, 0)
    assert cloud.path == files[name]


def test_every_suffix_is_written_by_some_test(files):
    assert {path.suffix for path in files.values()} == set(FORMATS) - {".hdf5"}


@pytest.mark.parametrize("name", ["scan.las", "scan.laz", "scan14.laz"])
def test_scans(files, name):
    points, _, colors, labels = writers.cloud_arrays()
    cloud = read_cloud(files[name])
    near(cloud.points, points, 6e-5)
    near(cloud.colors, colors / 255)
    near(cloud.labels, labels, 0)


HOLES = np.arange(50) % 3 == 1


@pytest.mark.parametrize("name", FULL)
def test_holes_of_scans_are_left_out_and_counted(tmp_path, monkeypatch, name):
    points, normals, colors, labels = arrays = writers.cloud_arrays()
    holed = (np.where(HOLES[:, None], np.nan, points), normals.copy(), colors, labels)
    holed[1][5] = np.nan  # not estimated; nor are those of the holes
    holed[1][HOLES] = np.nan
    monkeypatch.setattr(writers, "cloud_arrays", lambda *_: holed)
    monkeypatch.setattr(writers, "las_file", lambda *_, **__: None)  # whole numbers, never nan
    cloud = read_cloud(writers.write_all(tmp_path)[name])
    assert (len(cloud), cloud.holes) == (33, 17)
    points, normals, colors, labels = (array[~HOLES] for array in arrays)
    normals = np.where(np.isnan(holed[1][~HOLES]), 0, normals)
    assert (normals == 0).all(1).sum() == 1
    near(cloud.points, points, 0)
    near(cloud.normals, normals, 0)
    near(cloud.colors, colors / 255)
    near(cloud.labels, labels, 0)


def test_map_coordinates_keep_their_precision(tmp_path):
    place = (4_512_345.678, 5_403_210.123, 431.5)
    writers.las_file(tmp_path / "map.las", offset=place)
    cloud = read_cloud(tmp_path / "map.las")
    points = writers.cloud_arrays()[0] + np.array(place)
    assert all(value == int(value) for value in cloud.offset)
    near(cloud.points.double() + torch.tensor(cloud.offset, dtype=torch.float64), points, 1e-4)


def test_coordinates_near_the_origin_or_exact_have_no_offset(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(20, 3)) * 1e4)  # millimetres
    assert read_cloud(tmp_path / "a.npy").offset == (0, 0, 0)
    np.save(tmp_path / "b.npy", np.array([[5000.0, 5001.0, 5002.0]]))
    near(read_cloud(tmp_path / "b.npy").points, np.array([[5000, 5001, 5002]]), 0)


@pytest.mark.parametrize("suffix", MESHES)
def test_meshes_of_trimesh(files, suffix):
    box = writers.mesh()
    found = read_mesh(files[f"mesh.{suffix}"])
    ours = found.points[found.faces].numpy()
    theirs = box.vertices[box.faces]
    if suffix == "stl":
        assert len(found) == 36
    else:
        assert len(found) == 8
    np.testing.assert_allclose(np.sort(ours.ravel()), np.sort(theirs.ravel()), atol=1e-6)
    edges = ours[:, 1:] - ours[:, :1]
    areas = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1) / 2
    assert areas.sum() == pytest.approx(box.area)
    if suffix in ("ply", "obj", "glb"):
        near(found.colors, box.visual.vertex_colors[:, :3] / 255, 1e-3)


@pytest.mark.parametrize("name", [f"mesh.{s}" for s in MESHES] + ["mesh_text.ply", "mesh_text.stl"])
def test_meshes_are_sampled_by_area(files, name):
    cloud = read_cloud(files[name], samples=6000, seed=3)
    assert len(cloud) == 6000
    assert cloud.faces is None
    size = torch.tensor([1.0, 2.0, 3.0])
    # a point lies on the side that its normal points to
    on_side = (cloud.points * cloud.normals).sum(1)
    torch.testing.assert_close(on_side, (cloud.normals.abs() * size / 2).sum(1))
    share = cloud.normals.abs().mean(0)
    torch.testing.assert_close(share, torch.tensor([6.0, 3.0, 2.0]) / 11, atol=0.03, rtol=0)
    again = read_cloud(files[name], samples=6000, seed=3)
    assert torch.equal(cloud.points, again.points)
    assert not torch.equal(cloud.points, read_cloud(files[name], samples=6000, seed=4).points)


@pytest.mark.parametrize("name", ["mixed.ply", "mixed_binary.ply"])
def test_polygons_become_fans(files, name):
    found = read_mesh(files[name])
    assert found.faces.tolist() == [[0, 1, 2], [3, 4, 5], [3, 5, 6]]
    near(found.points, writers.cloud_arrays()[0], 0)
    sampled = read_cloud(files[name], samples=100)
    assert set(sampled.labels.tolist()) <= set(writers.cloud_arrays()[3].tolist())


def test_gltf_nodes_move_their_meshes(files):
    cloud = read_cloud(files["scene.gltf"], samples=10)
    near(cloud.points[:, 2], np.full(10, 5.0))


def test_gltf_points_without_faces(tmp_path):
    trimesh = writers.trimesh
    points, _, colors, _ = writers.cloud_arrays()
    rgba = np.hstack([colors, np.full((50, 1), 255, np.uint8)])
    scene = trimesh.Scene([trimesh.PointCloud(points, colors=rgba)])
    (tmp_path / "a.glb").write_bytes(scene.export(file_type="glb"))
    cloud = read_cloud(tmp_path / "a.glb")
    near(cloud.points, points)
    near(cloud.colors, colors / 255)


@pytest.mark.parametrize(
    ("head", "extra"),
    [
        ("OFF\n4 2 0\n", ""),
        ("OFF4 2 0\n", ""),
        ("OFF 4 2 0\n", ""),
        ("# made by hand\nCOFF\n\n4 2 0 # counts\n", " 255 0 51 255"),
        ("NOFF\n4 2\n", " 0 0 1"),
    ],
)
@pytest.mark.parametrize(
    "faces", ["3 0 1 2\n3 0 2 3\n", "3 0 1 2 255 0 0\n3 0 2 3\n", "4 0 1 2 3\n2 0 1"]
)
def test_off_headers_and_faces(tmp_path, head, extra, faces):
    vertices = "".join(f"{x} {y} 0{extra}\n" for x, y in ((0, 0), (1, 0), (1, 1), (0, 1)))
    (tmp_path / "a.off").write_text(head + vertices + faces)
    found = read_mesh(tmp_path / "a.off")
    assert found.faces.tolist() == [[0, 1, 2], [0, 2, 3]]
    assert found.points.tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]
    if head.startswith("NOFF"):
        assert found.normals.tolist() == [[0, 0, 1]] * 4
    if "COFF" in head:
        near(found.colors, np.array([[1, 0, 0.2]] * 4))


@pytest.mark.parametrize(
    "faces",
    [
        "f 1 2 3\nf 1 3 4",
        "f 1/1 2/2 3/3 4/4",
        "f 1//1 2//1 3//1 4//1",
        "f -4 -3 -2 -1",
        "f 1 2 \\\n3 4",
    ],
)
def test_obj_faces(tmp_path, faces):
    text = "# square\nmtllib a.mtl\nv 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nvn 0 0 1\nvt 0 0\ng a\n"
    (tmp_path / "a.obj").write_text(text + faces + "\nv 9 9 9\n")
    assert read_mesh(tmp_path / "a.obj").faces.tolist() == [[0, 1, 2], [0, 2, 3]]


def test_obj_lines_alone_are_no_mesh(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 0 0\nv 1 0 0\nf 1 2\n")
    assert len(read_cloud(tmp_path / "a.obj")) == 2


def test_obj_points_with_colours_and_normals(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 0 0 1 0 0\nvn 0 0 1\nv 1 0 0 0 .5 0\nvn 0 1 0\n")
    cloud = read_cloud(tmp_path / "a.obj")
    assert cloud.normals.tolist() == [[0, 0, 1], [0, 1, 0]]
    assert cloud.colors.tolist() == [[1, 0, 0], [0, 0.5, 0]]


def test_one_cloud_of_several_by_its_index(tmp_path):
    data = np.random.default_rng(0).normal(size=(4, 10, 3)).astype(np.float32)
    parts = np.arange(40).reshape(4, 10)
    with writers.h5py.File(tmp_path / "many.h5", "w") as file:
        file["data"], file["label"], file["pid"] = data, np.arange(4)[:, None], parts
    with pytest.raises(ReadError, match=r"holds 4 clouds: name one: many.h5#0 to #3"):
        read_cloud(tmp_path / "many.h5")
    with pytest.raises(ReadError, match=r"holds 4 clouds: take #0 to #3"):
        read_cloud(tmp_path / "many.h5#4")
    cloud = read_cloud(f"{tmp_path}/many.h5#2")
    near(cloud.points, data[2], 0)
    assert cloud.path.name == "many.h5#2"


def test_words_for_whole_clouds_are_left_out(tmp_path):
    points = np.random.default_rng(0).normal(size=(2, 9, 3))
    with writers.h5py.File(tmp_path / "many.h5", "w") as file:
        file["points"], file["label"] = points, ["chair", "table"]
    with writers.h5py.File(tmp_path / "one.h5", "w") as file:
        file["points"], file["label"] = points[0], "chair"
    assert read_cloud(tmp_path / "many.h5#1").labels is None
    assert len(read_cloud(tmp_path / "one.h5")) == 9


def test_coords_are_points(tmp_path):
    np.savez(tmp_path / "a.npz", coords=np.ones((5, 3)))
    assert len(read_cloud(tmp_path / "a.npz")) == 5


@pytest.mark.parametrize("head", ["WIDTH 2\nHEIGHT 1", "WIDTH 2", "WIDTH 1\nHEIGHT 2"])
def test_pcd_without_points_and_in_capitals(tmp_path, head):
    text = f"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\n{head}\nDATA ASCII\n0 1 2\n3 4 5\n"
    (tmp_path / "a.pcd").write_text(text)
    assert read_cloud(tmp_path / "a.pcd").points.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_obj_colours_on_some_vertices_are_left_out(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 1 2\nv 3 4 5 0.5 0.5 0.5\n")
    cloud = read_cloud(tmp_path / "a.obj")
    assert (cloud.points.tolist(), cloud.colors) == ([[0, 1, 2], [3, 4, 5]], None)


def test_part_labels_of_an_indexed_cloud(tmp_path):
    with writers.h5py.File(tmp_path / "many.hdf5", "w") as file:
        file["data"], file["pid"] = np.zeros((4, 10, 3)), np.arange(40).reshape(4, 10)
    assert read_cloud(tmp_path / "many.hdf5#3").labels.tolist() == list(range(30, 40))


def test_records_and_column_order_of_npy(tmp_path):
    rows = np.zeros(3, [("z", ">f8"), ("x", "f4"), ("y", "f4"), ("label", "u1"), ("name", "S4")])
    rows["x"], rows["z"], rows["label"] = [1, 2, 3], [7, 8, 9], [4, 5, 6]
    np.save(tmp_path / "a.npy", rows)
    cloud = read_cloud(tmp_path / "a.npy")
    assert cloud.points.tolist() == [[1, 0, 7], [2, 0, 8], [3, 0, 9]]
    assert cloud.labels.tolist() == [4, 5, 6]
    np.save(tmp_path / "b.npy", np.asfortranarray(np.arange(12.0).reshape(1, 4, 3)))
    assert read_cloud(tmp_path / "b.npy").points[1].tolist() == [3, 4, 5]


@pytest.mark.parametrize("name", ["little.ply", "binary.pcd", "mesh.glb", "array.npy", "scan.las"])
def test_a_missing_suffix_is_made_up_for_by_the_first_bytes(files, tmp_path, name):
    bare = tmp_path / "bare"
    bare.write_bytes(files[name].read_bytes())
    assert torch.equal(read_cloud(bare).points, read_cloud(files[name]).points)


def test_suffixes_may_be_upper_case(files, tmp_path):
    upper = tmp_path / "A.PLY"
    upper.write_bytes(files["text.ply"].read_bytes())
    assert len(read_cloud(upper)) == 50


def test_libraries_are_imported_when_a_file_needs_them():
    for file in Path(readers.__file__).parent.glob("*.py"):
        statements = ast.parse(file.read_text()).body
        names = {a.name for s in statements if isinstance(s, ast.Import) for a in s.names}
        assert names.isdisjoint({"trimesh", "h5py", "laspy", "lazrs"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "x,y,z,x\n1,2,3,7\n4,5,6,8\n"),
        ("a.txt", "# x y z label Label\n1 2 3 0 1\n4 5 6 0 1\n"),
        (
            "a.pcd",
            "VERSION .7\nFIELDS x y z x\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\nWIDTH 2\n"
            "HEIGHT 1\nPOINTS 2\nDATA ascii\n1 2 3 4\n5 6 7 8\n",
        ),
    ],
)
def test_two_columns_of_one_name_are_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ReadError, match=r"has 2 columns (x|label)"):
        read_cloud(tmp_path / name)


def test_stl_files_with_treacherous_titles(files, tmp_path):
    text = files["mesh_text.stl"].read_bytes()
    _, _, rest = text.partition(b"\n")
    (tmp_path / "text.stl").write_bytes(b"solid vertex 1\n" + rest)
    binary = files["mesh.stl"].read_bytes()
    (tmp_path / "binary.stl").write_bytes(b"solid" + binary[5:] + b"\0\0")
    for name, true in (("text.stl", "mesh_text.stl"), ("binary.stl", "mesh.stl")):
        found, expected = read_mesh(tmp_path / name), read_mesh(files[true])
        assert torch.equal(found.points, expected.points)
