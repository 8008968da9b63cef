"""A run that is cut anywhere ends with the same bits as one that is not."""

import dataclasses
import errno
import io
import json
import os
import shutil
import subprocess
import sys

import pytest
from rich.console import Console

from locotrans.training import loop as loop_module
from locotrans.training import train
from locotrans.training.checkpoint import read_tensors
from locotrans.training.config import to_json
from locotrans.training.run import Run

QUIET = Console(file=io.StringIO())

# Starts the run of a config file five times, each in a process of its own that SIGKILL ends:
# from outside at any moment, or from inside where it hurts.
KILLER = """
import os, random, signal, sys, time
import torch._dynamo  # what torch.optim would import in every process
from pathlib import Path
from locotrans.training import loop, read_config, train

config = read_config(Path(sys.argv[1]))
calls = 0

def killing(function, count, after):
    def call(*args):
        global calls
        calls += 1
        result = function(*args) if after else None
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result if after else function(*args)
    return call

def kill_outside(pid):
    while not (config.out / "checkpoint.safetensors").exists():
        time.sleep(0.001)
    time.sleep(random.random() * 0.01)
    os.kill(pid, signal.SIGKILL)

for place in ("first step", "outside", "after step", "before rename", "after line"):
    pid = os.fork()
    if pid == 0:
        if place == "first step":
            loop.train_step = killing(loop.train_step, 1, after=True)
        if place == "after step":
            loop.train_step = killing(loop.train_step, random.randint(1, 3), after=True)
        if place == "before rename":
            Path.replace = killing(Path.replace, random.randint(1, 4), after=False)
        if place == "after line":
            loop.append_line = killing(loop.append_line, 1, after=True)
        train(config)
        os._exit(0)
    if place == "outside":
        kill_outside(pid)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (place, status)
"""


def outcome(folder):
    """Everything that a run computed, without the clock."""
    _, metadata = read_tensors(folder / "weights.safetensors")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return metadata["sha256"], metadata["step"], lines


@pytest.mark.slow
def test_killed_again_and_again(tiny, uncut, tmp_path):
    config_file = tmp_path / "config.json"
    config_file.write_text(json.dumps(to_json(tiny)))
    command = [sys.executable, "-c", KILLER, config_file]
    killer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killer.returncode == 0, killer.stderr
    assert not (tiny.out / "record.json").exists()
    train(tiny, QUIET)
    assert outcome(tiny.out) == outcome(uncut)
    assert not list(tiny.out.glob("*.tmp"))


class Cut(BaseException):
    """Ends a run as a signal would: nothing in the library handles it."""


def train_until_cut(config):
    with pytest.raises(Cut):
        train(config, QUIET)


@pytest.mark.parametrize(
    ("checkpoint", "cut"),
    [
        pytest.param(0, 5, marks=pytest.mark.slow),
        (2, 8),
        pytest.param(3, 7, marks=pytest.mark.slow),
    ],
)
def test_cut_long_after_the_checkpoint(tiny, uncut, monkeypatch, checkpoint, cut):
    step, save = loop_module.train_step, Run.save_checkpoint

    def cutting_step(run, batch):
        if run.step == cut:
            raise Cut
        step(run, batch)

    def save_once(run):
        if run.step == checkpoint:
            save(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop_module, "train_step", cutting_step)
        patch.setattr(Run, "save_checkpoint", save_once)
        train_until_cut(tiny)
    train(tiny, QUIET)
    assert outcome(tiny.out) == outcome(uncut)
    lines = (tiny.out / "metrics.jsonl").read_text().splitlines()
    expected = (uncut / "metrics.jsonl").read_text().splitlines()
    for line, other in zip(lines, expected, strict=True):
        assert list(json.loads(line)) == list(json.loads(other))  # in the same order


def test_a_full_disk_stops_the_run_and_costs_nothing(tiny, uncut, monkeypatch):
    room = iter(range(9))

    def fill(_):
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill)
        with pytest.raises(OSError, match=r"cannot write .*: No space left"):
            train(tiny, QUIET)
    assert not list(tiny.out.glob("*.tmp"))
    train(tiny, QUIET)
    assert outcome(tiny.out) == outcome(uncut)


@pytest.fixture
def unfinished(tiny, uncut):
    """A run that ended between its last step and its weights."""
    shutil.copytree(uncut, tiny.out)
    for name in ("weights.safetensors", "record.json"):
        (tiny.out / name).unlink()
    return tiny


@pytest.mark.slow
def test_a_moved_folder_goes_on(unfinished, uncut, tmp_path):
    moved = dataclasses.replace(unfinished, out=unfinished.out.rename(tmp_path / "moved"))
    train(moved, QUIET)
    assert outcome(moved.out) == outcome(uncut)


def test_what_cannot_be_resumed_is_left_as_it_is(unfinished):
    run = Run(unfinished)
    run.train_set = run.held_out
    with pytest.raises(ValueError, match="trained on other data"):
        run.open_folder()

    metrics = run.metrics_path.read_bytes()
    run.checkpoint_path.write_bytes(run.checkpoint_path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged"):
        train(unfinished, QUIET)
    assert run.metrics_path.read_bytes() == metrics
