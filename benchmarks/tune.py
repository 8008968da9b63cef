"""Find the best sizes of tiles for the kernels on the GPU that is here.

    python benchmarks/tune.py --out tuned.json            all kernels
    python benchmarks/tune.py --match rpr_conv --workers 12

Every setting of a kernel (`LAUNCHES` of the relative-pose convolution, the module constants of the
others) is tried on the cases of `kernel_cases` that use it, the others as they are. Compiling takes
longer than measuring, so worker processes first run each setting once and leave the compiled
kernels in Triton's cache on disk. A kernel's time is its own, from torch's profiler, not that of
the launches around it. Nothing is changed: the table says what would be best.
"""

import argparse
import importlib
import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from kernel_cases import cases
from kernel_timing import Case, Problem, Size

ROUNDS = 5  # that a time is the mean of


class Setting(NamedTuple):
    """One choice for one kernel."""

    kernel: str
    """How the names of its GPU functions begin."""
    match: str
    """Cases that use it: their names contain this."""
    module: str
    values: tuple[tuple[str, Any], ...]
    """Module constants, or ("LAUNCHES", (kernel, launch))."""

    def apply(self) -> Callable[[], None]:
        """Put the choice in force, and return a function that takes it back."""
        module = importlib.import_module(f"locotrans.kernels.{self.module}")
        undo: list[Callable[[], None]] = []
        for name, value in self.values:
            if name == "LAUNCHES":
                table, (key, launch) = module.LAUNCHES, value
                undo.append(partial(table.__setitem__, key, table[key]))
                table[key] = module.Launch(*launch)
            else:
                undo.append(partial(setattr, module, name, getattr(module, name)))
                setattr(module, name, value)
        return lambda: [f() for f in undo] and None


def settings() -> Iterator[Setting]:
    """Yield every choice; one with no values is what is in force."""
    launches = {
        "pose": ((32, 64), (64,), (4, 8), (1, 2)),
        "linear": ((64,), (32, 64), (8,), (1, 2, 3), (96, 128)),
        "max": ((64,), (32, 64), (8,), (1, 2, 3), (None, 128)),
        "max_backward": ((32, 64), (32, 64), (4, 8), (1, 2)),
        "max_weight": ((64, 128), (64, 128), (8,), (1, 2, 3)),
        "linear_backward": ((32, 64), (32, 64), (8,), (1, 2), (None, 168)),
        "pose_backward": ((32, 64), (64,), (4, 8), (1, 2)),
    }
    for name, grid in launches.items():
        yield Setting(f"{name}_kernel", "bfloat16", "rpr_launch", ())
        for launch in itertools.product(*grid):
            values = (("LAUNCHES", (name, launch)),)
            yield Setting(f"{name}_kernel", "bfloat16", "rpr_launch", values)
    for kernel, programs in itertools.product(
        ("linear_kernel", "linear_backward_kernel", "max_weight_kernel"), (1, 2, 4, 8)
    ):
        name = "FORWARD_PROGRAMS" if kernel == "linear_kernel" else "BACKWARD_PROGRAMS"
        yield Setting(kernel, "bfloat16", "rpr_launch", ((name, 132 * programs),))
    for rows, channels, warps in itertools.product((4, 8, 16, 32), (32, 64), (2, 4)):
        values = (("EDGE_ROWS", rows), ("CHANNELS", channels), ("WARPS", warps))
        yield Setting("_edge_", "vn_edge_conv", "vn", values)
    for rows, channels, warps in itertools.product((8, 16, 32, 64), (32, 64), (4, 8)):
        values = (("POINT_ROWS", rows), ("CHANNELS", channels), ("WARPS", warps))
        yield Setting("_point_", "vn_norm_act", "vn", values)
    for groups, slots in itertools.product((128, 256), (64, 128)):
        yield Setting("_select_kernel", "knn", "knn", (("GROUPS", groups), ("SLOTS", slots)))


def run(problem: Problem) -> None:
    """Call a kernel forward and, where there is one, backward."""
    output = problem.fused()
    if problem.inputs:
        outputs = (output,) if isinstance(output, torch.Tensor) else tuple(output)
        torch.autograd.grad([x.float().sum() for x in outputs], problem.inputs, allow_unused=True)
    torch.cuda.synchronize()


def attempt(setting: Setting, chosen: list[Case], size: Size) -> dict[str, float] | str:
    """Return the microseconds of the kernel in each case, or why the setting is impossible."""
    undo = setting.apply()
    times = {}
    try:
        for case in chosen:
            problem = case.make(size)
            run(problem)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
                for _ in range(ROUNDS):
                    run(problem)
            found = [x for x in prof.key_averages() if x.key.startswith(setting.kernel)]
            if found:
                times[case.name] = sum(x.device_time_total for x in found) / ROUNDS
    except Exception as error:  # Triton raises of many kinds: out of registers, of shared memory
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        undo()
    return times


def work(number: int, workers: int, match: str, only: str, size: Size) -> None:
    """Compile every ``workers``-th setting, and leave the result in the cache."""
    for setting in list(wanted(match, only))[number::workers]:
        attempt(setting, matching(setting, match, size), size)


def wanted(match: str, only: str) -> Iterator[Setting]:
    """Yield the settings of kernels whose name contains ``only``, in cases named like ``match``."""
    for setting in settings():
        if only in setting.kernel and (match in setting.match or setting.match in match):
            yield setting


def matching(setting: Setting, match: str, size: Size) -> list[Case]:
    """Return the cases of a setting."""
    return [case for case in cases(size) if setting.match in case.name and match in case.name]


def main(argv: list[str] | None = None) -> None:
    """Try all settings and print the best ones of every kernel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="cases whose name contains this")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    parser.add_argument("--out", type=Path, default=Path("tuned.json"))
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.exit("tuning needs a CUDA device")
    size = Size(32, 1024, 20, torch.device("cuda"))
    context = multiprocessing.get_context("spawn")
    pool = [
        context.Process(target=work, args=(i, args.workers, args.match, args.only, size))
        for i in range(args.workers)
    ]
    for process in pool:
        process.start()
    for process in pool:
        process.join()
    rows: list[dict[str, Any]] = []
    for setting in wanted(args.match, args.only):
        result = attempt(setting, matching(setting, args.match, size), size)
        rows.append({"kernel": setting.kernel, "values": setting.values, "result": result})
        args.out.write_text(json.dumps(rows, indent=1))
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        done = [r for r in rows if r["kernel"] == kernel and isinstance(r["result"], dict)]
        done = sorted((r for r in done if r["result"]), key=lambda r: sum(r["result"].values()))
        print(f"\n{kernel}: {len(done)} settings possible")
        for row in done[:5]:
            each = ", ".join(f"{name} {us:.0f}" for name, us in row["result"].items())
            print(f"  {sum(row['result'].values()):8.0f} us  {row['values']}  ({each})")


if __name__ == "__main__":
    main()
