import pytest
import torch

from locotrans.geometry import knn, random_rotations
from locotrans.metrics import (
    axis_consistency,
    class_accuracy,
    overall_accuracy,
    rotation_agreement,
)

LABELS = torch.tensor([0, 0, 0, 2])  # no sample of class 1
PREDICTIONS = torch.tensor([0, 0, 1, 2])


def test_overall_accuracy_by_hand():
    assert overall_accuracy(PREDICTIONS, LABELS) == 0.75


def test_class_accuracy_leaves_out_classes_without_samples():
    assert class_accuracy(PREDICTIONS, LABELS) == pytest.approx((2 / 3 + 1) / 2, abs=1e-15)


def test_poses_are_averaged():
    two_poses = torch.stack([PREDICTIONS, torch.tensor([1, 1, 1, 2])])
    assert overall_accuracy(two_poses, LABELS) == 0.5
    assert class_accuracy(two_poses, LABELS) == pytest.approx((2 / 6 + 1) / 2, abs=1e-15)


def test_agreement_counts_unchanged_answers_right_or_wrong():
    rotated = torch.tensor([[0, 0, 1, 1], [2, 0, 1, 1]])
    unrotated = torch.tensor([0, 0, 1, 2])
    assert rotation_agreement(rotated, unrotated) == 5 / 8


@pytest.mark.parametrize("metric", [overall_accuracy, class_accuracy, rotation_agreement])
def test_nothing_to_count_is_an_error(metric):
    nothing = torch.zeros(0, dtype=torch.long)
    with pytest.raises(ValueError, match="no predictions"):
        metric(nothing, nothing)


def test_axis_consistency_of_equal_and_of_random_frames(generator):
    points = torch.randn(2, 200, 3, generator=generator)
    neighbors = knn(points, 10)
    equal = random_rotations(1, generator=generator).expand(2, 200, 3, 3)
    torch.testing.assert_close(axis_consistency(equal, neighbors), torch.ones(3))
    mixed = random_rotations(2, 200, generator=generator)
    assert axis_consistency(mixed, neighbors).abs().max() < 0.1
