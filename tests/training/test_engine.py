"""Recipes, averages, validation, time boxes and parts: what a long training needs."""

import dataclasses
import io
import itertools
import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from locotrans.cli import main
from locotrans.training import Stopped, TrainConfig, load_weights, preset_config, train
from locotrans.training import loop as loop_module
from locotrans.training import record as record_module
from locotrans.training.augment import augment
from locotrans.training.average import WeightAverage
from locotrans.training.checkpoint import read_tensors
from locotrans.training.held_out import load_data
from locotrans.training.loop import learning_rate
from locotrans.training.parts import join, split
from locotrans.training.presets import PRESETS, deviations, list_presets, read_config
from locotrans.training.report import writer_of
from moved import lie_between

QUIET = Console(file=io.StringIO())
RECIPE = {
    "optimizer": "adamw",
    "lr": 0.001,
    "final_lr": 0.0,
    "warm_up": 0.5,
    "averaging": 0.9,
    "validation": 0.3,
    "draw_from": 24,
    "resample": 8,
}


@pytest.fixture
def ours(tiny):
    """A run with everything that the paper's recipe does not have."""
    return dataclasses.replace(tiny, **RECIPE, shapes=20)


def outcome(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    digest = read_tensors(folder / "weights.safetensors")[1]["sha256"]
    return digest, [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_weights_that_are_gone_come_back_from_the_checkpoint(ours):
    train(ours, QUIET)
    before, record = outcome(ours.out), (ours.out / "record.json").read_bytes()
    (ours.out / "weights.safetensors").unlink()
    with pytest.raises(ValueError, match="repeat its train command"):
        load_weights(ours.out)
    train(ours, QUIET)
    assert outcome(ours.out) == before
    assert (ours.out / "record.json").read_bytes() == record  # nothing was trained
    with pytest.raises(Stopped):
        train(dataclasses.replace(ours, out=ours.out.parent / "cut"), QUIET, stop_after=0.0)
    (ours.out / "weights.safetensors").unlink()
    earlier = (ours.out.parent / "cut" / "checkpoint.safetensors").read_bytes()
    (ours.out / "checkpoint.safetensors").write_bytes(
        earlier
    )  # an older one: trained on from there
    train(ours, QUIET)
    assert outcome(ours.out) == before
    assert (ours.out / "record.json").read_bytes() != record
    split(ours.out, 10_000)
    for target in (ours.out, ours.out / "weights.safetensors"):
        with pytest.raises(ValueError, match="is in parts; first run: locotrans checkpoint join"):
            load_weights(target)
    listing = ours.out / "checkpoint.safetensors.parts.json"
    assert writer_of(listing) == "checkpoint split"
    kept = listing.read_bytes()
    listing.unlink()  # or not fetched yet
    (ours.out / "record.json").rename(ours.out / "gone")
    metrics = (ours.out / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"their listing checkpoint.safetensors.parts.json is not"):
        train(ours, QUIET)
    assert (ours.out / "metrics.jsonl").read_bytes() == metrics
    (ours.out / "gone").rename(ours.out / "record.json")
    listing.write_bytes(kept)
    join(ours.out)
    train(ours, QUIET)
    assert outcome(ours.out) == before
    for name in ("weights", "checkpoint"):  # a result whose large files were thrown away
        (ours.out / f"{name}.safetensors").unlink()
    train(ours, QUIET)
    assert not (ours.out / "weights.safetensors").exists()


def test_a_run_in_time_boxes_of_one_step_ends_with_the_same_bits(ours, tmp_path, monkeypatch):
    whole = dataclasses.replace(ours, out=tmp_path / "whole", checkpoint_seconds=1e9)
    assert "earlier_environments" not in train(whole, QUIET)
    for box in (1, 2):  # 14 shapes, one step an epoch
        with pytest.raises(Stopped, match=f"step {box} of 3"):
            train(ours, QUIET, stop_after=0.0)
        split(ours.out, 10_000)
        assert all(path.stat().st_size <= 10_000 for path in ours.out.iterdir())
        assert join(ours.out) == [ours.out / "checkpoint.safetensors"]
        # the second part and the last are of one commit, the first is of another
        monkeypatch.setattr(record_module, "git_commit", lambda: "changed")
    record = train(ours, QUIET, stop_after=0.0)
    assert outcome(ours.out) == outcome(whole.out)
    assert record["environment"]["commit"] == "changed"
    (earlier,) = record["earlier_environments"]
    assert earlier["commit"] != "changed"
    assert earlier.keys() == record["environment"].keys()


def test_the_average_is_what_is_evaluated_and_stored(ours):
    record = train(dataclasses.replace(ours, draw_from=None), QUIET)
    tensors, _ = read_tensors(ours.out / "checkpoint.safetensors")
    weights, _ = read_tensors(ours.out / "weights.safetensors")
    assert weights.keys() == {name for name in tensors if "/" not in name}
    assert all(torch.equal(weights[name], tensors[f"average/{name}"]) for name in weights)
    assert any(not torch.equal(weights[name], tensors[name]) for name in weights)
    loaded, _ = load_weights(ours.out / "checkpoint.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items())
    assert record["evaluation"]["split"] == "validation"


def test_the_average_by_hand():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    average = WeightAverage(model, decay=0.5)
    expected = model[0].weight.item()
    for step, decay in enumerate((0.1, 2 / 11, 3 / 12)):
        with torch.no_grad():
            model[0].weight.fill_(step)
            model[1].num_batches_tracked.fill_(step)
        average.update(step)
        expected = decay * expected + (1 - decay) * step
    assert average.model[0].weight.item() == pytest.approx(expected, rel=1e-6)
    assert average.model[1].num_batches_tracked.item() == 2
    average.update(10**6)  # later: the decay that was asked for
    assert average.model[0].weight.item() == pytest.approx((expected + 2) / 2, rel=1e-6)


def test_statistics_of_the_average_are_means_over_the_batches_that_it_sees(generator):
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=0.3))
    average = WeightAverage(model, decay=0.5)
    batches = 4 * torch.randn(5, 7, 3, generator=generator) + 2
    average.settle(partial(average.model, batch) for batch in batches)
    first = average.model[1]
    assert torch.allclose(first.running_mean, batches.mean((0, 1)))
    assert torch.allclose(first.running_var, batches.var(1).mean(0))
    assert [norm.momentum for norm in average.model[1:]] == [0.1, 0.3]
    assert not any(module.training for module in average.model.modules())


def test_the_average_settles_before_every_evaluation(ours, monkeypatch):
    name = "invariant_branch.first.norm.running_mean"
    seen = []
    settle = WeightAverage.settle

    def watch(average, passes):
        passes = list(passes)
        before = average.model.state_dict()[name].clone()
        settle(average, passes)
        seen.append((len(passes), before, average.model.state_dict()[name].clone()))

    monkeypatch.setattr(WeightAverage, "settle", watch)
    config = dataclasses.replace(ours, evaluate_every=2, batch_size=4)  # 14 shapes, 3 epochs
    train(config, QUIET)
    assert [count for count, _, _ in seen] == [3, 3]  # after epochs 2 and 3
    assert not any(torch.equal(before, after) for _, before, after in seen)
    weights, _ = read_tensors(ours.out / "weights.safetensors")
    assert torch.equal(weights[name], seen[-1][2])


def test_validation_is_a_share_of_the_training_split_and_the_test_split_is_not_read(tiny):
    config = dataclasses.replace(tiny, validation=0.25, shapes=20)
    whole, _ = load_data(dataclasses.replace(config, validation=0.0))
    rest, held_out = load_data(config)
    assert (len(rest), len(held_out), held_out.split) == (15, 5, "validation")
    rows = {bytes(cloud.numpy().tobytes()) for cloud in whole.points}
    parts = [{bytes(c.numpy().tobytes()) for c in part.points} for part in (rest, held_out)]
    assert parts[0] | parts[1] == rows
    assert parts[0].isdisjoint(parts[1])
    again = load_data(dataclasses.replace(config, draw_from=32))[1]
    assert again.checksum == load_data(dataclasses.replace(config))[1].checksum
    other = load_data(dataclasses.replace(config, seed=1))[1]
    assert other.checksum != held_out.checksum
    with pytest.raises(ValueError, match=r"0\.01 of 20 shapes leaves 20 to train on and 0"):
        load_data(dataclasses.replace(config, validation=0.01))


def test_what_is_cut_from_one_scene_is_not_parted_by_validation(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(5):
        points = rng.uniform(0, (4, 3, 2), (800, 3))
        np.savez(tmp_path / f"{number}.npz", points=points, labels=np.arange(800) % 2)
    settings = {"data": "folder:sphere=0.8", "root": tmp_path, "points": 64}
    config = TrainConfig(model="dgcnn_semseg", validation=0.25, **settings)
    whole, _ = load_data(dataclasses.replace(config, validation=0.0))
    rest, held_out = load_data(config)
    rooms = [{name.partition("@")[0] for name in data.ids} for data in (rest, held_out)]
    assert [len(names) for names in rooms] == [3, 1]
    assert not rooms[0] & rooms[1]
    assert len(rest) + len(held_out) == len(whole)
    assert held_out.scenes is None  # `--whole` would measure all
    with pytest.raises(ValueError, match=r"validation 0\.1 of 4 scenes leaves 4 to train on and 0"):
        load_data(dataclasses.replace(config, validation=0.1))


def test_clouds_are_thinned_and_filled_up_with_points_between_those_that_are_left(generator):
    pool = torch.rand(200, 60, 3, generator=generator, dtype=torch.float64) + 5
    off = {"rotation": "none", "scale": 1.0, "shift": 0.0, "shuffle": False}
    config = TrainConfig(points=60, resample=30, **off)
    clouds = augment(pool, config, "z", generator)
    assert clouds.shape == pool.shape
    assert not torch.equal(augment(pool, config, "z", generator), clouds)
    sizes = []
    for cloud, points in zip(clouds, pool, strict=True):
        kept = (cloud[:, None] == points).all(-1).any(-1)
        sizes.append(int(kept.sum()))
        size = sizes[-1]
        assert kept[:size].all()
        assert lie_between(cloud[:size], cloud[size:], torch.arange(size, 60) % size)
    assert min(sizes) in (30, 31, 32)
    assert max(sizes) in (58, 59, 60)
    assert 48 < sum(sizes) / len(sizes) < 52


def test_points_are_drawn_anew_from_more(generator):
    points = torch.randn(2, 9, 3, generator=generator)
    off = {"rotation": "none", "scale": 1.0, "shift": 0.0, "shuffle": False}
    config = TrainConfig(points=5, draw_from=9, **off)
    clouds = [augment(points, config, "z", generator) for _ in range(2)]
    assert not torch.equal(clouds[0], clouds[1])
    for cloud in clouds:
        assert cloud.shape == (2, 5, 3)
        for drawn, pool in zip(cloud, points, strict=True):
            rows = {tuple(row) for row in drawn.tolist()}
            assert len(rows) == 5
            assert rows <= {tuple(row) for row in pool.tolist()}


def test_warm_up_rises_to_the_cosine():
    config = TrainConfig(epochs=10, lr=0.1, final_lr=0.001, warm_up=2.0)
    rates = [learning_rate(config, step, 5) for step in range(50)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) / 11 for step in range(10)])
    assert rates[10] == 0.1
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert learning_rate(config, 50, 5) == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"warm_up": 3.0}, "warm_up must be below the 3 epochs, got 3"),
        ({"averaging": 1.0}, "averaging must be below 1"),
        ({"validation": -0.1}, "validation must be at least 0"),
        ({"draw_from": 16}, "draw_from must exceed the 16 points to draw, got 16"),
        ({"averaging": math.nan}, "averaging must be at least 0"),
    ],
)
def test_bad_recipes(tiny, change, reason):
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(tiny, **change)


def test_the_paper_s_preset():
    full, light = preset_config("modelnet40", "locotrans_dgcnn"), preset_config("modelnet40")
    assert (full.shift, light.shift) == (0.2, 0.15)
    for config in (full, light):
        assert (config.data, config.points, config.epochs) == ("modelnet40", 1024, 250)
        assert (config.optimizer, config.lr, config.final_lr) == ("sgd", 0.1, 0.001)
        assert (config.momentum, config.weight_decay, config.smoothing) == (0.9, 1e-4, 0.2)
        assert (config.averaging, config.warm_up, config.validation) == (0, 0, 0)


@pytest.mark.parametrize("name", list_presets())
def test_what_a_table_varies_is_no_deviation_and_all_else_is(name):
    config = preset_config(name)
    varied = {"rotation": "so3", "seed": 7, "options": ("k=10",), "evaluate_every": 5}
    varied["precision"] = "mixed"
    assert deviations(dataclasses.replace(config, **varied)) == {}
    assert deviations(dataclasses.replace(config, epochs=60)) == {"epochs": 60}
    assert PRESETS[name].title


def test_a_config_file_may_name_a_preset(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('preset = "modelnet40"\nmodel = "dgcnn"\nepochs = 60\n')
    assert read_config(file) == dataclasses.replace(preset_config("modelnet40", "dgcnn"), epochs=60)
    file.write_text('preset = "modelnet"\n')
    with pytest.raises(ValueError, match=r"unknown preset 'modelnet'; did you mean 'modelnet40'"):
        read_config(file)


def test_stop_after_on_the_command_line(tmp_path, capsys, monkeypatch):
    words = "train --model dgcnn --points 8 --shapes 8 --test-shapes 4 --batch-size 4 --epochs 1"
    command = [*words.split(), "--out", str(tmp_path / "run"), "--device", "cpu"]
    command += ["--options", "k=4", "widths=4,4", "embedding=8", "head_widths=8,4"]
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(SystemExit) as caught:
        main([*command, "--stop-after", "0"])
    assert caught.value.code == 3
    assert "stopped at step 1 of 2" in capsys.readouterr().out
    main(["checkpoint", "split", str(tmp_path / "run"), "--size", "1"])
    assert "nothing is larger than 1 MiB" in capsys.readouterr().out
    main(command)
    assert "from step 1" in capsys.readouterr().out


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_under_torchrun_one_process_prints_the_result(rank, times, monkeypatch):
    printed = []
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr("locotrans.training.train", lambda *_, **__: {"evaluation": {}})
    monkeypatch.setattr("locotrans.cli.learn.print_evaluation", printed.append)
    main(["train"])
    assert len(printed) == times


def test_a_preset_on_the_command_line(monkeypatch):
    seen = []
    monkeypatch.setattr("locotrans.training.train", lambda config, stop_after: seen.append(config))
    monkeypatch.setattr("locotrans.cli.learn.print_evaluation", lambda result: None)
    for words in ("--preset modelnet40 --model locotrans_dgcnn --seed 3", "--preset=modelnet40"):
        with pytest.raises(TypeError):  # there is no record
            main(["train", *words.split()])
    assert seen[0] == dataclasses.replace(preset_config("modelnet40", "locotrans_dgcnn"), seed=3)
    assert seen[1] == preset_config("modelnet40")


def test_parts_that_are_missing_or_damaged_are_named(tmp_path):
    file = tmp_path / "weights.bin"
    file.write_bytes(bytes(range(100)))
    parts = split(file, 40)
    assert [part.name for part in parts] == [f"weights.bin.part-{i}-of-3" for i in range(3)]
    assert not file.exists()
    content = parts[1].read_bytes()
    parts[1].write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"part-1-of-3 is damaged"):
        join(tmp_path)
    parts[1].unlink()
    with pytest.raises(ValueError, match=r"part weights\.bin\.part-1-of-3 is missing"):
        join(file)
    parts[1].write_bytes(content)
    assert join(tmp_path) == [file]
    assert file.read_bytes() == bytes(range(100))
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(ValueError, match="has no parts here"):
        join(file)
    old = {part.name: part.read_bytes() for part in split(file, 40)}
    listing = tmp_path / "weights.bin.parts.json"
    old[listing.name] = listing.read_bytes()
    join(file)
    for content in (bytes(100), bytes(range(100))):  # another file in the place, or the same
        file.write_bytes(content)
        for name, part in old.items():
            (tmp_path / name).write_bytes(part)
        if content[1] == 0:
            with pytest.raises(ValueError, match=r"weights.bin is there, and not what its parts"):
                join(file)
        else:
            assert join(file) == [file]
        assert file.read_bytes() == content


def test_a_damaged_line_of_metrics_is_named(ours):
    train(ours, QUIET)
    metrics = ours.out / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])
    (ours.out / "record.json").unlink()
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 3 is damaged"):
        train(ours, QUIET)


def test_the_order_of_options_is_no_other_setting(ours):
    with pytest.raises(Stopped):
        train(ours, QUIET, stop_after=0.0)
    other = dataclasses.replace(ours, options=ours.options[::-1])
    assert other.options != ours.options
    with pytest.raises(Stopped):
        train(other, QUIET, stop_after=0.0)


def test_a_stop_at_the_last_step_is_the_end(tiny, monkeypatch):
    monkeypatch.setattr(loop_module.time, "monotonic", lambda: 0.0)
    record = train(dataclasses.replace(tiny, epochs=1, shapes=8), QUIET, stop_after=0.0)
    assert record["selection"] == "last epoch"
