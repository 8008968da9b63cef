"""What fewer digits do to a trained classifier: its logits, its answers, its invariance.

    python benchmarks/precision.py runs/light --data modelnet40 --root DIR --out precision.json

Every mode is compared with plain code in float64, on the shapes as they are stored; errors of
logits are relative to the length of a shape's logits. Agreement is the share of turned shapes that
get the answer of the shape as it is stored. Without a GPU there is nothing but float32.
"""

import argparse
import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from network_timing import MODES, kernels
from timing import cloud_arguments, markdown, record_arguments, write_record
from torch import Tensor, nn

from locotrans.data import CloudSet, load_dataset
from locotrans.geometry.products import float32_products
from locotrans.training import load_weights
from locotrans.training.evaluate import evaluate
from locotrans.training.predict.samples import as_trained


@torch.inference_mode()
def logits(
    model: nn.Module, data: CloudSet, batch_size: int, device: torch.device
) -> Float[Tensor, "s classes"]:
    """Return the logits of every shape as it is stored."""
    dtype = next(model.parameters()).dtype
    batches = data.points.split(batch_size)
    return torch.cat([model(x.to(device, dtype)).logits.double().cpu() for x in batches])


def measure(
    model: nn.Module, data: CloudSet, seed: int, batch_size: int, device: torch.device
) -> list[dict[str, Any]]:
    """Return a row of figures for each mode."""
    model.to(device).eval()
    rows = []
    with kernels("off"):
        exact = logits(copy.deepcopy(model).double(), data, batch_size, device)
    for name, setting, products, bf16, graph in MODES:
        if graph or (device.type != "cuda" and products != "highest"):
            continue
        with (
            kernels(setting),
            float32_products(products),
            torch.autocast(device.type, torch.bfloat16, enabled=bf16),
        ):
            answer = logits(model, data, batch_size, device)
            turned = evaluate(model, data, "so3", seed=seed, batch_size=batch_size, device=device)
        errors = (answer - exact).norm(dim=-1) / exact.norm(dim=-1)
        right = answer.argmax(-1) == data.labels
        rows.append(
            {
                "mode": name,
                "logits, median": errors.median().item(),
                "logits, 99%": errors.quantile(0.99).item(),
                "logits, worst": errors.max().item(),
                "more than 1e-3": (errors > 1e-3).double().mean().item(),
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
    cloud_arguments(parser)
    record_arguments(parser)
    args = parser.parse_args(arguments)
    model, metadata = load_weights(args.weights)
    args.points = args.points or metadata["points"]
    where = {"root": args.root, "points": args.points, "shapes": args.shapes}
    data = load_dataset(args.data, args.split, **where)
    shown = as_trained(data, metadata, args.device)
    rows = measure(model, shown, args.seed, args.batch_size, args.device)
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
