"""`index` and `search` on many shapes: memory over time, the time of a query, what comes first.

    python benchmarks/index_shapes.py --shapes 10000 --out index.json
    python benchmarks/index_shapes.py --weights runs/light --shapes 10000

Writes built-in shapes, a file each, and indexes them as `locotrans index` does. Some of them, in
another pose, size and place and with their points in another order, are then searched for. "found
first" is the share of these queries whose own shape is the nearest. The time of a query is the
processor time of the network and that of the search, without reading. By default the weights are
fresh.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from predict_files import show, watched
from timing import device_argument, record_arguments

from locotrans import create_model
from locotrans.data import load_dataset
from locotrans.geometry import random_rotations
from locotrans.training.checkpoint import write_tensors
from locotrans.training.config import to_json
from locotrans.training.predict.embeddings import embeddings_of
from locotrans.training.predict.progress import load_inference
from locotrans.training.predict.samples import load_sample
from locotrans.training.search import Index, build_index, find_nearest
from locotrans.training.search.build import unit

MODEL = "locotrans_dgcnn_light"


def fresh_weights(path: Path, points: int) -> Path:
    """Write weights that were not trained."""
    torch.manual_seed(0)
    model = create_model(MODEL, 20)
    facts = {"model": MODEL, "config": to_json(model.config), "num_classes": 20}
    write_tensors(path, model.state_dict(), {**facts, "points": points})
    return path


def write_shapes(folder: Path, count: int, points: int, seed: int) -> None:
    shapes = load_dataset("builtin", "train", points=points, shapes=count, seed=seed).points
    folder.mkdir()
    for number, cloud in enumerate(shapes):
        np.save(folder / f"{number:06d}.npy", cloud.numpy())


def turned(file: Path, to: Path, rng: np.random.Generator) -> Path:
    """Write a shape in another pose, size and place, and its points in another order."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    R = random_rotations(generator=generator, dtype=torch.float64).numpy()
    points = rng.permutation(np.load(file).astype(np.float64))
    np.save(to, rng.uniform(0.5, 5) * points @ R.T + rng.normal(size=3))
    return to


@torch.inference_mode()
def ask(path: Path, weights: Path, queries: int, seed: int, device: str) -> dict[str, float]:
    """Search for some shapes of an index in other poses."""
    index = Index.open(path)
    facts, rng = index.facts, np.random.default_rng(seed)
    inference, _ = load_inference(weights, facts.points, facts.seed, 1, device, 0, facts.choice)
    right, times = 0, []
    for row in rng.choice(len(index), min(queries, len(index)), replace=False):
        file = turned(index.file(int(row)), path.with_name("query.npy"), rng)
        sample = load_sample(file, facts.points, facts.seed, choice=facts.choice)
        assert sample.points is not None
        cloud = torch.from_numpy(sample.points)[None].to(inference.device)
        start = time.process_time()
        vector = unit(embeddings_of(inference.model, False, cloud)[0])
        middle = time.process_time()
        ((first, _), *_) = find_nearest(index.embeddings, vector, k=10)
        times.append((middle - start, time.process_time() - middle))
        right += first == row
    network, search = 1000 * np.median(times, axis=0)
    return {
        "queries": len(times),
        "found first": right / len(times),
        "network, ms": float(network),
        "search, ms": float(search),
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--weights", type=Path, help="run folder or weights file of a classifier")
    parser.add_argument("--shapes", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=128, help="of a file, and of fresh weights")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", type=device_argument)
    record_arguments(parser)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = args.weights or fresh_weights(folder / "fresh.safetensors", args.points)
        write_shapes(folder / "shapes", args.shapes, args.points, args.seed)
        index, start = folder / "shapes.index", time.perf_counter()
        with watched() as memory:
            build_index(folder / "shapes", index, weights, device=str(args.device))
        seconds = time.perf_counter() - start
        result = {
            "model": Index.open(index).facts.model,
            "weights": "fresh" if args.weights is None else args.weights.name,
            "shapes": len(Index.open(index)),
            "seconds": seconds,
            **ask(index, weights, args.queries, args.seed, str(args.device)),
            "MiB": memory.tenths(),
        }
    show(args, result)
    return result


if __name__ == "__main__":
    main()
