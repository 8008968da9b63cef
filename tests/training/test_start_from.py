"""Training that begins with the weights of another run."""

import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from locotrans.cli import main
from locotrans.data import load_dataset
from locotrans.models import create_model, list_models, model_task, pretrained
from locotrans.training import Stopped, TrainConfig, load_weights, train
from locotrans.training.checkpoint import read_tensors
from locotrans.training.config import to_json
from locotrans.training.pack import pack
from locotrans.training.run import Run
from locotrans.training.start_from import knows

QUIET = Console(file=io.StringIO())


def still(config: TrainConfig) -> TrainConfig:
    """Return a run whose steps change no weights, so that it ends with those that it began with."""
    return dataclasses.replace(config, lr=0.0, final_lr=0.0)


@pytest.fixture
def fruit(tiny, own_folder, uncut):
    """A run on three classes of one's own, from weights for the built-in ones."""
    return dataclasses.replace(
        tiny, data="folder", root=own_folder, shapes=None, test_shapes=None, start_from=str(uncut)
    )


def test_all_but_the_last_layers_are_taken_over(fruit, uncut):
    before = read_tensors(uncut / "weights.safetensors")[0]
    record = train(still(fruit), QUIET)
    model, facts = load_weights(fruit.out)
    parameters = dict(model.named_parameters())
    new = {name for name, x in parameters.items() if before[name].shape != x.shape}
    assert new == {name for name in parameters if "logits" in name}
    assert all(torch.equal(x, before[name]) for name, x in parameters.items() if name not in new)
    assert record["start"] == facts["start"]
    assert record["config"]["start_from"] == "locotrans_dgcnn_light on builtin"
    assert str(uncut) not in json.dumps(record)
    header = read_tensors(uncut / "weights.safetensors")[1]
    assert record["start"]["sha256"] == header["sha256"]
    assert record["start"]["data"] == "builtin"
    assert record["start"]["fresh"] == ["logits"]


def test_of_the_same_classes_all_is_taken_over(tiny, uncut):
    run = Run(dataclasses.replace(tiny, start_from=str(uncut), averaging=0.9))
    before = read_tensors(uncut / "weights.safetensors")[0]
    for network in (run.model, run.result):
        assert all(torch.equal(x, before[name]) for name, x in network.state_dict().items())
    assert run.start is not None
    assert run.start["fresh"] == []
    assert not run.folder.exists()


def test_a_run_that_was_cut_needs_them_no_more(fruit, uncut, tmp_path):
    whole = dataclasses.replace(fruit, out=tmp_path / "whole")
    train(whole, QUIET)
    moved = tmp_path / "moved"
    uncut.rename(moved)
    try:
        with pytest.raises(FileNotFoundError, match="there is no such run folder or weights file"):
            train(fruit, QUIET)
        moved.rename(uncut)
        with pytest.raises(Stopped):
            train(fruit, QUIET, stop_after=0.0)
        uncut.rename(moved)
        record = train(fruit, QUIET)
    finally:
        moved.rename(uncut)
    assert record["start"]["data"] == "builtin"
    one, other = (read_tensors(x.out / "weights.safetensors")[0] for x in (fruit, whole))
    assert all(torch.equal(x, other[name]) for name, x in one.items())
    with pytest.raises(ValueError, match=r"start_from was .*, is None"):
        train(dataclasses.replace(fruit, start_from=None), QUIET)


def test_other_networks_are_refused_with_what_to_say(tiny, uncut):
    for changes, remedy in (
        ({"model": "vn_dgcnn", "options": ()}, "add --model locotrans_dgcnn_light"),
        ({"options": (*tiny.options, "widths=8,12")}, r"add --options widths=8,8, or"),
        ({"options": (*tiny.options, "append_mean=true")}, "add --options append_mean=false"),
    ):
        with pytest.raises(ValueError, match=remedy):
            train(dataclasses.replace(tiny, start_from=str(uncut), **changes), QUIET)
        assert not tiny.out.exists()
    free = dataclasses.replace(tiny, start_from=str(uncut), options=(*tiny.options, "dropout=0.1"))
    assert Run(free).start is not None


@pytest.mark.parametrize("name", list_models())
def test_what_depends_on_the_classes(name):
    """Layers for single classes are found by these names, and no others have rows for them."""

    def shapes(classes: int) -> dict[str, torch.Size]:
        extra = {"categories": classes} if model_task(name) == "parts" else {}
        state = create_model(name, classes, **extra).state_dict()
        return {key: x.shape for key, x in state.items()}

    few, many = shapes(3), shapes(5)
    differ = {key for key in few if few[key] != many[key]}
    fresh = {key for key in few if {"logits", "category"} & set(key.split("."))}
    assert differ == {key for key in fresh if ".norm." not in key}  # behind a layer that is fresh


def test_parts_of_other_categories(tiny, own_folder):
    parts = dataclasses.replace(tiny, model="locotrans_dgcnn_partseg_light", epochs=1)
    train(parts, QUIET)
    for kind in ("apple", "pear", "plum"):
        for path in sorted((own_folder / kind).iterdir()):
            count = len(np.load(path) if path.suffix == ".npy" else np.loadtxt(path))
            labels = "\n".join(map(str, np.arange(count) % 2))
            path.with_suffix(".seg").write_text(labels)
    own = dataclasses.replace(
        still(parts), data="folder", root=own_folder, shapes=None, test_shapes=None,
        start_from=str(parts.out), out=own_folder.parent / "fruit",
    )  # fmt: skip
    record = train(own, QUIET)
    assert record["start"]["fresh"] == ["logits", "category"]
    before, after = load_weights(parts.out)[0], load_weights(own.out)[0]
    assert torch.equal(
        before.invariant_branch.embed.linear.weight, after.invariant_branch.embed.linear.weight
    )
    assert before.category.layer.linear.weight.shape != after.category.layer.linear.weight.shape


def test_weights_of_the_package_by_name(fruit, uncut, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "shelf")
    pack(uncut)
    settings = {**to_json(fruit), "start_from": "locotrans_dgcnn_light"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(settings))
    main(["train", "--config", str(file)])
    said = capsys.readouterr().out
    assert "from the weights of a locotrans_dgcnn_light on builtin, new layers: logits" in said
    assert load_dataset("folder", "train", root=fruit.root, points=16).class_names == tuple(
        load_weights(fruit.out)[1]["class_names"]
    )
    with pytest.raises(SystemExit):
        main(["train", "--start-from", "nothing", "--out", str(tmp_path / "other")])
    wanted = "nothing: there is no such run folder or weights file"
    said = capsys.readouterr().err
    assert wanted in said
    assert "or weights that come with locotrans: locotrans_dgcnn_light" in said


def test_a_checkpoint_with_averaged_weights(tiny, tmp_path):
    averaged = dataclasses.replace(tiny, averaging=0.5, out=tmp_path / "averaged")
    with pytest.raises(Stopped):
        train(averaged, QUIET, stop_after=0.0)
    tensors, header = read_tensors(averaged.out / "checkpoint.safetensors")
    path = str(averaged.out / "checkpoint.safetensors")
    record = train(dataclasses.replace(still(tiny), start_from=path), QUIET)
    assert record["start"]["step"] == header["step"] == 1
    weights = read_tensors(tiny.out / "weights.safetensors")[0]
    names = [name for name in weights if name.endswith("weight")]
    assert all(torch.equal(weights[name], tensors[f"average/{name}"]) for name in names)
    assert not all(torch.equal(weights[name], tensors[name]) for name in names)


def test_a_chain_is_told_whole_and_seeds_of_it_are_one_recipe(fruit, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("locotrans.training.report.document.network_cost", lambda *_: (1, 2))
    train(fruit, QUIET)
    runs = [
        dataclasses.replace(
            fruit, start_from=str(fruit.out), seed=seed, out=tmp_path / f"again{seed}"
        )
        for seed in (0, 1)
    ]
    for run in runs:
        record = train(run, QUIET)
        assert record["start"]["fresh"] == []
        assert record["start"]["start"]["data"] == "builtin"
        whole = "locotrans_dgcnn_light on folder after locotrans_dgcnn_light on builtin"
        assert record["config"]["start_from"] == whole
    main(["report", *(str(run.out) for run in runs)])
    said = capsys.readouterr().out
    assert f"start_from {whole}" in said
    assert "(2)" in said
    assert str(tmp_path) not in said
    card = pack(runs[0].out, tmp_path / "shelf").with_suffix(".md").read_text()
    assert f"- **Began** with the weights of a {whole}" in card
    assert str(tmp_path) not in card


def test_numbers_are_the_same_classes_in_one_data_set_only(tiny, own_folder):
    data = load_dataset("folder", "train", root=own_folder, points=16)
    numbered = dataclasses.replace(data, part_names=("0", "1"))
    facts = {"data": "folder:up=y", "class_names": list(data.class_names), "part_names": ["0", "1"]}
    assert knows(facts, "part_names", numbered)
    assert not knows({**facts, "class_names": ["mug"]}, "part_names", numbered)
    assert not knows({**facts, "data": "csv"}, "part_names", numbered)
    assert not knows({**facts, "part_names": ["0", "1", "2"]}, "part_names", numbered)
    authors = {"data": "folder", "class_names": ["0", "1", "2"]}  # as after `locotrans convert`
    assert knows(authors, "class_names", data)
    assert not knows({**authors, "data": "modelnet40"}, "class_names", data)
