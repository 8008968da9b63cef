"""How well `locotrans.align` finds the rotation between two clouds of one object.

    python benchmarks/alignment.py locotrans_dgcnn_light --data modelnet40 --root DATA --shapes 200

Each shape is turned at random. Its points are cut into two halves, which are aligned: no point of
one is in the other ("other points"). Then a cloud is aligned to itself, turned and reordered ("same
points"). Errors are angles, in degrees, to the true rotation. Classes with a rotational symmetry
have several right answers and are left out; which are taken is recorded.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import markdown, record_arguments, write_record

from locotrans.align import align, angle_of
from locotrans.data import CloudSet, load_dataset
from locotrans.geometry import random_rotations
from locotrans.training import load_weights
from locotrans.training.predict.samples import Choice, trained_choice

ASYMMETRIC = ("airplane", "bed", "chair", "guitar", "laptop", "monitor", "person", "piano", "sofa")
ASYMMETRIC += ("stairs", "toilet")
"""Classes without a rotational symmetry, in ModelNet40; of the built-in set, those it shares."""
CPU = torch.device("cpu")


def chosen_shapes(clouds: CloudSet, count: int, seed: int) -> list[int]:
    """Choose shapes of the asymmetric classes at random."""
    names = [clouds.class_names[label] for label in clouds.labels.tolist()]
    fitting = [i for i, name in enumerate(names) if name in ASYMMETRIC]
    if not fitting:
        raise ValueError(f"{clouds.name} has none of the classes {', '.join(ASYMMETRIC)}")
    generator = torch.Generator().manual_seed(seed)
    return [fitting[i] for i in torch.randperm(len(fitting), generator=generator)[:count].tolist()]


def measure(
    network: torch.nn.Module,
    clouds: CloudSet,
    shapes: list[int],
    seed: int,
    choice: Choice = "random",
) -> list[Any]:
    """Return a row of statistics for each case, before and after the refinement."""
    generator = torch.Generator().manual_seed(seed)
    errors: dict[tuple[str, str], list[float]] = {}
    for i in shapes:
        order = torch.randperm(clouds.points.shape[1], generator=generator)
        points = clouds.points[i][order].double().numpy()
        R = random_rotations(generator=generator, dtype=torch.float64).numpy()
        half = len(points) // 2
        one, other = points[:half], points[half:]
        for case, target in (("other points", other), ("same points", one[::-1])):
            found = align(network, one, target @ R.T, points=half, choice=choice)
            for stage, answer in (("network", found.first_rotation), ("refined", found.rotation)):
                errors.setdefault((case, stage), []).append(angle_of(answer @ R.T))
    return [statistics(case, stage, values) for (case, stage), values in errors.items()]


def statistics(case: str, stage: str, values: list[float]) -> dict[str, Any]:
    error = np.array(values)
    return {
        "clouds": case,
        "answer": stage,
        "shapes": len(error),
        "median": float(np.median(error)),
        "mean": float(error.mean()),
        "below 5°": float((error < 5).mean()),
        "below 15°": float((error < 15).mean()),
        "largest": float(error.max()),
    }


def main(arguments: list[str] | None = None) -> list[Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path, help="run folder or .safetensors file")
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--points", type=int, default=1024, help="of a shape; a half has half")
    parser.add_argument("--shapes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    record_arguments(parser)
    args = parser.parse_args(arguments)
    network, metadata = load_weights(args.weights)
    clouds = load_dataset(args.data, args.split, root=args.root, points=args.points)
    shapes = chosen_shapes(clouds, args.shapes, args.seed)
    rows = measure(network, clouds, shapes, args.seed, trained_choice(metadata))
    print(markdown(rows))
    facts = {key: metadata.get(key) for key in ("model", "config", "data", "points")}
    results = {"rows": rows, "classes": ASYMMETRIC, "data_checksum": clouds.checksum}
    write_record(args, CPU, {**results, "training": facts})
    return rows


if __name__ == "__main__":
    main()
