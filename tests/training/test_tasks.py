"""What segmenters are trained by and measured by."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from locotrans.data import CloudSet, load_dataset
from locotrans.metrics import part_figures, shape_ious
from locotrans.models import SegmenterOutput
from locotrans.training import evaluate
from locotrans.training.tasks import build_model, given, name_parts, targets, typical_radius

SMALL = {"k": 4, "widths": (8, 8), "embedding": 8, "head_widths": (8, 8)}


@pytest.fixture(scope="module")
def shapes():
    return load_dataset("builtin", "test", points=24, shapes=22)


class Fixed(nn.Module):
    """Answers by the first coordinates' sign, or by the label that it is told for each category."""

    def __init__(self, data, categories, answers):
        super().__init__()
        self.config = SimpleNamespace(categories=categories, colors=False)
        self.weight = nn.Parameter(torch.zeros(1))
        self.count = len(data.part_names)
        self.answers = answers

    def forward(self, points, category=None):
        told = self.answers(points, category)
        logits = F.one_hot(told, self.count).double() + self.weight
        return SegmenterOutput(logits, invariant=logits.roll(1, -1), equivariant=2 * logits)


def first_part(data):
    return torch.stack([row.nonzero()[0, 0] for row in data.allowed_parts])


def test_parts_by_a_network_that_knows_the_first_part_of_each_category(shapes):
    first = first_part(shapes)
    model = Fixed(
        shapes, 20, lambda points, category: first[category][:, None].expand(points.shape[:2])
    )
    result = evaluate(model, shapes, "so3", rotations_per_shape=2, batch_size=5)
    told = first[shapes.labels][:, None].expand(shapes.parts.shape)
    ious = shape_ious(told, shapes.parts, shapes.labels, shapes.allowed_parts)
    expected = part_figures(ious, shapes.labels, shapes.class_names)
    for key in ("instance_miou", "class_miou", "categories"):
        assert result[key] == pytest.approx(expected[key])
    assert result["overall_accuracy"] == pytest.approx(
        (told == shapes.parts).double().mean().item()
    )
    assert result["rotation_agreement"] == 1
    assert set(result["heads"]) == {
        "invariant",
        "equivariant",
        "invariant+equivariant",
        "combined",
    }
    assert result["heads"]["equivariant"]["instance_miou"] == result["instance_miou"]
    # the logits of the part after the first, if the category has it, else of none that counts
    assert result["heads"]["invariant"] != result["heads"]["equivariant"]


def test_figures_without_excluded_shapes_are_those_of_the_rest(shapes):
    named = replace(shapes, ids=tuple(f"chairs/shape_{row}" for row in range(len(shapes))))
    rest = named.subset([row for row in range(len(named)) if row not in (0, 7)])
    for categories in (20, 0):  # parts, scenes
        model = Fixed(shapes, categories, lambda points, _=None: (points[..., 0] > 0).long())
        excluded = ["shape_0.txt", "shape_7"]
        result = evaluate(model, named, "none", batch_size=5, excluded=excluded)
        without = result["without_excluded"]
        assert (without["samples"], without["excluded"]) == (20, 2)
        assert without["heads"] == evaluate(model, rest, "none")["heads"]
        assert without["heads"] != result["heads"]


def test_answers_outside_the_category_are_not_considered(shapes):
    one = shapes.subset([0])
    foreign = int((~one.allowed_parts[one.labels[0]]).nonzero()[0, 0])
    model = Fixed(one, 20, lambda points, _: torch.full(points.shape[:2], foreign))
    result = evaluate(model, one, "none")  # a tie of all its own parts: the first of them
    told = torch.full_like(one.parts, int(first_part(one)[one.labels[0]]))
    expected = shape_ious(told, one.parts, one.labels, one.allowed_parts)
    assert result["instance_miou"] == pytest.approx(expected.item())


def test_agreement_counts_points_that_a_rotation_changes(shapes):
    def by_side(points, category):
        first = first_part(shapes)[category][:, None]
        return first + (points[..., 2] > 0).long()  # all categories but one have two parts

    two = shapes.allowed_parts.sum(1) > 1
    data = shapes.subset(two[shapes.labels].nonzero().flatten())
    model = Fixed(data, 20, by_side)
    result = evaluate(model, data, "so3", rotations_per_shape=1)
    assert 0.3 < result["rotation_agreement"] < 0.7
    assert evaluate(model, data, "z")["rotation_agreement"] == 1


def scenes(parts, colors=None):
    return CloudSet(
        name="rooms",
        split="test",
        up="z",
        points=torch.randn(*parts.shape, 3, generator=torch.Generator().manual_seed(0)),
        labels=torch.zeros(len(parts), dtype=torch.long),
        class_names=("room",),
        parts=parts,
        part_names=("floor", "wall", "door"),
        colors=colors,
        items="blocks",
    )


def test_scenes_and_unlabelled_points():
    data = scenes(torch.tensor([[0, 0, 1, -1], [1, 1, -1, -1]]))
    model = Fixed(data, 0, lambda points, _: torch.zeros(points.shape[:2], dtype=torch.long))
    result = evaluate(model, data, "so3", rotations_per_shape=2)
    assert result["overall_accuracy"] == 2 / 5
    assert result["miou"] == pytest.approx((2 / 5 + 0) / 2)
    assert result["class_accuracy"] == 1 / 2
    row = {"iou": 2 / 5, "accuracy": 1.0, "points": 4, "predicted": 10}
    assert result["classes"]["floor"] == row
    unlabelled = scenes(torch.full((2, 4), -1))
    with pytest.raises(ValueError, match=r"rooms \(test\): all points are unlabelled"):
        evaluate(model, unlabelled, "so3")


def test_unlabelled_points_of_shapes_do_not_count(shapes):
    one = shapes.subset([3])
    half = torch.where(torch.arange(24) < 12, one.parts, -1)
    first = first_part(one)[one.labels[0]].item()
    model = Fixed(one, 20, lambda points, _: torch.full(points.shape[:2], first))
    result = evaluate(model, replace(one, parts=half), "none")
    kept = one.parts[:, :12]
    expected = shape_ious(torch.full_like(kept, first), kept, one.labels, one.allowed_parts)
    assert result["instance_miou"] == pytest.approx(expected.item())


def test_networks_for_a_data_set(shapes):
    model = build_model("dgcnn_partseg", shapes, dict(SMALL))
    assert model.config.categories == 20
    assert model.num_classes == len(shapes.part_names)
    assert given(model, shapes).keys() == {"category"}
    assert torch.equal(targets(model, shapes), shapes.parts)
    classifier = build_model("dgcnn", shapes, dict(SMALL))
    assert given(classifier, shapes) == {}
    assert torch.equal(targets(classifier, shapes), shapes.labels)
    rooms = scenes(torch.tensor([[0, 1, 2, 1]]), torch.rand(1, 4, 3))
    model = build_model("dgcnn_semseg", rooms, {**SMALL, "colors": True})
    assert given(model, rooms).keys() == {"colors"}
    assert typical_radius(shapes) == pytest.approx(1, abs=1e-5)
    points = shapes.points.clone()
    points[3] *= 9
    assert typical_radius(replace(shapes, points=points)) == pytest.approx(1, abs=1e-5)
    half = torch.tensor([[[0.0, 0, 0], [0.9, 0, 0], [0.8, 0, 0]]])  # of a sphere, at a wall
    spheres = CloudSet("rooms", "train", "z", half, torch.tensor([0]), ("room",), items="spheres")
    assert typical_radius(spheres) == pytest.approx(0.9)
    for model in ("dgcnn", "dgcnn_partseg"):
        with pytest.raises(
            ValueError, match=r"rooms is spheres of scenes, and dgcnn.* is for whole"
        ):
            build_model(model, spheres, dict(SMALL))


def test_data_that_cannot_be_learned_from(shapes):
    with pytest.raises(ValueError, match="has 20 categories, the option says 3"):
        build_model("dgcnn_partseg", shapes, {**SMALL, "categories": 3})
    bare = replace(shapes, parts=None)
    with pytest.raises(ValueError, match="builtin has no labels of points"):
        build_model("dgcnn_partseg", bare, dict(SMALL))
    parts = shapes.parts.clone()
    parts[1, 5] = (~shapes.allowed_parts[shapes.labels[1]]).nonzero()[0, 0]
    foreign = replace(shapes, parts=parts)
    message = r"builtin \(test\): 1 shape has points on parts of another category: shape 1, of"
    with pytest.raises(ValueError, match=message):
        build_model("dgcnn_partseg", foreign, dict(SMALL))
    with pytest.raises(ValueError, match="has no colours"):
        build_model("dgcnn_semseg", scenes(torch.zeros(1, 4).long()), {**SMALL, "colors": True})
    with pytest.raises(ValueError, match="all points are unlabelled"):
        build_model("dgcnn_semseg", scenes(torch.full((1, 4), -1)), dict(SMALL))


def numbered(parts, labels, classes=("a", "b")):
    parts = torch.tensor(parts)
    return CloudSet(
        "own",
        "train",
        "z",
        torch.randn(*parts.shape, 3, generator=torch.Generator().manual_seed(0)),
        torch.tensor(labels),
        classes,
        parts=parts,
        part_names=tuple(str(i) for i in range(int(parts.max()) + 1)),
    )


def test_numbered_parts_are_those_of_the_category_that_has_them():
    train, test = numbered([[0, 1, -1], [0, 2, 2]], [0, 1]), numbered([[4, 1, 1]], [0])
    names = ("0", "a/1", "b/2", "3", "a/4")
    both = name_parts("dgcnn_partseg", train, test)
    assert [data.part_names for data in both] == [names, names]
    assert [data.source for data in both] == [train.checksum, test.checksum]  # as they were given
    assert both[0].allowed_parts.tolist() == [
        [True, True, False, True, True],
        [True, False, True, True, False],
    ]
    widened = name_parts("dgcnn_partseg", train, numbered([[1, 1, 1]], [1]))[0]
    assert widened.part_names == ("0", "1", "b/2")
    slashed = numbered([[0, 1], [0, 2]], [0, 1], ("set/a", "set/b"))
    (slashed, _) = name_parts("dgcnn_partseg", slashed, slashed)
    assert slashed.part_names == ("0", "set/a/1", "set/b/2")
    assert slashed.allowed_parts.tolist() == [[True, True, False], [True, False, True]]


def test_a_part_that_one_point_of_another_class_has_is_doubted(caplog):
    parts = torch.zeros(2, 2000, dtype=torch.long)
    parts[0, 1500:], parts[1] = 1, 2
    for wrong, said in (((), False), ((7,), True), (range(500), False)):
        caplog.clear()
        parts[1, list(wrong)] = 0
        data = numbered(parts.tolist(), [0, 1])
        name_parts("dgcnn_partseg", data, data)
        text = "part 0 becomes one that all classes may have: 1 point of b and 1,500 points of a"
        assert (text in caplog.text) == said
        assert ("part 0" in caplog.text) == said


def test_parts_keep_their_names_where_there_is_nothing_to_say():
    train = numbered([[0, 1], [2, 2]], [0, 1])
    assert name_parts("dgcnn", train, train)[0] is train
    assert name_parts("dgcnn_semseg", train, train)[0] is train
    alone = numbered([[0, 1]], [0], ("a",))
    assert name_parts("dgcnn_partseg", alone, alone)[0] is alone
    given = replace(train, part_names=("leg", "seat", "b/top"))
    assert name_parts("dgcnn_partseg", given, given)[0] is given
