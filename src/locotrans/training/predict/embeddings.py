"""`locotrans embed`: what a network makes of each file, before it classifies."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from locotrans.training.predict.arrays import array_file
from locotrans.training.predict.files import find_files
from locotrans.training.predict.progress import follow, load_inference
from locotrans.training.predict.samples import Choice, Sample


def embed(
    paths: Sequence[Path],
    weights: Path | str,
    out: Path,
    *,
    per_point: bool = False,
    points: int | None = None,
    seed: int = 0,
    choice: Choice | None = None,
    batch_size: int = 32,
    device: str = "auto",
    workers: int | None = 0,
) -> int:
    """Write the embedding of each file, in .npz or .safetensors.

    The file holds ``embeddings`` (files, channels) and ``paths``, row for row; ``failed`` and
    ``reasons`` name the files that could not be read. Per point, ``embeddings`` are (files, points,
    channels), and ``points``, ``centers`` and ``radii`` say where: ``points * radius + center`` are
    the coordinates of the file. In .safetensors the texts are JSON lists in the metadata. With a
    rotation-invariant network the pose of a file does not matter.

    Args:
        paths: Files or folders (searched at any depth); any mix of formats and sizes.
        weights: Run folder or weights file.
        out: File to write, .npz or .safetensors.
        per_point: Write the features of every point instead of one vector a file.
        points: Points chosen of each file; by default as in training.
        seed: Seed of the choice of points.
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
    files = find_files(paths, outputs=[out])
    inference, _ = load_inference(weights, points, seed, batch_size, device, workers, choice)
    with array_file(out) as arrays, follow(inference, len(files)) as tally:
        texts: dict[str, list[str]] = {"paths": [], "failed": [], "reasons": []}
        arrays.texts = texts
        ask = partial(embeddings_of, inference.model, per_point)
        for samples, parts in inference.run(files, ask):
            good = [sample for sample in samples if sample.error is None]
            texts["paths"] += [str(sample.path) for sample in good]
            for sample in samples:
                if sample.error is not None:
                    texts["failed"].append(str(sample.path))
                    texts["reasons"].append(sample.error)
                tally(sample.error is None)
            for embeddings in parts:
                arrays.append({"embeddings": embeddings})
            if good and per_point:
                arrays.append(_places(good))
    return int(bool(texts["failed"]))


@torch.inference_mode()
def embeddings_of(model: torch.nn.Module, per_point: bool, clouds: Tensor) -> np.ndarray:
    """Return one vector a cloud, or one a point, in single precision."""
    output = model(clouds)
    values = output.point_features if per_point else output.embedding
    if values is None:
        what = "features of all points, since it keeps few" if per_point else "embedding"
        raise ValueError(f"{type(model).__name__} gives no {what}")
    return values.float().cpu().numpy()


def _places(samples: Sequence[Sample]) -> dict[str, np.ndarray]:
    return {
        "points": np.stack([s.points for s in samples if s.points is not None]),
        "centers": np.stack([s.center for s in samples if s.center is not None]),
        "radii": np.array([s.radius for s in samples], dtype=np.float64),
    }
