"""What fewer digits do to a trained classifier: its logits, its answers, its invariance.

    python benchmarks/precision.py runs/light --data modelnet40 --root DIR --out precision.json

Every mode is compared with plain code in float32, on the shapes as they are stored; errors of
logits are relative to the length of a shape's logits. Agreement is the share of turned shapes that
get the answer of the shape as it is stored. Without a GPU there is nothing but float32.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from timing import device_argument, markdown, record_arguments, write_record
from torch import Tensor, nn

from locotrans.data import CloudSet, load_dataset
from locotrans.geometry.products import float32_products
from locotrans.kernels import set_kernels
from locotrans.training import load_weights
from locotrans.training.evaluate import evaluate

MODES = {  # kernels, products of float32, autocast
    "plain, float32": ("off", "highest", False),
    "fast, float32": ("auto", "highest", False),
    "fast, TF32": ("auto", "high", False),
    "fast, bfloat16": ("auto", "high", True),
}


@contextmanager
def mode(name: str, device: torch.device) -> Iterator[None]:
    """Compute in one of the modes."""
    kernels, products, autocast = MODES[name]
    before = set_kernels(kernels)
    try:
        with (
            float32_products(products),
            torch.autocast(device.type, torch.bfloat16, enabled=autocast),
        ):
            yield
    finally:
        set_kernels(before)


@torch.inference_mode()
def logits(
    model: nn.Module, data: CloudSet, batch_size: int, device: torch.device
) -> Float[Tensor, "s classes"]:
    """Return the logits of every shape as it is stored."""
    batches = data.points.split(batch_size)
    return torch.cat([model(batch.to(device)).logits.double().cpu() for batch in batches])


def measure(
    model: nn.Module, data: CloudSet, seed: int, batch_size: int, device: torch.device
) -> list[dict[str, Any]]:
    """Return a row of figures for each mode."""
    model.to(device).eval()
    rows = []
    exact = None
    for name in [*MODES][: None if device.type == "cuda" else 2]:
        with mode(name, device):
            answer = logits(model, data, batch_size, device)
            turned = evaluate(model, data, "so3", seed=seed, batch_size=batch_size, device=device)
        exact = answer if exact is None else exact
        errors = (answer - exact).norm(dim=-1) / exact.norm(dim=-1)
        right = answer.argmax(-1) == data.labels
        rows.append(
            {
                "mode": name,
                "logits, median": errors.median().item(),
                "logits, worst": errors.max().item(),
                "answers changed": int((answer.argmax(-1) != exact.argmax(-1)).sum()),
                "accuracy": right.double().mean().item(),
                "accuracy, so3": turned["overall_accuracy"],
                "agreement, so3": turned["rotation_agreement"],
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("weights", help="run folder or .safetensors file")
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--points", type=int, help="by default as it was trained")
    parser.add_argument("--shapes", type=int, help="shapes to generate, for a generated set")
    parser.add_argument("--seed", type=int, default=0, help="of the poses")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="auto", type=device_argument)
    record_arguments(parser)
    args = parser.parse_args(arguments)
    model, metadata = load_weights(args.weights)
    args.points = args.points or metadata["points"]
    where = {"root": args.root, "points": args.points, "shapes": args.shapes}
    data = load_dataset(args.data, args.split, **where)
    rows = measure(model, data, args.seed, args.batch_size, args.device)
    print(f"{data.name} {data.split}, {len(data)} shapes of {args.points} points")
    print(markdown(rows))
    results = {
        "modes": rows,
        "training": metadata,
        "shapes": len(data),
        "data_checksum": data.checksum,
    }
    write_record(args, args.device, results)
    return rows


if __name__ == "__main__":
    main()
