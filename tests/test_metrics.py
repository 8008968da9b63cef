import pytest
import torch

from locotrans.geometry import knn, random_rotations
from locotrans.metrics import (
    axis_consistency,
    class_accuracy,
    confusion_matrix,
    overall_accuracy,
    part_figures,
    pooled_scene_figures,
    retrieval_map,
    rotation_agreement,
    scene_figures,
    shape_ious,
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


# two categories: the first has parts 0 and 1, the second parts 2, 3 and 4
ALLOWED = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], dtype=torch.bool)


def test_shape_ious_by_hand():
    parts = torch.tensor([[0, 0, 1, 1], [2, 2, 2, 2], [2, 3, 3, 3]])
    predictions = torch.tensor([[0, 1, 1, 1], [2, 2, 2, 2], [2, 2, 3, 0]])
    ious = shape_ious(predictions, parts, torch.tensor([0, 1, 1]), ALLOWED)
    # shape 0: 1/2 and 2/3. Shape 1: 1, and both absent parts 1. Shape 2: 1/2, 1/3, absent 1; a
    # point that is taken for a part of the other category is missed by its own, and no more
    expected = [(1 / 2 + 2 / 3) / 2, 1.0, (1 / 2 + 1 / 3 + 1) / 3]
    assert ious.tolist() == pytest.approx(expected, abs=1e-15)
    absent_but_predicted = torch.tensor([[2, 2, 2, 4]])
    iou = shape_ious(absent_but_predicted, parts[1:2], torch.tensor([1]), ALLOWED)
    assert iou.item() == pytest.approx((3 / 4 + 1 + 0) / 3, abs=1e-15)


def test_part_figures_by_hand():
    ious = torch.tensor([[0.5, 1.0, 0.7], [0.7, 0.8, 0.7]])  # two poses of three shapes
    figures = part_figures(ious, torch.tensor([2, 2, 0]), ("a", "b", "c"))
    assert figures["categories"] == pytest.approx({"a": 0.7, "c": 0.75})
    assert figures["instance_miou"] == pytest.approx((0.6 + 0.9 + 0.7) / 3)
    assert figures["class_miou"] == pytest.approx((0.7 + 0.75) / 2)


def test_scene_figures_by_hand():
    labels = torch.tensor([0, 0, 0, 1, 1, -1, -1])
    predictions = torch.tensor([0, 0, 1, 1, 1, 2, 0])
    confusion = confusion_matrix(predictions, labels, 4)
    figures = scene_figures(confusion, ("floor", "wall", "door", "sofa"))
    assert figures["overall_accuracy"] == 4 / 5
    assert figures["class_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    assert figures["miou"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert figures["classes"] == {
        "floor": {
            "iou": pytest.approx(2 / 3),
            "accuracy": pytest.approx(2 / 3),
            "points": 3,
            "predicted": 2,
        },
        "wall": {"iou": pytest.approx(2 / 3), "accuracy": 1.0, "points": 2, "predicted": 3},
    }
    wrong = confusion_matrix(torch.tensor([2, 0]), torch.tensor([0, 0]), 4)
    figures = scene_figures(wrong, ("floor", "wall", "door", "sofa"))
    assert figures["miou"] == pytest.approx((1 / 2 + 0) / 2)  # a door that is not there counts 0
    assert figures["class_accuracy"] == 1 / 2


def test_tables_of_several_scenes_add_up_to_the_figures_of_all():
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randint(0, 9, (6, 4, 4), generator=generator)
    matrices[:3, 2] = 0  # a class that some scenes do not have, and one that none predicts
    matrices[:, :, 3] = 0
    matrices[0] *= 50  # a large scene counts for more
    tables = [scene_figures(matrix, tuple("abcd"))["classes"] for matrix in matrices]
    together, whole = pooled_scene_figures(tables), scene_figures(matrices.sum(0), tuple("abcd"))
    assert together == whole
    assert whole["miou"] != pytest.approx(
        sum(scene_figures(matrix, tuple("abcd"))["miou"] for matrix in matrices) / 6, abs=1e-3
    )


def test_a_scene_without_labels_is_an_error():
    confusion = confusion_matrix(torch.tensor([1, 2]), torch.tensor([-1, -1]), 3)
    with pytest.raises(ValueError, match="no labelled point"):
        scene_figures(confusion, ("a", "b", "c"))


@pytest.mark.parametrize("seed", range(5))
def test_part_ious_against_sets_of_points(seed):
    """The same rule in plain Python: sets of point numbers, one part after the other."""
    generator = torch.Generator().manual_seed(seed)
    shapes, points = 7, 11
    categories = torch.randint(2, (shapes,), generator=generator)
    parts = torch.randint(2, (shapes, points), generator=generator) + 2 * categories[:, None]
    predictions = torch.randint(5, (2, shapes, points), generator=generator)
    ious = shape_ious(predictions, parts, categories, ALLOWED)
    by_category = {0: [], 1: []}
    for shape, category in enumerate(categories.tolist()):
        poses = []
        for pose in range(2):
            each = []
            for part in ([0, 1], [2, 3, 4])[category]:
                said = {i for i in range(points) if predictions[pose, shape, i] == part}
                true = {i for i in range(points) if parts[shape, i] == part}
                each.append(len(said & true) / len(said | true) if said | true else 1.0)
            poses.append(sum(each) / len(each))
            assert ious[pose, shape].item() == pytest.approx(poses[-1], abs=1e-12)
        by_category[category].append(sum(poses) / 2)
    figures = part_figures(ious, categories, ("x", "y"))
    means = [sum(values) / len(values) for values in by_category.values() if values]
    every = [value for values in by_category.values() for value in values]
    assert figures["class_miou"] == pytest.approx(sum(means) / len(means), abs=1e-12)
    assert figures["instance_miou"] == pytest.approx(sum(every) / len(every), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_scene_figures_against_sets_of_points(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 4, (3, 40), generator=generator)
    predictions = torch.randint(0, 5, (3, 40), generator=generator)
    total = sum(confusion_matrix(p, y, 6) for p, y in zip(predictions, labels, strict=True))
    figures = scene_figures(total, tuple("abcdef"))
    pairs = [
        (p, y)
        for p, y in zip(predictions.flatten().tolist(), labels.flatten().tolist(), strict=True)
        if y != -1
    ]
    ious, accuracies = [], []
    for c in range(6):
        said = {i for i, (p, _) in enumerate(pairs) if p == c}
        true = {i for i, (_, y) in enumerate(pairs) if y == c}
        if said | true:
            ious.append(len(said & true) / len(said | true))
        if true:
            accuracies.append(len(said & true) / len(true))
    assert figures["miou"] == pytest.approx(sum(ious) / len(ious), abs=1e-12)
    assert figures["class_accuracy"] == pytest.approx(sum(accuracies) / len(accuracies), abs=1e-12)
    right = sum(p == y for p, y in pairs) / len(pairs)
    assert figures["overall_accuracy"] == pytest.approx(right, abs=1e-12)


def test_retrieval_map_by_hand():
    angles = torch.tensor([0.0, 0.1, 0.3, 0.35])
    embeddings = torch.stack([angles.cos(), angles.sin()], dim=-1) * torch.tensor([[2.0]])
    # queries 0 and 1 find each other at once, 2 finds 3 at once and 3 finds 2 at once
    assert retrieval_map(embeddings, torch.tensor([0, 0, 1, 1])) == 1
    # 0 finds 3 as the third, 1 finds 2 as the second, 2 finds 1 so too, 3 finds 0 as the third
    labels = torch.tensor([0, 1, 1, 0])
    expected = (1 / 3 + 1 / 2 + 1 / 2 + 1 / 3) / 4
    assert retrieval_map(embeddings, labels, batch_size=3) == pytest.approx(expected, abs=1e-12)


def test_retrieval_leaves_out_the_query_and_not_its_copy():
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 1e-3], [-0.2, 1.0]])
    assert retrieval_map(embeddings, torch.tensor([0, 1, 0])) == 0.5
    embeddings[1] = embeddings[0]  # now shape 2 finds either of them first
    assert retrieval_map(embeddings, torch.tensor([0, 1, 0])) in (0.5, 0.75)


def test_retrieval_needs_two_of_a_class():
    with pytest.raises(ValueError, match="alone in its class"):
        retrieval_map(torch.eye(3), torch.arange(3))


@pytest.mark.parametrize(("said", "true"), [([0, 3, 1], [0, 0, 1]), ([0, -1, 1], [0, 1, 1])])
def test_predictions_outside_the_classes_are_refused(said, true):
    with pytest.raises(ValueError, match="predictions must be from 0 to 2"):
        confusion_matrix(torch.tensor(said), torch.tensor(true), 3)
    with pytest.raises(ValueError, match="labels must be from 0 to 2, got 0 to 3"):
        confusion_matrix(torch.tensor([0, 1]), torch.tensor([0, 3]), 3)


def test_small_numbers_do_not_overflow(without_shape_checks):
    classes = torch.tensor([12, 19], dtype=torch.uint8)
    assert confusion_matrix(classes, classes, 20).diagonal().nonzero().flatten().tolist() == [
        12,
        19,
    ]
