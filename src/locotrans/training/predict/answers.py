"""`locotrans predict`: a row for each file."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.counting import counted
from locotrans.data.transforms import rotate
from locotrans.geometry import random_rotations
from locotrans.training.predict.files import find_files, printable
from locotrans.training.predict.output import COLUMNS, csv_rows, json_rows
from locotrans.training.predict.progress import follow, load_inference
from locotrans.training.predict.samples import Choice
from locotrans.training.predict.stream import Inference


class Prediction(NamedTuple):
    """The answer for one file; a file that failed has a path and an error."""

    path: Path
    class_name: str | None = None
    confidence: float | None = None
    """Probability of the class by the softmax of the combined logits, averaged over the poses."""
    agreement: float | None = None
    """Share of the poses that by themselves give this class; None where there is one pose."""
    points: int | None = None
    """Points in the file."""
    error: str | None = None

    def row(self) -> dict[str, Any]:
        """Return the columns of a table."""
        return dict(zip(COLUMNS, (str(self.path), *self[1:]), strict=True))


def predict(
    paths: Sequence[Path],
    weights: Path | str,
    *,
    csv: Path | None = None,
    json: Path | None = None,
    rotations: int = 0,
    points: int | None = None,
    seed: int = 0,
    choice: Choice | None = None,
    batch_size: int = 32,
    device: str = "auto",
    workers: int | None = 0,
) -> int:
    """Classify point clouds and meshes; print the answers, or write them as CSV or JSON.

    Columns are path, class, confidence, agreement, points and error, one row a file, also for
    those that could not be read. A cloud may be off centre, in any unit and of any size.

    Args:
        paths: Files or folders (searched at any depth); any mix of formats and sizes.
        weights: Run folder or weights file.
        csv: CSV file to write.
        json: JSON file to write.
        rotations: Average over this many random poses of each file, and report which share of
            them agrees with the answer; 0 takes the pose of the file.
        points: Points chosen of each file; by default as in training.
        seed: Seed of the poses and of the choice of points.
        choice: How points are chosen: at random, farthest points, which even out a density that
            varies much within a scan, or even (farthest ones of the points and others between
            them); by default as in training: even for a network trained so, or else at random.
        batch_size: Files at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
        workers: Processes that read; 0 reads in a thread; None takes one a core if files are many.
            With processes, a script has to guard its own code by ``if __name__ == "__main__":``.

    Returns:
        The exit status: 0, or 1 if some files could not be read.
    """
    files = find_files(paths, outputs=(csv, json))
    inference, metadata = load_inference(weights, points, seed, batch_size, device, workers, choice)
    names = metadata.get("class_names")
    if not isinstance(names, list) or len(names) != metadata["num_classes"]:
        raise ValueError(f"{weights} does not name the {metadata['num_classes']} classes")
    failed, sparse = False, 0
    few = metadata.get("points", 0) // 4
    with ExitStack() as stack:
        writers = [
            stack.enter_context(open_rows(path))
            for open_rows, path in ((csv_rows, csv), (json_rows, json))
            if path is not None
        ]
        tally = stack.enter_context(follow(inference, len(files)))
        for answer in predict_files(inference, files, names, rotations):
            for write in writers:
                write(answer.row())
            if not writers:
                print(_line(answer), flush=True)
            failed |= answer.error is not None
            sparse += answer.error is None and (answer.points or few) < few
            tally(answer.error is None)
    if sparse:
        print(
            f"warning: {counted(sparse, 'file')} with fewer than {few} points, a quarter of what "
            "the network was trained with: expect wrong answers",
            file=sys.stderr,
        )
    return int(failed)


def predict_files(
    inference: Inference, files: Sequence[Path], class_names: Sequence[str], rotations: int = 0
) -> Iterator[Prediction]:
    """Yield the answer for each file, in order.

    The poses are the same for every file, and depend on the seed alone.
    """
    if rotations < 0:
        raise ValueError(f"rotations must not be negative, got {rotations}")
    generator = torch.Generator().manual_seed(inference.seed)
    poses = random_rotations(rotations, generator=generator)
    ask = partial(classify, inference.model, poses)
    for samples, parts in inference.run(files, ask):
        answers = (answer for part in parts for answer in zip(*part, strict=True))
        for sample in samples:
            if sample.error is not None:
                yield Prediction(sample.path, error=sample.error)
                continue
            shares, agreement = next(answers)
            confidence, label = shares.max(0)
            if confidence.isnan():
                yield Prediction(sample.path, error="the network's answer is not a number")
                continue
            yield Prediction(
                sample.path,
                class_names[int(label)],
                round(float(confidence), 6),
                round(float(agreement), 6) if rotations > 0 else None,
                sample.size,
            )


@torch.inference_mode()
def classify(
    model: nn.Module, poses: Float[Tensor, "r 3 3"], clouds: Float[Tensor, "b n 3"]
) -> tuple[Float[Tensor, "b classes"], Float[Tensor, " b"]]:
    """Return the probabilities, averaged over the poses, and the share of poses that agree.

    With no pose the clouds are taken as they are.
    """
    turned = (
        (rotate(clouds, R.expand(len(clouds), 3, 3)) for R in poses) if len(poses) else [clouds]
    )
    each = torch.stack([model(x).logits.double().softmax(-1).cpu() for x in turned])  # r b classes
    mean = each.mean(0)
    agreement = (each.argmax(-1) == mean.argmax(-1)).double().mean(0)
    return mean, agreement


def _line(answer: Prediction) -> str:
    path = printable(answer.path)
    if answer.error is not None:
        return f"{path}: error: {answer.error}"
    agreement = "" if answer.agreement is None else f", agreement {answer.agreement:.0%}"
    return f"{path}: {answer.class_name} ({answer.confidence:.1%}{agreement})"
