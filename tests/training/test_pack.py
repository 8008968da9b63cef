"""A finished run becomes weights by name."""

import json
import re
import shutil

import numpy as np
import pytest
import torch

from locotrans import create_model
from locotrans.cli import main
from locotrans.models import list_pretrained, pretrained
from locotrans.training import load_weights
from locotrans.training.checkpoint import read_tensors
from locotrans.training.pack import pack
from locotrans.training.report import writer_of

NAME = "locotrans_dgcnn_light"


@pytest.fixture
def shelf(uncut, tmp_path, monkeypatch):
    """A folder of packed weights in the place of the package's."""
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "weights")
    assert pack(uncut) == tmp_path / "weights" / f"{NAME}.safetensors"
    return tmp_path / "weights"


def test_packed_weights_by_name(shelf, uncut, generator):
    model = create_model(NAME, pretrained=True)
    trained, _ = load_weights(uncut / "weights.safetensors")
    points = torch.randn(3, 16, 3, generator=generator)
    error = (model(points).logits - trained(points).logits).abs().max()
    assert 0 < error < 0.05 * trained(points).logits.abs().max()  # float16
    assert not model.training
    assert model.config == trained.config
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert list_pretrained() == [NAME]
    stored, _ = read_tensors(shelf / f"{NAME}.safetensors")
    for name, x in stored.items():
        assert x.dtype == torch.float16 or x.dim() < 2, name


def test_what_is_known_of_the_weights(shelf, uncut):
    facts = json.loads((shelf / f"{NAME}.json").read_text())
    record = json.loads((uncut / "record.json").read_text())
    assert facts["record"] == record
    assert writer_of(shelf / f"{NAME}.json") == "pack"
    assert str(uncut.parent) not in (shelf / f"{NAME}.json").read_text()  # nor where it was trained
    assert str(uncut.parent).encode() not in (shelf / f"{NAME}.safetensors").read_bytes()
    assert facts["data_checksums"] == record["data_checksums"]
    assert len(facts["class_names"]) == facts["num_classes"]
    assert "16 points" in facts["preprocessing"]
    card = (shelf / f"{NAME}.md").read_text()
    accuracy = 100 * record["evaluation"]["heads"]["combined"]["overall_accuracy"]
    assert f"| combined | {accuracy:.2f} |" in card
    assert facts["sha256"] in card
    assert "last epoch" in card
    assert f"seed {record['seed']}, float32, by" in card
    assert "epochs 3" in card  # it says where the run departs from its recipe


def test_other_options_and_classes_are_refused(shelf):
    assert create_model(NAME, pretrained=True, k=4, widths=(8, 8)).config.k == 4
    with pytest.raises(ValueError, match="were trained with k=4, not 20"):
        create_model(NAME, pretrained=True, k=20)
    with pytest.raises(ValueError, match="classes apart, not 7"):
        create_model(NAME, 7, pretrained=True)


def test_damaged_and_missing_weights(shelf):
    with pytest.raises(ValueError, match=rf"for 'dgcnn' \(there are: {NAME}\); train the model"):
        create_model("dgcnn", pretrained=True)
    path = shelf / f"{NAME}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        create_model(NAME, pretrained=True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"sha256": "12', "Unterminated string"),
        (b"", "Expecting value"),
        (b"\xff\xfe", "can't decode byte"),
        (b"[]", "it does not describe weights"),
        (b'{"sha256": "12"}', "it does not describe weights"),
    ],
)
def test_a_damaged_description_of_weights_is_named(shelf, content, reason, capsys):
    about = shelf / f"{NAME}.json"
    about.write_bytes(content)
    message = rf"{re.escape(str(about))} is damaged \(.*{reason}.*install locotrans again"
    with pytest.raises(ValueError, match=message):
        create_model(NAME, pretrained=True)
    with pytest.raises(SystemExit):
        main(["eval", NAME, "--pretrained"])
    assert "install locotrans again" in capsys.readouterr().err


def test_eval_of_packed_weights(shelf, uncut, tmp_path, capsys):
    shared = ["--data", "builtin", "--shapes", "10", "--rotations", "1"]
    files = [tmp_path / "packed.json", tmp_path / "run.json"]
    main(["eval", NAME, "--pretrained", *shared, "--json", str(files[0])])
    main(["eval", str(uncut), *shared, "--json", str(files[1])])
    packed, run = (json.loads(file.read_text()) for file in files)
    assert packed["data_checksum"] == run["data_checksum"]
    assert packed["training"]["settings"] == run["training"]["settings"]
    assert packed["training"]["stored"] == "float16"  # so that `report` tells them apart
    assert "stored" not in run["training"]
    assert abs(packed["overall_accuracy"] - run["overall_accuracy"]) <= 0.1
    with pytest.raises(SystemExit) as caught:
        main(["eval", "dgcnn", "--pretrained"])
    assert caught.value.code == 2
    assert "no trained weights come with locotrans for 'dgcnn'" in capsys.readouterr().err


def test_weights_that_are_there_are_not_overwritten(shelf, uncut, capsys):
    before = (shelf / f"{NAME}.safetensors").stat().st_mtime_ns
    with pytest.raises(SystemExit):
        main(["pack", str(uncut)])
    assert f"{NAME}.safetensors is there already" in capsys.readouterr().err
    assert (shelf / f"{NAME}.safetensors").stat().st_mtime_ns == before
    main(["pack", str(uncut), "--replace"])
    assert (shelf / f"{NAME}.safetensors").stat().st_mtime_ns > before


def test_an_unfinished_run_is_not_packed(uncut, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(uncut, run)
    (run / "record.json").unlink()
    with pytest.raises(ValueError, match="is not a finished run"):
        pack(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_predict_takes_the_packed_weights_by_default(shelf, tmp_path, capsys, monkeypatch):
    cloud = tmp_path / "cloud.npy"
    np.save(cloud, np.random.default_rng(0).normal(size=(40, 3)))
    main(["predict", str(cloud), "--device", "cpu"])
    assert str(cloud) in capsys.readouterr().out
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["predict", str(cloud)])
    assert caught.value.code == 2
    assert "no trained weights come with locotrans" in capsys.readouterr().err
