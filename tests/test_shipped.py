"""The weights that come with the package: whole, described, and good for what they are for."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from locotrans.cli import main
from locotrans.data import load_dataset, rotate
from locotrans.geometry import random_rotations
from locotrans.models import create_model, list_pretrained, pretrained, pretrained_weights
from locotrans.training import load_weights

PARTS, CLASSES = "locotrans_dgcnn_partseg_light", "locotrans_dgcnn_light"
KNOWN = ("airplane", "bottle", "chair", "table")
"""Built-in shapes that are classes of ModelNet40."""


@pytest.mark.parametrize("name", sorted({PARTS, CLASSES, *list_pretrained()}))
def test_every_file_has_its_description_and_card(name):
    path, facts = pretrained_weights(name)  # checks the SHA-256
    assert path.stat().st_size < 16 * 2**20
    card = (pretrained.FOLDER / f"{name}.md").read_text()
    assert facts["sha256"] in card
    assert facts["record"]["selection"] == "last epoch"
    evaluation = facts["record"]["evaluation"]
    assert evaluation["samples"] == evaluation["split_size"]  # on all of the test split
    assert evaluation["rotation"] == "so3"
    assert evaluation["rotation_agreement"] > 0.99
    assert not create_model(name, pretrained=True).training


def test_their_name_stands_for_them_everywhere(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where nothing else has that name
    _, facts = load_weights(CLASSES)
    assert len(facts["class_names"]) == 40
    rng = np.random.default_rng(0)
    for name, count in (("sparse", 255), ("cloud", 256)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(count, 3)))
    main(["predict", "sparse.npy", "cloud.npy", "--weights", CLASSES])
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert "warning: 1 file with fewer than 256 points" in said.err
    with pytest.raises(SystemExit):
        main(["predict", "cloud.npy", "--weights", "dgcnn"])
    assert f"weights that come with locotrans: {list_pretrained()[0]}" in capsys.readouterr().err
    main(["index", str(tmp_path), "--out", "clouds.index", "--weights", CLASSES])
    main(["index", str(tmp_path), "--out", "clouds.index"])  # as it was built
    main(["search", "clouds.index", "cloud.npy", "--k", "1", "--json", "found.json"])
    assert "cloud.npy" in str(json.loads(Path("found.json").read_text())["nearest"])


@pytest.fixture(scope="module")
def chair():
    """A chair that is none of ShapeNetPart's, and the names of its points' true parts."""
    shapes = load_dataset("builtin", "test", points=2048, shapes=40)
    row = shapes.labels.tolist().index(shapes.class_names.index("chair"))
    parts = [shapes.part_names[i] for i in shapes.parts[row].tolist()]
    return shapes.points[row], np.array([part.rpartition("/")[2] for part in parts])


def test_segment_takes_them_by_default_and_knows_a_chair(chair, tmp_path):
    points, truth = chair
    turned = rotate(points[None], random_rotations(1, generator=torch.Generator().manual_seed(1)))
    labels = []
    for number, cloud in enumerate((points, turned[0])):
        np.save(tmp_path / f"{number}.npy", cloud.numpy())
        words = ["segment", str(tmp_path / f"{number}.npy"), "--category", "chair"]
        assert main([*words, "--out", str(tmp_path / "out"), "--format", "npz"]) in (0, None)
        with np.load(tmp_path / "out" / f"{number}.npz") as file:
            labels.append(file["labels"])
    page = tmp_path / "page.html"
    words = ["view", str(tmp_path / "0.npy"), "--category", "chair", "--poses", "1"]
    main([*words, "--save", str(page)])
    assert "Chair/back" in page.read_text()
    names = json.loads((tmp_path / "out" / "segments.json").read_text())["names"]
    assert np.mean(labels[0] == labels[1]) >= 0.99
    said = np.array(names)[labels[0]]
    assert {name.partition("/")[0] for name in said} == {"Chair"}
    for part, name in {"back": "Chair/back", "seat": "Chair/seat", "leg": "Chair/leg"}.items():
        here = np.char.startswith(truth, part)
        assert here.any(), sorted(set(truth))
        assert np.mean(said[here] == name) > 0.7, part


def test_predict_takes_them_by_default_and_knows_shapes_in_any_pose(tmp_path):
    shapes = load_dataset("builtin", "test", points=2048, shapes=40)
    for name in KNOWN:
        row = shapes.labels.tolist().index(shapes.class_names.index(name))
        np.save(tmp_path / f"{name}.npy", shapes.points[row].numpy())
    answers = tmp_path / "answers.json"
    main(["predict", str(tmp_path), "--rotations", "3", "--json", str(answers)])
    said = json.loads(answers.read_text())
    assert [row["class"] for row in said] == list(KNOWN)
    assert {row["agreement"] for row in said} == {1.0}
    index = tmp_path / "shapes.index"
    main(["index", str(tmp_path), "--out", str(index)])
    found = tmp_path / "found.json"
    main(["search", str(index), str(tmp_path / "chair.npy"), "--k", "1", "--json", str(found)])
    assert "chair.npy" in str(json.loads(found.read_text())["nearest"])


def test_they_are_certified_by_name(tmp_path):
    certificate = tmp_path / "certificate.json"
    few = ["--points", "48", "--shapes", "2", "--radius", "120", "--rotations", "1"]
    assert not main(["certify", CLASSES, "--pretrained", *few, "--json", str(certificate)])
    assert CLASSES in certificate.read_text()
    assert "fresh weights" not in certificate.read_text()
