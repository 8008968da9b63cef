"""Every classifier: its outputs, its gradients, its weights, and what it refuses."""

import pytest
import torch

from locotrans import create_model, list_models
from locotrans.losses import classification_losses

B, N, K, CLASSES = 3, 24, 5, 6
BASELINE = {"k": K, "widths": (8, 10), "embedding": 16, "head_widths": (12, 8)}
LOCOTRANS = {
    "k": K,
    "vector_widths": (4, 5, 6),
    "vector_embedding": 8,
    "widths": (8, 10, 12),
    "embedding": 16,
    "head_widths": (12, 8),
}
PATCHES = {"patches": (K, 6), "widths": (8, 12), "embedding": 16, "head_widths": (12, 8)}
FRAMED_PATCHES = {**PATCHES, "k": K, "vector_widths": (4, 5, 6), "vector_embedding": 8}
OTHERS = ("pointnet2", "pct", "pointmlp")  # backbones that keep few points
SMALL = {
    "dgcnn": BASELINE,
    "vn_dgcnn": BASELINE,
    "pointnet": {"head_widths": (12, 8)},
    "locotrans_dgcnn": LOCOTRANS,
    "locotrans_dgcnn_light": LOCOTRANS,
    **dict.fromkeys(OTHERS, PATCHES),
    **{f"locotrans_{name}": FRAMED_PATCHES for name in OTHERS},
}
for _name in ("pointmlp", "locotrans_pointmlp"):
    SMALL[_name] = {**SMALL[_name], "widths": (8,)}  # of two stages, too
FEATURES = {"dgcnn": 16, "vn_dgcnn": 96, "pointnet": 1024}
SWITCHES = [
    {"frames": frames, "relative_pose": pose}
    for frames, pose in [
        ("symmetric", "equivariant"),
        ("symmetric_printed", "coordinates"),
        ("gram_schmidt", "handcrafted"),
        ("handcrafted", "invariant"),
        ("symmetric", "none"),
    ]
]
CASES = [
    *((name, {}) for name in list_models("classification")),
    *(("locotrans_dgcnn", switch) for switch in SWITCHES),
    ("locotrans_dgcnn", {"fusion": False, "reference_point": True, "center": False}),
    ("locotrans_dgcnn_light", {"fusion": True, "reference_point": True}),
    ("locotrans_dgcnn_light", {"relative_pose": "none", "shared_graphs": True}),
    ("locotrans_pct", {"frames": "handcrafted", "fusion": False}),
    ("locotrans_pointnet2", {"frames": "gram_schmidt", "center": False}),
    *((f"locotrans_{name}", {"relative_pose": "none"}) for name in OTHERS),
]


def build(name, **options):
    torch.manual_seed(0)
    return create_model(name, CLASSES, **{**SMALL[name], **options}).double()


def clouds(b=B, n=N, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, n, 3, generator=generator, dtype=torch.float64)


@pytest.fixture(params=CASES, ids=lambda case: "-".join([case[0], *map(str, case[1].values())]))
def case(request):
    name, options = request.param
    return name, build(name, **options)


def test_every_classifier_is_tested_here():
    assert sorted(SMALL) == list_models("classification")


def test_shape_of_every_output(case):
    name, model = case
    output = model(clouds())
    shapes = {field: None if x is None else tuple(x.shape) for field, x in output._asdict().items()}
    if name.startswith("locotrans"):
        config = model.config
        expected = {
            "logits": (B, CLASSES),
            "invariant": (B, CLASSES),
            "equivariant": (B, CLASSES),
            "fused": (B, CLASSES) if config.fusion else None,
            "vectors": None if config.frames == "handcrafted" else (B, N, 3, 2),
            "frames": (B, N, 3, 3),
            "embedding": (B, 24),
            "point_features": (B, N, 16) if "dgcnn" in name else None,
            "neighbors": (B, N, K),
        }
    else:
        expected = {
            **dict.fromkeys(output._fields),
            "logits": (B, CLASSES),
            "equivariant": (B, CLASSES) if name == "vn_dgcnn" else None,
            "embedding": (B, 12),
            "point_features": (B, N, FEATURES[name]) if name in FEATURES else None,
        }
    assert shapes == expected
    floats = [x for x in output if x is not None and x.is_floating_point()]
    assert all(x.dtype == torch.float64 and x.isfinite().all() for x in floats)


def test_combined_logits_are_the_sum_that_the_paper_reports():
    full, light = build("locotrans_dgcnn").eval(), build("locotrans_dgcnn_light").eval()
    output = full(clouds())
    assert torch.equal(output.logits, output.equivariant + output.fused)
    output = light(clouds())
    assert torch.equal(output.logits, output.equivariant + output.invariant)


def test_pointnet_shares_the_head_and_has_no_regulariser():
    pointnet, dgcnn = create_model("pointnet"), create_model("dgcnn")
    assert pointnet.hidden.linear.in_features == dgcnn.hidden.linear.in_features == 2 * 1024
    shapes = [[p.shape for p in model.head.parameters()] for model in (pointnet, dgcnn)]
    assert shapes[0] == shapes[1]
    terms = classification_losses(build("pointnet")(clouds()), torch.arange(B))
    assert terms[1:] == (None,) * 5  # the cross-entropy of the logits is all


def test_every_parameter_has_a_finite_gradient(case):
    _, model = case
    classification_losses(model(clouds()), torch.arange(B)).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("name", list_models("classification"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cloud_of_one_place_among_others_leaves_gradients_finite(name, dtype):
    points = clouds().to(dtype)
    points[0] = 1.0
    points[1, : N // 2] = points[1, 0]  # as when a sparse cloud is padded
    model = build(name).to(dtype)
    output = model(points)
    classification_losses(output, torch.arange(B)).total.backward()
    assert output.logits.isfinite().all()
    largest = max(parameter.grad.abs().max().item() for parameter in model.parameters())
    assert largest < 1e4  # nan fails too


def test_state_dict_round_trip(case, tmp_path):
    name, model = case
    model(clouds())  # running statistics differ from a fresh network's
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    config = {field: getattr(model.config, field) for field in model.config.__dataclass_fields__}
    twin = create_model(name, CLASSES, **config).double()
    twin.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    points = clouds(seed=2)
    assert torch.equal(twin.eval()(points).logits, model.eval()(points).logits)


@pytest.mark.parametrize("name", list_models("classification"))
def test_smallest_inputs(name):
    k = {"k": 1} if "k" in SMALL[name] else {}
    assert build(name, **k).eval()(clouds(1, 1)).logits.isfinite().all()
    if name != "pointnet":  # every point a neighbour of every other
        all_of_them = {"k": N, "patches": (N, N)}
        options = {key: x for key, x in all_of_them.items() if key in SMALL[name]}
        assert build(name, **options).eval()(clouds()).logits.isfinite().all()
    with torch.no_grad():
        assert build(name).eval()(clouds(1)).logits.shape == (1, CLASSES)


BAD = {
    "layout": (torch.zeros(2, 3, 30), r"got \(2, 3, 30\); the coordinates must come last"),
    "no batch": (torch.zeros(30, 3), r"got \(30, 3\); add a batch axis"),
    "four axes": (torch.zeros(2, 1, 30, 3), r"shape \(batch, points, 3\)"),
    "four coordinates": (torch.zeros(2, 30, 4), r"shape \(batch, points, 3\)"),
    "integers": (
        torch.zeros(2, 30, 3, dtype=torch.long),
        "floating-point numbers, got torch.int64",
    ),
    "no clouds": (torch.zeros(0, 30, 3), "must not be empty"),
    "no points": (torch.zeros(2, 0, 3), "must not be empty"),
    "nan": (torch.full((2, 30, 3), torch.nan).double(), "must be finite; 60 of 60 hold nan"),
    "inf": (torch.full((2, 30, 3), torch.inf).double(), "must be finite"),
}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("problem", BAD)
@pytest.mark.parametrize("name", list_models("classification"))
def test_bad_points(name, problem):
    points, message = BAD[problem]
    with pytest.raises(ValueError, match=message):
        build(name)(points)


@pytest.mark.parametrize("name", [name for name, options in SMALL.items() if "k" in options])
def test_fewer_points_than_neighbours(name):
    with pytest.raises(ValueError, match="4 points is too small for k = 5"):
        build(name)(clouds(n=4))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("locotrans_dgcnn", 6_296_672), ("locotrans_dgcnn_light", 2_291_343)],
)
def test_parameters_of_the_paper_less_what_it_never_uses(name, parameters):
    model = create_model(name)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("name", ["locotrans_dgcnn", "locotrans_dgcnn_light"])
def test_frames_get_gradient_from_the_first_layer_only(name):
    model = build(name).eval()
    output = model(clouds())
    branch = model.invariant_branch
    first = branch.first.linear.weight
    head = model.equivariant_branch.lcrf.projection.linear.weight
    with torch.no_grad():
        kept = first.clone()
        first.zero_()
    output = model(clouds())
    assert torch.autograd.grad(output.invariant.sum(), head)[0].abs().max() == 0
    with torch.no_grad():
        first.copy_(kept)
    output = model(clouds())
    assert torch.autograd.grad(output.invariant.sum(), head)[0].abs().max() > 0


def test_points_of_another_precision_are_refused():
    model = create_model("dgcnn", 3, k=4)
    with pytest.raises(
        ValueError, match=r"points are torch.float64 and the model is torch.float32"
    ):
        model(torch.zeros(1, 8, 3, dtype=torch.float64))
    with (
        torch.autocast("cpu", torch.bfloat16),  # which rounds products, not coordinates
        pytest.raises(ValueError, match=r"points are torch.bfloat16 and the model is"),
    ):
        model(torch.zeros(1, 8, 3, dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SMALL)
def test_half_precision_on_a_cpu(name, dtype):
    model = build(name).eval()
    with torch.no_grad():
        expected = model(clouds()).logits
        logits = model.to(dtype)(clouds().to(dtype)).logits
    assert logits.dtype == dtype
    assert (logits.double() - expected).abs().max() < 0.1 * expected.abs().max()
