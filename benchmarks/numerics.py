"""The measurements behind docs/differences.md: what rounding does to frames, graphs and logits.

    python benchmarks/numerics.py --out numerics.json    a few minutes on one core
    python benchmarks/numerics.py --quick                seconds: fewer samples, no networks

Everything runs on the CPU, from fixed seeds. Errors of logits are relative to the largest logit.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from frame_numerics import Row, frames, gradients, same_value
from timing import markdown, record_arguments, relative_error, write_record
from torch import Tensor, nn

from locotrans import create_model
from locotrans.geometry import neighbors, random_rotations
from locotrans.losses import classification_losses

MODELS = {"light": "locotrans_dgcnn_light", "full": "locotrans_dgcnn"}
LOGIT_SEEDS = (0, 1, 2)
TIED_SEEDS = (0, 1, 2, 3, 4, 5)
SEEDS = {
    "frames": 0,
    "gradients": [0, 1],
    "logits": LOGIT_SEEDS,
    "centring": 0,
    "neighbours": 0,
    "tied clouds": TIED_SEEDS,
}


def rotated_logits(names: Sequence[str], seeds: Sequence[int], points: int = 256) -> list[Row]:
    """How far a rotation moves the logits of the invariant branch in float32, by frame."""
    R = random_rotations(3, generator=_generator(0), dtype=torch.float64)
    rows = []
    for name in names:
        row: Row = {"network": name}
        for kind in ("symmetric", "symmetric_printed", "gram_schmidt"):
            errors = []
            for seed in seeds:
                model, generator = _trained(name, seed, points, 1.0, frames=kind)
                x = torch.randn(2, points, 3, generator=generator)
                errors += _moved(model, x, R, lambda output: output.invariant)
            row |= {kind: max(errors), f"{kind}, median": statistics.median(errors)}
        rows.append(row)
    return rows


def centring(names: Sequence[str], points: int = 256) -> list[Row]:
    """How far a shift moves the logits, and a rotation those of a shifted cloud."""
    R = random_rotations(2, generator=_generator(0), dtype=torch.float64)
    rows = []
    for name in names:
        for centred in (True, False):
            model, generator = _trained(name, 0, points, 0.3, center=centred)
            x = 0.3 * torch.randn(4, points, 3, generator=generator)
            with torch.no_grad():
                at_home = model(x).logits
                for shift in (0, 0.2, 50):
                    rows.append(
                        {
                            "network": name,
                            "centred": centred,
                            "shift": shift,
                            "moved by the shift": relative_error(model(x + shift).logits, at_home),
                            "moved by a rotation": max(
                                _moved(model, x + shift, R, lambda output: output.logits)
                            ),
                        }
                    )
    return rows


def tie_rule(k: int = 20) -> list[Row]:
    """Neighbourhoods of an 8 x 8 x 8 grid, in float32, that a rotation changes."""
    axis = torch.arange(8, dtype=torch.float32)
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1).reshape(1, -1, 3)
    grid = (grid - grid.mean(1, keepdim=True)) / 8
    R = random_rotations(4, generator=_generator(0), dtype=torch.float64)
    before, rows = neighbors.TIE, []
    for name, slack in {"with the rule": before, "without": 0.0}.items():
        neighbors.TIE = slack
        reference = _sets(neighbors.knn(grid, k))
        turned = [_sets(neighbors.knn((grid.double() @ r.mT).float(), k)) for r in R]
        shares = [(x != reference).any(-1).float().mean().item() for x in turned]
        rows.append({"ties": name, "share of neighbourhoods changed": max(shares)})
    neighbors.TIE = before
    return rows


def tied_clouds(
    names: Sequence[str], size: int = 64, side: int = 6, seeds: Sequence[int] = TIED_SEEDS
) -> list[Row]:
    """How far rotations and another order of the points move the logits where distances tie.

    Of several networks, that which is moved the most, and by rotations the least.
    """
    R = random_rotations(3, generator=_generator(0), dtype=torch.float64)
    angle = 2 * torch.pi * torch.arange(size, dtype=torch.float64) / size
    ring = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=-1)
    up = torch.tensor([[0, 0, 0.6]], dtype=torch.float64)
    axis = torch.linspace(-1, 1, side, dtype=torch.float64)
    clouds = {
        "no ties": torch.randn(4 * size + 2, 3, generator=_generator(0), dtype=torch.float64),
        "grid": torch.cartesian_prod(axis, axis, axis),
        "4 rings and 2 caps": torch.cat([*(ring + i * up for i in range(4)), -up / 2, 3.5 * up]),
    }
    rows = []
    for name in names:
        models = [_trained(name, seed, 2 * size, 1.0)[0] for seed in seeds]
        for dtype in (torch.float64, torch.float32):
            for cloud, x in clouds.items():
                order = torch.randperm(len(x), generator=_generator(0))
                turned, shuffled = [], []
                for model in models:
                    with torch.no_grad():
                        model.to(dtype)
                        logits = model(x[None].to(dtype)).logits
                        moved = [model((x @ r.mT)[None].to(dtype)).logits for r in R]
                        other = model(x[None, order].to(dtype)).logits
                    turned.append(max(relative_error(y, logits) for y in moved))
                    shuffled.append(relative_error(other, logits))
                row: Row = {"network": name, "precision": str(dtype)[6:], "cloud": cloud}
                row |= {"moved by a rotation": max(turned), "least": min(turned)}
                rows.append(row | {"moved by a permutation": max(shuffled)})
    return rows


def off_centre(k: int = 20) -> list[Row]:
    """Neighbourhoods of 1,000 points of spread 0.3, 50 off centre, that float32 gets wrong."""
    points = 0.3 * _draw(1000, 3) + 50

    def product(x: Tensor, k: int) -> Tensor:
        squares = x.square().sum(-1)
        return (squares[:, None] - 2 * x @ x.mT + squares).topk(k, largest=False).indices

    truth = _sets(neighbors.knn(points.double(), k))
    searches = {"by differences": neighbors.knn, "by one product": product}
    return [
        {
            "distances": name,
            "share wrong": (_sets(search(points, k)) != truth).any(-1).float().mean().item(),
        }
        for name, search in searches.items()
    ]


def parameters() -> list[Row]:
    """Parameters of the networks."""
    options: dict[str, Any] = {"reference_point": True}
    return [
        {"network": name + extra, "parameters": sum(p.numel() for p in model.parameters())}
        for name in MODELS
        for extra, model in {
            "": create_model(MODELS[name]),
            ", reference_point": create_model(MODELS[name], **options),
        }.items()
    ]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_generator(0))


def _sets(index: Tensor) -> Tensor:
    return index.sort(-1).values


def _trained(
    name: str, seed: int, points: int, scale: float, **options: Any
) -> tuple[nn.Module, torch.Generator]:
    """Return a network two steps after initialisation, in evaluation, and the state of chance."""
    torch.manual_seed(seed)
    model = create_model(MODELS[name], **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = _generator(seed)
    for _ in range(2):
        x = scale * torch.randn(4, points, 3, generator=generator)
        optimizer.zero_grad()
        classification_losses(model(x), torch.arange(4)).total.backward()
        optimizer.step()
    return model.eval(), generator


def _moved(model: nn.Module, x: Tensor, R: Tensor, answer: Callable[[Any], Tensor]) -> list[float]:
    """Return how far each rotation moves an answer."""
    with torch.no_grad():
        reference = answer(model(x))
        turned = [(x.double() @ r.mT).float() for r in R]
        return [relative_error(answer(model(y)), reference) for y in turned]


def main(argv: list[str] | None = None) -> dict[str, list[Row]]:
    """Measure everything, print the tables and write the record if one is wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer samples, no networks")
    parser.add_argument("--threads", type=int, default=1)
    record_arguments(parser)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    quick = args.quick
    results = {
        "frames": frames(1000 if quick else 100_000),
        "the same value": same_value(1000 if quick else 100_000),
        "gradients": gradients(50 if quick else 1000),
        "tie rule": tie_rule(),
        "off centre": off_centre(),
        "parameters": parameters(),
    }
    if not quick:
        results["rotation of the invariant logits"] = rotated_logits(list(MODELS), LOGIT_SEEDS)
        results["centring"] = centring(list(MODELS))
        results["tied clouds"] = tied_clouds(list(MODELS))
    for title, rows in results.items():
        print(f"\n## {title}\n\n{markdown(rows)}")
    args.seeds = SEEDS
    write_record(args, torch.device("cpu"), results)
    return results


if __name__ == "__main__":
    main()
