"""What can be named: models, weights, functions; and the command and the fixture around them."""

import json

import pytest
import torch

from locotrans.certify.run import certify_target, load_clouds
from locotrans.certify.targets import load_target
from locotrans.cli import main
from locotrans.models import create_model
from locotrans.training.checkpoint import write_tensors
from strangers import lengths

OPTIONS = ["k=5", "head_widths=12,8", "widths=8,8", "embedding=16"]
QUICK = ["--points", "24", "--shapes", "2", "--radius", "120", "--rotations", "2"]


def status(arguments):
    try:
        main(["certify", *arguments])
    except SystemExit as stop:
        return stop.code
    return 0


def test_a_name_gives_fresh_weights_and_takes_options():
    target = load_target("dgcnn", OPTIONS, classes=3)
    assert target.model.config.k == 5
    assert target.name == "dgcnn (fresh weights)"
    again = load_target("dgcnn", OPTIONS, classes=3)
    assert torch.equal(target.model.head.logits.weight, again.model.head.logits.weight)


def test_weights(tmp_path):
    model = create_model("dgcnn", 3, k=5, head_widths=(12, 8), widths=(8, 8), embedding=16)
    header = {"model": "dgcnn", "num_classes": 3}
    config = {"k": 5, "head_widths": [12, 8], "widths": [8, 8], "embedding": 16}
    path = tmp_path / "weights.safetensors"
    write_tensors(path, model.state_dict(), {**header, "config": config})
    for spec in (path, tmp_path):
        loaded = load_target(str(spec)).model
        assert torch.equal(loaded.head.logits.weight, model.head.logits.weight)
    with pytest.raises(ValueError, match="options belong to a model by name"):
        load_target(str(path), OPTIONS)


def test_functions_and_what_makes_networks():
    assert load_target("strangers:lengths").model is lengths
    assert isinstance(load_target("strangers:make").model, torch.nn.Sequential)
    for spec, words in (
        ("strangers:nothing", "cannot be imported"),
        ("no_such_module:f", "cannot be imported"),
        ("strangers:CENTER", "not a function or a network"),
        ("dgccn", "neither a file, nor module:function, nor a model"),
    ):
        with pytest.raises(ValueError, match=words):
            load_target(spec)


@pytest.mark.slow
def test_the_command_says_pass_or_fail_by_its_status(tmp_path, capsys):
    report, picture = tmp_path / "c.json", tmp_path / "c.png"
    assert status(["strangers:lengths", *QUICK]) == 0
    assert "passes" in capsys.readouterr().out
    wanted = ["--json", str(report), "--picture", str(picture)]
    assert status(["dgcnn", *QUICK, *wanted, "--options", *OPTIONS]) == 1
    assert "FAIL" in capsys.readouterr().out
    assert json.loads(report.read_text())["environment"]["torch"] == torch.__version__
    assert picture.exists()


def test_declarations_can_be_given():
    target = load_target("strangers:lengths")
    clouds, _ = load_clouds([], points=24, shapes=2)

    def passes(**declared):
        return certify_target(target, clouds, radius=120.0, rotations=1, **declared).passed

    assert passes()
    assert not passes(keeps=["rotation", "scale"])
    assert passes(breaks=["scale"])
    assert not passes(outputs=["output=equivariant"])
    with pytest.raises(ValueError, match="NAME=invariant"):
        passes(outputs=["output"])


def test_clouds_of_files(tmp_path):
    cloud = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    (tmp_path / "a.xyz").write_text("\n".join(" ".join(map(str, row)) for row in cloud.tolist()))
    clouds, facts = load_clouds([tmp_path / "a.xyz"], points=30)
    assert clouds.shape == (1, 30, 3)
    assert facts == "1 file, 30 points of each"
    with pytest.raises(ValueError, match=r"b\.xyz cannot be used"):
        load_clouds([tmp_path / "b.xyz"])


def test_bad_input(tmp_path, capsys):
    assert status(["strangers:lengths", "--json", str(tmp_path / "no" / "c.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err


PLUGIN_TEST = """
import torch

def test_good(certify_invariance):
    certificate = certify_invariance(lambda p: p.norm(dim=-1).sort(dim=-1).values[:, :9])
    assert certificate.precision == "float64"

def test_bad(certify_invariance):
    certify_invariance(lambda p: p.mean(1))
"""


def test_the_fixture_fails_a_test_with_the_table(pytester):
    pytester.makepyfile(PLUGIN_TEST)
    pytester.makeini("[pytest]\naddopts =")
    result = pytester.runpytest_inprocess("-p", "no:xdist")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*random rotations *FAIL*", "*the network fails*"])
