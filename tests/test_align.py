"""The rotation between two poses of one object."""

import json
import re

import numpy as np
import pytest
import torch

from locotrans.align import (
    align,
    angle_of,
    half_turns,
    iterate_closest_points,
    kabsch,
    read_points,
    shape_vectors,
    write_cloud,
)
from locotrans.cli import main
from locotrans.data import load_dataset
from locotrans.geometry import random_rotations
from locotrans.models import create_model
from locotrans.training.checkpoint import write_tensors
from locotrans.training.config import to_json
from locotrans.training.report import writer_of

OPTIONS = {
    "k": 8,
    "vector_widths": (6, 6),
    "vector_embedding": 12,
    "widths": (8, 10),
    "embedding": 16,
    "head_widths": (12, 8),
}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return create_model("locotrans_dgcnn_light", 4, **OPTIONS).eval()


@pytest.fixture(scope="module")
def chair():
    shapes = load_dataset("builtin", "test", points=600, shapes=20)
    index = shapes.labels.tolist().index(shapes.class_names.index("chair"))
    return shapes.points[index].double().numpy()


def rotation(seed):
    generator = torch.Generator().manual_seed(seed)
    return random_rotations(generator=generator, dtype=torch.float64).numpy()


def test_vectors_of_a_shape_turn_along(network, chair):
    R = rotation(1)
    cloud = chair[:100] - chair[:100].mean(0)
    wide = network.double()
    before, after = shape_vectors(wide, np.stack([cloud, cloud[::-1] @ R.T]))
    network.float()
    assert before.shape == (3, 16 + 3 * 12)
    assert np.abs(after - R @ before).max() < 1e-9 * np.abs(before).max()
    assert np.linalg.matrix_rank(before, tol=1e-6) == 3


@pytest.mark.parametrize("name", ["locotrans_dgcnn_light", "vn_dgcnn"])
def test_the_same_points_in_any_order_and_place_by_the_network_alone(name, network, chair):
    if name == "vn_dgcnn":
        network = create_model(name, 4, k=8, widths=(6, 6), embedding=12, head_widths=(12, 8))
    network = network.double().eval()
    R, t = rotation(2), np.array([5.0, -3.0, 40.0])
    found = align(network, chair, chair[::-1] @ R.T + t, points=len(chair), refine=False)
    network.float()
    assert angle_of(found.rotation @ R.T) < 1e-5
    assert np.abs(found.translation - t).max() < 1e-6
    assert found.residual < 1e-6


def test_other_points_of_the_same_surface(network, chair):
    R, t = rotation(3), np.array([0.2, 1.0, -0.4])
    one, other = chair[::2], chair[1::2] @ R.T + t
    found = align(network, one, other, points=200)
    assert angle_of(found.rotation @ R.T) < 3
    assert angle_of(found.rotation @ R.T) < angle_of(found.first_rotation @ R.T)
    assert np.linalg.norm(found.translation - t) < 0.03
    assert np.allclose(found.apply(one), one @ found.rotation.T + found.translation)
    wrong = align(network, one, other * [1, 1, 0.3], points=200)  # no pose of the same object
    assert wrong.residual > 1.5 * found.residual
    assert np.linalg.det(wrong.rotation) == pytest.approx(1)


def test_kabsch_gives_rotations_only():
    x = np.random.default_rng(0).normal(size=(10, 3))
    R = rotation(4)
    assert np.allclose(kabsch(x, x @ R.T), R)
    assert np.linalg.det(kabsch(x, -x)) == pytest.approx(1)


def test_refinement_and_half_turns(chair):
    cloud = chair - chair.mean(0)
    axis = torch.tensor([0.1, 0.05, -0.08], dtype=torch.float64)
    small = torch.linalg.matrix_exp(torch.linalg.cross(torch.eye(3).double(), axis.expand(3, 3)))
    R, t = iterate_closest_points(cloud, cloud @ small.numpy().T, np.eye(3), np.zeros(3))
    assert angle_of(R @ small.numpy().T) < 1e-3
    assert np.abs(t).max() < 1e-6
    for turn in half_turns(cloud):
        assert angle_of(turn) == pytest.approx(180)
        assert np.linalg.det(turn) == pytest.approx(1)


@pytest.mark.parametrize("suffix", [".ply", ".npy"])
def test_the_command(suffix, network, chair, tmp_path, capsys):
    R = rotation(5)
    config = {key: list(x) if isinstance(x, tuple) else x for key, x in OPTIONS.items()}
    header = {"model": "locotrans_dgcnn_light", "num_classes": 4, "config": config}
    weights = tmp_path / "weights.safetensors"
    write_tensors(weights, network.state_dict(), header)
    paths = [tmp_path / f"{name}{suffix}" for name in ("a", "b", "aligned")]
    write_cloud(paths[0], chair[:300])
    write_cloud(paths[1], chair[300:] @ R.T)
    report = tmp_path / "motion.json"
    flags = ["--weights", str(weights), "--points", "200", "--out", str(paths[2])]
    main(["align", str(paths[0]), str(paths[1]), *flags, "--json", str(report)])
    said = capsys.readouterr()
    assert "residual" in said.out
    assert "warning" not in said.err
    motion = json.loads(report.read_text())
    assert motion["same_size"] is True
    assert writer_of(report) == "align"
    assert motion["scale"] == pytest.approx(1, abs=0.1)
    assert angle_of(np.array(motion["rotation"]) @ R.T) < 3
    expected = chair[:300] @ np.array(motion["rotation"]).T + motion["translation"]
    assert np.allclose(read_points(paths[2]), expected, atol=1e-6)
    write_cloud(paths[1], 1.5 * chair[300:] @ R.T)  # in another unit
    main(["align", str(paths[0]), str(paths[1]), *flags, "--json", str(report)])
    said = capsys.readouterr().err
    assert re.search(
        rf"b{suffix} is 1\.\d+ times as large as .*a{suffix}, and the rotation may", said
    )
    motion = json.loads(report.read_text())
    assert motion["same_size"] is False
    assert motion["scale"] == pytest.approx(1.5, rel=0.1)


def test_mistakes_are_named(chair, tmp_path):
    with pytest.raises(ValueError, match="PointClassifier has no equivariant branch"):
        align(create_model("dgcnn", 3), chair, chair)
    with pytest.raises(ValueError, match="all points of the second cloud are the same"):
        align(create_model("dgcnn", 3), chair, 0 * chair)
    with pytest.raises(ValueError, match="needs a network that classifies"):
        align(create_model("vn_dgcnn_partseg", 3), chair, chair)
    with pytest.raises(ValueError, match=r"must end in \.ply or \.npy"):
        write_cloud(tmp_path / "cloud.obj", chair)


@pytest.mark.parametrize("flag", [["--out", "a.xyz"], ["--out", "no/a.ply"], ["--json", "no/a"]])
def test_what_cannot_be_written_is_told_before_the_work(flag, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["align", "a.ply", "b.ply", "--weights", "none", *flag])  # none of them is read
    assert flag[1] in capsys.readouterr().err


def test_clouds_that_do_not_lie_on_each_other_are_told(tmp_path, network, chair, capsys):
    weights = tmp_path / "w.safetensors"
    facts = {"model": "locotrans_dgcnn_light", "config": to_json(network.config), "num_classes": 4}
    write_tensors(weights, network.state_dict(), facts)
    np.save(tmp_path / "a.npy", chair)
    np.save(tmp_path / "turned.npy", chair @ rotation(3).T)
    np.save(tmp_path / "mirrored.npy", chair * [-1, 1, 1] + [[0, 0, 0.3]] * (chair[:, :1] > 0))
    command = ["align", str(tmp_path / "a.npy"), "--weights", str(weights), "--points", "100000"]
    main([*command, str(tmp_path / "turned.npy")])
    assert "do not lie on each other" not in capsys.readouterr().err
    main([*command, str(tmp_path / "mirrored.npy"), "--no-refine"])
    assert "warning: the clouds do not lie on each other" in capsys.readouterr().err


def test_a_network_sees_no_more_points_than_there_are(network, chair, monkeypatch):
    seen = []

    def vectors(network, clouds):
        seen.append(clouds.shape[1])
        return shape_vectors(network, clouds)

    monkeypatch.setattr("locotrans.align.shape_vectors", vectors)
    align(network, chair, chair[:50].copy(), points=100_000, refine=False)
    align(network, chair, chair[:50].copy(), points=64, refine=False)
    assert seen == [1024, 64]
    with pytest.raises(ValueError, match="second cloud must have at least three points"):
        align(network, chair, chair[:2])
