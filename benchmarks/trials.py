"""Compare settings of training on held-out training shapes, over several seeds.

    python benchmarks/trials.py TRIALS.json --root DIR --runs runs --seeds 2 --out trials.json

TRIALS.json holds flags of `locotrans train`: those of all runs, and what each trial adds to them:

    {"common": "--preset modelnet40 --rotation z --epochs 80 --validation 0.2",
     "trials": {"the preset": "", "less stretched": "--scale 1.1"}}

Seeds go in turns through the trials; the record is written after every run. Repeated, the command
goes on with the run that was cut and with those that are missing. Several processes may work in one
folder of runs. It ends with the status 3 where there was no time for all runs, 2 where one failed.
"""

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from learning import reached, summary
from reproduce import BAD_INPUT
from timing import device_argument, markdown, record_arguments, write_record

from locotrans import cli
from locotrans.cli.learn import STOPPED
from locotrans.training.folder import locked


def read_trials(path: Path) -> dict[str, list[str]]:
    """Return the flags of `locotrans train` for each trial of a file.

    Raises:
        ValueError: naming what is wrong.
    """
    try:
        given = json.loads(path.read_text())
        common, trials = shlex.split(given["common"]), given["trials"]
        flags = {name: common + shlex.split(more) for name, more in trials.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f'{path} cannot be read: {error!r}; it holds {{"common": FLAGS, "trials": {{NAME: '
            "FLAGS}}, flags being those of `locotrans train`"
        ) from None
    for name, all_flags in flags.items():
        if not any(flag.partition("=")[0] == "--validation" for flag in all_flags):
            raise ValueError(f"{path}: {name!r} lacks --validation; the test split selects nothing")
        if not name or "/" in name:
            raise ValueError(f"{path}: {name!r} cannot be the name of a folder")
    return flags


def carry_out(flags: Sequence[str], args: argparse.Namespace, deadline: float) -> int:
    """Train one network, as far as the time goes, and return the exit status of the command."""
    given = [] if args.root is None else ["--root", str(args.root)]
    given += ["--device", str(args.device)]
    if deadline < math.inf:
        given += ["--stop-after", f"{max(0.0, deadline - time.monotonic()):.1f}"]
    try:
        cli.main(["train", *flags, *given])
    except SystemExit as end:
        if end.code not in (STOPPED, BAD_INPUT):  # Ctrl-C, say
            raise
        return int(end.code)
    return 0


def finished(trials: Sequence[str], seeds: int, runs: Path) -> list[dict[str, Any]]:
    """Return what each finished run reached."""
    folders = {(name, seed): runs / f"{name}_s{seed}" for seed in range(seeds) for name in trials}
    return [
        {"trial": name, **reached(folder)}
        for (name, _), folder in folders.items()
        if (folder / "record.json").exists()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trials", type=Path, help="JSON file of flags")
    parser.add_argument("--runs", type=Path, required=True, help="folder to keep the runs in")
    parser.add_argument("--root", type=Path, help="folder of the data set")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 0 on")
    parser.add_argument("--stop-after", type=float, help="seconds")
    parser.add_argument("--device", default="auto", type=device_argument)
    record_arguments(parser)
    args = parser.parse_args(arguments)
    try:
        trials = read_trials(args.trials)
    except ValueError as error:
        parser.error(str(error))
    deadline = math.inf if args.stop_after is None else time.monotonic() + args.stop_after
    endings = {0}
    for seed in range(args.seeds):
        for name, flags in trials.items():
            folder = args.runs / f"{name}_s{seed}"
            if (folder / "record.json").exists():
                continue
            with ExitStack() as stack:
                try:
                    stack.enter_context(locked(args.runs / "claims" / folder.name))
                except ValueError:  # another process is at it
                    ended = STOPPED
                else:
                    place = ["--seed", str(seed), "--out", str(folder)]
                    late = time.monotonic() >= deadline
                    ended = STOPPED if late else carry_out([*flags, *place], args, deadline)
            endings.add(ended)
            if ended == 0:
                keep(args, trials)
    rows = keep(args, trials)
    print(markdown(rows) if rows else "no run is finished yet")
    return next(status for status in (BAD_INPUT, STOPPED, 0) if status in endings)


def keep(args: argparse.Namespace, trials: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Write the record of what is finished, and return a row for each trial."""
    runs = finished(list(trials), args.seeds, args.runs)
    rows = summary(runs, "trial")
    flags = {name: shlex.join(given) for name, given in trials.items()}
    if args.out is not None:
        write_record(args, args.device, {"flags": flags, "trials": rows, "runs": runs})
    return rows


if __name__ == "__main__":
    sys.exit(main())
