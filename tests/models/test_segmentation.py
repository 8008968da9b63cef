"""Every segmenter: its outputs, its symmetry for every point, and what it refuses."""

import pytest
import torch
from torch.nn import functional as F

from locotrans import create_model, list_models
from locotrans.geometry import random_rotations
from locotrans.losses import classification_losses
from locotrans.nn.heads import Head, HeadLayer
from locotrans.testing import (
    assert_batch_independent,
    assert_equivariant,
    assert_invariant,
    assert_permutation_equivariant,
)

B, N, CLASSES, CATEGORIES = 3, 24, 7, 4
BASELINE = {"k": 5, "widths": (8, 10), "embedding": 16, "head_widths": (12, 10, 8)}
LOCOTRANS = {
    "k": 5,
    "vector_widths": (4, 5),
    "vector_embedding": 8,
    "widths": (8, 10),
    "embedding": 16,
    "head_widths": (12, 10, 8),
}
NAMES = [*list_models("parts"), *list_models("scenes")]
INVARIANT = [*list_models("parts")[1:], "locotrans_dgcnn_semseg"]
HEADS = ("logits", "invariant", "equivariant", "fused")
MIRROR = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64))
CATEGORY = torch.tensor([2, 0, 3])
COLORS = torch.rand(B, N, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def clouds(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, N, 3, generator=generator, dtype=torch.float64)


def build(name, **options):
    torch.manual_seed(0)
    small = LOCOTRANS if name.startswith("locotrans") else BASELINE
    if "partseg" in name:
        options = {"categories": CATEGORIES, **options}
    return create_model(name, CLASSES, **{**small, **options}).double()


def given(name):
    """Return what a network is given beside the points: a category, or colours."""
    return {"category": CATEGORY} if "partseg" in name else {"colors": COLORS}


def trained(name):
    """Build a network, scenes with colours, and take two steps on random labels."""
    model = build(name, **({"colors": True} if "semseg" in name else {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    labels = torch.arange(B * N).view(B, N) % (CLASSES + 1) - 1  # some are unlabelled
    for step in range(2):
        optimizer.zero_grad()
        output = model(clouds(10 + step), **given(name))
        classification_losses(output, labels).total.backward()
        optimizer.step()
    return model


def heads(output):
    return {head: getattr(output, head) for head in HEADS if getattr(output, head) is not None}


@pytest.mark.parametrize("name", NAMES)
def test_outputs_gradients_and_round_trip(name):
    model = trained(name)
    output = model(clouds(), **given(name))
    for logits in heads(output).values():
        assert logits.shape == (B, N, CLASSES)
        assert logits.isfinite().all()
    locotrans = name.startswith("locotrans")
    assert output.point_features.shape == (B, N, 24 if locotrans else 12)
    if locotrans:
        full = not name.endswith("light")
        assert len(heads(output)) == (4 if full else 3)
        assert output.frames.shape == (B, N, 3, 3)
        expected = output.equivariant + (output.fused if full else output.invariant)
        assert torch.equal(output.logits, expected)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0 or "bias" in key, key
    twin = build(name, **({"colors": True} if "semseg" in name else {}))
    twin.load_state_dict(model.state_dict())
    model, twin = model.eval(), twin.eval()
    answers = [m(clouds(2), **given(name)).logits for m in (model, twin)]
    assert torch.equal(*answers)


@pytest.mark.usefixtures("without_shape_checks")  # the shapes are checked above
@pytest.mark.parametrize("name", INVARIANT)
def test_every_point_keeps_its_answer_in_every_pose(name):
    model = trained(name)
    points, extra = clouds(), given(name)

    def ask(x):
        return model(x, **extra)

    for training in (True, False):
        model.train(training)
        assert_invariant(ask, points, output=heads, rotations=1)
        if name.startswith("locotrans"):
            assert_equivariant(ask, points, output="frames", rotations=1)
    assert_invariant(ask, points, output="point_features", rotations=1)
    if name.startswith("locotrans"):
        with pytest.raises(AssertionError, match="not invariant"):
            assert_invariant(ask, points, output="invariant", rotations=MIRROR[None])
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    moved = {key: x[:, order] if key == "colors" else x for key, x in extra.items()}
    R = random_rotations(generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        before = model(points, **extra).logits
        after = model(points[:, order] @ R.mT, **moved).logits
    assert (after - before[:, order]).abs().max() <= 1e-8 * before.abs().max()


def test_batch_mates_and_order_do_not_matter():
    model = trained("locotrans_dgcnn_partseg").eval()

    def ask(x):
        return model(x, torch.ones(len(x), dtype=torch.long))

    assert_batch_independent(ask, clouds())
    assert_permutation_equivariant(ask, clouds(), output="logits")


@pytest.mark.parametrize("name", ["dgcnn_partseg", "dgcnn_semseg"])
def test_plain_networks_are_not_invariant(name):
    model = trained(name).eval()
    with pytest.raises(AssertionError, match="not invariant"):
        assert_invariant(lambda x: model(x, **given(name)), clouds(), tolerance=1e-2)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", NAMES)
def test_category_and_colours_are_seen(name):
    model = trained(name).eval()
    extra = given(name)
    other = {key: x.roll(1, 0) for key, x in extra.items()}
    change = model(clouds(), **extra).logits - model(clouds(), **other).logits
    assert change.abs().amax((1, 2)).min() > 1e-6


def test_features_of_the_shape_count_as_channels_of_every_point():
    torch.manual_seed(0)
    layer = HeadLayer(5 + 4, 6).double().eval()
    x, shape = torch.randn(2, 7, 5).double(), torch.randn(2, 4).double()
    joined = torch.cat([x, shape.unsqueeze(1).expand(-1, 7, -1)], dim=-1)
    torch.testing.assert_close(layer(x, shape), layer(joined))


def test_losses_are_means_over_the_labelled_points():
    model = trained("locotrans_dgcnn_partseg_light").eval()
    output = model(clouds(), CATEGORY)
    labels = torch.arange(B * N).view(B, N) % CLASSES
    labels[0, :20] = -1
    terms = classification_losses(output, labels, smoothing=0.0)
    known = labels >= 0
    expected = F.cross_entropy(output.invariant[known], labels[known])
    torch.testing.assert_close(terms.invariant, expected)
    parts = terms.invariant + terms.equivariant + 0.1 * (terms.orthogonality + terms.consistency)
    torch.testing.assert_close(terms.total, parts)
    nothing = classification_losses(output, torch.full_like(labels, -1))
    assert nothing.invariant == 0


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["locotrans_dgcnn_partseg", "dgcnn_partseg"])
def test_bad_input(name):
    model = build(name)
    for category, message in [
        (None, "needs the category of each shape: give category, 3 numbers from 0 to 3"),
        (torch.tensor([0, 1]), "one whole number for each of the 3 clouds"),
        (torch.tensor([0.0, 1, 2]), "one whole number"),
        (torch.tensor([0, 1, 4]), "unknown category: the numbers span 0 to 4, .* knows 0 to 3"),
        (torch.tensor([-1, 1, 2]), "unknown category"),
    ]:
        with pytest.raises(ValueError, match=message):
            model(clouds(), category)
    with pytest.raises(ValueError, match="takes no colors"):
        model(clouds(), CATEGORY, COLORS)
    with pytest.raises(ValueError, match="too small for k = 5"):
        model(clouds()[:, :4], CATEGORY)
    scenes = build(name.replace("part", "sem"), colors=True)
    with pytest.raises(ValueError, match="knows no categories"):
        scenes(clouds(), CATEGORY, COLORS)
    with pytest.raises(ValueError, match="needs colors"):
        scenes(clouds())
    with pytest.raises(ValueError, match="colors must have the shape of the points"):
        scenes(clouds(), colors=COLORS[:, :3])
    with pytest.raises(ValueError, match=r"colors must be torch.float\d\d as the points are"):
        scenes(clouds(), colors=COLORS.half())
    with pytest.raises(ValueError, match="colors must be finite"):
        scenes(clouds(), colors=COLORS * torch.nan)


@pytest.mark.parametrize("name", ["dgcnn_partseg", "vn_dgcnn_semseg", "locotrans_dgcnn_partseg"])
def test_no_dropout_after_the_last_hidden_layer(name):
    model = build(name, dropout=0.4)
    layers = [m for m in model.modules() if isinstance(m, HeadLayer)]
    last = [m.hidden for m in model.modules() if isinstance(m, Head)]
    assert len(last) == (3 if name.startswith("locotrans") else 1)
    assert {m.dropout.p for m in last} == {0.0}
    assert {m.dropout.p for m in layers if m not in last} == {0.4}


@pytest.mark.parametrize("name", ["locotrans_dgcnn_partseg_light", "locotrans_dgcnn_semseg_light"])
def test_the_light_segmenter_knows_where_a_point_lies(name):
    model = create_model(name, CLASSES)
    config, branch = model.config, model.invariant_branch
    assert branch.first.linear.in_features == 6  # U^T (p_j - p) and U^T p
    assert model.equivariant_branch.invariants.channels == 2 * config.vector_embedding
    assert (config.fusion, config.refine, config.shared_graphs) == (False, False, False)
