import dataclasses
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from locotrans import __version__
from locotrans.cli import main
from locotrans.cli.describe import level, shape_flow
from locotrans.cli.shared import trained_shapes, with_classes_of, with_parts_of
from locotrans.data import CloudSet
from locotrans.models import create_model, pretrained
from locotrans.training import Stopped
from locotrans.training.checkpoint import read_tensors, write_tensors

COMMANDS = ["demo", "train", "eval", "perturb", "predict", "embed", "info", "list", "data"]
OPTIONS = ["k=4", "widths=8,8", "embedding=16", "head_widths=16,8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a tiny DGCNN."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    main([*train_arguments(folder)])
    return folder


def train_arguments(folder, epochs=1):
    arguments = ["train", "--model", "dgcnn", "--data", "builtin", "--rotation", "z"]
    arguments += ["--epochs", str(epochs), "--out", str(folder), "--options", *OPTIONS]
    sizes = {"--points": "16", "--shapes": "16", "--test-shapes": "10", "--batch-size": "8"}
    return [*arguments, *itertools.chain(*sizes.items())]


def error_of(arguments, capsys):
    """Return the one line that a mistake leaves."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"locotrans {__version__}\n"


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--preset", "shapenetpart_adamw"], ("dropout=0.2",)),
        (["--preset", "shapenetpart_adamw", "--options", "k=8"], ("dropout=0.2", "k=8")),
        (["--preset", "shapenetpart_adamw", "--options", "dropout=0.3"], ("dropout=0.3",)),
        (["--config", "{}/ours.toml", "--options", "k=4"], ("dropout=0.2", "k=4")),
        (["--config", "{}/ours.toml"], ("dropout=0.2", "refine=true")),
        (["--preset", "shapenetpart", "--options", "k=8"], ("k=8",)),
    ],
)
def test_options_count_beside_those_of_a_preset(flags, options, tmp_path, monkeypatch):
    (tmp_path / "ours.toml").write_text(
        'preset = "shapenetpart_adamw"\noptions = ["refine=true"]\n'
    )
    configs = []

    def train(config, **_):
        configs.append(config)
        raise Stopped("as asked")

    monkeypatch.setattr("locotrans.training.train", train)
    with pytest.raises(SystemExit):
        main(["train", *(flag.format(tmp_path) for flag in flags)])
    assert [config.options for config in configs] == [options]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    assert "usage: locotrans" in capsys.readouterr().out


def test_every_setting_has_a_help_text(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in ("Model to train", "Passes over the training set", "up axis", "JSON or TOML"):
        assert words in text


def test_list(capsys):
    main(["list"])
    output = capsys.readouterr().out
    assert "locotrans_dgcnn_light" in output
    assert "builtin" in output


def test_info(capsys):
    main(["info", "dgcnn", "--classes", "3", "--points", "32", "--options", *OPTIONS])
    output = capsys.readouterr().out
    count = sum(p.numel() for p in create_model("dgcnn", 3, **small()).parameters())
    assert f"parameters {count:,}" in output
    assert "FLOPs" in output
    assert "(1, 32, 16)" in output


def small():
    return {"k": 4, "widths": (8, 8), "embedding": 16, "head_widths": (16, 8)}


def test_shape_flow_ends_with_the_whole_model():
    model = create_model("dgcnn", 3, **small()).eval()
    name, shapes, parameters = shape_flow(model, torch.randn(1, 32, 3), depth=2)[-1]
    assert name == "(whole)"
    assert shapes.splitlines()[0] == "logits (1, 3)"
    assert parameters == sum(p.numel() for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["locotrans_dgcnn", "locotrans_dgcnn_light"])
def test_shape_flow_lists_every_module_with_parameters(name):
    model = create_model(name, 3, k=4).eval()
    with torch.no_grad():
        flow = shape_flow(model, torch.randn(1, 32, 3), depth=2)
    listed = [row[0] for row in flow]
    expected = [
        name or "(whole)"
        for name, module in model.named_modules()
        if level(name) <= 2 and list(module.parameters()) and not isinstance(module, nn.ModuleList)
    ]
    assert sorted(listed) == sorted(expected)
    for layer in range(4):
        assert f"equivariant_branch.backbone.convs.{layer}" in listed
    assert "equivariant_branch.invariants" in listed
    assert "invariant_branch.convs.2" in listed


def test_train_then_eval(run, tmp_path, capsys):
    result = tmp_path / "result.json"
    shared = ["--data", "builtin", "--rotation", "z", "--shapes", "10"]
    main(["eval", str(run), *shared, "--json", str(result)])
    output = capsys.readouterr().out
    values = json.loads(result.read_text())
    assert {"overall_accuracy", "class_accuracy", "rotation_agreement", "heads"} <= values.keys()
    assert values["model"] == "dgcnn"
    assert values["axis"] in ("x", "y", "z")
    assert f"about the {values['axis']} axis" in " ".join(output.split())
    main(["eval", str(run / "weights.safetensors"), *shared, "--json", str(result)])
    again = json.loads(result.read_text())
    assert again["heads"] == values["heads"]


def test_eval_takes_the_shapes_that_the_run_took(run, tmp_path):
    result = tmp_path / "result.json"
    checksums = json.loads((run / "record.json").read_text())["data_checksums"]
    for flags, samples in (([], 10), (["--split", "train"], 16), (["--shapes", "4"], 4)):
        main(["eval", str(run), *flags, "--rotations", "1", "--json", str(result)])
        values = json.loads(result.read_text())
        assert values["samples"] == samples
        same = values["data_checksum"] == checksums[values["split"]]
        assert same == (flags[:1] != ["--shapes"])
    metadata = read_tensors(run / "weights.safetensors")[1]
    assert trained_shapes(metadata, "builtin", "test") == 10
    for data, split in (("builtin:seed=1", "test"), (None, "val")):
        assert trained_shapes(metadata, data, split) is None
    del metadata["settings"]  # as in weights that `convert` wrote
    assert trained_shapes(metadata, None, "test") is None


def test_training_again_says_that_it_is_finished(run, capsys):
    main(train_arguments(run))
    assert "is finished" in capsys.readouterr().out


def test_a_config_file_and_a_flag_over_it(run, tmp_path, capsys):
    out = tmp_path / "second"
    main(["train", f"--config={run / 'config.json'}", "--seed", "5", "--out", str(out)])
    first, second = (json.loads((folder / "config.json").read_text()) for folder in (run, out))
    assert second == {**first, "seed": 5, "out": str(out)}


def test_other_settings_in_the_same_folder(run, capsys):
    assert "epochs was 1, is 2" in error_of(train_arguments(run, epochs=2), capsys)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("train --model lenet --out {}/new", "unknown model 'lenet'"),
        ("train --data mnist --out {}/new", "unknown data set 'mnist'"),
        ("train --options k=ten --out {}/new", "k must be int, got 'ten'"),
        ("train --epochs 0", "epochs must be at least 1"),
        ("train --config {}/none.json", "cannot read the config file"),
        ("demo --out {}/text.safetensors", "text.safetensors is a file; choose another --out"),
        ("eval {}/cut --json {}", "it is not a file; name another one"),
        ("eval {}/cut --json {}/text.safetensors/x", "there is no folder"),
        ("info lenet", "unknown model 'lenet'"),
        ("info dgcnn --points 3", "too small for k = 20"),
        ("info dgcnn --options k", "KEY=VALUE"),
        (
            "eval {}/none.safetensors --data builtin",
            "none.safetensors: there is no such run folder or weights file",
        ),
        ("eval {} --data builtin", "is not a run folder: it holds no weights.safetensors"),
        ("eval {}/cut --data builtin", "cut is not finished"),
        ("eval {}/text.safetensors --data builtin", "text.safetensors is damaged or not"),
        ("perturb {}/none", "no such run folder or weights file"),
        ("predict --weights {}/cut", "name files or folders"),
        ("predict {}/a.ply --weights {}/cut", "cut is not finished"),
        ("embed {}/a.ply --weights {}/text.safetensors --out x.npz", "damaged or not"),
    ],
)
def test_mistakes_end_in_one_line(arguments, reason, tmp_path, capsys):
    (tmp_path / "text.safetensors").write_text("not a tensor in sight")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "config.json").write_text("{}")
    assert reason in error_of(arguments.replace("{}", str(tmp_path)).split(), capsys)
    assert not (tmp_path / "new").exists()


def test_mistakes_of_eval(run, tmp_path, capsys):
    evaluate = ["eval", str(run), "--shapes", "10"]
    assert "unknown data set" in error_of([*evaluate, "--data", "mnist"], capsys)
    assert "at least 1" in error_of([*evaluate, "--rotations", "0"], capsys)
    assert "too small for k" in error_of([*evaluate, "--points", "3"], capsys)
    assert "not available" in error_of([*evaluate, "--device", "abacus"], capsys)
    nobody = tmp_path / "nobody.txt"
    nobody.write_text("\n")
    message = error_of(["eval", str(run), "--exclude", str(nobody)], capsys)
    assert "nobody.txt names no shapes to exclude" in message
    tensors, metadata = read_tensors(run / "weights.safetensors")
    other = tmp_path / "other.safetensors"
    write_tensors(other, tensors, {**metadata, "class_names": ["cat", "dog"]})
    message = error_of(["eval", str(other)], capsys)
    assert "tells other classes apart" in message
    assert "classes of the weights alone: cat, dog; classes of the data alone: table," in message
    unwritable = tmp_path / "missing" / "result.json"
    assert "there is no folder" in error_of([*evaluate, "--json", str(unwritable)], capsys)
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    assert "it is not a file" in error_of([*evaluate, "--json", str(link)], capsys)
    assert link.is_symlink()
    nameless = tmp_path / "nameless.safetensors"
    write_tensors(nameless, tensors, {k: v for k, v in metadata.items() if k != "points"})
    assert "it has no 'points'" in error_of(["eval", str(nameless)], capsys)


def test_perturb(run, tmp_path, capsys):
    result = tmp_path / "result.json"
    flags = ["--shapes", "10", "--noise", "0", "0.02", "--dropped", "3", "--severities", "2"]
    main(["perturb", str(run), *flags, "--corruptions", "ball", "drop", "--json", str(result)])
    output = capsys.readouterr().out
    assert all(words in output for words in ("noise, sigma", "points dropped", "severity", "ball"))
    values = json.loads(result.read_text())
    assert (values["model"], values["weights"], values["rotation"]) == ("dgcnn", str(run), "so3")
    assert [row["name"] for row in values["rows"]] == [
        *("none", "noise", "noise", "dropped", "ball", "drop")
    ]
    assert [row["points"] for row in values["rows"]] == [16, 16, 16, 13, 16, 10]
    bad = ["perturb", str(run), "--shapes", "10", "--dropped", "15"]
    assert "can drop 0 to 12 of 16 points, as the network looks at 4" in error_of(bad, capsys)


def test_predict_and_embed(run, tmp_path, capsys):
    cloud = np.random.default_rng(0).normal(size=(40, 3))
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a,\n\x1bb.npy", cloud)
    arguments = [str(tmp_path / "in"), "--weights", str(run)]
    main(["predict", *arguments, "--rotations", "2"])  # returns: the status is 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert "a,\\n\\x1bb.npy: " in captured.out
    assert "agreement" in captured.out
    np.save(tmp_path / "in" / "bad.npy", cloud[:0])
    for command in (["predict", "--csv"], ["embed", "--out"]):
        out = tmp_path / f"{command[0]}.npz"
        with pytest.raises(SystemExit) as caught:
            main([command[0], *arguments, command[1], str(out)])
        assert caught.value.code == 1
        assert out.exists()
        assert "2 files in" in capsys.readouterr().err


def test_mistakes_of_predict(run, tmp_path, capsys):
    cloud = tmp_path / "cloud.npy"
    np.save(cloud, np.eye(3))
    predict = ["predict", str(cloud), "--weights", str(run)]
    assert "too small for k" in error_of([*predict, "--points", "3"], capsys)
    assert "not available" in error_of([*predict, "--device", "abacus"], capsys)
    missing = str(tmp_path / "missing" / "x.csv")
    assert "x.csv: No such file or directory" in error_of([*predict, "--csv", missing], capsys)
    assert "it is not a file" in error_of([*predict, "--csv", str(tmp_path)], capsys)
    assert "would replace" in error_of([*predict, "--json", str(cloud)], capsys)
    both = ["--csv", str(tmp_path / "x"), "--json", str(tmp_path / "x")]
    assert "name two files" in error_of([*predict, *both], capsys)
    tensors, metadata = read_tensors(run / "weights.safetensors")
    other = tmp_path / "other.safetensors"
    write_tensors(other, tensors, {**metadata, "class_names": ["cat", "dog"]})
    assert "does not name the" in error_of([*predict[:3], str(other)], capsys)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["cloud.npy", "other.safetensors"]


@pytest.mark.parametrize("words", ["view {}", "predict {}", "embed {} --out x.npz", "align {} {}"])
def test_weights_that_a_package_lacks_are_named(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)  # where none are
    np.save(tmp_path / "cloud.npy", np.eye(3))
    error = error_of(words.replace("{}", str(tmp_path / "cloud.npy")).split(), capsys)
    assert "locotrans_dgcnn_light" in error


@pytest.mark.slow
def test_output_that_nobody_reads_is_no_traceback(run, tmp_path):
    np.save(tmp_path / "a.npy", np.eye(3))
    program = [sys.executable, "-c", "from locotrans.cli import main; main()"]
    command = [*program, "predict", str(tmp_path), "--weights", str(run)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        process.stdout.close()
        assert process.wait() == 1
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("arguments", ["train --rotation y", "train --bogus 1", "fly", "eval"])
def test_unknown_flags_and_choices(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments.split())
    assert caught.value.code == 2


def test_layouts_that_help_names_can_be_exported():
    """An example of a help text is a promise."""
    from locotrans.cli.data import export_data
    from locotrans.data.exports import LAYOUTS

    line = re.search(r"for example (.*)\.", export_data.__doc__)
    names = line[1].split(", ")
    assert len(names) == 3
    assert set(names) <= set(LAYOUTS)


def test_data_sets_that_help_names_can_be_loaded(tmp_path):
    """Names with a variant or settings, wherever they stand in help, README or guides."""
    from locotrans import cli
    from locotrans.data import list_datasets, load_dataset
    from locotrans.data.exports import LAYOUTS

    pages = [*Path(cli.__file__).parent.glob("*.py"), *Path(__file__).parent.parent.glob("*.md")]
    pages += Path(__file__).parent.parent.glob("docs/*.md")
    pattern = rf"\b(?:{'|'.join(list_datasets())}):[a-z][\w=.,]*\w"
    names = {name for page in pages for name in re.findall(pattern, page.read_text())}
    assert len(names) > 3
    for name in names - set(LAYOUTS):
        with pytest.raises(FileNotFoundError):  # the name is right, the files are not there
            load_dataset(name, "train", root=tmp_path / "none")


def test_what_the_system_refuses_is_told_in_words(tmp_path, capsys):
    gone = tmp_path / "gone"
    said = error_of(["checkpoint", "split", str(gone)], capsys)
    assert said == f"error: {gone}: no such file or directory\n"


def test_nothing_to_cut_or_to_join_is_said(tmp_path, capsys):
    (tmp_path / "small").write_text("a")
    main(["checkpoint", "split", str(tmp_path)])
    assert capsys.readouterr().out == f"{tmp_path}: nothing is larger than 16 MiB\n"
    main(["checkpoint", "join", str(tmp_path)])
    assert capsys.readouterr().out == f"{tmp_path}: there are no parts to join\n"


def test_a_run_on_data_of_ones_own_is_evaluated_where_they_are(
    own_folder, tmp_path, capsys, monkeypatch
):
    run, result = tmp_path / "run", tmp_path / "result.json"
    monkeypatch.chdir(own_folder.parent)
    shared = ["--data", "folder", "--root", own_folder.name, "--model", "dgcnn"]
    shared += ["--options", *OPTIONS]
    main(
        [
            "train",
            *shared,
            "--points",
            "32",
            "--batch-size",
            "4",
            "--epochs",
            "1",
            "--out",
            str(run),
        ]
    )
    monkeypatch.chdir("/")
    main(["eval", str(run), "--json", str(result)])  # whose root the run knows
    whole = json.loads(result.read_text())
    assert whole["samples"] == 6
    shutil.rmtree(own_folder / "apple")
    main(["eval", str(run), "--json", str(result)])  # a part of the classes
    some = json.loads(result.read_text())
    assert some["samples"] == 4
    (own_folder / "pear").rename(own_folder / "melon")
    message = error_of(["eval", str(run)], capsys)
    assert "classes of the data alone: melon" in message
    assert "evaluate it on data such as it was trained on" in message
    (own_folder / "melon").rename(own_folder / "pear")
    monkeypatch.chdir(tmp_path)
    main(["eval", str(run / "weights.safetensors"), "--data", "folder"])
    own_folder.rename(tmp_path / "moved")
    assert "name the folder" in error_of(["eval", str(run)], capsys)
    (run / "config.json").write_text('{"future": 1}')
    main(["eval", str(run), "--root", str(tmp_path / "moved")])
    assert "name the folder" in error_of(["eval", str(run)], capsys)


def test_classes_are_numbered_as_in_the_weights():
    data = CloudSet("d", "test", "z", torch.randn(3, 4, 3), torch.tensor([0, 1, 1]), ("b", "c"))
    known = with_classes_of({"class_names": ["a", "c", "b"]}, data)
    assert known.labels.tolist() == [2, 1, 1]
    assert known.class_names == ("a", "c", "b")
    assert known.source == data.checksum
    assert with_classes_of({"class_names": ["a", "b"]}, data) is data


def test_parts_known_by_number_are_named_as_in_the_weights():
    parts = torch.tensor([[0, 1, 1]])
    points, label = torch.randn(1, 3, 3), torch.tensor([0])
    data = CloudSet("d", "test", "z", points, label, ("a",), parts=parts, part_names=("0", "1"))
    renamed = with_parts_of({"part_names": ["0", "b/1", "2"]}, data)
    assert renamed.part_names == ("0", "b/1", "2")
    assert renamed.source == data.checksum
    assert with_parts_of({"part_names": ["leg"]}, data) is data
    bare = dataclasses.replace(data, parts=None, part_names=())
    assert with_parts_of({"part_names": ["0", "1"]}, bare) is bare
    named = dataclasses.replace(data, part_names=("leg", "seat"))
    assert with_parts_of({"part_names": ["0", "1"]}, named) is named


def test_a_distance_belongs_to_duplicates(capsys):
    message = error_of(["search", "a.index", "b.ply", "--within", "0.1"], capsys)
    assert "--within belongs to --duplicates" in message
