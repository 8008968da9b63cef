"""The converter, on state dicts made up under the authors' names; parity has the recorded ones."""

import re

import numpy as np
import pytest
import torch

from locotrans import create_model
from locotrans.cli import main
from locotrans.convert import _MODULES, _PROJECTIONS, _RPR, from_authors, our_name, read_authors
from locotrans.training import load_weights

CLASSES = 7
UNUSED = {"bn2": 64, "bn3": 128, "bn4": 256}


def their_name(name):
    """Invert the map of names, module by module."""
    module, _, leaf = name.rpartition(".")
    if match := re.fullmatch(r"equivariant_branch\.(.+?)\.(linear|direction|norm\.norm)", module):
        parts = {
            **{f"backbone.convs.{i}": f"conv{i + 1}_vn" for i in range(4)},
            "backbone.embed": "conv5_vn",
            **{ours: f"std_feature_vn.vn{number}" for number, ours in _PROJECTIONS.items()},
        }
        if match[1] in parts:
            kind = {"linear": "map_to_feat", "direction": "map_to_dir", "norm.norm": "batchnorm.bn"}
            return f"{parts[match[1]]}.{kind[match[2]]}.{leaf}"
    if match := re.fullmatch(r"invariant_branch\.convs\.(\d)\.(\w+)", module):
        theirs = {ours: name for name, ours in _RPR.items()}
        return f"pari_{int(match[1]) + 2}.{theirs[match[2]]}.{leaf}"
    first_names = {ours: name for name, ours in reversed(_MODULES.items())}
    return f"{first_names[module]}.{leaf}"


def their_layout(name, tensor):
    """Flatten vectors as (c, 3) instead of (3, c), and give convolutions their unit axes."""
    if name.endswith("kernel1.weight"):
        tensor = tensor.unflatten(1, (3, -1)).mT.flatten(1)
    if name == "equivariant_branch.hidden.linear.weight":
        tensor = tensor.unflatten(1, (2, 3, -1)).mT.flatten(1)
    if re.search(
        r"invariant_branch\.(convs|first)\..*(linear|basis|kernel\d|refine)\.weight", name
    ):
        tensor = tensor[..., None, None]
    return tensor


@pytest.fixture(scope="module", params=["locotrans_dgcnn", "locotrans_dgcnn_light"])
def network(request):
    torch.manual_seed(0)
    options = {"frames": "symmetric_printed", "center": False}
    model = create_model(request.param, CLASSES, **options)
    for buffer in model.buffers():  # running statistics of their own
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return model.eval()


@pytest.fixture
def theirs(network):
    state = {
        their_name(name): their_layout(name, tensor.clone())
        for name, tensor in network.state_dict().items()
    }
    for name, size in UNUSED.items():
        state |= {f"{name}.weight": torch.ones(size), f"{name}.bias": torch.zeros(size)}
    for alias, name in {"bn1": "conv1.1", "bn5": "conv5.1"}.items():
        state |= {
            f"{alias}.{leaf}": state[f"{name}.{leaf}"]
            for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        }
    return state


def test_round_trip(network, theirs):
    ours = from_authors(theirs)
    assert not ours.training
    assert ours.config == network.config
    assert ours.num_classes == CLASSES
    for name, tensor in network.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name
    points = torch.randn(1, 32, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(ours(points).logits, network(points).logits)


def test_names_of_data_parallel(network, theirs):
    ours = from_authors({f"module.{name}": tensor for name, tensor in theirs.items()})
    weight = "invariant_branch.first.linear.weight"
    assert torch.equal(ours.state_dict()[weight], network.state_dict()[weight])


def test_float64_stays_float64(theirs):
    doubled = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in theirs.items()
    }
    assert {p.dtype for p in from_authors(doubled).parameters()} == {torch.float64}


def test_parameters_that_their_network_never_uses_are_dropped(network, theirs):
    ours = sum(p.numel() for p in network.parameters())
    unused = sum(theirs[f"{name}.{leaf}"].numel() for name in UNUSED for leaf in ("weight", "bias"))
    assert unused == 896
    known = {"locotrans_dgcnn": 6_296_672, "locotrans_dgcnn_light": 2_291_343}
    name = "locotrans_dgcnn" if network.fusion is not None else "locotrans_dgcnn_light"
    classes_left_out = (40 - CLASSES) * (256 + 1) * (3 if network.fusion is not None else 2)
    assert ours + classes_left_out == known[name]
    assert all(our_name(f"{name}.weight") is None for name in UNUSED)


@pytest.mark.parametrize(
    "name",
    [
        "encoder.weight",
        "conv6_vn.map_to_feat.weight",
        "conv1_vn.weight",
        "conv1_vn.batchnorm.bn.scale",
        "pari_2.act.9.weight",
        "pari_5.basis_matrix.weight",
        "std_feature_vn.vn9.map_to_feat.weight",
        "weight",
    ],
)
def test_unknown_tensor(theirs, name):
    with pytest.raises(ValueError, match=f"'{name}' is not a tensor of the authors'"):
        from_authors({**theirs, name: torch.zeros(1)})


def test_missing_tensor(theirs):
    del theirs["conv2_vn.map_to_dir.weight"]
    with pytest.raises(ValueError, match=r"lacks .*backbone\.convs\.1\.direction\.weight"):
        from_authors(theirs)


def test_misshapen_tensor(theirs):
    theirs["conv2_vn.map_to_dir.weight"] = torch.zeros(21, 40)
    with pytest.raises(ValueError, match=r"direction\.weight has the shape \(21, 40\).*\(21, 42\)"):
        from_authors(theirs)


@pytest.mark.parametrize(
    "name", ["linear1_vn.weight", "pari_2.dynamic_kernel.0.weight", "linear3.weight"]
)
def test_tensor_that_cannot_even_be_reordered(theirs, name):
    theirs[name] = torch.zeros(5, 7)
    with pytest.raises(ValueError, match="shape"):
        from_authors(theirs)


def test_tensor_of_the_other_network():
    light = create_model("locotrans_dgcnn_light", CLASSES)
    state = {their_name(n): their_layout(n, t) for n, t in light.state_dict().items()}
    with pytest.raises(ValueError, match="does not belong to the light network"):
        from_authors({**state, "pari_2.act.2.weight": torch.zeros(64, 64)})


@pytest.mark.parametrize("state", [{}, {"bn2.weight": torch.ones(64)}])
def test_not_a_network_at_all(state):
    with pytest.raises(ValueError, match="not a LocoTrans network"):
        from_authors(state)


def test_a_tensor_that_is_no_tensor(theirs):
    theirs["linear2.weight"] = "weights"
    with pytest.raises(ValueError, match=r"linear2\.weight.*not a tensor"):
        from_authors(theirs)


def test_a_dict_around_the_state_dict(theirs):
    with pytest.raises(ValueError, match="lies within, under 'state_dict': give that entry"):
        from_authors({"epoch": 3, "state_dict": theirs})


def test_weights_that_are_not_finite(theirs):
    theirs["linear2.weight"][0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"'linear2\.weight' holds nan or inf"):
        from_authors(theirs)


def test_convert_writes_weights_that_eval_and_predict_take(theirs, network, tmp_path, capsys):
    checkpoint, out = tmp_path / "model.t7", tmp_path / "weights.safetensors"
    torch.save(theirs, checkpoint)
    main(["convert", str(checkpoint), "--out", str(out)])
    assert f"with {CLASSES} classes is in" in capsys.readouterr().out
    model, facts = load_weights(out)
    assert facts["class_names"] == [str(i) for i in range(CLASSES)]
    points = torch.randn(1, 32, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model(points).logits, network(points).logits)
    np.save(tmp_path / "cloud.npy", points[0].numpy())
    main(["predict", str(tmp_path / "cloud.npy"), "--weights", str(out), "--points", "32"])
    assert "cloud.npy" in capsys.readouterr().out
    names = tmp_path / "names.txt"
    names.write_text("night stand\nchair\n")
    for arguments, reason in {
        f"convert {checkpoint} --class-names {names}": "names 2 classes",
        f"convert {names}": "is damaged, or not a state dict",
        f"eval {checkpoint} --data builtin": f"locotrans convert {checkpoint}",
    }.items():
        with pytest.raises(SystemExit):
            main(arguments.split())
        assert reason in capsys.readouterr().err, arguments
    torch.save(None, checkpoint)
    with pytest.raises(ValueError, match=r"model\.t7: a state dict is a mapping .* NoneType"):
        read_authors(checkpoint)
