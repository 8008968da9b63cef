import dataclasses
import io
import json

import pytest
import torch
from rich.console import Console
from torch import nn

from locotrans.cli import main
from locotrans.data import CloudSet, export
from locotrans.data.samplings import LINES, SAMPLINGS, cell_numbers
from locotrans.geometry import random_rotations
from locotrans.models import ClassifierOutput, create_model
from locotrans.training.evaluate import evaluate, kept_rows
from locotrans.training.samplings import measure_samplings, resampled, samplings_table


class SpreadClassifier(nn.Module):
    """Says 1 where many points lie in the same half of the ball: right for whole spheres."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.sizes = set()

    def forward(self, points):
        self.sizes.add(points.shape[1])
        spread = self.weight * torch.linalg.svdvals(points)[:, -1] / points.shape[1] ** 0.5
        return ClassifierOutput(torch.stack([spread, 0.4 - spread], dim=-1))


@pytest.fixture
def spheres():
    generator = torch.Generator().manual_seed(0)
    points = nn.functional.normalize(torch.randn(4, 600, 3, generator=generator), dim=-1)
    labels = torch.zeros(4, dtype=torch.long)
    ids = tuple(f"ball/ball_{i:04d}.ply" for i in range(4))
    return CloudSet("stub", "test", "z", points, labels, ("ball", "line"), ids=ids)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_samples_are_about_as_many_and_on_the_surface(name, spheres, generator):
    sampled = SAMPLINGS[name](spheres.points[0], 150, generator=generator)
    assert 100 <= len(sampled) <= 150
    assert sampled.isfinite().all()
    assert (sampled.norm(dim=-1) - 1).abs().max() < (0.1 if name == "voxel grid" else 1e-5)
    if name != "voxel grid":
        assert len(sampled.unique(dim=0)) == 150


def spacing(points):
    return torch.cdist(points, points).fill_diagonal_(9).min(1).values


def test_each_sampling_has_its_character(spheres, generator):
    cloud = spheres.points[0]
    even, random, grid = (
        spacing(SAMPLINGS[name](cloud, 150, generator=generator)).min()
        for name in ("farthest points", "area-uniform", "voxel grid")
    )
    assert even > 2 * random
    assert grid > random


@pytest.mark.parametrize("side", [1.0, 0.1, 1e-3, 1e-6])
def test_cells_of_a_grid_have_a_number_each(side, spheres):
    cells = torch.floor(spheres.points[0] / side)
    _, numbers = cell_numbers(cells.long()).unique(return_inverse=True)
    assert torch.equal(numbers, cells.unique(dim=0, return_inverse=True)[1])


def test_scan_lines_lie_in_planes_across_a_random_direction(spheres):
    cloud = spheres.points[0]
    lines = SAMPLINGS["scan lines"](cloud, 150, generator=torch.Generator().manual_seed(5))
    across = random_rotations(generator=torch.Generator().manual_seed(5))[0]
    low, high = (cloud @ across).aminmax()
    places = (lines @ across - low) / (high - low) * LINES
    # a quarter of the points of a sphere, whose heights are uniform: the middle quarter of a line
    assert (places - places.floor() - 0.5).abs().max() < 0.15


def test_the_table(spheres):
    model = SpreadClassifier()
    seen = []
    result = measure_samplings(
        model, spheres, 200, counts=(50, 600), report=lambda *at: seen.append(at)
    )
    assert seen == [(i, 9) for i in range(1, 10)]
    assert model.sizes == {200}  # as `predict` brings every cloud to the network's number
    assert [(row["name"], row["count"]) for row in result["rows"]] == [
        ("reference", 200),
        *((name, count) for name in SAMPLINGS for count in (50, 600)),
    ]
    assert all(row["overall_accuracy"] == 1 and row["loss"] == 0 for row in result["rows"])
    assert json.loads(json.dumps(result)) == result
    out = io.StringIO()
    Console(file=out, width=120).print(samplings_table(result))
    assert "voxel grid" in out.getvalue()
    again = resampled(spheres.subset([0]), "scan lines", 50, 200, 0)
    assert torch.equal(again.points[0], resampled(spheres, "scan lines", 50, 200, 0).points[0])


def test_more_points_than_there_are(spheres):
    with pytest.raises(ValueError, match="has 600 points a shape"):
        measure_samplings(SpreadClassifier(), spheres, 200, counts=(700,))


def test_dense_clouds_of_one_s_own_may_have_another_axis_up(uncut, tmp_path, capsys):
    root = export("hdf5", tmp_path / "dense", train=2, test=6, points=64)
    result = tmp_path / "result.json"
    command = ["samplings", str(uncut), "--data", "hdf5:up=y", "--root", str(root)]
    command += ["--rotation", "z", "--device", "cpu", "--counts", "32", "--json", str(result)]
    with pytest.raises(SystemExit):
        main(command)
    error = capsys.readouterr().err
    assert "test.h5 has 64 points a shape, got points=8192; ask for fewer by --dense" in error
    assert "name denser clouds: meshes, as --data modelnet40:off" in error
    main([*command, "--dense", "64"])
    assert "hdf5:up=y test, 6 shapes, rotation z (about the y axis)" in capsys.readouterr().out
    assert json.loads(result.read_text())["axis"] == "y"


def test_sampled_points_have_no_labels(spheres):
    model = create_model("dgcnn_partseg", 4, k=4, categories=2)
    with pytest.raises(ValueError, match="so only classifiers are measured"):
        measure_samplings(model, spheres, 200)


def test_figures_without_excluded_shapes(spheres):
    labels = torch.tensor([0, 1, 0, 0])  # one of them is wrong on purpose
    data = dataclasses.replace(spheres, labels=labels)
    result = evaluate(SpreadClassifier(), data, "so3", excluded=["ball_0001.off"])
    assert result["overall_accuracy"] == 0.75
    assert result["without_excluded"]["samples"] == 3
    assert result["without_excluded"]["excluded"] == 1
    assert result["without_excluded"]["heads"]["combined"]["overall_accuracy"] == 1.0
    assert "without_excluded" not in evaluate(SpreadClassifier(), data, "so3")
    with pytest.raises(ValueError, match="has no shape 'cube_1' to exclude"):
        evaluate(SpreadClassifier(), data, "so3", excluded=["cube_1"])
    with pytest.raises(ValueError, match="all 4 shapes"):
        evaluate(SpreadClassifier(), data, "so3", excluded=list(data.ids))


def test_only_the_shapes_that_are_named_are_excluded(spheres):
    ids = ("a/test/ball.npy", "b/test/ball.npy", "many.h5#0", "room@1.00,2.50")
    data = dataclasses.replace(spheres, ids=ids)
    for name, row in (("a/test/ball.npy", 0), ("b/test/ball", 1), ("many.h5#0", 2), (ids[3], 3)):
        assert kept_rows(data, [name]).tolist() == [i for i in range(4) if i != row]
    assert kept_rows(data, ["elsewhere", "many.h5#0"]).tolist() == [0, 1, 3]
    assert kept_rows(data, ["set/many.h5#0"]).tolist() == [0, 1, 3]  # ids may have fewer folders
    assert kept_rows(data, ["test/room@1.00,2.50"]).tolist() == [0, 1, 2]
    for name in ("many.h5#1", "room@1.00,2.75", "many", "c/test/ball", "est/ball"):
        with pytest.raises(ValueError, match="has no shape"):
            kept_rows(data, [name])
    with pytest.raises(
        ValueError, match=r"'ball' stands for 2 shapes .* such as 'a/test/ball\.npy'"
    ):
        kept_rows(data, ["ball"])


def test_equal_clouds_are_sampled_by_random_numbers_of_their_own(spheres):
    twice = spheres.subset([0, 0])
    for name in SAMPLINGS:
        if name == "farthest points":  # of a dense cloud: the same whatever the seed
            continue
        first, second = resampled(twice, name, 50, 200, 0).points
        assert not torch.equal(first, second), name
        assert not torch.equal(first, resampled(twice, name, 50, 200, 1).points[0]), name
