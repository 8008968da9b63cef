"""PointNet++, PCT and PointMLP, by themselves and in LocoTrans."""

import pytest
import torch

from locotrans import create_model
from locotrans.align import shape_vectors
from locotrans.backbones import PCT, PointMLP, PointNet2
from locotrans.backbones.pct import OffsetAttention
from locotrans.export import export_network
from locotrans.nn.patches import Cloud

BACKBONES = ("pointnet2", "pct", "pointmlp")
SMALL = {"patches": (6, 5), "widths": (8, 12), "embedding": 16, "head_widths": (12, 8)}
FRAMED = {**SMALL, "k": 5, "vector_widths": (4, 5), "vector_embedding": 8}


def options(name):
    """Return small options for a model; PointMLP has one stage more than widths."""
    chosen = FRAMED if "locotrans" in name else SMALL
    return {**chosen, "widths": (8,)} if "pointmlp" in name else chosen


def clouds(b=2, n=40, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, n, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("backbone", "left"), [(PointNet2, 128), (PCT, 256), (PointMLP, 64)], ids=lambda x: str(x)
)
def test_as_many_points_are_left_as_published(backbone, left):
    with torch.no_grad():
        assert backbone()(torch.randn(1, 1024, 3)).shape == (1, left, 1024)


def test_layers_of_the_published_sizes():
    """PointNet++ has 1.48 M parameters, PCT 2.88 M, PointMLP 13.2 M, with heads for the maximum."""
    sizes = {name: sum(p.numel() for p in create_model(name).parameters()) for name in BACKBONES}
    mean = 1024 * 512  # of the head, for the mean that is pooled besides
    published = {"pointnet2": 1.48, "pct": 2.88, "pointmlp": 13.2}
    for name, size in published.items():
        assert (sizes[name] - mean) / 1e6 == pytest.approx(size, rel=0.01), name


def test_offset_attention_by_hand():
    torch.manual_seed(0)
    layer = OffsetAttention(8).double().eval()
    x = clouds(1, 5)[0] @ torch.randn(3, 8, dtype=torch.float64)
    key = x @ layer.key.weight.T
    value = x @ layer.value.weight.T + layer.value.bias
    scores = [[(key[i] @ key[j]).exp() for j in range(5)] for i in range(5)]
    for i in range(5):
        weights = [scores[i][j] / sum(scores[a][j] for a in range(5)) for j in range(5)]
        gathered = sum(w * value[j] for j, w in enumerate(weights)) / sum(weights)
        expected = x[i] + layer.layer((x[i] - gathered)[None])[0]
        assert torch.allclose(layer(x[None])[0, i], expected)


def test_pointmlp_sees_differences_at_one_scale():
    torch.manual_seed(0)
    stage = PointMLP((8,), 12, (6, 6)).double().stages[0].eval()
    shown = []
    stage.transfer.register_forward_hook(lambda _, inputs, __: shown.append(inputs[0]))
    points = clouds()
    x = 1e3 * torch.randn(2, 40, 4, dtype=torch.float64)
    for factor in (1.0, 50.0):
        stage(factor * x, Cloud(points))
    one, other = (e[..., :4] for e in shown)
    assert torch.allclose(one, other, rtol=1e-8)
    assert one.square().mean((1, 2, 3)).sub(1).abs().max() < 1e-6


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("pose", ["equivariant", "none"])
def test_frames_get_gradient_from_the_first_layer_only(backbone, pose):
    torch.manual_seed(0)
    model = (
        create_model(
            f"locotrans_{backbone}", 3, **options(f"locotrans_{backbone}"), relative_pose=pose
        )
        .double()
        .eval()
    )
    branch = model.invariant_branch.backbone
    first = branch.stages[0][0].linear if backbone == "pointnet2" else branch.stem.layer.linear
    head = model.equivariant_branch.lcrf.projection.linear.weight

    def gradient():
        return torch.autograd.grad(model(clouds()).invariant.sum(), head)[0].abs().max()

    assert gradient() > 0
    with torch.no_grad():
        first.weight.zero_()
    assert gradient() == 0


@pytest.mark.parametrize("name", [f"locotrans_{name}" for name in BACKBONES])
def test_without_relative_pose_equivariant_features_are_not_seen(name):
    """The invariant branch then knows the frames alone."""
    for pose, moves in (("none", False), ("equivariant", True)):
        torch.manual_seed(0)
        model = create_model(name, 3, **options(name), relative_pose=pose).double().eval()
        points = clouds()
        vn = model.equivariant_branch(points)
        changed = vn._replace(
            features=vn.features._replace(layers=[2 * v for v in vn.features.layers])
        )
        _, one = model.invariant_branch(points, vn)
        _, other = model.invariant_branch(points, changed)
        assert torch.equal(one, other) != moves


@pytest.mark.parametrize("name", ["pct", "locotrans_pointnet2"])
def test_files_cannot_hold_them(name, tmp_path):
    model = create_model(name, 3, **options(name))
    with pytest.raises(ValueError, match="cannot be exported: a file cannot choose farthest"):
        export_network(model, tmp_path / "network.onnx")
    assert not list(tmp_path.iterdir())


def test_shapes_are_aligned_by_the_equivariant_branch_alone():
    torch.manual_seed(0)
    model = create_model("locotrans_pct", 3, **FRAMED).double().eval()
    vectors = shape_vectors(model, clouds().numpy())
    assert vectors.shape == (2, 3, model.equivariant_branch.invariants(
        *model.equivariant_branch.backbone(clouds())[:2]).shape[-1] // 2)  # fmt: skip


@pytest.mark.parametrize("name", [*BACKBONES, *(f"locotrans_{name}" for name in BACKBONES)])
def test_patches_are_named_for_every_stage(name):
    with pytest.raises(ValueError, match=r"patches must name .* in each of 2 stages, got \(6,\)"):
        create_model(name, 3, **{**options(name), "patches": (6,)})


@pytest.mark.parametrize("name", BACKBONES)
def test_gradients_in_double_precision(name):
    torch.manual_seed(0)
    model = create_model(name, 3, **options(name)).double().eval()
    points = clouds(1, 16).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: model(x).logits, points)
