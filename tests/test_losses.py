import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from drawing import draw
from locotrans.losses import (
    balanced_cross_entropy,
    classification_losses,
    consistency_loss,
    orthogonality_loss,
    point_cross_entropy,
    smoothed_cross_entropy,
)


def some_neighbors(b=2, n=6, k=4):
    return torch.randint(n, (b, n, k), generator=torch.Generator().manual_seed(1))


def test_smoothing_is_spread_over_the_other_classes():
    logits = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
    log_p = logits - logits.exp().sum().log()
    by_hand = -(0.8 * log_p[0, 0] + 0.1 * log_p[0, 1] + 0.1 * log_p[0, 2])
    ours = smoothed_cross_entropy(logits, torch.tensor([0]), 0.2)
    torch.testing.assert_close(ours, by_hand)
    over_all = torch.nn.functional.cross_entropy(logits, torch.tensor([0]), label_smoothing=0.2)
    assert abs(ours - over_all) > 0.05


def test_smoothed_loss_is_least_where_the_label_has_its_share():
    share = torch.tensor([0.8, 0.05, 0.05, 0.05, 0.05], dtype=torch.float64)
    logits = share.log()[None].requires_grad_()
    loss = smoothed_cross_entropy(logits, torch.tensor([0]), 0.2)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.abs().max() < 1e-15


def test_no_smoothing_is_the_plain_cross_entropy():
    uniform = torch.zeros(4, 10, dtype=torch.float64)
    labels = torch.tensor([0, 3, 5, 9])
    assert smoothed_cross_entropy(uniform, labels, 0.0).item() == pytest.approx(math.log(10))


def test_one_class_costs_nothing():
    assert smoothed_cross_entropy(torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)).item() == 0


@pytest.mark.parametrize("known", [13, 1, 0])
def test_shares_of_a_batch_average_to_its_mean_over_labelled_points(known, monkeypatch):
    logits = draw(4, 6, 5)
    labels = torch.arange(24).view(4, 6) % 5
    labels.view(-1)[: 24 - known] = -1  # the first two clouds have fewer than the others, or none
    whole = point_cross_entropy(logits, labels)
    assert (whole > 0) == (known > 0)
    half = torch.tensor(known / 2).double()  # what two processes tell each other
    monkeypatch.setattr("locotrans.distributed.mean_over_processes", lambda count: half)
    shares = [point_cross_entropy(logits[i : i + 2], labels[i : i + 2]) for i in (0, 2)]
    torch.testing.assert_close(torch.stack(shares).mean(), whole)


def test_orthogonality_by_hand():
    # angles of 90, 60 and 180 degrees, at any lengths: squared cosines 0, 1/4 and 1
    first = torch.tensor([[1.0, 0, 0], [2, 0, 0], [0, 0, 3]], dtype=torch.float64)
    second = torch.tensor([[0, 5.0, 0], [1, math.sqrt(3), 0], [0, 0, -1]], dtype=torch.float64)
    vectors = torch.stack([first, second], dim=-1)[None]
    assert orthogonality_loss(vectors).item() == pytest.approx(1.25 / 3)


def test_orthogonality_is_least_at_a_right_angle():
    right = torch.eye(3, dtype=torch.float64)[None, None, :, :2].clone().requires_grad_()
    loss = orthogonality_loss(right)
    assert loss.item() == 0  # printed without the square it could fall to -1
    assert torch.autograd.grad(loss, right)[0].abs().max() == 0
    oblique = draw(1, 50, 3, 2).requires_grad_()
    loss = orthogonality_loss(oblique)
    (gradient,) = torch.autograd.grad(loss, oblique)
    assert orthogonality_loss(oblique - 0.1 * gradient) < loss


def naive_consistency(vectors, neighbors):
    """Take every pair of neighbours on its own."""
    unit = vectors / vectors.norm(dim=-2, keepdim=True)
    taught_by = {0: [], 1: []}
    for b in range(len(neighbors)):
        for r in range(neighbors.shape[1]):
            around = neighbors[b, r].tolist()
            for a in around:
                rows = [
                    torch.stack([unit[b, a, :, axis] @ unit[b, j, :, axis] for j in around])
                    for axis in (0, 1)
                ]
                teacher = 0 if rows[0].mean() > rows[1].mean() else 1
                error = (rows[1 - teacher] - rows[teacher].detach()).square().mean()
                taught_by[teacher].append(error)
    return sum(torch.stack(errors).mean() for errors in taught_by.values() if errors)


def test_consistency_against_a_loop():
    vectors, neighbors = draw(2, 6, 3, 2).requires_grad_(), some_neighbors()
    ours, naive = consistency_loss(vectors, neighbors), naive_consistency(vectors, neighbors)
    torch.testing.assert_close(ours, naive)
    gradients = [torch.autograd.grad(loss, vectors)[0] for loss in (ours, naive)]
    torch.testing.assert_close(*gradients)


def aligned_first_axis():
    """Return vectors whose first axis is the same everywhere: it teaches every row."""
    vectors = draw(1, 6, 3, 2)
    vectors[..., 0] = torch.tensor([0.0, 0.0, 1.0])
    return vectors


def test_a_case_without_rows_counts_nothing():
    vectors, neighbors = aligned_first_axis(), some_neighbors(1)
    loss = consistency_loss(vectors, neighbors)
    torch.testing.assert_close(loss, naive_consistency(vectors, neighbors))
    assert loss > 0
    swapped = consistency_loss(vectors.flip(-1), neighbors)  # now the second axis teaches
    torch.testing.assert_close(swapped, loss)


def test_gradient_stops_at_the_teacher():
    vectors = aligned_first_axis().requires_grad_()
    consistency_loss(vectors, some_neighbors(1)).backward()
    assert vectors.grad[..., 0].abs().max() == 0
    assert vectors.grad[..., 1].abs().max() > 0


def test_equal_axes_are_consistent():
    same = draw(1, 6, 3, 1).expand(1, 6, 3, 2)
    assert consistency_loss(same, some_neighbors(1)).item() == 0


@pytest.mark.parametrize("loss", [orthogonality_loss, consistency_loss])
def test_zero_vectors_have_a_finite_loss_and_gradient(loss):
    vectors = draw(1, 6, 3, 2)
    vectors[:, 2] = 0
    vectors.requires_grad_()
    value = loss(vectors) if loss is orthogonality_loss else loss(vectors, some_neighbors(1))
    value.backward()
    assert value.isfinite()
    assert vectors.grad.isfinite().all()


def output(**fields):
    names = ("invariant", "equivariant", "fused", "vectors", "neighbors")
    return SimpleNamespace(logits=draw(2, 5), **{**dict.fromkeys(names), **fields})


def test_total_is_the_weighted_sum_of_the_terms():
    answer = output(
        invariant=draw(2, 5, seed=1),
        equivariant=draw(2, 5, seed=2),
        fused=draw(2, 5, seed=3),
        vectors=draw(2, 6, 3, 2),
        neighbors=some_neighbors(),
    )
    labels = torch.tensor([1, 4])
    terms = classification_losses(
        answer, labels, smoothing=0.1, orthogonality_weight=0.5, consistency_weight=2.0
    )
    heads = [
        smoothed_cross_entropy(logits, labels, 0.1)
        for logits in (answer.invariant, answer.equivariant, answer.fused)
    ]
    for ours, expected in zip(
        [terms.invariant, terms.equivariant, terms.fused], heads, strict=True
    ):
        torch.testing.assert_close(ours, expected)
    frame_terms = 0.5 * orthogonality_loss(answer.vectors) + 2 * consistency_loss(
        answer.vectors, answer.neighbors
    )
    torch.testing.assert_close(terms.total, sum(heads) + frame_terms)


def test_a_network_of_one_head_is_trained_by_its_logits():
    answer, labels = output(), torch.tensor([1, 4])
    terms = classification_losses(answer, labels)
    torch.testing.assert_close(terms.total, smoothed_cross_entropy(answer.logits, labels))
    assert terms[1:] == (None,) * 5


def test_offsets_are_added_to_the_logits_of_every_head():
    heads = {name: draw(2, 5, seed=i) for i, name in enumerate(("invariant", "equivariant"))}
    labels, offsets = torch.tensor([1, 4]), draw(5, seed=7)
    target = 0.7 * torch.eye(5, dtype=torch.float64)[labels] + 0.3 * offsets.softmax(-1)
    terms = classification_losses(output(**heads), labels, smoothing=0.3, offsets=offsets)
    for name, logits in heads.items():
        expected = F.cross_entropy(logits + offsets, target)
        torch.testing.assert_close(getattr(terms, name), expected)
    one = classification_losses(output(), labels, smoothing=0.3, offsets=offsets)
    torch.testing.assert_close(one.total, F.cross_entropy(output().logits + offsets, target))


def test_offsets_of_labels_of_points():
    points = output(invariant=draw(2, 3, 5))
    labels, offsets = torch.tensor([[0, 1, -1], [4, -1, 2]]), draw(5, seed=7)
    terms = classification_losses(points, labels, offsets=offsets)
    known = labels >= 0
    expected = balanced_cross_entropy(points.invariant[known], labels[known], offsets)
    torch.testing.assert_close(terms.total, expected)


@pytest.mark.parametrize("counts", [(80, 10), (300, 30, 30), (1000, 1, 1)])
def test_balanced_classes_that_are_certain_are_answered_right(counts):
    """Whatever the smoothing: where an input tells the class, the largest logit does."""
    shares = torch.tensor(counts, dtype=torch.float64)
    offsets = (shares / shares.sum()).log()
    logits = torch.zeros(len(counts), len(counts), dtype=torch.float64, requires_grad=True)
    labels = torch.arange(len(counts))
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = balanced_cross_entropy(logits, labels, offsets, smoothing=0.2)
        value.backward()
        return value

    optimizer.step(loss)
    assert logits.argmax(-1).tolist() == labels.tolist()
