"""Train and measure what the paper's tables compare, run by run, as far as the time goes.

    python benchmarks/reproduce.py modelnet40 --list
    python benchmarks/reproduce.py modelnet40 --root DIR --out runs --stop-after 3600
    python benchmarks/reproduce.py shapenetpart --root DIR --out runs --only "*_light_*"

Each run is a folder of `locotrans train`, with its evaluations beside (``z.json``, ``so3.json``, of
some ``perturb.json`` and, with --dense, ``samplings.json``); `locotrans report runs/*` makes tables
of them. Our own recipe for ModelNet40 comes last. Repeated, the command goes on: with the run that
was cut, then with those that are missing. It ends with the status 3 where there was no time for all
runs, 2 where one failed.
"""

import argparse
import fnmatch
import math
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from locotrans import cli
from locotrans.cli.learn import STOPPED

BAD_INPUT = 2  # exit status of `locotrans`
LIGHT, FULL = "locotrans_dgcnn_light", "locotrans_dgcnn"
SEGMENTERS = ("locotrans_dgcnn_{}_light", "locotrans_dgcnn_{}", "dgcnn_{}", "vn_dgcnn_{}")
BACKBONES = [
    f"{kind}{name}" for name in ("pointnet2", "pct", "pointmlp") for kind in ("", "locotrans_")
]
FREE = "--orthogonality-weight 0 --consistency-weight 0 --options frames=gram_schmidt"
ABLATED = {  # 60 epochs each
    LIGHT: {
        **{f"k_{k}": f"--options k={k}" for k in (20, 10, 40)},
        "gram_schmidt": FREE,
        "gram_schmidt_no_pose": f"{FREE} relative_pose=none",
        "gram_schmidt_coordinates": f"{FREE} relative_pose=coordinates",
        "handcrafted": "--options frames=handcrafted",
        **{
            f"pose_{pose}": f"--options relative_pose={pose}"
            for pose in ("none", "coordinates", "handcrafted", "invariant")
        },
    },
    FULL: {f"fusion_{x}": f"--options fusion={x}" for x in ("true", "false")},
}
PERTURBED = (f"{LIGHT}_z_s0", f"{FULL}_z_s0", f"{LIGHT}_k_20", f"{LIGHT}_gram_schmidt")
SAMPLED = tuple(f"{model}{recipe}_z_s0" for recipe in ("", "_even") for model in (LIGHT, FULL))
# what tables are made of
FILES = ("record.json", "metrics.jsonl", "perturb.json", "samplings.json", "z.json", "so3.json")


def runs(
    preset: str,
    models: Sequence[str],
    flags: str = "",
    seeds: int = 1,
    rotations: Sequence[str] = ("z", "so3"),
    recipe: str = "",
) -> dict[str, str]:
    """Return the flags of `locotrans train` by the name of a run.

    Args:
        preset: the recipe.
        models: which networks.
        flags: what departs from the recipe.
        seeds: how many, from 0 on.
        rotations: about the up axis, in any pose.
        recipe: what the names say of a recipe that is not the paper's, such as "_even".
    """
    return {
        f"{model}{recipe}_{rotation}_s{seed}": (
            f"--preset {preset} --model {model} --rotation {rotation} --seed {seed} {flags}"
        )
        for seed in range(seeds)
        for rotation in rotations
        for model in models
    }


STUDIES: Mapping[str, Mapping[str, str]] = {
    "modelnet40": {
        **runs("modelnet40", [LIGHT], seeds=2),
        **runs("modelnet40", [FULL, "vn_dgcnn", "dgcnn", "pointnet"]),
        **{
            f"{model}_{name}": (
                f"--preset modelnet40 --model {model} --rotation z --epochs 60 {flags}"
            )
            for model, ablations in ABLATED.items()
            for name, flags in ablations.items()
        },
        **runs("modelnet40", BACKBONES, rotations=["z"]),
        **runs("modelnet40_even", [LIGHT, FULL], rotations=["z"], recipe="_even"),
    },
    "shapenetpart": runs(
        "shapenetpart", [name.format("partseg") for name in SEGMENTERS], "--epochs 100"
    ),
    "psb": runs("psb", [name.format("partseg") for name in SEGMENTERS]),
    "s3dis": runs("s3dis_spheres", [name.format("semseg") for name in SEGMENTERS], "--epochs 60"),
}


def reproduce(name: str, flags: str, args: argparse.Namespace, deadline: float) -> bool:
    """Train one network and measure it; return whether there was time for all of it."""
    folder = args.out / name
    given = [] if args.root is None else ["--root", str(args.root)]
    given += ["--device", args.device]
    left = deadline - time.monotonic()
    limit = [] if left == math.inf else ["--stop-after", f"{max(left, 0):.1f}"]
    settings = ["--precision", args.precision, "--evaluate-every", str(args.evaluate_every)]
    try:
        cli.main(["train", *shlex.split(flags), *settings, *given, *limit, "--out", str(folder)])
    except SystemExit as end:
        if end.code == STOPPED:
            return False
        raise
    commands = {"perturb": ["perturb", str(folder), *given]} if name in PERTURBED else {}
    if args.dense is not None and name in SAMPLED:
        dense = ["--data", "hdf5:up=y", "--root", str(args.dense), "--device", args.device]
        commands["samplings"] = ["samplings", str(folder), *dense]
    without = [] if args.exclude is None else ["--exclude", str(args.exclude)]
    for rotation in ("z", "so3"):
        commands[rotation] = ["eval", str(folder), "--rotation", rotation, *given, *without]
    for file, command in commands.items():
        result = folder / f"{file}.json"
        if time.monotonic() >= deadline:
            return False
        if not result.exists() or (without and file in ("z", "so3")):
            cli.main([*command, "--json", str(result)])
    return True


def lacks(folder: Path, args: argparse.Namespace) -> bool:
    """Say whether a finished run was not measured on dense clouds, or without some shapes."""
    dense = args.dense is not None and folder.name in SAMPLED
    missing = dense and not (folder / "samplings.json").exists()
    whole = args.exclude is not None and "without_excluded" not in (folder / "so3.json").read_text()
    return missing or whole


def keep(folder: Path, records: Path) -> None:
    """Copy the small files of a finished run; the last one, which says that it is, last."""
    records.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        if (folder / file).exists():
            shutil.copyfile(folder / file, records / f"{file}.part")
            (records / f"{file}.part").replace(records / file)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--list", action="store_true", help="print the runs that are left")
    parser.add_argument("--only", default="*", help="pattern of the names of runs")
    parser.add_argument("--root", type=Path, help="folder of the data set")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the run folders")
    parser.add_argument(
        "--records",
        type=Path,
        help="folder that the small files of finished runs are copied to; what it has is not run",
    )
    parser.add_argument("--exclude", type=Path, help="as of `locotrans eval`")
    parser.add_argument(
        "--dense",
        type=Path,
        help="folder with test.h5 of dense clouds of the data set, y up, for `locotrans samplings`",
    )
    parser.add_argument(
        "--precision",
        default="mixed" if torch.cuda.is_available() else "float32",
        choices=["float32", "mixed"],
    )
    parser.add_argument("--evaluate-every", type=int, default=10, help="epochs")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="seconds")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(arguments)
    chosen = {k: v for k, v in STUDIES[args.study].items() if fnmatch.fnmatch(k, args.only)}
    if not chosen:
        parser.error(f"no run of {args.study} is called {args.only!r}; --list names them")
    if not args.stop_after >= 0:
        parser.error(f"--stop-after must be at least 0 seconds, got {args.stop_after:g}")
    if args.exclude is not None and not args.exclude.is_file():
        parser.error(f"--exclude {args.exclude}: there is no such file")
    if args.dense is not None and not (args.dense / "test.h5").is_file():
        parser.error(f"--dense {args.dense}: there is no file {args.dense / 'test.h5'}")
    deadline = time.monotonic() + args.stop_after
    records = args.records or args.out
    left = [
        name
        for name in chosen
        if not (records / name / FILES[-1]).exists()
        # finished before these were named; without its weights nothing can be added
        or ((args.out / name / "weights.safetensors").exists() and lacks(records / name, args))
    ]
    if args.list:
        print("\n".join(f"{name}: {chosen[name]}" for name in left))
        return 0
    failed = []
    for name in left:
        print(f"== {name}", flush=True)
        try:
            if time.monotonic() >= deadline or not reproduce(name, chosen[name], args, deadline):
                return STOPPED
        except SystemExit as end:
            if end.code != BAD_INPUT:  # Ctrl-C, say
                raise
            failed.append(name)  # the reason is printed; the others can go on
            continue
        if args.records is not None:
            keep(args.out / name, args.records / name)
    if failed:
        print("failed:", ", ".join(failed), file=sys.stderr)
    return BAD_INPUT if failed else 0


if __name__ == "__main__":
    sys.exit(main())
