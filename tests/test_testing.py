"""The kit finds what it should, says what it found, and leaves no trace."""

import functools
import math
import re
from typing import NamedTuple

import pytest
import torch
from torch import nn

from locotrans import create_model
from locotrans.geometry import axis_rotation, random_rotations
from locotrans.geometry.neighbors import gather, knn
from locotrans.models import locotrans as paper
from locotrans.testing import (
    TOLERANCES,
    assert_batch_independent,
    assert_equivariant,
    assert_invariant,
    assert_permutation_equivariant,
    assert_permutation_invariant,
)

MIRROR = torch.diag(torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64))[None]
SMALL = {
    "k": 5,
    "vector_widths": (4, 5),
    "vector_embedding": 8,
    "widths": (8, 10),
    "embedding": 16,
    "head_widths": (12, 8),
}


@pytest.fixture
def points():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 20, 3, generator=generator, dtype=torch.float64)


@pytest.fixture
def small():
    torch.manual_seed(0)
    return create_model("locotrans_dgcnn_light", 4, **SMALL).double().eval()


class Answer(NamedTuple):
    logits: torch.Tensor
    directions: torch.Tensor


def lengths(points):
    return points.norm(dim=-1)


def volume(points):
    """Return a number that rotations keep and reflections negate."""
    return torch.linalg.det(points[:, :3])


def toward_neighbors(points, neighbors):
    return gather(points, neighbors).mean(2) - points


def error_in(caught):
    return float(re.search(r"is (\S+), above", str(caught.value))[1])


def test_invariant_functions_pass_and_their_error_is_returned(points):
    error = assert_invariant(lengths, points, rotations=8)
    assert 0 < error < 1e-14
    assert assert_invariant(lambda p: p.norm(dim=-1).sum(), points) < 1e-14  # one number
    single = assert_invariant(lengths, points.float())
    assert 1e-9 < single < 1e-5


def test_a_reflection_breaks_what_rotations_keep(points):
    assert_invariant(volume, points)
    with pytest.raises(AssertionError, match=r"matrix \[1.000 0.000.*not a rotation") as caught:
        assert_invariant(volume, points, rotations=MIRROR)
    assert error_in(caught) == pytest.approx(2)  # x becomes -x


def test_the_failure_names_error_tolerance_output_and_rotation(points):
    quarter = axis_rotation("y", torch.tensor([math.pi / 2], dtype=torch.float64))
    with pytest.raises(AssertionError) as caught:
        assert_invariant(lambda p: {"height": p[..., 2]}, points, rotations=quarter)
    text = str(caught.value)
    assert text.startswith("not invariant: the relative error of height under a rotation by 90.0")
    assert "about (0.000, 1.000, 0.000) (1 of 1) is " in text
    assert "above the tolerance 1e-08 (points in torch.float64)" in text
    expected = (points[..., 0] + points[..., 2]).abs().max() / points[..., 2].abs().max()
    assert error_in(caught) == pytest.approx(expected.item(), rel=1e-2)


@pytest.mark.parametrize("angle", [1.0, math.pi - 1e-9, math.pi])
def test_axis_and_angle_of_the_report(points, angle):
    R = axis_rotation("x", torch.tensor([angle], dtype=torch.float64))
    with pytest.raises(AssertionError, match=rf"{math.degrees(angle):.1f} degrees about \(1.000,"):
        assert_invariant(lambda p: p, points, rotations=R)


def test_our_models_are_checked_by_their_logits(small, points):
    assert assert_invariant(small, points) < 1e-8
    assert_equivariant(small, points, output="frames")
    assert_equivariant(small, points, output=lambda answer: answer.vectors)
    with pytest.raises(AssertionError, match="not invariant: the relative error of frames under"):
        assert_invariant(small, points, output="frames")
    with pytest.raises(ValueError, match=r"of shape \(\), does not hold vectors"):
        assert_equivariant(lambda x: x.sum(), points)
    with pytest.raises(ValueError, match=r"axis -1 of logits.*does not hold vectors"):
        assert_equivariant(small, points)


def test_plain_dgcnn_fails(points):
    torch.manual_seed(0)
    options = {"k": 5, "widths": (8, 10), "embedding": 16, "head_widths": (12, 8)}
    model = create_model("dgcnn", 4, **options).double().eval()
    with pytest.raises(AssertionError, match="not invariant"):
        assert_invariant(model, points, tolerance=1e-2)


def test_a_sabotaged_frame_fails(small, points, monkeypatch):
    whole = paper.LCRF.forward

    def fixed_third_axis(self, *inputs):
        vectors, frames = whole(self, *inputs)
        return vectors, torch.cat([frames[..., :2], torch.ones_like(frames[..., 2:])], dim=-1)

    monkeypatch.setattr(paper.LCRF, "forward", fixed_third_axis)
    assert_equivariant(small, points, output="vectors")
    with pytest.raises(AssertionError, match="not invariant"):
        assert_invariant(small, points, tolerance=1e-4)
    with pytest.raises(AssertionError, match="not equivariant: the relative error of frames"):
        assert_equivariant(small, points, output="frames", tolerance=1e-2)


def test_a_shuffled_neighbour_list_fails_under_permutation(points):
    fixed = knn(points, 4)  # does not follow the points

    assert_equivariant(lambda p: toward_neighbors(p, fixed), points)
    assert_permutation_equivariant(lambda p: toward_neighbors(p, knn(p, 4)), points)
    with pytest.raises(AssertionError, match=r"not permutation-equivariant.*permutation"):
        assert_permutation_equivariant(lambda p: toward_neighbors(p, fixed), points)
    with pytest.raises(AssertionError, match="not permutation-invariant"):
        assert_permutation_invariant(lambda p: toward_neighbors(p, fixed).norm(dim=-1), points)


def test_equivariance_of_points_and_of_features(points):
    assert_equivariant(lambda p: p.mean(1), points)
    assert_equivariant(lambda p: torch.stack([p, 2 * p], dim=-1), points)  # (b, n, 3, 2)
    assert_equivariant(lambda p: p.mT, points, dim=1)
    assert_equivariant(lambda p: p, points, rotations=MIRROR)
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(lambda p: p.abs(), points)
    with pytest.raises(AssertionError, match="not equivariant"):  # the wrong axis of a frame
        assert_equivariant(lambda p: p[:, :3].mT @ p[:, 3:6], points)


def test_any_nest_of_outputs(points):
    def answers(p):
        return {"good": lengths(p), "more": [volume(p), Answer(p.norm(dim=-1), p)]}

    with pytest.raises(AssertionError, match=r"of more\.1\.directions under"):
        assert_invariant(answers, points)
    assert_invariant(answers, points, output="good")
    assert_invariant(answers, points, output=lambda a: a["more"][1].logits)
    assert_invariant(lambda p: Answer(lengths(p), p), points)  # logits alone, where there are any
    assert_invariant(lambda p: {"logits": lengths(p), "points": p}, points)
    assert_invariant(lambda p: (lengths(p), knn(p, 3)), points)
    assert_invariant(lambda p: (None, lengths(p)), points)


def test_integers_are_compared_when_asked_for(points):
    assert_invariant(lambda p: knn(p, 3), points, output=lambda index: index)
    with pytest.raises(AssertionError, match="not invariant"):
        assert_invariant(lambda p: p.argmax(1), points, output=lambda index: index)


class Dropping(nn.Module):
    """Invariant, but for dropout and batch norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(20)
        self.dropout = nn.Dropout(0.5)

    def forward(self, points):
        return self.dropout(self.norm(points.norm(dim=-1)))


def test_training_mode_is_kept_without_traces(points):
    model = Dropping().double().train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert_invariant(model, points)
    assert_invariant(model.forward, points)
    assert torch.equal(torch.rand(3), expected)  # the global random state
    assert model.training
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_buffers_are_put_back_after_a_failure_too(points):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(60)).double()
    with pytest.raises(AssertionError):
        assert_invariant(model, points)
    assert model[1].num_batches_tracked == 0


WRAPPED = nn.Sequential(nn.Flatten(1), nn.BatchNorm1d(60)).double()


def wrappings(module):
    def named(points, network):
        return network(points)

    def function(points):
        return inner(points)

    def inner(points):
        return function(points) if points is None else module(points)

    return {
        "lambda": lambda p: module(p),
        "nested": function,
        "list": (lambda modules: lambda p: [m(p) for m in modules])([module]),
        "method": module.forward,
        "partial": functools.partial(named, network=module),
        "global": lambda p: WRAPPED(p),
    }


@pytest.mark.parametrize("how", wrappings(WRAPPED))
def test_a_wrapped_module_keeps_its_state(points, how):
    module = WRAPPED.train()
    module[1].reset_running_stats()
    with pytest.raises(AssertionError, match="not invariant"):
        assert_invariant(wrappings(module)[how], points)
    assert module[1].num_batches_tracked == 0
    assert torch.equal(module[1].running_mean, torch.zeros(60))
    assert_batch_independent(wrappings(module)[how], points)  # in eval mode
    assert module.training
    assert module[1].training


def test_one_rotation(points):
    R = axis_rotation("z", torch.tensor(1.0, dtype=torch.float64))
    assert assert_invariant(lengths, points, rotations=R) < 1e-14
    with pytest.raises(AssertionError, match=r"by 57.3 degrees .* \(1 of 1\)"):
        assert_invariant(lambda p: p, points, rotations=R)


def test_batch_mates(points):
    assert_batch_independent(lengths, points)
    model = Dropping().double().train()
    model.dropout.eval()
    assert_batch_independent(model, points)
    assert model.training
    assert not model.dropout.training
    with pytest.raises(AssertionError, match=r"not independent of its batch.*cloud 0 alone"):
        assert_batch_independent(lambda p: p - p.mean(0), points)
    # alone in the batch to begin with, so that only random mates can tell
    with pytest.raises(AssertionError, match="beside 1 random clouds"):
        assert_batch_independent(lambda p: p - p.mean(0), points[:1])


def test_not_a_number_is_a_failure(points):
    with pytest.raises(AssertionError, match="is inf, above"):
        assert_invariant(lambda p: lengths(p) * math.nan, points)


def test_an_answer_of_another_shape_is_a_failure(points):
    with pytest.raises(AssertionError, match="is inf, above"):
        assert_invariant(lambda p: p[0][p[0, :, 0] > 0].norm(dim=-1), points)


def test_tolerances(points):
    slightly = 1e-5 * torch.ones(3, dtype=torch.float64)

    def nearly(p):
        return lengths(p) + p @ slightly.to(p)

    assert_invariant(nearly, points.float())
    with pytest.raises(AssertionError, match="1e-08"):
        assert_invariant(nearly, points)
    assert_invariant(nearly, points, tolerance=1e-3)
    with pytest.raises(AssertionError, match="1e-07"):
        assert_invariant(nearly, points.float(), tolerance=1e-7)
    assert list(TOLERANCES.values()) == sorted(TOLERANCES.values())
    for dtype in TOLERANCES:
        assert assert_invariant(lengths, points.to(dtype)) <= TOLERANCES[dtype]


def test_seeds_and_numbers_of_rotations(points):
    seen = []

    def watch(p):
        seen.append(p)
        return lengths(p)

    assert_invariant(watch, points, rotations=3, seed=1)
    assert_invariant(watch, points, rotations=3, seed=1)
    assert_invariant(watch, points, rotations=3, seed=2)
    assert len(seen) == 12
    assert all(torch.equal(a, b) for a, b in zip(seen[:4], seen[4:8], strict=True))
    assert not torch.equal(seen[1], seen[9])
    expected = random_rotations(3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(seen[1], points @ expected[0].mT)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: assert_invariant(lengths, p, rotations=0), "at least one rotation"),
        (lambda p: assert_permutation_invariant(lengths, p, permutations=0), "at least one perm"),
        (lambda p: assert_invariant(lengths, p.long().float()[:, :0]), r"shape \(b, n, 3\)"),
        (lambda p: assert_invariant(lengths, p, output="logits"), "has no 'logits'"),
        (lambda p: assert_invariant(lambda p: "text", p), "of type str, holds no floating-point"),
        (lambda p: assert_invariant(lambda p: p.numpy(), p), "of type numpy.ndarray, holds no"),
        (lambda p: assert_invariant(lengths, p, rotations=MIRROR[None]), "got \\(1, 1, 3, 3"),
        (lambda p: assert_permutation_equivariant(volume, p), "does not run over the points"),
    ],
)
def test_misuse(points, call, message):
    with pytest.raises(ValueError, match=message):
        call(points)


def test_a_network_in_training_mode_is_told_so(generator):
    model = nn.Sequential(nn.Flatten(), nn.Linear(30, 2))
    points = torch.randn(3, 10, 3, generator=generator)
    with pytest.raises(AssertionError, match="in training mode"):
        assert_invariant(model, points)
    with pytest.raises(AssertionError, match=r"float32\)$"):
        assert_invariant(model.eval(), points)
