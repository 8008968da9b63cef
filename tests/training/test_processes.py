"""Several processes train as one does, and one that is killed is started again."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.run import get_args_parser

from locotrans import create_model
from locotrans.losses import classification_losses
from locotrans.training import TrainConfig, train
from locotrans.training.config import to_json
from locotrans.training.processes import any_process

# What torchrun does, in processes that are forked and so need not import torch again. The worker
# of process 1 kills itself once, after a few steps. When all is trained, each takes the gradients
# of its half of a batch.
LAUNCHER = """
import os, signal, sys
from pathlib import Path
import torch
import torch._dynamo
from rich.console import Console
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel
from locotrans import create_model
from locotrans.losses import classification_losses
from locotrans.training import loop, read_config, train
from locotrans.training.processes import joined_processes

def work(folder):
    step, rank = loop.train_step, int(os.environ["RANK"])
    def dying(run, batch):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and run.step == 4 and rank == 1:
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        step(run, batch)
    loop.train_step = dying
    train(read_config(folder / "config.json"), Console(quiet=True))
    batch = torch.load(folder / "batch", weights_only=True)
    with joined_processes("cpu"):
        model = create_model("locotrans_dgcnn", 5, **batch["options"]).double()
        model.load_state_dict(batch["weights"])
        half = slice(rank, None, 2)
        network = DistributedDataParallel(model)
        output = network(batch["points"][half])
        classification_losses(output, batch["labels"][half]).total.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    torch.save({**gradients, **dict(model.named_buffers())}, folder / f"half-{rank}")

if __name__ == "__main__":
    launch = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=1, start_method="fork",
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="test", monitor_interval=0.05,
    )
    elastic_launch(launch, work)(Path(sys.argv[1]))
"""
NETWORK = {
    "k": 4,
    "widths": (8, 8),
    "vector_widths": (4, 4),
    "embedding": 16,
    "vector_embedding": 8,
    "head_widths": (16, 8),
    "dropout": 0.0,  # which draws its own numbers in each process
}

# A step of a segmenter by each of two processes on its half of a batch, and before that of the
# first one alone on the whole.
SHARED_STEP = """
import sys
import torch
import torch._dynamo
from torch import distributed
from locotrans import create_model
from locotrans.training.config import TrainConfig
from locotrans.training.step import Step

def take(share):
    torch.manual_seed(0)
    options = {"k": 3, "widths": (4, 4), "embedding": 8, "head_widths": (8, 8, 4)}
    model = create_model("dgcnn_semseg", 5, **options).double()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):  # which draws its own numbers in each process
            module.p = 0.0
    points, labels = torch.randn(4, 6, 3).double(), torch.randint(5, (4, 6))
    labels[0], labels[2, 1:] = -1, -1  # process 0 has a single labelled point of 13
    step = Step(model, TrainConfig(model="dgcnn_semseg"), torch.device("cpu"))
    figures = step(points[share], labels[share], 0.1)
    return {**figures, **{name: p.grad for name, p in model.named_parameters()}}

def work(rank, folder):
    torch.set_num_threads(1)
    if rank == 0:
        torch.save(take(slice(None)), f"{folder}/whole")
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.save(take(slice(rank, None, 2)), f"{folder}/half-{rank}")
    distributed.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, sys.argv[1:], nprocs=2, start_method="fork")
"""


def launch(text, folder):
    """Run one of the programs above, which writes what it finds into the folder."""
    (folder / "launcher.py").write_text(text)
    done = subprocess.run(
        [sys.executable, folder / "launcher.py", folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def launched(tiny_config, tmp_path_factory):
    """A folder in which two processes, one of them killed once, have trained."""
    folder = tmp_path_factory.mktemp("processes")
    options = ("k=4", "widths=8,8", "embedding=16", "head_widths=16,8", "dropout=0")
    config = dataclasses.replace(
        tiny_config,
        model="dgcnn",
        options=options,
        epochs=2,
        averaging=0.9,
        out=folder / "two",
    )
    (folder / "config.json").write_text(json.dumps(to_json(config)))
    torch.manual_seed(0)
    model = create_model("locotrans_dgcnn", 5, **NETWORK).double()
    batch = {"points": torch.randn(8, 16, 3).double(), "labels": torch.randint(5, (8,))}
    torch.save({**batch, "options": NETWORK, "weights": model.state_dict()}, folder / "batch")
    launch(LAUNCHER, folder)
    assert (folder / "killed").exists()
    return config, model, batch


@pytest.mark.slow
def test_two_processes_train_as_one_and_survive_a_kill(launched, tmp_path):
    config, _, _ = launched
    alone = dataclasses.replace(config, out=tmp_path / "one")
    train(alone)
    one, two = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (alone.out, config.out)
    )
    assert [line["epoch"] for line in two] == [1, 2]
    for single, shared in zip(one, two, strict=True):
        assert shared["total"] == pytest.approx(single["total"], rel=1e-4)
        assert shared["accuracy"] == pytest.approx(single["accuracy"], abs=1e-6)


@pytest.mark.slow
def test_halves_of_a_batch_give_the_gradients_and_statistics_of_the_whole(launched):
    config, model, batch = launched
    classification_losses(model(batch["points"]), batch["labels"]).total.backward()
    expected = {name: p.grad for name, p in model.named_parameters()} | dict(model.named_buffers())
    for rank in (0, 1):
        half = torch.load(config.out.parent / f"half-{rank}", weights_only=True)
        assert half.keys() == expected.keys()
        for name, value in expected.items():
            error = (half[name] - value).double().norm() / value.double().norm().clamp_min(1e-6)
            assert error < 1e-7, (rank, name, error)


@pytest.mark.slow
def test_a_process_with_few_labelled_points_counts_as_few_in_the_batch(tmp_path):
    launch(SHARED_STEP, tmp_path)
    whole, *halves = (
        torch.load(tmp_path / file, weights_only=True) for file in ("whole", "half-0", "half-1")
    )
    for half in halves:
        assert half.keys() == whole.keys()
        for name, value in whole.items():
            torch.testing.assert_close(half[name], value, msg=lambda text, name=name: name + text)


def test_one_process_agrees_with_itself():
    assert any_process(True, torch.device("cpu"))
    assert not any_process(False, torch.device("cpu"))


def test_a_batch_that_cannot_be_shared_is_refused(tiny, monkeypatch):
    monkeypatch.setattr("locotrans.training.run.processes", lambda: 3)
    with pytest.raises(ValueError, match="batch_size 8 must be a multiple of the 3 processes"):
        train(tiny)


def test_torchrun_takes_no_flag_of_ours_for_its_own():
    """As it does without the two dashes: --even could be --event-log-handler."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    command = re.search(r"`torchrun (.*) \.\.\.`", readme)
    start = shlex.split(command.group(1))
    for field in dataclasses.fields(TrainConfig):
        flag = "--" + field.name.replace("_", "-")
        given = get_args_parser().parse_args([*start, flag, "x"])
        assert given.module
        assert given.training_script == "locotrans"
        assert given.training_script_args == ["train", flag, "x"]
