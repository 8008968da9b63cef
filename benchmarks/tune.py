"""Find the best sizes of tiles for the kernels on the GPU that is here.

    python benchmarks/tune.py --out tuned.json            all kernels
    python benchmarks/tune.py --only linear_backward --workers 12

Every setting of a kernel (a row of `LAUNCHES` or `FLOAT32_LAUNCHES` of the relative-pose
convolution, the module constants of the others) is tried on a narrow and a wide case of
`kernel_cases` that use it, the other kernels as they are. Compiling takes longer than measuring, so
worker processes first compile what will be tried, without launching it, into Triton's cache on
disk. A kernel's time is its own: it is launched several times in a row, where its call comes in the
case. Nothing is changed: the table says what would be best.
"""

import argparse
import importlib
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from kernel_cases import cases
from kernel_timing import Case, Problem, Size
from timing import record_arguments, write_record
from triton.runtime.jit import JITFunction

ROUNDS = 5  # that a time is the mean of
AHEAD = 2_000_000  # cycles that the GPU waits while launches queue up

FULL = ("rpr_conv 21, 64 to 64, bf16", "rpr_conv 42, 128 to 256, bf16")
LIGHT = ("rpr_conv 21, 64 to 64, bf16, light", "rpr_conv 21, 128 to 256, bf16, light")
TF32 = (
    "rpr_conv 21, 64 to 64, tf32, evaluation",
    "rpr_conv 42, 128 to 256, tf32, evaluation",
)
LIGHT_TF32 = (
    "rpr_conv 21, 64 to 128, tf32, evaluation, light",
    "rpr_conv 21, 128 to 256, tf32, evaluation, light",
)

Launches = list[tuple[int | None, ...]]
# rows, columns, warps, stages and registers, as far as the registers of a program let one hope
TRAINING: dict[str, Launches] = {
    "pose": [
        (64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 8, 1), (64, 64, 8, 2), (128, 64, 8, 1),
        (128, 64, 8, 2), (32, 64, 4, 1), (32, 64, 4, 2),
    ],
    "linear": [
        (64, 64, 8, 3, 128), (64, 64, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2),
        (128, 64, 8, 3), (64, 128, 8, 2), (128, 128, 8, 2), (128, 128, 8, 3),
    ],
    "max": [
        (64, 64, 8, 3), (64, 64, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 8, 2),
        (64, 128, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3), (64, 32, 4, 3),
    ],
    "max_backward": [
        (64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 8, 1), (64, 64, 8, 2), (64, 128, 8, 1),
        (64, 128, 8, 2), (128, 64, 8, 1), (32, 64, 4, 1), (64, 64, 8, 1, 128), (32, 64, 4, 2),
    ],
    "max_weight": [
        (64, 128, 8, 2), (64, 128, 8, 1), (64, 128, 8, 3), (64, 64, 4, 2), (64, 64, 4, 3),
        (64, 64, 8, 2), (128, 64, 8, 1), (32, 128, 8, 2), (32, 64, 4, 2), (64, 128, 8, 2, 128),
    ],
    "multiply_backward": [
        (64, 64, 8, 2), (64, 64, 8, 1), (64, 64, 8, 1, 128), (64, 64, 8, 2, 128), (64, 64, 4, 1),
        (32, 64, 4, 1), (32, 64, 4, 2), (32, 64, 8, 1), (128, 64, 8, 1),
    ],
    "linear_backward": [
        (64, 64, 8, 2), (64, 64, 8, 1), (64, 64, 8, 1, 128), (64, 64, 8, 2, 128), (64, 64, 4, 1),
        (64, 64, 4, 2), (32, 64, 4, 1), (32, 64, 4, 2), (64, 128, 8, 1), (64, 128, 8, 2),
    ],
    "pose_backward": [
        (64, 64, 8, 2), (64, 64, 8, 1), (64, 64, 8, 1, 128), (64, 64, 8, 2, 128), (64, 64, 4, 1),
        (64, 64, 4, 2), (32, 64, 4, 1), (32, 64, 4, 2), (32, 64, 8, 1),
    ],
}  # fmt: skip
EVALUATION: dict[str, Launches] = {
    "pose": [
        (64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 8, 1), (64, 64, 8, 2), (128, 64, 8, 1),
        (32, 64, 4, 1), (32, 64, 4, 2), (32, 64, 2, 1),
    ],
    "linear": [
        (64, 64, 8, 2, 128), (64, 64, 8, 2), (64, 64, 8, 3), (64, 64, 4, 2), (64, 64, 4, 3),
        (128, 64, 8, 2), (128, 64, 8, 3), (64, 128, 8, 2), (128, 128, 8, 2), (64, 32, 4, 2),
    ],
    "last": [
        (64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 1), (64, 128, 4, 2),
        (64, 128, 8, 1), (64, 128, 8, 2), (64, 64, 8, 2), (128, 64, 8, 1), (128, 64, 8, 2),
        (128, 128, 8, 1), (64, 256, 8, 1),
    ],
}  # fmt: skip
PROGRAMS = {  # of a multiprocessor, where a program walks through the edges
    "linear": ("FORWARD_PROGRAMS", (2, 8)),
    "max_weight": ("BACKWARD_PROGRAMS", (1, 4, 8)),
    "multiply_backward": ("BACKWARD_PROGRAMS", (1, 4, 8)),
    "linear_backward": ("BACKWARD_PROGRAMS", (1, 4, 8)),
}


class Setting(NamedTuple):
    """One choice for one kernel."""

    kernel: str
    """How the names of its GPU functions begin."""
    cases: tuple[str, ...]
    """Names of those it is tried on."""
    module: str
    values: tuple[tuple[str, Any], ...]
    """Module constants, or a table of launches with (key, launch); none: what is in force."""

    def apply(self) -> Callable[[], None]:
        """Put the choice in force, and return a function that takes it back."""
        module = importlib.import_module(f"locotrans.kernels.{self.module}")
        undo: list[Callable[[], None]] = []
        for name, value in self.values:
            before = getattr(module, name)
            if name.endswith("LAUNCHES"):
                key, launch = value
                for name_of in {key, f"{key} wide"} & set(before):
                    undo.append(partial(before.__setitem__, name_of, before[name_of]))
                    before[name_of] = module.Launch(*launch)
            else:
                undo.append(partial(setattr, module, name, before))
                setattr(module, name, value)
        return lambda: [f() for f in undo] and None


def settings() -> Iterator[Setting]:
    """Yield every choice."""
    for table, grids in (("LAUNCHES", TRAINING), ("FLOAT32_LAUNCHES", EVALUATION)):
        for key, launches in grids.items():
            # a product with a factor is alone in its kernel in light networks
            kernel = "linear_backward" if key == "multiply_backward" else key
            names = TF32 if grids is EVALUATION else LIGHT if kernel != key else FULL
            names += LIGHT_TF32 if key == "last" else ()
            make = partial(Setting, f"{kernel}_kernel", names, "rpr_plan")
            yield make(())
            for launch in launches:
                yield make(((table, (key, launch)),))
            constant, choices = PROGRAMS.get(key, ("", ()))
            # more programs are of use where their registers leave room for them
            few = [x for x in launches if x[4:] or x[2] == 4][:2]
            for programs, launch in itertools.product(choices, [None, *few]):
                value = (constant, 132 * programs)
                yield make((value,) if launch is None else (value, (table, (key, launch))))
    for rows, channels, warps in itertools.product((4, 8, 16), (32, 64), (2, 4)):
        values = (("ROWS", rows), ("CHANNELS", channels), ("WARPS", warps))
        yield Setting("vn_edge_", ("vn_edge_conv 21", "vn_edge_conv 85"), "vn_edges", values)
    for rows, channels, warps in itertools.product((8, 16, 32), (32, 64), (4, 8)):
        values = (("ROWS", rows), ("CHANNELS", channels), ("WARPS", warps))
        yield Setting("vn_point_", ("vn_norm_act 341", "vn_norm_act 170"), "vn_points", values)
    for groups in (128, 256):
        values = (("GROUPS", groups),)
        yield Setting("_select_", ("knn of coordinates", "knn of 64 features"), "knn", values)


def run(problem: Problem) -> None:
    """Call a kernel forward and, where there is one, backward."""
    output = problem.fused()
    if problem.inputs:
        outputs = (output,) if isinstance(output, torch.Tensor) else tuple(output)
        torch.autograd.grad([x.float().sum() for x in outputs], problem.inputs, allow_unused=True)


@contextmanager
def launching(function: Callable[..., Any]) -> Iterator[None]:
    """Have kernels launched by ``function(launch, kernel, *args, **kwargs)``."""
    launch = JITFunction.run
    JITFunction.run = lambda kernel, *args, **kwargs: function(launch, kernel, *args, **kwargs)
    try:
        yield
    finally:
        JITFunction.run = launch


def compile_kernels(setting: Setting, chosen: list[Case], size: Size) -> None:
    """Compile the kernel of a setting, and launch none at all."""

    def compiled(launch: Callable[..., Any], kernel: Any, *args: Any, **kwargs: Any) -> None:
        if kernel.fn.__name__.startswith(setting.kernel):
            launch(kernel, *args, **(kwargs | {"warmup": True}))

    undo = setting.apply()
    try:
        with launching(compiled):
            for case in chosen:
                run(case.make(size))
    except Exception as error:  # of many kinds; `attempt` will meet it again and tell
        print(f"{setting.values}: {type(error).__name__}", file=sys.stderr)
    finally:
        undo()


def attempt(
    setting: Setting, chosen: list[Case], problems: dict[str, Problem]
) -> dict[str, float] | str:
    """Return the microseconds of the kernel in each case, or why the setting is impossible."""
    spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def timed(launch: Callable[..., Any], kernel: Any, *args: Any, **kwargs: Any) -> None:
        launch(kernel, *args, **kwargs)
        if kernel.fn.__name__.startswith(setting.kernel):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(AHEAD)
            start.record()
            for _ in range(ROUNDS):
                launch(kernel, *args, **kwargs)
            end.record()
            spans.append((start, end))

    undo = setting.apply()
    times = {}
    try:
        with launching(timed):
            for case in chosen:
                spans.clear()
                run(problems[case.name])
                torch.cuda.synchronize()
                times[case.name] = sum(1e3 * a.elapsed_time(b) for a, b in spans) / ROUNDS
    except Exception as error:  # Triton raises of many kinds: out of registers, of shared memory
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        undo()
    return times


def work(number: int, workers: int, only: str, size: Size) -> None:
    """Compile every ``workers``-th setting, and leave the result in the cache."""
    for setting in wanted(only)[number::workers]:
        compile_kernels(setting, matching(setting, size), size)


def wanted(only: str) -> list[Setting]:
    """Return the settings of kernels whose name contains ``only``."""
    return [setting for setting in settings() if only in setting.kernel]


def matching(setting: Setting, size: Size) -> list[Case]:
    """Return the cases of a setting."""
    return [case for case in cases(size) if case.name in setting.cases]


def best(rows: list[dict[str, Any]], name: str | None) -> list[dict[str, Any]]:
    """Return the fastest settings of a kernel in one case, or in all of them together."""

    def time(row: dict[str, Any]) -> float:
        return row["result"][name] if name else sum(row["result"].values())

    return sorted((row for row in rows if isinstance(row["result"], dict)), key=time)


def show(rows: list[dict[str, Any]]) -> None:
    """Print the best settings of every kernel, in total and by case."""
    for kernel, names in dict.fromkeys((row["kernel"], row["cases"]) for row in rows):
        tried = [row for row in rows if (row["kernel"], row["cases"]) == (kernel, names)]
        possible = best(tried, None)
        print(f"\n{kernel}: {len(possible)} of {len(tried)} settings possible")
        for row in possible[:5]:
            each = ", ".join(f"{name} {us:.0f}" for name, us in row["result"].items())
            print(f"  {sum(row['result'].values()):8.0f} us  {row['values']}  ({each})")
        for row in possible:
            if not row["values"]:
                print(f"  {sum(row['result'].values()):8.0f} us  in force")
        for name in names if possible else ():
            for row in best(tried, name)[:2]:
                print(f"  {row['result'][name]:8.0f} us  {row['values']}  in {name}")


def main(argv: list[str] | None = None) -> None:
    """Try all settings and print the best ones of every kernel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    record_arguments(parser)
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.exit("tuning needs a CUDA device")
    size = Size(32, 1024, 20, torch.device("cuda"))
    context = multiprocessing.get_context("spawn")
    pool = [
        context.Process(target=work, args=(i, args.workers, args.only, size))
        for i in range(args.workers)
    ]
    for process in pool:
        process.start()
    for process in pool:
        process.join()
    rows: list[dict[str, Any]] = []
    problems: dict[str, Problem] = {}
    for setting in wanted(args.only):
        chosen = matching(setting, size)
        for case in chosen:
            if case.name not in problems:
                problems[case.name] = case.make(size)
        result = attempt(setting, chosen, problems)
        rows.append({**setting._asdict(), "result": result})
    write_record(args, size.device, rows)
    show(rows)


if __name__ == "__main__":
    main()
