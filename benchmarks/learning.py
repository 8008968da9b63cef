"""Whether the fast ways to train reach the accuracy of plain float32, over several seeds.

    python benchmarks/learning.py --points 256 --epochs 10 --seeds 16 --out learning.json
    python benchmarks/learning.py --preset modelnet40 --root DIR --epochs 20 --seeds 4

A short run differs from the next by chance by several points, so one run of each says nothing: the
table gives means with their standard errors. Seeds go in turns through the modes, and the record is
written after every run, so that a benchmark that was cut compares what it has; `--runs DIR` keeps
the runs, and the same command goes on with those that are missing. Without a GPU there is only the
plain code to train by.
"""

import argparse
import io
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from network_timing import kernels
from rich.console import Console
from timing import device_argument, markdown, record_arguments, write_record

from locotrans.training import train
from locotrans.training.config import TrainConfig
from locotrans.training.presets import base_config

MODES = {  # kernels and precision
    "plain": ("off", "float32"),
    "float32": ("auto", "float32"),
    "mixed": ("auto", "mixed"),
}
HEADS = ("invariant", "equivariant", "combined")


def learn(config: TrainConfig, mode: str) -> dict[str, Any]:
    """Train a network, and return what it reached at its last epoch."""
    setting, precision = MODES[mode]
    with kernels(setting):
        train(replace(config, precision=precision), Console(file=io.StringIO()))
    return {"mode": mode, **reached(config.out)}


def reached(folder: Path) -> dict[str, Any]:
    """Return what a finished run reached at its last epoch."""
    record = json.loads((folder / "record.json").read_text())
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    heads = record["evaluation"]["heads"]
    return {
        "seed": record["seed"],
        **{name: heads[name]["overall_accuracy"] for name in HEADS if name in heads},
        "training accuracy": last["accuracy"],
        "training loss": last["total"],
        "seconds": record["seconds"],
    }


def summary(runs: Sequence[dict[str, Any]], kind: str = "mode") -> list[dict[str, Any]]:
    """Return a row for each mode, or other kind of runs: means over its seeds, and their spread."""
    rows = []
    for mode in dict.fromkeys(run[kind] for run in runs):
        some = [run for run in runs if run[kind] == mode]
        answers = [run["combined"] for run in some]
        row = {kind: mode, "seeds": len(some), "accuracy": statistics.mean(answers)}
        if len(some) > 1:
            row["standard error"] = statistics.stdev(answers) / len(some) ** 0.5
        row |= {"least": min(answers), "most": max(answers)}
        for name in (*HEADS[:-1], "training accuracy", "seconds"):
            if name in some[0]:
                row[name] = statistics.mean(run[name] for run in some)
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--modes", help=f"of {','.join(MODES)} (default: all; on a CPU plain)")
    parser.add_argument("--seeds", type=int, default=6, help="how many, from 0 on")
    parser.add_argument("--preset", help="recipe of `locotrans train`")
    parser.add_argument("--model")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--rotation", default="z", choices=["none", "z", "so3"])
    for name in ("points", "epochs", "shapes", "test-shapes", "batch-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--device", default="auto", type=device_argument)
    parser.add_argument("--runs", type=Path, help="folder to keep the runs in (default: none)")
    record_arguments(parser)
    args = parser.parse_args(arguments)
    known = list(MODES) if args.device.type == "cuda" else ["plain"]
    modes = args.modes.split(",") if args.modes else known
    if others := [mode for mode in modes if mode not in known]:
        parser.error(f"no mode {others[0]!r} on {args.device}; there: {', '.join(known)}")
    names = ("root", "rotation", "points", "epochs", "shapes", "test_shapes", "batch_size")
    settings = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    config = replace(base_config(args.preset, args.model), device=str(args.device), **settings)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            for mode in modes:
                out = (args.runs or Path(folder)) / f"{mode}_s{seed}"
                runs.append(learn(replace(config, seed=seed, out=out), mode))
                if args.device.type == "cuda":
                    torch.cuda.empty_cache()  # of the graph of the last step
                print({k: round(v, 4) if isinstance(v, float) else v for k, v in runs[-1].items()})
                if args.out is not None:
                    write_record(args, args.device, {"modes": summary(runs), "runs": runs})
    print(markdown(summary(runs)))
    return runs


if __name__ == "__main__":
    main()
