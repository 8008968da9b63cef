import json

import pytest
import torch
from torch import nn

from locotrans.data import CloudSet, load_dataset
from locotrans.models import ClassifierOutput
from locotrans.training.evaluate import evaluate, sample_rotations


class HeightClassifier(nn.Module):
    """Says 1 where the first point lies above the xy plane: right for z, not under SO(3)."""

    def __init__(self, heads: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.heads = heads

    def forward(self, points):
        height = self.weight * points[:, 0, 2]
        logits = torch.stack([-height, height], dim=-1)
        if not self.heads:
            return ClassifierOutput(logits)
        always_zero = torch.tensor([1.0, 0.0]).expand_as(logits)
        return ClassifierOutput(
            logits, invariant=logits, equivariant=always_zero, fused=-3 * logits
        )


def clouds(up="z", shapes=9):
    labels = torch.arange(shapes) % 3 == 0  # a third is class 1
    points = torch.zeros(shapes, 4, 3)
    points[:, 0, 2] = torch.where(labels, 0.4, -0.4)
    return CloudSet("stub", "test", up, points, labels.long(), ("below", "above"))


def test_known_answers_of_every_head_and_sum():
    result = evaluate(HeightClassifier(), clouds(), "z", rotations_per_shape=2)
    overall = {head: figures["overall_accuracy"] for head, figures in result["heads"].items()}
    assert overall == {
        "invariant": 1.0,
        "equivariant": 6 / 9,  # the majority
        "fused": 0.0,
        "invariant+equivariant": 6 / 9,  # (1 - 0.4, 0.4) for class 1
        "invariant+fused": 0.0,
        "equivariant+fused": 0.0,
        "invariant+equivariant+fused": 0.0,
        "combined": 1.0,
    }
    assert result["heads"]["equivariant"]["class_accuracy"] == 0.5
    assert result["overall_accuracy"] == result["class_accuracy"] == 1.0
    assert result["rotation_agreement"] == 1.0
    assert result["axis"] == "z"
    assert result["rotations_per_shape"] == 2
    assert (result["data"], result["split"], result["samples"]) == ("stub", "test", 9)
    assert json.loads(json.dumps(result)) == result


def test_z_means_the_up_axis_of_the_data():
    about_y = evaluate(HeightClassifier(), clouds(up="y", shapes=60), "z")
    assert about_y["axis"] == "y"
    assert about_y["overall_accuracy"] < 0.8


def test_a_classifier_that_rotations_mislead():
    result = evaluate(HeightClassifier(heads=False), clouds(shapes=60), "so3")
    assert list(result["heads"]) == ["combined"]
    assert 0.3 < result["overall_accuracy"] < 0.7
    assert result["overall_accuracy"] == result["rotation_agreement"]  # right where unturned


def test_without_rotation_there_is_one_pose():
    result = evaluate(HeightClassifier(), clouds(), "none", rotations_per_shape=5)
    assert result["rotations_per_shape"] == 1
    assert result["rotation_agreement"] == result["overall_accuracy"] == 1.0


def test_batch_size_and_device_do_not_matter_and_the_mode_is_kept():
    model = HeightClassifier().train()
    results = [evaluate(model, clouds(shapes=20), "so3", batch_size=size) for size in (1, 7, 64)]
    assert results[0] == results[1] == results[2]
    assert model.training


def test_parts_that_were_frozen_stay_so_even_if_it_fails():
    model = HeightClassifier().train()
    model.norm = nn.BatchNorm1d(3).eval()
    evaluate(model, clouds(), "none")
    assert model.training
    assert not model.norm.training
    model.weight = nn.Parameter(torch.ones(7))
    with pytest.raises(RuntimeError):
        evaluate(model, clouds(), "none")
    assert model.training


def test_rotations_depend_on_seed_and_index_alone():
    few, many = clouds(shapes=3), clouds(shapes=9)
    R = sample_rotations("so3", "z", len(many), 3, seed=1)
    assert torch.equal(sample_rotations("so3", "z", len(few), 3, seed=1), R[:3])
    assert not torch.equal(sample_rotations("so3", "z", len(few), 3, seed=2), R[:3])
    assert len(R.flatten(0, 1).unique(dim=0)) == 27


@pytest.mark.parametrize("bad", [{"rotations_per_shape": 0}, {"batch_size": 0}])
def test_bad_numbers(bad):
    with pytest.raises(ValueError, match="at least 1"):
        evaluate(HeightClassifier(), clouds(), "so3", **bad)


def test_the_size_of_the_whole_split_is_recorded():
    def sizes(data):
        result = evaluate(HeightClassifier(), data, "none")
        return result["samples"], result["split_size"]

    assert sizes(clouds()) == (9, 9)
    assert sizes(clouds().subset([0, 3, 4]).subset([1, 2])) == (2, 9)
    assert sizes(load_dataset("builtin", "test", points=4, shapes=20)) == (20, 1000)
