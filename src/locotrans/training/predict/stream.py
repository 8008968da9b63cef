"""Files through a network: read ahead by other processes, in batches, in bounded memory."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.kernels.threads import single_threads
from locotrans.training.predict.samples import Choice, Sample, load_sample

T = TypeVar("T")

FEW = 256  # files; starting processes takes as long as reading so many


@dataclass
class Inference:
    """A network and how clouds reach it."""

    model: nn.Module
    points: int
    """Points of each cloud."""
    seed: int = 0
    """Seed of the choice of points."""
    batch_size: int = 32
    """Clouds at a time."""
    device: torch.device | str = "cpu"
    choice: Choice = "random"
    """How points are chosen: see `choose_points`."""
    workers: int | None = 0
    """Processes that read; 0 reads in a thread of this one; None chooses by the number of files.

    A process imports the script that started it, which therefore has to guard its own code by
    ``if __name__ == "__main__":``, or it would run again.
    """
    reading: float = 0.0
    """Processor time that reading has taken so far."""
    holes: int = 0
    """Points of nan that were left out so far."""

    def __post_init__(self) -> None:
        for name, least in (("points", 1), ("batch_size", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        self.model.to(self.device).eval()

    def run(
        self, files: Sequence[Path], function: Callable[[Tensor], T]
    ) -> Iterator[tuple[list[Sample], list[T]]]:
        """Yield the files in order, some at a time, and what ``function`` says of their clouds.

        On a CPU a batch is cut into as many parts as torch has threads, and each part is computed
        by one: threads that share an operation wait for each other, and wait long when other
        programs (or our own readers) need the cores too.

        Args:
            files: what to read.
            function: called with the clouds of a part of a batch, of files that could be read.
        """
        on_cpu = torch.device(self.device).type == "cpu"
        parts = torch.get_num_threads() if on_cpu else 1
        with ThreadPoolExecutor(parts) as pool:
            for samples, clouds in self._batches(files):
                chunks = [part for part in clouds.tensor_split(parts) if len(part) > 0]
                with single_threads():
                    answers = list(pool.map(function, chunks))
                yield samples, answers

    def _batches(
        self, files: Sequence[Path]
    ) -> Iterator[tuple[list[Sample], Float[Tensor, "b n 3"]]]:
        workers = count_workers(len(files)) if self.workers is None else self.workers
        ahead = 2 * self.batch_size + 2 * workers
        samples = read_samples(
            files, self.points, self.seed, self.choice, workers=workers, ahead=ahead
        )
        dtype = next((p.dtype for p in self.model.parameters()), torch.float32)
        while batch := list(islice(samples, self.batch_size)):
            self.reading += sum(sample.seconds for sample in batch)
            self.holes += sum(sample.holes for sample in batch)
            clouds = [sample.points for sample in batch if sample.points is not None]
            stacked = np.stack(clouds) if clouds else np.empty((0, self.points, 3), np.float32)
            yield batch, torch.from_numpy(stacked).to(self.device, dtype)


def count_workers(files: int) -> int:
    """Return how many processes should read: none for a few files, else one a core, at most 8."""
    if files < FEW:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, 8)


def read_samples(
    files: Iterable[Path],
    points: int,
    seed: int = 0,
    choice: Choice = "random",
    *,
    workers: int = 0,
    ahead: int = 64,
) -> Iterator[Sample]:
    """Read files in other processes and yield them in order.

    Only the chosen points travel between processes, and at most ``ahead`` files are under way, so
    memory does not grow with their number or size. A process that dies (killed for its memory,
    say) costs one file: those that were under way are read again, each in a process of its own.

    Args:
        files: what to read.
        points: points of each cloud.
        seed: seed of the choice of points.
        choice: how they are chosen.
        workers: processes; 0 reads in a thread of this one.
        ahead: files that are read before they are asked for.
    """
    rest = iter(files)
    read = partial(load_sample, count=points, seed=seed, choice=choice)
    waiting: deque[tuple[Path, Future[Sample]]] = deque()
    pool = _start(workers)
    try:
        while True:
            for path in islice(rest, ahead - len(waiting)):
                try:
                    future = pool.submit(read, path)
                except BrokenExecutor:
                    pool = _start(workers)
                    future = pool.submit(read, path)
                waiting.append((path, future))
            if not waiting:
                return
            path, future = waiting.popleft()
            try:
                sample = future.result()
            except BrokenExecutor:  # a process died, and all that were under way are lost
                sample = _read_alone(path, read)
            yield sample
    finally:
        pool.shutdown(cancel_futures=True)


def _start(workers: int) -> Executor:
    if workers == 0:
        return ThreadPoolExecutor(1)
    # not "fork": the copy of a process whose other threads hold locks may wait for ever
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload([__name__])  # imports torch once, not once a process
    return ProcessPoolExecutor(workers, context, _prepare_worker)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    torch.set_num_threads(1)


def _read_alone(path: Path, read: Callable[[Path], Sample]) -> Sample:
    with _start(1) as pool:
        try:
            return pool.submit(read, path).result()
        except BrokenExecutor:
            return Sample(path, error="the process that read it died: is it too large?")
