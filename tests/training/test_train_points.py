"""Segmenters through the training loop and the command line."""

import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from locotrans.cli import main
from locotrans.data import export, load_dataset
from locotrans.models import create_model, pretrained
from locotrans.training import TrainConfig, evaluate, load_weights, preset_config, train
from locotrans.training import loop as loop_module
from locotrans.training.augment import draw_labelled
from locotrans.training.config import parse_options
from locotrans.training.loop import learning_rate
from locotrans.training.pack import pack
from locotrans.training.step import Step
from locotrans.training.tasks import build_model, given

PARTS = TrainConfig(
    model="locotrans_dgcnn_partseg_light",
    options=(
        "k=4",
        "widths=8,8",
        "vector_widths=4,4",
        "embedding=16",
        "vector_embedding=8",
        "head_widths=16,8",
    ),
    points=24,
    shapes=26,
    test_shapes=10,
    batch_size=8,
    epochs=2,
    checkpoint_seconds=0.0,
    device="cpu",
)


def quiet():
    return Console(file=io.StringIO())


@pytest.fixture(scope="module")
def parts_run(tmp_path_factory):
    config = dataclasses.replace(PARTS, out=tmp_path_factory.mktemp("parts") / "run")
    return config.out, train(config, quiet())


def test_parts_are_trained_and_recorded(parts_run):
    out, record = parts_run
    model, metadata = load_weights(out / "weights.safetensors")
    test = load_dataset("builtin", "test", points=24, shapes=10)
    assert metadata["num_classes"] == len(metadata["part_names"]) == len(test.part_names)
    assert metadata["radius"] == pytest.approx(1, abs=1e-4)
    again = evaluate(model, test, "so3", batch_size=8)
    assert again["instance_miou"] == pytest.approx(record["evaluation"]["instance_miou"], abs=1e-9)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {"total", "invariant", "equivariant", "accuracy"} <= lines[0].keys()
    assert 0 < lines[0]["accuracy"] < 1


def test_a_cut_run_ends_with_the_same_weights(parts_run, tmp_path, monkeypatch):
    config = dataclasses.replace(PARTS, out=tmp_path / "run")
    step = loop_module.train_step

    def cut(run, batch):
        if run.step == 4:
            raise KeyboardInterrupt
        step(run, batch)

    monkeypatch.setattr(loop_module, "train_step", cut)
    with pytest.raises(KeyboardInterrupt):
        train(config, quiet())
    monkeypatch.undo()
    train(config, quiet())
    whole, resumed = (
        load_weights(d / "weights.safetensors")[0] for d in (parts_run[0], config.out)
    )
    for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_a_packed_network_for_parts_is_described_and_used_by_name(
    parts_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "weights")
    out, record = parts_run
    file = pack(out)
    facts = json.loads(file.with_suffix(".json").read_text())
    assert len(facts["part_names"]) == facts["num_classes"]
    assert create_model(file.stem, pretrained=True).config.categories == len(facts["class_names"])
    card = file.with_suffix(".md").read_text()
    assert "Labels 57 parts of shapes of 20 categories: table, " in card
    assert "`locotrans segment`" in card
    assert "| head | instance mIoU | class mIoU | overall | agreement |" in card
    assert f"| combined | {100 * record['evaluation']['instance_miou']:.2f} |" in card
    few = ["--shapes", "10", "--rotations", "1"]
    main(["eval", file.stem, "--pretrained", *few])
    assert "instance mIoU" in capsys.readouterr().out


@pytest.mark.slow
def test_eval_and_segment_on_the_command_line(parts_run, tmp_path, capsys):
    out, _ = parts_run
    result = tmp_path / "result.json"
    main(["eval", str(out), "--shapes", "10", "--rotations", "1", "--json", str(result)])
    shown = capsys.readouterr().out
    assert "instance mIoU" in shown
    assert "chaise_left" in shown
    facts = json.loads(result.read_text())
    assert {"class_miou", "instance_miou", "categories"} <= facts.keys()
    export("folder", tmp_path / "files", train=20, test=1, points=64)
    folders = [str(tmp_path / "files"), "--out", str(tmp_path / "labelled")]
    options = [*folders, "--weights", str(out)]
    with pytest.raises(SystemExit) as status:
        main(["segment", *options, "--category", "ufo"])
    assert status.value.code == 2
    assert "unknown category 'ufo'" in capsys.readouterr().err
    main(["segment", *options])
    assert len(list((tmp_path / "labelled").rglob("*.ply"))) == 21


def test_scenes_of_the_official_layout_with_colours(tmp_path, capsys):
    export("s3dis", tmp_path, train=6, test=6, points=64)
    config = dataclasses.replace(
        PARTS,
        model="locotrans_dgcnn_semseg",
        options=(*PARTS.options, "colors=true"),
        data="s3dis:area5,sphere=0.8",
        root=tmp_path,
        points=128,
        shapes=8,
        test_shapes=8,
        epochs=1,
        out=tmp_path / "run",
    )
    record = train(config, quiet())
    assert {"miou", "overall_accuracy", "class_accuracy", "classes"} <= record["evaluation"].keys()
    _, metadata = load_weights(tmp_path / "run/weights.safetensors")
    assert 0.5 < metadata["radius"] < 1.2
    few = ["--shapes", "4", "--rotations", "1"]
    main(["eval", str(tmp_path / "run"), "--root", str(tmp_path), *few])
    shown = capsys.readouterr().out
    assert "mIoU" in shown
    assert "4 spheres, rotation so3, 1 per sphere" in shown
    card = pack(tmp_path / "run", tmp_path / "packed").with_suffix(".md").read_text()
    assert "Labels the points of scenes by 13 classes: ceiling, floor, " in card
    assert " spheres (test split), rotation so3" in card
    rooms = tmp_path / "stanford_indoor3d"
    room = next(rooms.glob("*.npy"))
    folders = [str(room), "--out", str(tmp_path / "labelled"), "--format", "npz"]
    main(["segment", *folders, "--weights", str(tmp_path / "run"), "--turns", "1"])
    with np.load(tmp_path / "labelled" / f"{room.stem}.npz") as labelled:
        np.testing.assert_allclose(labelled["points"], np.load(room)[:, :3], atol=1e-5)


def test_scenes_of_ones_own_keep_their_scale_from_training_to_answers(tmp_path):
    rng = np.random.default_rng(0)
    scans = tmp_path / "scans" / "house"
    scans.mkdir(parents=True)
    for number in range(5):
        points = rng.uniform(0, (4000, 3000, 2000), (400, 3))  # millimetres
        labels = (points[:, 2] > 1000).astype(int)
        np.savez(scans / f"room{number}.npz", points=points, labels=labels)
    config = dataclasses.replace(
        PARTS,
        model="locotrans_dgcnn_semseg",
        data="folder:sphere=900",
        root=tmp_path / "scans",
        shapes=None,
        test_shapes=None,
        batch_size=4,
        epochs=1,
        out=tmp_path / "run",
    )
    with pytest.raises(ValueError, match=r"keep their scale: cut scenes .*folder:sphere=RADIUS"):
        train(dataclasses.replace(config, data="folder"), quiet())
    record = train(config, quiet())
    assert record["evaluation"]["items"] == "spheres"
    _, metadata = load_weights(tmp_path / "run/weights.safetensors")
    assert metadata["radius"] == pytest.approx(900, rel=0.1)
    labelled = tmp_path / "labelled"
    options = ["--weights", str(tmp_path / "run"), "--out", str(labelled)]
    main(["segment", str(scans / "room0.npz"), *options])
    assert (labelled / "room0.ply").exists()


def test_the_recipe_of_area_5_on_an_export_in_the_official_layout(tmp_path, capsys):
    export("s3dis", tmp_path, train=30, test=6, points=64)
    small = ["--points", "64", "--epochs", "1", "--batch-size", "4", "--shapes", "8"]
    small += ["--options", *PARTS.options, "--test-shapes", "4", "--device", "cpu"]
    run = tmp_path / "run"
    common = ["train", "--preset", "s3dis_area5", "--root", str(tmp_path), "--out", str(run)]
    main([*common, *small])
    assert "rooms) test, 4 blocks, rotation so3, 3 per block" in capsys.readouterr().out
    record = json.loads((run / "record.json").read_text())
    assert record["config"]["decay_every"] == 30
    assert record["evaluation"]["data"] == "s3dis:area5"


def test_a_test_split_without_labels_is_refused_before_training(tmp_path):
    export("s3dis", tmp_path, train=6, test=6, points=64)
    (room,) = (tmp_path / "stanford_indoor3d").glob("Area_5_*.npy")
    rows = np.load(room)
    rows[:, 6] = -1
    np.save(room, rows)
    names = {"model": "locotrans_dgcnn_semseg", "data": "s3dis:area5", "out": tmp_path / "run"}
    config = dataclasses.replace(
        PARTS, **names, root=tmp_path, shapes=None, test_shapes=None, batch_size=2
    )
    with pytest.raises(ValueError, match=r"s3dis:area5 \(test\): all points are unlabelled"):
        train(config, quiet())
    assert not (tmp_path / "run").exists()


def test_other_data_and_models_are_refused(parts_run, tmp_path, capsys):
    export("shapenetpart:hdf5", tmp_path / "parts", train=20, test=20, points=32)
    with pytest.raises(SystemExit):
        main(["eval", str(parts_run[0]), "--data", "s3dis", "--root", str(tmp_path / "parts")])
    assert "error" in capsys.readouterr().err
    root = export("modelnet40:hdf5", tmp_path / "shapes", train=20, test=20, points=32)
    other = {"data": "modelnet40", "root": root, "shapes": 20, "out": tmp_path / "run"}
    config = dataclasses.replace(PARTS, **other)
    with pytest.raises(ValueError, match="has no labels of points, which locotrans"):
        train(config, quiet())
    for name, value in (("resample", 16), ("even", True)):
        config = dataclasses.replace(PARTS, **{name: value}, out=tmp_path / "run")
        with pytest.raises(ValueError, match=f"{name} moves points, and locotrans"):
            train(config, quiet())
    assert not (tmp_path / "run").exists()


def test_learning_rate_goes_in_steps():
    config = dataclasses.replace(PARTS, lr=0.1, decay_every=30, decay=0.3, epochs=250)
    rates = [learning_rate(config, epoch * 7, 7) for epoch in (0, 29, 30, 59, 60, 249)]
    assert rates == pytest.approx([0.1, 0.1, 0.03, 0.03, 0.009, 0.1 * 0.3**8])
    assert learning_rate(config, 30 * 7 - 1, 7) == 0.1


def test_presets_of_segmentation():
    parts = preset_config("shapenetpart")
    assert parts.model == "locotrans_dgcnn_partseg_light"
    assert (parts.points, parts.batch_size, parts.epochs) == (2048, 16, 250)
    assert (parts.lr, parts.decay_every, parts.decay) == (0.1, 30, 0.3)
    assert (parts.scale, parts.shift, parts.options) == (1.0, 0.0, ())
    assert preset_config("shapenetpart", "dgcnn_partseg").train_split == "trainval"
    ours = preset_config("shapenetpart_adamw")
    assert (ours.optimizer, ours.decay_every, ours.smoothing) == ("adamw", 0, 0.0)
    assert (
        create_model(ours.model, 50, **parse_options(ours.model, ours.options)).config.dropout
        == 0.2
    )
    assert preset_config("s3dis_area5").data == "s3dis:area5"
    with pytest.raises(ValueError, match="preset 'shapenetpart' is not for model 'dgcnn', but for"):
        preset_config("shapenetpart", "dgcnn")


def test_labels_and_colours_go_where_their_points_go():
    points = torch.arange(24.0).view(2, 4, 3)
    labels = torch.arange(8).view(2, 4) - 1
    given = {"category": torch.tensor([0, 1]), "colors": points + 100}
    config = TrainConfig(points=3, draw_from=4)
    drawn, kept, rest = draw_labelled(
        points, labels, given, config, torch.Generator().manual_seed(0)
    )
    assert drawn.shape == (2, 3, 3)
    assert torch.equal(kept, (drawn[..., 0] / 3).long() - 1)
    assert torch.equal(rest["colors"], drawn + 100)
    assert rest["category"] is given["category"]
    assert not torch.equal(drawn, points[:, :3])
    plain = dataclasses.replace(config, draw_from=None, shuffle=False)
    assert draw_labelled(points, labels, given, plain, torch.Generator())[0] is points


def test_a_segmenter_learns_the_parts_of_a_few_shapes():
    data = load_dataset("builtin", "train", points=32, shapes=8)
    torch.manual_seed(0)
    options = parse_options(PARTS.model, (*PARTS.options, "dropout=0"))
    model = build_model(PARTS.model, data, options)
    step = Step(model, dataclasses.replace(PARTS, smoothing=0.0), torch.device("cpu"))
    losses = [
        float(step(data.points, data.parts, 0.05, **given(model, data))["total"]) for _ in range(20)
    ]
    assert losses[-1] < 0.7 * losses[0]
