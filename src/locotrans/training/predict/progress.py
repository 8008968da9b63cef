"""What `predict` and `embed` share: weights to a network, and word of how it goes."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from locotrans.counting import counted
from locotrans.training.checkpoint import load_weights
from locotrans.training.predict.samples import Choice, trained_choice
from locotrans.training.predict.stream import Inference
from locotrans.training.record import find_device
from locotrans.training.tasks import is_segmenter


def load_inference(
    weights: Path | str,
    points: int | None,
    seed: int,
    batch_size: int,
    device: str,
    workers: int | None,
    choice: Choice | None = None,
) -> tuple[Inference, dict[str, Any]]:
    """Build the network of a run or weights file, to be fed as it was trained unless told else.

    Returns:
        The network, and the header of its weights.
    """
    place = find_device(device)
    model, metadata = load_weights(weights)
    if is_segmenter(model):
        raise ValueError(f"{weights} labels points, not files: use `locotrans segment`")
    count = metadata.get("points", 1024) if points is None else points
    choice = trained_choice(metadata) if choice is None else choice
    return Inference(model, count, seed, batch_size, place, choice, workers), metadata


@contextmanager
def follow(inference: Inference, files: int) -> Iterator[Callable[[bool], None]]:
    """Show a bar on the error output, and at the end how many files there were and the time.

    Yields:
        What to call for each file: with True if it could be read.
    """
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]}"))
    done, failed, start = 0, 0, time.perf_counter()
    # rows printed to a terminal go above the bar; those sent elsewhere must get there
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        task = progress.add_task("files", total=files, failed="")

        def tally(good: bool) -> None:
            nonlocal done, failed
            done, failed = done + 1, failed + (not good)
            progress.update(task, advance=1, failed=f"{failed} failed" if failed else "")

        yield tally
    holes = f"; {counted(inference.holes, 'nan point')} left out" if inference.holes else ""
    print(
        f"{counted(done, 'file')} in {time.perf_counter() - start:.1f} s "
        f"(processor time of reading {inference.reading:.1f} s), {failed:,} failed{holes}",
        file=sys.stderr,
    )
