import dataclasses
import io
import json
import math
import shutil
import signal

import pytest
import torch
from rich.console import Console

from locotrans.cli import main
from locotrans.training import TrainConfig, evaluate, load_weights, loop, train
from locotrans.training import step as step_module
from locotrans.training.augment import augment
from locotrans.training.checkpoint import read_tensors, write_tensors
from locotrans.training.folder import check_folder, locked
from locotrans.training.interrupt import finishing_steps
from locotrans.training.loop import epoch_order, learning_rate
from locotrans.training.parts import split
from locotrans.training.run import Run

QUIET = Console(file=io.StringIO())


def read_lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_files(whole_run):
    folder, record, said = whole_run
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "weights.safetensors",
        "record.json",
    }
    lines = read_lines(folder)
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert ["evaluation" in line for line in lines] == [False, True, True]
    terms = {"total", "invariant", "equivariant", "orthogonality", "consistency", "accuracy"}
    assert all(terms <= line.keys() for line in lines)
    assert all(math.isfinite(line["total"]) for line in lines)
    assert record == json.loads((folder / "record.json").read_text())
    assert record["protocol"] == "z/so3"
    assert record["selection"] == "last epoch"
    assert record["precision"] == "float32"
    assert record["evaluation"] == lines[-1]["evaluation"]
    assert record["data_checksums"].keys() == {"train", "test"}
    assert "about the" in said  # the axis of "z"
    assert said.count("epoch ") == 3


def test_the_weights_give_the_recorded_result(tiny, uncut):
    record = json.loads((uncut / "record.json").read_text())
    model, metadata = load_weights(uncut / "weights.safetensors")
    assert metadata["points"] == tiny.points
    assert metadata["rotation"] == "z"
    assert len(metadata["class_names"]) == metadata["num_classes"]
    assert evaluate(model, Run(tiny).held_out, "so3", batch_size=8) == record["evaluation"]
    checkpoint, _ = load_weights(uncut / "checkpoint.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(value, checkpoint.state_dict()[name])


def test_a_finished_run_is_left_alone(tiny, uncut):
    before = {path: path.stat().st_mtime_ns for path in uncut.iterdir()}
    output = io.StringIO()
    record = train(dataclasses.replace(tiny, out=uncut), Console(file=output))
    assert record == json.loads((uncut / "record.json").read_text())
    assert "is finished" in output.getvalue()
    assert {path: path.stat().st_mtime_ns for path in uncut.iterdir()} == before


def test_another_config_is_refused_by_name(tiny, uncut):
    other = dataclasses.replace(tiny, out=uncut, epochs=5, lr=0.5)
    with pytest.raises(ValueError, match=r"epochs was 3, is 5; lr was 0\.1, is 0\.5") as caught:
        train(other, QUIET)
    assert str(uncut) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "lenet"}, "unknown model 'lenet'"),
        ({"options": ("depth=3",)}, "unknown key 'depth'"),
        ({"data": "mnist"}, "unknown data set 'mnist'"),
        ({"points": 3}, "too small for k"),
        ({"batch_size": 27}, "batch_size 27 exceeds the 26"),
        ({"device": "abacus"}, "device 'abacus' is not available"),
    ],
)
def test_bad_settings_leave_no_trace(tiny, change, reason):
    with pytest.raises(ValueError, match=reason):
        train(dataclasses.replace(tiny, **change), QUIET)
    assert not tiny.out.exists()


def test_a_folder_of_something_else_is_refused(tiny):
    tiny.out.mkdir()
    (tiny.out / "thesis.tex").write_text("all there is")
    with pytest.raises(ValueError, match="holds no run"):
        train(tiny, QUIET)
    for inside in ("thesis.tex", "thesis.tex/run"):
        with pytest.raises(ValueError, match=r"thesis\.tex is a file; choose another --out"):
            train(dataclasses.replace(tiny, out=tiny.out / inside), QUIET)
    assert [path.name for path in tiny.out.iterdir()] == ["thesis.tex"]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tiny, monkeypatch):
    whole = step_module.classification_losses
    calls = 0

    def poisoned(*args, **kwargs):
        nonlocal calls
        losses = whole(*args, **kwargs)
        calls += 1
        return losses._replace(total=losses.total * math.nan) if calls == 5 else losses

    monkeypatch.setattr(step_module, "classification_losses", poisoned)
    with pytest.raises(ValueError, match=r"finite in step 4 of .* the checkpoint from before is"):
        train(tiny, QUIET)
    model, metadata = load_weights(tiny.out / "checkpoint.safetensors")
    assert metadata["step"] == 4
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert len(read_lines(tiny.out)) == 1


def test_a_bad_loss_between_checkpoints_is_found_at_the_end_of_the_epoch(tiny):
    config = dataclasses.replace(tiny, lr=1e38, checkpoint_seconds=1e9)
    with pytest.raises(ValueError, match=r"finite in step [012] of .* there was no checkpoint yet"):
        train(config, QUIET)
    assert not (tiny.out / "checkpoint.safetensors").exists()
    check_folder(tiny)  # the advice, a lower lr, may be followed in the same folder
    Run(tiny).open_folder()
    assert json.loads((tiny.out / "config.json").read_text())["lr"] == tiny.lr


def test_a_checkpoint_in_parts_is_not_overlooked(tiny, uncut, tmp_path):
    shutil.copytree(uncut, tmp_path / "copy")
    split(tmp_path / "copy" / "checkpoint.safetensors")
    (tmp_path / "copy" / "record.json").unlink()
    with pytest.raises(ValueError, match="is in parts; first run: locotrans checkpoint join"):
        train(dataclasses.replace(tiny, out=tmp_path / "copy"), QUIET)


def test_learning_rate_is_a_cosine():
    config = TrainConfig(epochs=10, lr=0.1, final_lr=0.001)
    assert learning_rate(config, 0, 5) == 0.1
    assert learning_rate(config, 25, 5) == pytest.approx((0.1 + 0.001) / 2)
    assert learning_rate(config, 50, 5) == pytest.approx(0.001)


def test_every_epoch_has_its_own_order():
    orders = [epoch_order(100, seed=0, epoch=epoch) for epoch in (0, 0, 1)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert torch.equal(orders[2].sort().values, torch.arange(100))


def test_augmentation_can_be_switched_off(generator):
    points = torch.randn(2, 9, 3, generator=generator)
    off = TrainConfig(rotation="none", scale=1.0, shift=0.0, shuffle=False)
    assert torch.equal(augment(points, off, "z", generator), points)


def test_each_augmentation_does_what_it_says(generator):
    points = torch.randn(50, 9, 3, generator=generator)
    off = TrainConfig(rotation="none", scale=1.0, shift=0.0, shuffle=False)

    def only(**on):
        return augment(points, dataclasses.replace(off, **on), "y", generator)

    scales = only(scale=1.5) / points
    assert torch.allclose(scales, scales[:, :1].expand_as(scales), rtol=1e-4)
    assert 0.66 < scales.min() < 0.7
    assert 1.45 < scales.max() < 1.51
    shifts = only(shift=0.2) - points
    assert 0.18 < shifts.abs().max() < 0.2001
    centred = augment(points, dataclasses.replace(off, shift=0.2), "y", generator, centred=True)
    assert 0.18 < centred.mean(1).abs().max() < 0.2001  # shifted from the origin
    assert torch.equal(only(shuffle=True).sort(1).values, points.sort(1).values)
    noise = only(jitter=0.01) - points
    assert 0.009 < noise.std() < 0.011
    turned = only(rotation="z")
    assert torch.allclose(turned[..., 1], points[..., 1])  # the up axis, here y, stays
    assert torch.allclose(turned.norm(dim=-1), points.norm(dim=-1), rtol=1e-5)


def test_a_folder_that_another_process_trains_in_is_refused(tiny):
    with locked(tiny.out):
        with pytest.raises(ValueError, match="another process is training in"):
            train(tiny, QUIET)
        assert not any(tiny.out.iterdir())
    assert train(tiny, QUIET)["selection"] == "last epoch"


def test_an_interrupt_waits_for_the_step_and_leaves_a_checkpoint(tiny, uncut, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    step = loop.train_step

    def interrupted(run, batch):
        if run.step == 3:
            signal.raise_signal(signal.SIGINT)
        step(run, batch)

    monkeypatch.setattr(loop, "train_step", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(dataclasses.replace(tiny, checkpoint_seconds=1e9), QUIET)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert load_weights(tiny.out / "checkpoint.safetensors")[1]["step"] == 4
    monkeypatch.undo()
    train(tiny, QUIET)
    ours, theirs = (
        load_weights(x / "weights.safetensors")[0].state_dict() for x in (tiny.out, uncut)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_folder_that_was_used_meanwhile_is_looked_at_again(tiny, monkeypatch):
    other = dataclasses.replace(tiny, seed=7, epochs=4)

    class Slow(Run):
        def __init__(self, config):
            super().__init__(config)
            monkeypatch.undo()
            train(tiny, QUIET)  # by another process, while this one reads the data

    monkeypatch.setattr(loop, "Run", Slow)
    with pytest.raises(ValueError, match="holds a run with other settings"):
        train(other, QUIET)


def test_interrupts_that_mean_something_else_are_left_alone():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with finishing_steps() as asked:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
            assert not asked.is_set()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_interrupt_breaks_off():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with finishing_steps() as asked:
            signal.raise_signal(signal.SIGINT)
            assert asked.is_set()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_time_that_is_over_before_it_begins_is_refused(tiny):
    with pytest.raises(ValueError, match="stop_after must be at least 0 seconds, got -4"):
        train(tiny, QUIET, stop_after=-4.0)


def test_mixed_precision_is_refused_on_a_cpu(tiny):
    """Autocast on a CPU is another thing, and what networks learn by it has not been measured."""
    config = dataclasses.replace(tiny, precision="mixed")
    with pytest.raises(ValueError, match="for training on a GPU, and this would be on cpu; take"):
        train(config, QUIET)
    assert not tiny.out.exists()


def test_a_run_in_mixed_precision_is_evaluated_on_a_cpu(uncut, tmp_path, capsys):
    """As if a GPU had trained it."""
    run = tmp_path / "run"
    shutil.copytree(uncut, run)
    tensors, header = read_tensors(run / "weights.safetensors")
    header["settings"]["precision"] = "mixed"
    write_tensors(run / "weights.safetensors", tensors, header)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "precision": "mixed"}))
    main(["eval", str(run), "--device", "cpu", "--rotations", "1"])
    assert "combined" in capsys.readouterr().out
    main(["train", "--config", str(run / "config.json"), "--out", str(run)])
    assert "is finished; nothing to do" in " ".join(capsys.readouterr().out.split())


def test_weights_that_the_last_step_spoils_are_not_kept(tiny, monkeypatch):
    """The loss of a step is that of the weights before it."""
    take = step_module.Step._take

    def spoil(self, *inputs):
        found = take(self, *inputs)
        with torch.no_grad():
            next(self.model.parameters()).fill_(torch.nan)
        return found

    config = dataclasses.replace(tiny, epochs=1, shapes=tiny.batch_size)  # a single step
    monkeypatch.setattr(step_module.Step, "_take", spoil)
    with pytest.raises(ValueError, match="a weight stopped being finite in step 0"):
        train(config, QUIET)
    assert not (tiny.out / "weights.safetensors").exists()
    assert not (tiny.out / "checkpoint.safetensors").exists()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("model", ["locotrans_dgcnn_light", "locotrans_dgcnn_partseg_light"])
@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_steps_do_not_wait_for_the_gpu(model, precision, tiny):
    run = Run(
        dataclasses.replace(tiny, model=model, precision=precision, averaging=0.9, device="cuda")
    )
    batch = torch.arange(8, device=run.device)
    loop.train_step(run, batch)  # which is recorded
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            loop.train_step(run, batch)
        with pytest.raises(RuntimeError, match="synchroniz"):
            run.sums["total"].item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    run.check_finite()
    assert run.step == 4
