import csv
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from data.readers import writers
from dying_reader import die_on_plates
from locotrans.data import load_dataset
from locotrans.data.prose import is_prose
from locotrans.geometry import random_rotations
from locotrans.geometry.neighbors import farthest_points
from locotrans.models import ClassifierOutput, create_model
from locotrans.training.checkpoint import write_tensors
from locotrans.training.config import parse_options, to_json
from locotrans.training.predict import (
    Inference,
    embed,
    find_files,
    load_sample,
    predict,
    predict_files,
    read_samples,
)
from locotrans.training.predict.arrays import array_file
from locotrans.training.predict.samples import choose_points
from locotrans.training.predict.stream import FEW, count_workers
from locotrans.training.record import replacing

TINY = "locotrans_dgcnn_light"
OPTIONS = ("k=4", "widths=8,8", "vector_widths=4,4", "embedding=16", "vector_embedding=8")
NAMES = ("flat", "tall")
FAR = (4e5, 5e6, 100.0)


class Elongation(nn.Module):
    """Says "tall" where the cloud is longer along z than along x; seen through any rotation."""

    def __init__(self, invariant=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.invariant = invariant
        self.batches = []

    def forward(self, points):
        self.batches.append(tuple(points.shape))
        if self.invariant:
            lengths = torch.linalg.svdvals(points)
            tall = lengths[:, 0] - 1.5 * lengths[:, 1]
        else:
            tall = points[..., 2].std(-1) - points[..., 0].std(-1)
        logits = self.weight * torch.stack([-tall, tall], dim=-1)
        return ClassifierOutput(logits, embedding=logits, point_features=points)


def rod(n=200, seed=0, stretch=(0.1, 0.1, 1.0)):
    return np.random.default_rng(seed).uniform(-1, 1, (n, 3)) * stretch


def plate(n=200, seed=0):
    return rod(n, seed, (1.0, 1.0, 0.1))


@pytest.fixture
def folder(tmp_path):
    """Rods and plates of every kind, and files that cannot be read."""
    (tmp_path / "a/deep").mkdir(parents=True)
    np.save(tmp_path / "a/rod.npy", rod().astype(np.float32))
    np.savetxt(tmp_path / "a/deep/plate.xyz", 1000 * plate(60))  # too few points, in millimetres
    np.save(tmp_path / "b_far.npy", rod(5000) + np.array(FAR))  # map coordinates, too many
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 0.05)])
    faces = ["3 0 2 4", "3 2 4 6", "3 1 3 5", "3 3 5 7"]
    lines = ["OFF", "8 4 0", *(" ".join(map(str, row)) for row in corners), *faces]
    (tmp_path / "c_plate.off").write_text("\n".join(lines))
    np.save(tmp_path / "d_nan.npy", np.full((9, 3), np.nan))
    (tmp_path / "e_empty.ply").write_bytes(b"")
    np.save(tmp_path / "f_same.npy", np.ones((9, 3)))
    (tmp_path / "notes.md").write_text("not a cloud")
    np.save(tmp_path / ".hidden.npy", rod())
    return tmp_path


RIGHT = {
    "a/rod.npy": ("tall", 200),
    "b_far.npy": ("tall", 5000),
    "c_plate.off": ("flat", 8192),
    "a/deep/plate.xyz": ("flat", 60),
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A small untrained network for clouds of 16 points."""
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    options = parse_options(TINY, (*OPTIONS, "head_widths=16,8"))
    model = create_model(TINY, 2, **options)
    metadata = {"model": TINY, "config": to_json(model.config), "num_classes": 2}
    write_tensors(path, model.state_dict(), {**metadata, "class_names": NAMES, "points": 16})
    return path


def answers(folder, model=None, rotations=0, **options):
    inference = Inference(model or Elongation(), 128, **options)
    rows = predict_files(inference, find_files([folder]), NAMES, rotations)
    return {row.path.relative_to(folder).as_posix(): row for row in rows}


def test_known_answers_and_a_row_for_every_file(folder):
    rows = answers(folder)
    assert list(rows) == [
        *("b_far.npy", "c_plate.off", "d_nan.npy", "e_empty.ply", "f_same.npy"),
        *("a/rod.npy", "a/deep/plate.xyz"),
    ]
    for name, (label, size) in RIGHT.items():
        row = rows.pop(name)
        assert (row.class_name, row.agreement, row.error) == (label, None, None)
        assert 0.5 < row.confidence <= 1
        assert row.points == size
    reasons = {name: row.error for name, row in rows.items()}
    assert "nan" in reasons["d_nan.npy"]
    assert "empty" in reasons["e_empty.ply"]
    assert "its 9 points are all the same" in reasons["f_same.npy"]
    assert all(row.class_name is row.confidence is row.points is None for row in rows.values())


def test_a_cloud_of_one_point(tmp_path):
    (tmp_path / "one.xyz").write_text("1 2 3\n")
    assert "has one point only" in str(answers(tmp_path)["one.xyz"].error)


def test_confidence_is_the_softmax_of_the_logits(folder):
    row = answers(folder)["a/rod.npy"]
    cloud = torch.from_numpy(load_sample(folder / "a/rod.npy", 128).points)[None]
    logits = Elongation()(cloud).logits
    assert row.confidence == pytest.approx(logits.softmax(-1).max().item(), abs=1e-6)


def test_agreement_is_one_for_an_invariant_network_and_less_for_another(folder):
    steady = answers(folder, Elongation(invariant=True), rotations=20)
    shaky = answers(folder, rotations=20)
    for name in RIGHT:
        assert steady[name].agreement == 1
        alone = answers(folder, Elongation(True))[name].confidence
        assert steady[name].confidence == pytest.approx(alone, abs=2e-6)  # both have six digits
    assert min(shaky[name].agreement for name in RIGHT) < 1
    assert all(0.5 <= shaky[name].agreement <= 1 for name in RIGHT)


def test_batches_and_companions_do_not_matter_but_the_seed_does(folder):
    rows = answers(folder, rotations=3)
    assert rows == answers(folder, rotations=3, batch_size=2)
    inference = Inference(Elongation(), 128)
    (alone,) = predict_files(inference, [folder / "b_far.npy"], NAMES, 3)
    assert alone == rows["b_far.npy"]
    assert rows["b_far.npy"] != answers(folder, rotations=3, seed=1)["b_far.npy"]


def test_the_network_is_asked_in_batches_of_clouds_of_its_size(folder):
    model = Elongation()
    answers(folder, model, batch_size=4)
    assert model.batches == [(2, 128, 3), (2, 128, 3)]  # of four files each, some unreadable


def test_a_sample_is_normalised_and_says_where_it_was(folder):
    sample = load_sample(folder / "b_far.npy", 128)
    assert sample.points.shape == (128, 3)
    assert np.abs(sample.points.mean(0)).max() < 1e-6
    assert np.linalg.norm(sample.points, axis=1).max() == pytest.approx(1)
    back = sample.points * sample.radius + sample.center
    distance = np.abs(back[:, None] - np.load(folder / "b_far.npy")).max(-1).min(1)
    assert distance.max() < 1e-5  # in float32 it would be 0.5
    assert 0 < sample.seconds < 5


def test_choosing_points():
    cloud = rod(50).astype(np.float32)
    for choice in ("random", "farthest"):
        few = choose_points(cloud, 120, choice=choice)
        assert len(np.unique(few, axis=0)) == 120
        assert {tuple(x) for x in few[:50]} == {tuple(x) for x in cloud}  # the others lie between
        assert choose_points(cloud[:1], 7, choice=choice).shape == (7, 3)
        many = choose_points(rod(20_000).astype(np.float32), 64, choice=choice)
        assert len(np.unique(many, axis=0)) == 64
        again = choose_points(rod(20_000).astype(np.float32), 64, choice=choice)
        assert (many == again).all()


@pytest.mark.parametrize("size", [1, 20, 64, 500, 5000, 60_000])
def test_farthest_points_do_not_depend_on_order_or_pose(size):
    cloud = rod(size)
    chosen = choose_points(cloud, 64, choice="farthest")
    if size >= 64:
        assert (chosen == cloud[farthest_points(torch.from_numpy(cloud), 64).numpy()]).all()
    generator = torch.Generator().manual_seed(1)
    R = random_rotations(generator=generator, dtype=torch.float64).numpy()
    order = torch.randperm(size, generator=generator).numpy()
    moved = choose_points(3 * (cloud @ R.T)[order] + 5, 64, choice="farthest")
    assert np.abs(moved - 3 * (chosen @ R.T) - 5).max() < 1e-12
    other = choose_points(cloud[order], 64)  # the twin: the random choice does
    assert size <= 64 or (np.sort(other[:, 0]) != np.sort(choose_points(cloud, 64)[:, 0])).any()


@pytest.mark.parametrize("size", [5, 24, 64, 500])
def test_few_points_become_as_many_places_as_are_wanted(size):
    chosen = choose_points(rod(size).astype(np.float32), 256, choice="even")
    assert len(np.unique(chosen, axis=0)) == 256
    again = choose_points(np.repeat(rod(size).astype(np.float32), 3, axis=0), 256, choice="even")
    assert again.shape == (256, 3)


def test_farthest_points_take_one_of_those_in_one_place():
    cloud = np.repeat(rod(30), 5, axis=0)
    chosen = choose_points(cloud, 70, choice="farthest")
    assert len(np.unique(chosen[:30], axis=0)) == 30
    assert {tuple(x) for x in chosen[:30]} == {tuple(x) for x in cloud}


def test_predict_sees_what_eval_sees(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCOTRANS_CACHE", str(tmp_path / "cache"))
    for kind in "ab":
        (tmp_path / "own" / kind).mkdir(parents=True)
        for i, size in enumerate((40, 500, 9000, 140_000)):
            np.save(tmp_path / "own" / kind / f"{i}.npy", rod(size, seed=i).astype(np.float32))
        writers.mesh().export(tmp_path / "own" / kind / "mesh.stl")
    for split in ("train", "test"):
        clouds = load_dataset("folder:share=0.5,seed=3", split, root=tmp_path / "own", points=64)
        for name, points in zip(clouds.ids, clouds.points, strict=True):
            sample = load_sample(tmp_path / "own" / name, 64, seed=3)
            assert np.allclose(sample.points, points, atol=2e-6)


def test_several_clouds_in_one_file(tmp_path):
    with writers.h5py.File(tmp_path / "many.h5", "w") as file:
        file["data"] = np.stack([rod(30), plate(30)])
    clouds = [tmp_path / "many.h5#0", tmp_path / "many.h5#1"]
    assert find_files([tmp_path]) == find_files([tmp_path / "many.h5"]) == clouds
    assert find_files([clouds[1]]) == clouds[1:]
    assert all(load_sample(path, 8).error is None for path in clouds)
    with pytest.raises(ValueError, match="would replace"):
        find_files([tmp_path], outputs=[tmp_path / "many.h5"])


@pytest.mark.parametrize(
    ("text", "prose"),
    [
        (b"Scans of the shop, May 2024.\r\nSee the manual: http://a.b/c\n", True),
        (b"1. What is here\n\n2048 points of each chair, in metres\n", True),
        (b"x y z\n", True),
        (b"0 1 2\n3 4 5\n", False),
        (b"x y z\n0,1 1,5 2,5\n0,2 1,5 2,5\n", False),
        (b"# a long remark\n" * 30 + b"0 1 2\n", False),
        (b"2\nwater\nO 0 0 1\nH 0 1 0\n", False),
        (b"nan nan nan\n0 1 2\n", False),
        (b"", False),
        (b"# only a remark", False),
        (b"\xff\xfew\0o\0r\0d\0", False),
        (b"words\0", False),
    ],
)
def test_prose_is_told_from_clouds(tmp_path, text, prose):
    file = tmp_path / "a.TXT"
    file.write_bytes(text)
    assert is_prose(file) is prose
    file.rename(tmp_path / "a.xyz")
    assert not is_prose(tmp_path / "a.xyz")


def test_a_readme_in_a_folder_is_passed_over_but_not_one_that_is_named(folder, caplog):
    before = find_files([folder])
    readme = folder / "a" / "readme.txt"
    readme.write_text("Clouds of rods and plates.\nAsk Eve.\n")
    assert find_files([folder]) == before
    assert caplog.messages == [f"{readme} is passed over: its first lines hold no numbers"]
    assert find_files([folder, readme]) == [*before, readme]
    assert "where a number belongs" in load_sample(readme, 8).error


def test_folders_are_walked_sorted_once_and_without_loops(folder):
    (folder / "a/loop").symlink_to(folder)
    (folder / "twin.npy").symlink_to(folder / "a/rod.npy")
    (folder / "dangling.npy").symlink_to(folder / "nowhere")
    found = find_files([folder, folder / "a/rod.npy", folder / "missing.npy"])
    assert len(found) == len(set(found)) == 7 + 2 + 1
    assert found[-1] == folder / "missing.npy"
    assert ".hidden.npy" not in {path.name for path in found}
    assert "no such file" in load_sample(folder / "missing.npy", 8).error
    assert "no such file" in load_sample(folder / "dangling.npy", 8).error


def test_folders_do_not_give_what_was_written_into_them(folder, weights):
    before = find_files([folder])
    for name in ("a/first.csv", "second.csv"):
        predict([folder], weights, csv=folder / name, json=folder / "third.json")
    for per_point in (False, True):
        embed([folder], weights, folder / f"{per_point}.npz", per_point=per_point)
    embed([folder / "d_nan.npy"], weights, folder / "none.npz")
    assert find_files([folder]) == before
    (folder / "z_cloud.csv").write_text("x,y,z\n0,1,2\n3,4,5\n")
    np.savez(folder / "z_cloud.npz", points=rod())
    assert {*find_files([folder])} - {*before} == {folder / "z_cloud.csv", folder / "z_cloud.npz"}


def test_holes_of_a_scan_are_counted(folder, weights, capsys):
    scan = rod()
    scan[::4] = np.nan
    np.save(folder / "scan.npy", scan)
    sample = load_sample(folder / "scan.npy", 16)
    assert (sample.size, sample.holes, sample.error) == (150, 50, None)
    assert predict([folder / "scan.npy"], weights) == 0
    assert "; 50 nan points left out" in capsys.readouterr().err


@pytest.mark.parametrize("unit", [1e-30, 1e30, 1e36])
def test_units_do_not_matter(unit, tmp_path):
    np.save(tmp_path / "a.npy", rod().astype(np.float32))
    np.save(tmp_path / "b.npy", (rod() * unit).astype(np.float32))
    one, other = (load_sample(tmp_path / name, 64) for name in ("a.npy", "b.npy"))
    assert np.allclose(one.points, other.points, atol=1e-5)


def test_nothing_to_read(tmp_path):
    with pytest.raises(ValueError, match=r"no file of a known format in .*known are .*\.ply"):
        find_files([tmp_path])
    with pytest.raises(ValueError, match="name files or folders"):
        find_files([])
    assert load_sample(tmp_path, 8).error == "is a folder: name a file in it"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_folder_is_reported(folder):
    (folder / "a").chmod(0)
    try:
        rows = answers(folder)
    finally:
        (folder / "a").chmod(stat.S_IRWXU)
    assert "cannot be listed" in rows["a"].error


def test_a_process_that_dies_costs_one_file(folder, monkeypatch):
    monkeypatch.setattr("locotrans.training.predict.stream.load_sample", die_on_plates)
    files = [folder / name for name in ("b_far.npy", "c_plate.off", "a/rod.npy")]
    samples = list(read_samples(files, 16, workers=2, ahead=2))
    assert [sample.path for sample in samples] == files
    assert "died" in samples[1].error
    alive = [sample for sample in samples if sample.points is not None]
    assert alive == [samples[0], samples[2]]
    for sample in alive:  # as if they had been read here
        assert (sample.points == load_sample(sample.path, 16).points).all()


def test_only_many_files_are_read_by_processes():
    assert count_workers(FEW - 1) == 0
    assert count_workers(FEW) >= 1


def test_no_more_files_are_under_way_than_allowed(folder, monkeypatch):
    opened = []
    monkeypatch.setattr(
        "locotrans.training.predict.stream.load_sample",
        lambda path, **given: opened.append(path) or load_sample(path, **given),
    )
    samples = read_samples(iter([folder / "a/rod.npy"] * 50), 8, ahead=5)
    for i in range(10):
        next(samples)
        assert len(opened) <= i + 5
    samples.close()
    assert len(opened) < 20


@pytest.mark.parametrize(
    ("bad", "reason"),
    [({"batch_size": 0}, "batch_size must be at least 1"), ({"rotations": -1}, "not be negative")],
)
def test_bad_numbers(folder, bad, reason):
    with pytest.raises(ValueError, match=reason):
        answers(folder, **bad)


def test_the_command_writes_csv_and_json(folder, weights, tmp_path, capsys):
    out = {"csv": tmp_path / "out.csv", "json": tmp_path / "out.json"}
    assert predict([folder / "a", folder / "d_nan.npy"], weights, **out, rotations=2) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("3 files in ")
    assert captured.err.endswith("1 failed\n")
    rows = json.loads(out["json"].read_text())
    assert [list(row) for row in rows] == [
        ["path", "class", "confidence", "agreement", "points", "error"]
    ] * 3
    assert [row["agreement"] for row in rows] == [1, 1, None]  # the network is invariant
    with out["csv"].open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [{k: str(v) if v is not None else "" for k, v in row.items()} for row in rows] == table
    assert not list(tmp_path.glob("*.tmp"))


def test_the_command_prints_and_returns_zero_when_all_is_well(folder, weights, capsys):
    assert predict([folder / "a"], weights) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("%)" in line and str(folder) in line for line in lines)


def test_a_failure_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("before")

    def fail():
        with replacing(path, "w") as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="cannot write"), replacing(tmp_path / "no/out.csv"):
        pass


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("per_point", [False, True])
def test_embeddings(folder, weights, tmp_path, suffix, per_point):
    out = tmp_path / f"out{suffix}"
    assert embed([folder], weights, out, per_point=per_point, batch_size=3) == 1
    if suffix == ".npz":
        arrays = dict(np.load(out))
        paths, failed = arrays.pop("paths").tolist(), arrays.pop("failed").tolist()
        assert len(arrays.pop("reasons")) == 3
    else:
        with safe_open(out, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            paths, failed = (json.loads(file.metadata()[key]) for key in ("paths", "failed"))
    files = find_files([folder])
    assert paths == [str(path) for path in files if str(path) not in failed]
    assert [Path(path).name for path in failed] == ["d_nan.npy", "e_empty.ply", "f_same.npy"]
    assert arrays["embeddings"].shape == ((4, 16, 16) if per_point else (4, 32))
    assert arrays["embeddings"].dtype == np.float32
    assert len(np.unique(arrays["embeddings"].reshape(4, -1), axis=0)) == 4
    if per_point:
        assert arrays["points"].shape == (4, 16, 3)
        assert np.allclose(arrays["centers"][0], [4e5, 5e6, 100], atol=1)
        assert arrays["radii"].shape == (4,)


def test_embeddings_go_to_a_known_format_and_keep_one_shape(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.npz or \.safetensors"):  # noqa: SIM117
        with array_file(tmp_path / "out.csv"):
            pass
    with array_file(tmp_path / "o.npz") as file:
        file.append({"x": np.zeros((2, 3))})
        with pytest.raises(ValueError, match="rows of x were"):
            file.append({"x": np.zeros((2, 4))})
    assert [path.name for path in tmp_path.iterdir()] == ["o.npz"]


def test_the_threads_of_torch_are_as_before_between_answers(folder):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        rows = predict_files(
            Inference(Elongation(), 128, batch_size=2), find_files([folder]), NAMES
        )
        next(rows)
        assert torch.get_num_threads() == 2
        rows.close()
    finally:
        torch.set_num_threads(before)
