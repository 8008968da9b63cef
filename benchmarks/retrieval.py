"""Retrieval by the embeddings of trained classifiers, of shapes that are turned.

    python benchmarks/retrieval.py runs/light runs/dgcnn --data modelnet40 --root DIR --out map.json

Every shape of the split, in a pose of its own, asks for the others of its class: the mean average
precision (mAP). The poses depend on the seed alone, and are the same for every network. "found
again" is the share of shapes that, asked for in another pose, come first among all.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from timing import cloud_arguments, markdown, record_arguments, write_record
from torch import Tensor, nn

from locotrans.data import CloudSet, load_dataset, rotate
from locotrans.data.transforms import RotationProtocol
from locotrans.metrics import retrieval_map
from locotrans.training import load_weights
from locotrans.training.evaluate import sample_rotations
from locotrans.training.predict.samples import as_trained

PROTOCOLS: tuple[RotationProtocol, ...] = ("none", "z", "so3")


@torch.inference_mode()
def embed(
    model: nn.Module, points: Float[Tensor, "s n 3"], batch_size: int, device: torch.device
) -> Float[Tensor, "s c"]:
    """Return the embedding of every shape."""
    model.to(device)
    batches = points.split(batch_size)
    return torch.cat([model(batch.to(device)).embedding.double().cpu() for batch in batches])


def measure(
    model: nn.Module, data: CloudSet, seed: int, batch_size: int, device: torch.device
) -> dict[str, float]:
    """Return the mAP under each protocol, and how often a shape is found again under SO(3)."""
    figures = {}
    stored = embed(model, data.points, batch_size, device)
    for rotation in PROTOCOLS:
        R = sample_rotations(rotation, data.up, len(data), 1, seed)[:, 0]
        turned = rotate(data.points, R)
        vectors = stored if rotation == "none" else embed(model, turned, batch_size, device)
        figures[f"mAP, {rotation}"] = retrieval_map(vectors, data.labels)
    units, asked = (torch.nn.functional.normalize(x, dim=-1) for x in (stored, vectors))
    first = (asked @ units.mT).argmax(-1)
    figures["found again"] = (first == torch.arange(len(data))).double().mean().item()
    return figures


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("weights", nargs="+", help="run folders or .safetensors files")
    cloud_arguments(parser)
    record_arguments(parser)
    args = parser.parse_args(arguments)
    rows, data = [], None
    for path in args.weights:
        model, metadata = load_weights(path)
        args.points = args.points or metadata["points"]
        if data is None:
            where = {"root": args.root, "points": args.points, "shapes": args.shapes}
            data = load_dataset(args.data, args.split, **where)
        shown = as_trained(data, metadata, args.device)
        figures = measure(model, shown, args.seed, args.batch_size, args.device)
        rows.append({"model": metadata["model"], **figures, "training": metadata})
    assert data is not None
    table = [{key: x for key, x in row.items() if key != "training"} for row in rows]
    print(f"{data.name} {data.split}, {len(data)} shapes of {args.points} points")
    print(markdown(table))
    results = {"networks": rows, "shapes": len(data), "data_checksum": data.checksum}
    write_record(args, args.device, results)
    return rows


if __name__ == "__main__":
    main()
