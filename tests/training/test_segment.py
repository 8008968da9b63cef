"""Clouds of any size through a segmenter, and the files that come out."""

import base64
import json
import re

import numpy as np
import pytest
import torch

from locotrans.data import load_dataset
from locotrans.data.export_parts import make_rooms
from locotrans.data.readers import read_cloud
from locotrans.data.s3dis import CLASSES
from locotrans.geometry import random_rotations
from locotrans.models import create_model
from locotrans.training.checkpoint import write_tensors
from locotrans.training.config import to_json
from locotrans.training.report import writer_of
from locotrans.training.segment import load_segmenter, segment, segment_scene, segment_shape

SMALL = {"k": 8, "widths": (16, 16), "embedding": 32, "head_widths": (16, 8)}
VECTORS = {"vector_widths": (6, 6), "vector_embedding": 12}
CATEGORIES = ("chair", "table")
PARTS = ("chair/seat", "chair/legs", "table/board", "table/legs")


def write_weights(path, name, names, class_names, points=64, radius=0.8, **options):
    torch.manual_seed(0)
    small = {**SMALL, **(VECTORS if name.startswith("locotrans") else {}), **options}
    model = create_model(name, len(names), **small)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=2 * module.in_features**-0.5)
    given = {"colors": torch.rand(8, points, 3)} if options.get("colors") else {}
    given |= {"category": torch.arange(8) % 2} if options.get("categories") else {}
    for _ in range(20):  # statistics that fit: without them all points would get one answer
        model(radius / 2 * torch.randn(8, points, 3), **given)
    metadata = {
        "model": name,
        "config": to_json(model.config),
        "num_classes": len(names),
        "class_names": class_names,
        "part_names": names,
        "points": points,
        "radius": radius,
    }
    write_tensors(path, model.state_dict(), metadata)
    return path


@pytest.fixture(scope="module")
def room():
    """A room of the built-in shapes: coordinates, and colours from 0 to 1."""
    shapes = load_dataset("builtin", "test", points=256, shapes=6)
    (objects,) = make_rooms({"test": shapes}).values()
    rows = np.concatenate([table for _, table in objects])
    chosen = np.random.default_rng(0).permutation(len(rows))[:1500]
    return rows[chosen, :3], (rows[chosen, 3:] / 255).astype(np.float32)


@pytest.fixture(scope="module")
def parts_weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "parts.safetensors"
    return write_weights(path, "locotrans_dgcnn_partseg_light", PARTS, CATEGORIES, categories=2)


@pytest.fixture(scope="module")
def scene_weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "scenes.safetensors"
    return write_weights(path, "locotrans_dgcnn_semseg_light", CLASSES, ("room",), colors=True)


def agreement(network, points, colors=None, seed=1):
    R = random_rotations(generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    there = (points @ R.numpy().T + [3.0, -2.0, 30.0]).astype(np.float32)
    labels = [network.segment(x, colors).argmax(1) for x in (points.astype(np.float32), there)]
    assert len(np.unique(labels[0])) > 2  # not the same answer everywhere
    return (labels[0] == labels[1]).mean()


def test_a_turned_room_keeps_its_labels(room, scene_weights, tmp_path):
    assert agreement(load_segmenter(scene_weights), *room) >= 0.99
    plain = write_weights(tmp_path / "plain.safetensors", "dgcnn_semseg", CLASSES, ("room",))
    assert agreement(load_segmenter(plain), room[0]) < 0.95  # so can the check fail


def test_votes_of_all_blocks_come_back_to_their_points(room):
    points = room[0]
    seen = []

    def ask(blocks, tints):
        """Answer by the height above the middle of the block, which any block tells as well."""
        assert tints is None
        assert blocks.shape[1:] == (100, 3)
        high = (blocks[..., 2] > 0).float()
        return torch.stack([high, 1 - high], dim=-1)

    shares = segment_scene(
        ask, points, radius=0.5, size=100, least=8, turns=2, report=lambda *x: seen.append(x)
    )
    assert shares.shape == (1500, 2)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-5)
    assert seen[-1] == (3000, 3000)
    low, high = points[:, 2] < 0.02, points[:, 2] > 0.6
    assert shares[high, 0].mean() > shares[low, 0].mean() + 0.2


def test_a_vote_counts_less_at_the_edge(monkeypatch):
    points = np.random.default_rng(0).uniform(-1, 1, (400, 3))

    def ask(blocks, tints):
        far = (blocks.norm(dim=-1) > 0.35).float()
        return torch.stack([far, 1 - far], dim=-1)

    shares = segment_scene(ask, points, radius=0.7, size=400, least=8, turns=3)
    monkeypatch.setattr("locotrans.training.segment.scenes.EDGE", 1e6)  # all count the same
    even = segment_scene(ask, points, radius=0.7, size=400, least=8, turns=3)
    assert shares[:, 0].mean() < even[:, 0].mean() - 0.03
    mixed = (shares[:, 0] > 0) & (shares[:, 0] < 1)  # those that were near a middle and far away
    assert (shares[mixed, 0] < even[mixed, 0]).all()


def test_every_point_of_a_shape_is_asked_once_and_the_rest_filled_up():
    points = np.random.default_rng(0).normal(size=(250, 3)) * 40 + 1000
    asked = []

    def ask(blocks, tints):
        asked.append(len(blocks) * blocks.shape[1])
        assert blocks.norm(dim=-1).max() <= 1 + 1e-5
        up = (blocks[..., 2] > 0).float()
        return torch.stack([up, 1 - up], dim=-1)

    shares = segment_shape(ask, points, size=100, least=8, batch_size=2)
    assert sum(asked) == 300
    expected = points[:, 2] > points[:, 2].mean()
    assert ((shares[:, 0] > 0.5) == expected).mean() > 0.99


def test_too_few_points_and_no_extent():
    def ask(blocks, tints):
        raise AssertionError

    with pytest.raises(ValueError, match="scene of 5 points is too small: a block needs 8"):
        segment_scene(ask, np.zeros((5, 3)), radius=1.0, size=10, least=8)
    with pytest.raises(ValueError, match="shape of 5 points is too small: the network needs 8"):
        segment_shape(ask, np.zeros((5, 3)), size=10, least=8)
    with pytest.raises(ValueError, match="shape of 1 point is too small"):
        segment_shape(ask, np.zeros((1, 3)), size=10, least=8)
    with pytest.raises(ValueError, match="its 9 points are all the same"):
        segment_shape(ask, np.ones((9, 3)), size=10, least=8)


def test_a_room_with_fewer_points_than_a_block(scene_weights):
    network = load_segmenter(scene_weights)
    points = np.random.default_rng(0).uniform(size=(20, 3)).astype(np.float32)
    assert network.segment(points, np.ones_like(points)).shape == (20, len(CLASSES))


@pytest.fixture
def shapes(tmp_path):
    """Two folders of shapes, a folder of an unknown category, and a damaged file."""
    clouds = load_dataset("builtin", "test", points=150, shapes=4).points.numpy() * 3 + 50
    root = tmp_path / "shapes"
    for name, cloud in zip(("chair", "table", "ufo"), clouds, strict=False):
        (root / name).mkdir(parents=True)
        np.savetxt(root / name / "one.xyz", cloud, fmt="%.6f")
    np.savetxt(
        root / "table" / "holes.xyz", np.where(np.arange(150)[:, None] % 10, clouds[1], np.nan)
    )
    (root / "chair" / "broken.ply").write_bytes(b"ply\nnothing")
    return root


def test_files_are_labelled_in_order_and_units(shapes, parts_weights, tmp_path, capsys):
    out = tmp_path / "out"
    status = segment([shapes], parts_weights, out, picture=True)
    assert status == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    said = "holes.xyz: 135 points (15 nan points besides, labelled -1): "
    assert any(said in line for line in lines)
    assert sum(": error: " in line for line in lines) == 2
    assert any("its category is not known: name it (--category)" in line for line in lines)
    labelled, original = read_cloud(out / "chair/one.ply"), read_cloud(shapes / "chair/one.xyz")
    torch.testing.assert_close(labelled.points, original.points, atol=1e-4, rtol=0)
    assert set(labelled.labels.unique().tolist()) <= {0, 1}  # parts of a chair alone
    assert labelled.colors is not None
    assert (out / "chair/one.png").stat().st_size > 1000
    assert set(read_cloud(out / "table/one.ply").labels.unique().tolist()) <= {2, 3}
    assert b"element vertex 150" in (out / "table/holes.ply").read_bytes()  # as in the file
    assert read_cloud(out / "table/holes.ply").holes == 15
    listing = json.loads((out / "segments.json").read_text())
    assert listing["names"] == list(PARTS)
    assert writer_of(out / "segments.json") == "segment"
    first, last = (row for row in listing["files"] if row["category"] == "table")
    assert sum(last["labels"].values()) == last["points"] == 150
    assert (first["points"], first["holes"]) == (135, 15)
    for _ in range(2):  # the second does not read the results of the first
        assert segment([shapes], parts_weights, shapes / "again") == 1
    assert len(json.loads((shapes / "again/segments.json").read_text())["files"]) == 5


@pytest.mark.parametrize("form", ["npz", "las"])
def test_other_formats(form, room, scene_weights, tmp_path):
    points, colors = room
    # metres of a map: single precision is too coarse
    far = points + np.array([500_000.25, 5_000_000.5, 0])
    np.savez(tmp_path / "room.npz", points=far, colors=colors)
    assert segment([tmp_path / "room.npz"], scene_weights, tmp_path / "out", form=form) == 0
    read = read_cloud(tmp_path / f"out/room.{form}")
    where = read.points.double().numpy() + read.offset
    np.testing.assert_allclose(where, far, atol=2e-3 if form == "las" else 1e-3)
    assert read.labels.max() < len(CLASSES)
    if form == "npz":
        with np.load(tmp_path / "out/room.npz") as file:
            assert file["names"].tolist() == list(CLASSES)
            np.testing.assert_allclose(file["colors"], colors, atol=1e-6)
            assert ((file["confidence"] > 0) & (file["confidence"] <= 1)).all()


def test_what_cannot_be_done(shapes, room, parts_weights, scene_weights, tmp_path, capsys):
    one = shapes / "ufo/one.xyz"
    assert segment([one], parts_weights, tmp_path / "out", category="Chair") == 0
    with pytest.raises(ValueError, match="unknown category 'sofa'; known: chair, table"):
        segment([one], parts_weights, tmp_path / "out", category="sofa")
    with pytest.raises(ValueError, match="a category is for parts"):
        segment([one], scene_weights, tmp_path / "out", category="chair")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        segment([one], parts_weights, one, category="chair")
    three = [tmp_path / folder / "one.xyz" for folder in "xyz"]
    for path in three:
        path.parent.mkdir()
        path.write_text(one.read_text())
    with pytest.raises(ValueError, match="two files would become"):
        segment(three, parts_weights, tmp_path / "out", category="chair")
    capsys.readouterr()
    assert segment([one], scene_weights, tmp_path / "other") == 1
    assert "no colours, which the network takes" in capsys.readouterr().out
    classifier = write_weights(
        tmp_path / "c.safetensors", "dgcnn", ["a", "b"], ["a", "b"], embedding=8
    )
    with pytest.raises(ValueError, match="classifies whole shapes"):
        load_segmenter(classifier)
    with pytest.raises(ValueError, match="turns must be at least 1"):
        load_segmenter(scene_weights, turns=0)
    with pytest.raises(ValueError, match=re.escape("radius must be positive, got -1")):
        load_segmenter(scene_weights, radius=-1.0)


def test_answers_of_earlier_calls_stay(shapes, parts_weights, scene_weights, tmp_path):
    out, one, two = tmp_path / "out", shapes / "chair/one.xyz", shapes / "table/one.xyz"
    listing = out / "segments.json"
    assert segment([shapes / "table/holes.xyz"], parts_weights, out) == 0
    assert segment([one], parts_weights, out) == 0
    assert segment([tmp_path / "nothing.ply"], parts_weights, out) == 1
    names = [row["path"].rpartition("/")[2] for row in json.loads(listing.read_text())["files"]]
    assert names == ["holes.xyz", "one.xyz", "nothing.ply"]
    assert segment([one], parts_weights, out) == 0  # again: its row is replaced
    assert len(json.loads(listing.read_text())["files"]) == 3
    before = (out / "one.ply").read_bytes()
    with pytest.raises(ValueError, match=r"out/one.ply is the answer for .*chair/one.xyz, and wo"):
        segment([two], parts_weights, out)
    with pytest.raises(ValueError, match=r"segments.json lists what other weights said .*--out"):
        segment([two], scene_weights, out)
    assert (out / "one.ply").read_bytes() == before


def test_what_is_unlike_training_is_said(shapes, room, tmp_path, capsys):
    weights = write_weights(tmp_path / "w.safetensors", "dgcnn_semseg", CLASSES, ("room",))
    np.save(tmp_path / "room.npy", room[0])
    learned = load_segmenter(weights)
    for settings, words in (
        (
            {"radius": 9 * learned.radius},
            f"--radius {9 * learned.radius:g}: the network learned fr",
        ),
        (
            {"points": 8 * learned.points},
            f"--points {8 * learned.points}: the network learned from",
        ),
        ({"points": learned.points, "radius": 1.5 * learned.radius}, None),
    ):
        capsys.readouterr()
        segment([tmp_path / "room.npy"], weights, tmp_path / "out", turns=1, **settings)
        shown = capsys.readouterr().out
        assert shown.startswith(f"warning: {words}") if words else "warning: --" not in shown


def test_a_shape_of_few_points_is_doubted(shapes, parts_weights, tmp_path, capsys):
    rows = np.loadtxt(shapes / "chair/one.xyz")
    network = load_segmenter(parts_weights)
    assert network.doubt(rows) is None
    few = network.points // 4 - 1
    np.savetxt(tmp_path / "few.xyz", rows[:few])
    segment([tmp_path / "few.xyz"], parts_weights, tmp_path / "out", category="chair")
    said = f"few.xyz: it has {few} points, the network learned {network.points}\n"
    assert said in capsys.readouterr().out


def test_points_of_nan_keep_their_places(shapes, parts_weights, tmp_path, capsys):
    file = shapes / "table/holes.xyz"
    assert segment([file], parts_weights, tmp_path / "out", form="npz") == 0
    given = np.loadtxt(file)
    with np.load(tmp_path / "out/holes.npz") as found:
        np.testing.assert_allclose(found["points"], given, atol=1e-4)
        hole = np.isnan(given).all(1)
        assert (found["labels"][hole] == -1).all()
        assert (found["confidence"][hole] == 0).all()
        assert (found["labels"][~hole] >= 0).all()
    capsys.readouterr()
    assert segment([file], parts_weights, tmp_path / "out", form="las") == 0
    assert "(15 nan points besides, left out)" in capsys.readouterr().out
    assert len(read_cloud(tmp_path / "out/holes.las")) == 135


def test_meshes_are_said_to_be_sampled(parts_weights, tmp_path, capsys):
    mesh = tmp_path / "chair.off"
    mesh.write_text("OFF\n4 2 0\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 1 2\n3 0 1 3\n")
    assert segment([mesh], parts_weights, tmp_path / "out", category="chair") == 0
    assert "chair.off: 8,192 points drawn from the mesh: " in capsys.readouterr().out
    assert json.loads((tmp_path / "out/segments.json").read_text())["files"][0]["sampled"]


def test_official_folders_are_categories(shapes, tmp_path):
    names = ("Chair/1", "Chair/2", "table/1", "table/2")
    file = tmp_path / "parts.safetensors"
    write_weights(file, "dgcnn_partseg", names, ("Chair", "table"), categories=2)
    (shapes / "ufo").rename(shapes / "03001627")
    one = shapes / "03001627/one.xyz"
    assert segment([one], file, tmp_path / "out") == 0
    listing = json.loads((tmp_path / "out/segments.json").read_text())
    assert listing["files"][0]["category"] == "Chair"
    assert load_segmenter(file).category("04379243") == 1


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (1, None),
        (1000, "perhaps it is in millimetres for metres: divide it by 1,000"),
        (100, "perhaps it is in centimetres for metres: divide it by 100"),
        (0.001, "perhaps it is in metres for millimetres: multiply it by 1,000"),
    ],
)
def test_a_scene_in_another_unit_is_doubted(room, tmp_path, capsys, scale, words):
    file = tmp_path / "scenes.safetensors"
    write_weights(file, "dgcnn_semseg", CLASSES, ("room",), radius=0.8)
    np.save(tmp_path / "room.npy", scale * room[0])
    assert segment([tmp_path / "room.npy"], file, tmp_path / "out", turns=1) == 0
    shown = capsys.readouterr().out
    listing = json.loads((tmp_path / "out/segments.json").read_text())
    warning = listing["files"][0]["warning"]
    if words is None:
        assert warning is None
        assert "warning" not in shown
    else:
        assert words in warning
        line = f"warning: {tmp_path / 'room.npy'}: {warning}\n"
        assert line in shown
        assert shown.index(line) < shown.index("-> ")  # before it takes its time


@pytest.mark.parametrize(
    ("kind", "suffix"), [(0, "las"), (1, "las"), (3, "las"), (6, "laz"), (8, "las")]
)
def test_other_fields_of_a_las_stay(kind, suffix, room, tmp_path):
    import laspy

    header = laspy.LasHeader(point_format=kind, version="1.4" if kind > 5 else "1.2")
    header.scales = [0.001] * 3
    las = laspy.LasData(header)
    las.x, las.y, las.z = room[0].T
    las.intensity = np.arange(len(room[0]))
    if kind > 0:
        las.gps_time = np.linspace(0, 9, len(room[0]))
    angles = np.arange(len(room[0])) % 91 - 45
    if kind < 6:
        las.scan_angle_rank = angles
    else:
        las.scan_angle = np.round(angles / 0.006)
    las.user_data = np.arange(len(room[0])) % 256
    las.point_source_id = np.arange(len(room[0]))
    las.return_number = np.ones(len(room[0]), np.uint8)
    las.classification = np.full(len(room[0]), 7)
    if kind in (3, 8):
        las.red = np.full(len(room[0]), 1234)
    las.write(tmp_path / f"room.{suffix}")
    weights = write_weights(tmp_path / "w.safetensors", "dgcnn_semseg", CLASSES, ("room",))
    segment([tmp_path / f"room.{suffix}"], weights, tmp_path / "out", form="las", turns=1)
    found = laspy.read(tmp_path / "out/room.las")
    new = {"classification", "red", "green", "blue", "scan_angle_rank"}
    for name in set(las.point_format.dimension_names) & set(found.point_format.dimension_names):
        if name not in new:
            np.testing.assert_array_equal(found[name], las[name])
    np.testing.assert_allclose(0.006 * np.asarray(found.scan_angle), angles, atol=0.01)
    assert (np.asarray(found.return_number) == 1).all()
    assert (np.asarray(found.red) == 1234).all() == (kind in (3, 8))
    segment([tmp_path / f"room.{suffix}"], weights, tmp_path / "out", form="npz", turns=1)
    with np.load(tmp_path / "out/room.npz") as plain:
        np.testing.assert_array_equal(found.classification, plain["labels"])
        np.testing.assert_allclose(found.confidence, plain["confidence"], rtol=1e-6)
    segment([tmp_path / "out/room.las"], weights, tmp_path / "again", form="las", turns=1)
    again = laspy.read(tmp_path / "again/room.las")
    np.testing.assert_allclose(again.confidence, found.confidence, atol=1e-3)
    for written in (found, again):  # the names of the classes stand in the header, once
        (lookup,) = written.header.vlrs.get("ClassificationLookupVlr")
        assert [lookup[number] for number in range(len(CLASSES) + 1)] == [*CLASSES, ""]


def test_a_page_holds_the_cloud_and_its_legend(room, tmp_path, monkeypatch):
    weights = write_weights(tmp_path / "w.safetensors", "dgcnn_semseg", CLASSES, ("room",))
    np.save(tmp_path / "<b>room.npy", 50 + 7 * room[0])
    monkeypatch.setattr("locotrans.training.segment.page.SHOWN", 1000)
    segment([tmp_path / "<b>room.npy"], weights, tmp_path / "out", turns=1, html=True, radius=5.0)
    text = (tmp_path / "out/<b>room.html").read_text()
    assert "<b>" not in text  # a name cannot become markup
    assert "{{" not in text
    state = json.loads(re.search(r"const state = (.*);\n", text).group(1))
    assert state["about"].startswith("1,500 points, 1,000 of them shown")
    points, labels = (
        np.frombuffer(base64.b64decode(state[key]), dtype)
        for key, dtype in (("points", "<i2"), ("labels", "<u2"))
    )
    assert (points.size, labels.size) == (3000, 1000)
    assert np.linalg.norm(points.reshape(-1, 3), axis=1).max() == pytest.approx(32767, abs=2000)
    counts = json.loads((tmp_path / "out/segments.json").read_text())["files"][0]["labels"]
    assert [row["name"] for row in state["legend"]] == list(counts)
    assert set(labels.tolist()) <= {row["label"] for row in state["legend"]}
