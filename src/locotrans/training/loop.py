"""The training loop: every random number a function of the seed and the step.

So a checkpoint holds no state of a random generator, and a run that was cut goes on as if it had
not been. Within an epoch the loop waits for the device only to write a checkpoint.

Under torchrun every process goes through the same loop on its share of each batch; the first one
evaluates, writes and prints.
"""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from locotrans.distributed import process
from locotrans.training.average import WeightAverage
from locotrans.training.config import (
    EPOCH_ORDER,
    SETTLE,
    STEP,
    TrainConfig,
    derive_seed,
)
from locotrans.training.evaluate import evaluate, main_figure
from locotrans.training.folder import CHECKPOINT, WEIGHTS, check_folder, locked
from locotrans.training.interrupt import finishing_steps
from locotrans.training.memory import keep_freed_memory
from locotrans.training.parts import in_parts
from locotrans.training.processes import any_process, joined_processes, wait_for_processes
from locotrans.training.record import append_line, make_record, read_json, read_metrics, write_json
from locotrans.training.run import Run
from locotrans.training.start_from import described, locate

SETTLING = 100  # batches that the statistics of an averaged network are taken from, at most


class Stopped(Exception):  # noqa: N818 (it is no error)
    """A run reached the time that it was given, and its checkpoint is written."""


def train(
    config: TrainConfig, console: Console | None = None, stop_after: float | None = None
) -> dict[str, Any]:
    """Train a model in its run folder, from the start or from its checkpoint, to the end.

    The folder receives ``config.json``, ``environment.json``, ``metrics.jsonl`` (a line per
    epoch), ``checkpoint.safetensors``, and at the end ``weights.safetensors`` and ``record.json``.
    A finished run is left as it is, but for weights that are gone while the checkpoint has them.
    The global random state of torch is seeded at every step. On a CPU, the process keeps memory
    that is freed (`keep_freed_memory`).

    Args:
        config: the settings of the run.
        console: where to print.
        stop_after: stop with a checkpoint after this many seconds, counted from the call; the
            step that is under way is finished first, and an epoch's evaluation too.

    Returns:
        The run's record.

    Raises:
        Stopped: after ``stop_after`` seconds; the same call goes on.
        ValueError: if the folder holds another run, or a loss is no longer finite.
        OSError: if a file cannot be written; what was there before is whole.
    """
    if stop_after is not None and not stop_after >= 0:
        raise ValueError(f"stop_after must be at least 0 seconds, got {stop_after}")
    deadline = math.inf if stop_after is None else time.monotonic() + stop_after
    with joined_processes(config.device):
        if process() > 0:
            console = Console(quiet=True)
        return train_until(config, console or Console(), deadline)


def train_until(config: TrainConfig, console: Console, deadline: float) -> dict[str, Any]:
    """Do as `train`, until a moment of the monotonic clock."""
    if config.start_from is not None:
        config = replace(config, start_from=locate(config.start_from))
    if process() == 0:
        check_folder(config)
    record, weights = config.out / "record.json", config.out / WEIGHTS
    kept = weights.exists() or in_parts(weights)
    if record.exists() and (kept or not (config.out / CHECKPOINT).exists()):
        console.print(f"{config.out} is finished; nothing to do", soft_wrap=True, markup=False)
        return read_json(record)
    if config.even:
        console.print("evening the clouds out", markup=False)
    run = Run(config)
    if run.device.type == "cpu":
        keep_freed_memory()
    with ExitStack() as stack:
        if process() == 0:
            stack.enter_context(locked(config.out))
            check_folder(config)  # which another process may have used since
        carry_out(run, console, deadline)
    wait_for_processes()
    return read_json(record)


def carry_out(run: Run, console: Console, deadline: float) -> None:
    """Train in the run's folder, from its checkpoint or from the start, and write the result."""
    config = run.config
    run.open_folder()
    before = run.step
    start = f"from step {run.step}" if run.step else "from the start"
    if run.start is not None and not run.step:
        fresh = f", new layers: {', '.join(run.start['fresh'])}" if run.start["fresh"] else ""
        start = f"from the weights of a {described(run.start)}{fresh}"
    axis = f" (about the {run.train_set.up} axis)" if config.rotation == "z" else ""
    console.print(
        f"training {config.model} on {config.data}, rotation {config.rotation}{axis}, "
        f"epochs: {config.epochs}, steps per epoch: {run.steps_per_epoch}, {start}, "
        f"in {config.out}",
        soft_wrap=True,
        markup=False,
    )
    bar = Progress(console=console, disable=not console.is_terminal)
    with bar, finishing_steps() as interrupted:
        run_epochs(run, bar, deadline, interrupted)
    if process() == 0 and run.step == before and (run.folder / "record.json").exists():
        run.save_weights()  # which alone had gone
    elif process() == 0:
        finish(run)


def run_epochs(run: Run, bar: Progress, deadline: float, interrupted: threading.Event) -> None:
    """Take all steps that are left, with an entry in the metrics after each epoch."""
    config, length = run.config, run.steps_per_epoch
    task = bar.add_task(config.model, total=config.epochs * length, completed=run.step)
    began = time.monotonic() - run.seconds
    saved = time.monotonic()
    for epoch in range(run.step // length, config.epochs):
        order = epoch_order(len(run.train_set), config.seed, epoch).to(run.device)
        for index in range(run.step % length, length):
            batch = order[index * config.batch_size : (index + 1) * config.batch_size]
            train_step(run, batch)
            run.seconds = time.monotonic() - began
            bar.advance(task)
            if index + 1 == length:
                bar.console.print(summary(finish_epoch(run, epoch)), soft_wrap=True, markup=False)
            now = time.monotonic()
            stop = deadline < math.inf and any_process(now >= deadline, run.device)
            asked = interrupted.is_set()
            if stop or asked or now - saved >= config.checkpoint_seconds:
                run.save_checkpoint()
                saved = time.monotonic()
            if asked:
                raise KeyboardInterrupt
            if stop and run.step < config.epochs * length:
                raise Stopped(
                    f"stopped at step {run.step} of {config.epochs * length}, as asked; the "
                    f"checkpoint is in {run.folder}. Repeat the command to go on"
                )
    run.save_checkpoint()


def train_step(run: Run, batch: Int[Tensor, " b"]) -> None:
    """Take one step on the shapes of the given indices, and add its figures to the sums.

    Of several processes, each takes its share, and dropout draws its own numbers in each.
    """
    key = (run.config.seed, STEP, run.step)
    torch.manual_seed(derive_seed(*key, process()) if process() else derive_seed(*key))  # dropout
    points, labels, given = run.show(batch, derive_seed(*key))
    lr = learning_rate(run.config, run.step, run.steps_per_epoch)
    run.add(run.take_step(points, labels, lr, **given))


def settle(run: Run, average: WeightAverage, epoch: int) -> None:
    """Let the averaged network see as many batches as there are in an epoch, `SETTLING` at most."""
    seed = derive_seed(run.config.seed, SETTLE, epoch)
    order = epoch_order(len(run.train_set), seed, 0).to(run.device).split(run.config.batch_size)
    batches = order[: min(run.steps_per_epoch, SETTLING)]
    shown = (run.show(batch, derive_seed(seed, i)) for i, batch in enumerate(batches))
    average.settle(
        partial(run.take_step.answer, average.model, points, given) for points, _, given in shown
    )


def finish_epoch(run: Run, epoch: int) -> dict[str, Any]:
    """Write the epoch's line of metrics: means over its steps, and the evaluation where due.

    ``seconds`` counts from the start of the run, over all its parts.
    """
    config = run.config
    run.check_finite()
    line: dict[str, Any] = {
        "epoch": epoch + 1,
        "step": run.step,
        "lr": learning_rate(config, run.step - 1, run.steps_per_epoch),
        **{name: value.item() / run.steps_per_epoch for name, value in run.sums.items()},
        "seconds": round(run.seconds, 3),
    }
    run.sums.clear()
    due = config.evaluate_every and (epoch + 1) % config.evaluate_every == 0
    due = due or epoch + 1 == config.epochs
    if due and run.average is not None:
        settle(run, run.average, epoch)
    if process() > 0:
        return line
    if due:
        line["evaluation"] = evaluate(
            run.result,
            run.held_out,
            config.evaluate_rotation,
            batch_size=config.batch_size,
            device=run.device,
        )
    append_line(run.metrics_path, line)
    return line


def finish(run: Run) -> None:
    """Write the weights of the last epoch and the record of the run."""
    lines = read_metrics(run.metrics_path) if run.metrics_path.exists() else []
    if len(lines) != run.config.epochs:
        raise ValueError(
            f"{run.metrics_path} has lines for {len(lines)} of {run.config.epochs} epochs although "
            "the checkpoint is of the last; restore it, or train again in another --out"
        )
    record = make_record(
        run.settings,
        lines[-1]["evaluation"],
        run.train_set.source,
        run.train_set.up,
        run.seconds,
        run.device,
    )
    if run.start is not None:
        record["start"] = run.start
    if run.elsewhere:
        record["earlier_environments"] = run.elsewhere
    best = best_test_epoch(lines)
    if best is not None:
        record["best_test_epoch"] = best
    run.save_weights()
    write_json(run.folder / "record.json", record)


def best_test_epoch(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the best of several evaluations on the test split, for comparison with papers only."""
    tested = [
        line for line in lines if "evaluation" in line and line["evaluation"]["split"] == "test"
    ]
    if len(tested) < 2:
        return None
    figure = main_figure(tested[0]["evaluation"])
    share, epoch = max(
        ((line["evaluation"][figure], line["epoch"]) for line in tested),
        key=lambda item: (item[0], -item[1]),
    )
    return {"epoch": epoch, figure: share, "of": len(tested)}


def summary(line: dict[str, Any]) -> str:
    """Render a line of metrics for the terminal."""
    text = f"epoch {line['epoch']:3d}  loss {line['total']:.4f}  accuracy {line['accuracy']:.3f}"
    if "evaluation" in line:
        result = line["evaluation"]
        share = f"{result['overall_accuracy']:.3f}"
        text += f"  {result['split']} accuracy ({result['rotation']}) {share}"
        for key in ("miou", "class_miou", "instance_miou"):
            text += f"  {key} {result[key]:.3f}" if key in result else ""
    return f"{text}  {line['seconds']:.1f} s"


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step: a linear warm-up, then half a cosine, or steps.

    The cosine goes from ``lr`` down to ``final_lr``; with ``decay_every`` the rate is multiplied by
    ``decay`` after every so many epochs instead.
    """
    warm_up = config.warm_up * steps_per_epoch
    if step < warm_up:
        return config.lr * (step + 1) / (math.floor(warm_up) + 1)
    if config.decay_every:
        return config.lr * config.decay ** (step // (config.decay_every * steps_per_epoch))
    done = (step - warm_up) / (config.epochs * steps_per_epoch - warm_up)
    return config.final_lr + (config.lr - config.final_lr) * (1 + math.cos(math.pi * done)) / 2


def epoch_order(shapes: int, seed: int, epoch: int) -> Int[Tensor, " s"]:
    """Return the order in which an epoch visits the shapes."""
    generator = torch.Generator().manual_seed(derive_seed(seed, EPOCH_ORDER, epoch))
    return torch.randperm(shapes, generator=generator)
