import dataclasses
import io
import json
import types

import pytest
import torch
from rich.console import Console
from torch import nn

from locotrans.data import CloudSet
from locotrans.models import ClassifierOutput
from locotrans.training.perturb import perturb, perturbation_tables, perturbed


class WidthClassifier(nn.Module):
    """Says 1 where the cloud is wider than 1: invariant, and right until something moves."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.sizes = []

    def forward(self, points):
        self.sizes.append(points.shape[1])
        width = self.weight * (points.norm(dim=-1).amax(-1) - 1)
        logits = torch.stack([-width, width], dim=-1)
        return ClassifierOutput(logits, invariant=logits, equivariant=-logits)


def clouds(shapes=12, points=40):
    generator = torch.Generator().manual_seed(0)
    balls = nn.functional.normalize(torch.randn(shapes, points, 3, generator=generator), dim=-1)
    return CloudSet(
        "stub", "test", "z", 0.97 * balls, torch.zeros(shapes, dtype=torch.long), ("in", "out")
    )


def short(model=None, data=None, **options):
    options = {"noise": (0.0, 0.001, 0.2), "dropped": (0, 10), "corruptions": (), **options}
    return perturb(model or WidthClassifier(), data or clouds(), **options)


def accuracies(result, head="combined"):
    return {
        (row["name"], row["value"]): row["heads"][head]["overall_accuracy"]
        for row in result["rows"]
    }


def test_known_answers():
    model = WidthClassifier()
    result = short(model)
    right = {("none", 0): 1.0, ("noise", 0.0): 1.0, ("noise", 0.001): 1.0, ("noise", 0.2): 0.0}
    right |= {("dropped", 0): 1.0, ("dropped", 10): 1.0}
    assert accuracies(result) == accuracies(result, "invariant") == right
    assert accuracies(result, "equivariant") == {key: 1 - share for key, share in right.items()}
    assert {row["rotation_agreement"] for row in result["rows"]} == {1.0}  # also under noise
    assert [row["points"] for row in result["rows"]] == [40, 40, 40, 40, 40, 30]
    assert set(model.sizes) == {40, 30}
    assert model.sizes.count(40) == 3 * 2  # three clean rows, measured once; stored and turned
    assert (result["data"], result["rotation"], result["samples"]) == ("stub", "so3", 12)
    assert result["data_checksum"] == clouds().checksum
    assert json.loads(json.dumps(result)) == result


def test_the_ladders():
    seen = []
    result = short(
        corruptions=("scale", "drop"), severities=(0, 1, 5), report=lambda *at: seen.append(at)
    )
    rows = result["rows"][-6:]
    assert [(row["name"], row["severity"]) for row in rows] == [
        (name, severity) for name in ("scale", "drop") for severity in (0, 1, 5)
    ]
    assert [row["value"] for row in rows] == [0, 1.2, 2.0, 0, 0.25, 0.75]
    assert [row["overall_accuracy"] for row in rows][3:] == [1.0, 1.0, 1.0]
    assert rows[2]["overall_accuracy"] < rows[0]["overall_accuracy"] == 1.0
    assert seen == [(i, 12) for i in range(1, 13)]


def test_every_default_runs_and_makes_a_table():
    result = perturb(WidthClassifier(), clouds(2, 512), severities=(3,))
    assert len(result["rows"]) == 1 + 4 + 4 + 10
    assert result["points"] == 512  # of the clouds; some rows have fewer
    assert min(row["points"] for row in result["rows"]) < 512
    out = io.StringIO()
    tables = perturbation_tables(result)
    assert [table.columns[0].header for table in tables] == [
        *("noise, sigma", "points dropped", "severity")
    ]
    Console(file=out, width=80).print(*tables)  # nothing is cut off
    for text in ("0.03", "150", "occlusion", "half_space", "100.00%"):
        assert text in out.getvalue()
    clean = result["rows"][0]
    assert list(tables[2].columns[1].cells) == [f"{100 * clean['overall_accuracy']:.2f}%"] * 10
    assert perturbation_tables(short(noise=(), dropped=())) == []


def test_small_clouds_lose_the_same_shares_and_keep_enough_neighbours():
    model = WidthClassifier()
    model.config = types.SimpleNamespace(k=20)
    result = perturb(model, clouds(2, 64), noise=(), corruptions=("drop", "thin"))
    assert [row["value"] for row in result["rows"] if row["name"] == "dropped"] == [0, 6, 12, 18]
    assert [row["severity"] for row in result["rows"] if row["name"] == "drop"] == [1, 2, 3, 4]
    assert len([row for row in result["rows"] if row["name"] == "thin"]) == 5
    assert result["skipped"] == ["drop, share 0.75: leaves fewer than 20 of 64 points"]
    assert min(model.sizes) == 24
    assert next(iter(perturbation_tables(result)[-1].columns[-1].cells)) == ""
    few = perturb(model, clouds(2, 24), noise=(), corruptions=())
    assert [row["value"] for row in few["rows"] if row["name"] == "dropped"] == [0, 2, 4]
    large = perturb(WidthClassifier(), clouds(1, 2048), noise=(), corruptions=())
    assert [row["value"] for row in large["rows"][1:]] == [0, 100, 200, 300]
    with pytest.raises(ValueError, match="can drop 0 to 44 of 64 points, as the network looks at"):
        perturb(model, clouds(2, 64), dropped=(45,))


def test_what_belongs_to_single_points_is_left_behind():
    data = clouds()
    full = dataclasses.replace(
        data,
        normals=data.points,
        colors=data.points.abs(),
        masks=data.points[..., 0] > 0,
        parts=torch.zeros(12, 40, dtype=torch.long),
        part_names=("all",),
    )
    few = perturbed(full, lambda points, generator: points[:, :10], 0)
    assert few.normals is few.colors is few.masks is few.parts is None
    assert few.points.shape == (12, 10, 3)


def test_randomness_depends_on_seed_and_index_alone():
    results = [short(batch_size=size) for size in (1, 5, 64)]
    assert results[0] == results[1] == results[2]
    checksums = [short(seed=seed)["rows"][3]["data_checksum"] for seed in (0, 1)]
    assert checksums[0] != checksums[1]
    assert checksums[0] == results[0]["rows"][3]["data_checksum"]

    def noise(points, *, generator):
        return points + torch.randn(*points.shape, generator=generator)

    many = perturbed(clouds(), noise, 0)
    few = perturbed(clouds().subset(range(5)), noise, 0)
    assert torch.equal(many.points[:5], few.points)
    first, second = perturbed(clouds().subset([0, 0]), noise, 0).points
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"dropped": (0, 40)}, "can drop 0 to 39 of 40 points"),
        ({"noise": (-0.1,)}, "must not be negative"),
        ({"corruptions": ("rain",)}, "no corruption 'rain'"),
        ({"corruptions": ("ball",), "severities": (9,)}, "from 0 to 5, got 9"),
    ],
)
def test_bad_arguments_are_found_before_any_work(bad, reason):
    model = WidthClassifier()
    with pytest.raises(ValueError, match=reason):
        short(model, **bad)
    assert model.sizes == []
