"""How fast the networks are: one command, one table for each section, one JSON record.

    python benchmarks/speed.py --out speed.json         everything, on the GPU if there is one
    python benchmarks/speed.py --only train,inference   tables alone, no record
    python benchmarks/speed.py --device cpu --quick     a trial of half a minute, at small sizes

Sections:
    train       a whole training step (forward, five losses, backward, SGD), by the `Step` that
                training uses. plain: kernels off, float32, launched from Python; fast: kernels,
                mixed precision, recorded as a CUDA graph. On the CPU: the loops and the plain code
                in turns, and the memory of each in a process of its own.
    inference   plain, and the kernels in float32, with TF32 products, and with bfloat16; launched
                from Python ("eager", with the check of the points, which waits for the GPU) and
                replayed as a CUDA graph. On the CPU: against `edge_by_edge`, in turns.
    kernels     each kernel alone against its plain specification and next to its floor; on a GPU.
    scaling     how time grows with points, k and batch, in the fast mode: on a GPU
                recorded, training in mixed precision, inference with TF32 products.
    parts       training and inference of the networks for part segmentation, 16 shapes of 2,048
                points, k = 40.
    large       one cloud of up to 100,000 points: time and memory of a forward pass, on the CPU in
                a process of its own.

Times are medians, by CUDA events on a GPU, after a warm-up. Peak memory is torch's: in use, and
reserved; on the CPU it is the process's, and what the pass added to it. Weights are those that a
network starts with; for inference, batch norms have the statistics of some of the clouds. "from
float64": how far logits are from those of plain code in float64, relative, the median over shapes
(or points). Such a network is sensitive: where rounding decides on a neighbour, logits of a shape
move by percents, whatever computes it, and of few shapes the median is chance. `precision.py`
measures a trained one. A record is written only to the file that --out names. Sections that are
measured later join those that it holds already, if these are of the same commit and arguments.
"""

import argparse
import gc
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from network_timing import (
    MODELS,
    SEGMENTERS,
    TF32_GRAPH,
    Row,
    cpu_inference_row,
    cpu_train_row,
    inference_rows,
    network,
    train_row,
    training_step,
)
from timing import (
    arguments,
    clouds,
    device_argument,
    inference,
    markdown,
    measure,
    peak_memory,
    record_arguments,
    seconds_of,
    where,
    write_record,
)

from locotrans.geometry.products import float32_products
from locotrans.kernels import set_kernels
from locotrans.training.memory import keep_freed_memory

SECTIONS = {  # and what each measures
    "train": "a whole training step",
    "inference": "a forward pass, ours against a plain one",
    "kernels": "each kernel alone, against its plain specification",
    "scaling": "one of points, k and batch varied at a time",
    "parts": "the networks for part segmentation",
    "large": "one large cloud, time and memory",
}
CPU_SECTIONS = ("train", "inference", "scaling", "large")  # unless others are asked for

TRAINING = ("plain, float32", "fast, float32", "fast, mixed")

Job = Callable[[], Iterable[Row]]  # gives some rows of a table


def train_jobs(args: argparse.Namespace) -> Iterator[Job]:
    for name in args.models:
        for batch in args.batches:
            if args.device.type != "cuda":
                yield partial(_one, cpu_training_row, args, name, batch, args.points, args.k)
                continue
            for mode in TRAINING:
                yield partial(_one, train_row, args, name, mode, batch, args.points, args.k)


def cpu_training_row(args: argparse.Namespace, name: str, batch: int, points: int, k: int) -> Row:
    """Time steps of the loops and of the plain code in turns, and say what memory each takes."""
    row = cpu_train_row(args, name, batch, points, k)
    for setting, what in {"auto": "GiB", "off": "plain GiB"}.items():
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            given = (name, setting, batch, points, k, args.threads)
            row[what] = pool.submit(cpu_step_memory, *given).result()
    return row


def cpu_step_memory(
    name: str, setting: str, batch: int, points: int, k: int, threads: int
) -> float:
    """Return what two training steps added to the memory of this process, in GiB."""
    torch.set_num_threads(threads)
    set_kernels(setting)
    keep_freed_memory()
    training_step(name, torch.device("cpu"), 2, 2 * k, k)()  # loads what is compiled
    take = training_step(name, torch.device("cpu"), batch, points, k)
    before = most_resident()
    for _ in range(2):
        take()
    return most_resident() - before


def inference_jobs(args: argparse.Namespace) -> Iterator[Job]:
    for name in args.models:
        for batch in args.batches:
            if args.device.type == "cuda":
                yield partial(inference_rows, args, name, batch, args.points, args.k)
            else:
                yield partial(_one, cpu_inference_row, args, name, batch)


def kernel_jobs(args: argparse.Namespace) -> Iterator[Job]:
    if args.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        print("the kernels need a GPU")
        return
    from kernel_cases import cases
    from kernel_timing import Size, time_case

    size = Size(min(args.batches), args.points, args.k, args.device)
    for case in cases(size):
        if args.match in case.name:
            yield partial(time_case, case, size, args.seconds / 5)


def scaling_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Vary one of points, k and batch at a time."""
    cuda, n, k = args.device.type == "cuda", args.points, args.k
    sizes = [n // 2, n, 2 * n, 4 * n, 8 * n] if cuda else [n // 4, n // 2, n, 2 * n]
    batches = [8, 16, 32, 64, 128] if cuda else [1, 2, 4]
    sweeps = [("points", batches[0], points, k) for points in sizes]
    sweeps += [("k", min(args.batches), n, x) for x in (k // 2, k, 2 * k)]
    sweeps += [("batch", b, n, k) for b in batches]
    if args.quick:
        sweeps = sweeps[::3]
    for name in args.models:
        for axis, b, points, x in sweeps:
            yield partial(_one, scaling_row, args, name, axis, b, points, x)


def scaling_row(args: argparse.Namespace, name: str, axis: str, b: int, n: int, k: int) -> Row:
    row: Row = {"along": axis, "network": name, "batch": b, "points": n, "k": k}
    if args.device.type == "cuda":
        trained = train_row(args, name, "fast, mixed", b, n, k)
        (answered,) = inference_rows(args, name, b, n, k, [TF32_GRAPH])
        for what, figures in {"train": trained, "inference": answered}.items():
            row |= {f"{what} ms": figures["ms"], f"{what} GiB": figures["added_gib"]}
        return row
    x = clouds(b, n)
    call = inference(network(name, k, args.device).eval(), x)
    timing = measure(call, args.device, args.seconds, args.rounds)
    return row | {"inference ms": 1000 * timing.median}


def parts_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Time the segmenters at the size that they are trained at; --quick on a CPU: at any."""
    cuda = args.device.type == "cuda"
    small = (min(args.batches), args.points, args.k)
    size = small if args.quick and not cuda else (16, 2048, 40)
    for name in SEGMENTERS:
        if not cuda:
            yield partial(_one, cpu_training_row, args, name, *size)
            continue
        for mode in TRAINING:
            yield partial(_one, train_row, args, name, mode, *size)
        yield partial(inference_rows, args, name, *size)


def large_jobs(args: argparse.Namespace) -> Iterator[Job]:
    sizes = [2000] if args.quick else [25_000, 50_000, 100_000]
    products = ("highest", "high") if args.device.type == "cuda" else ("highest",)
    for name, points, precision in itertools.product(args.models, sizes, products):
        yield partial(_one, large_row, args, name, points, precision)


def large_row(args: argparse.Namespace, name: str, points: int, products: str) -> Row:
    """Take a forward pass once; on the CPU in a process of its own, which has a peak of its own."""
    mode = "TF32" if products == "high" else "float32"
    row: Row = {"network": name, "points": points, "k": args.k, "products": mode}
    if args.device.type != "cuda":
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return row | pool.submit(cpu_pass, name, points, args.k, args.threads).result()
    call = inference(network(name, args.k, args.device).eval(), clouds(1, points, args.device))
    with float32_products(products), peak_memory(args.device) as peak:
        call()
        seconds = seconds_of(call, args.device)
    return row | {"s": seconds, **peak}


def cpu_pass(name: str, points: int, k: int, threads: int) -> Row:
    """Time a forward pass, and say what memory the process had at most, and before the pass."""
    torch.set_num_threads(threads)
    device = torch.device("cpu")
    model = network(name, k, device).eval()
    inference(model, clouds(1, 4 * k))()  # loads what is compiled
    call = inference(model, clouds(1, points))
    before = most_resident()
    seconds = seconds_of(call, device)
    peak = most_resident()
    return {"s": seconds, "peak_gib": peak, "added_gib": peak - before}


def most_resident() -> float:
    """Return the most memory that this process has had, in GiB.

    `getrusage` would not do: a new process begins with the peak of the one that started it.
    """
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 2**20


def _one(row: Callable[..., Row], *arguments: object) -> list[Row]:
    return [row(*arguments)]


JOBS = {
    "train": train_jobs,
    "inference": inference_jobs,
    "kernels": kernel_jobs,
    "scaling": scaling_jobs,
    "parts": parts_jobs,
    "large": large_jobs,
}


def run_section(section: str, args: argparse.Namespace) -> list[Row]:
    """Do the jobs of a section; one that fails leaves its error in the table."""
    rows: list[Row] = []
    print(f"\n{section}: {SECTIONS[section]}", flush=True)
    for job in JOBS[section](args):
        try:
            for row in job():
                rows.append(row)
                print("  " + _line(row), flush=True)
        except (RuntimeError, ArithmeticError, ImportError) as error:  # out of memory is the first
            what = [x for x in job.args[1:] if isinstance(x, str | int)]
            rows.append({"failed": " ".join(map(str, what)), "error": str(error).split("\n")[0]})
            print(f"  failed: {rows[-1]['failed']}: {rows[-1]['error']}", flush=True)
        gc.collect()
        if args.device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


def _line(row: Row) -> str:
    return ", ".join(f"{k} {x:.4g}" if isinstance(x, float) else f"{k} {x}" for k, x in row.items())


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_words, help=f"sections, of {','.join(SECTIONS)}")
    parser.add_argument("--device", default="auto", type=device_argument)
    parser.add_argument("--models", type=_words, default=list(MODELS), help="of full,light")
    parser.add_argument("--batches", type=_numbers, help="default: 32,128; on the CPU 8; quick 2")
    parser.add_argument("--points", type=int, help="default: 1024; quick on the CPU 256")
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--match", default="", help="kernels whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure, about")
    parser.add_argument("--rounds", type=int, help="of a median, instead of by the time")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, shorter timings")
    record_arguments(parser)
    args = parser.parse_args(argv)
    cuda = args.device.type == "cuda"
    args.only = args.only or list(SECTIONS if cuda else CPU_SECTIONS)
    if unknown := [x for x in args.only if x not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if unknown := [x for x in args.models if x not in MODELS]:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(MODELS)}")
    small = args.quick and not cuda
    args.batches = args.batches or ([32, 128] if cuda else [2] if small else [8])
    args.points = args.points or (256 if small else 1024)
    args.rounds = args.rounds or (2 if small else None)
    if args.points < args.k:
        parser.error(f"clouds of {args.points} points have no {args.k} neighbours (--points, --k)")
    if args.quick:
        args.seconds = min(args.seconds, 0.1)
        args.batches = args.batches[:1]
    return args


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _words(text: str) -> list[str]:
    return text.split(",")


def earlier(args: argparse.Namespace) -> dict[str, list[Row]]:
    """Return what the record holds already, if it was measured by the same code in the same way."""
    if args.out is None or not args.out.is_file():
        return {}
    record = json.loads(args.out.read_text())
    now, asked = where(args, args.device), arguments(args)
    if not now["commit"] or now["commit"].endswith("-dirty"):
        return {}
    alike = all(
        record["environment"].get(key) == now[key] for key in ("commit", "torch", "device")
    ) and all(record["arguments"].get(key) == asked[key] for key in asked if key != "only")
    return record["results"] if alike else {}


def announcement(args: argparse.Namespace) -> str:
    """Say what will be measured."""
    threads = f", {args.threads} threads" if args.device.type == "cpu" else ""
    batches = " and ".join(map(str, args.batches))
    return (
        f"{', '.join(args.only)} of {', '.join(args.models)} on {args.device}{threads}: "
        f"batches of {batches}, {args.points} points, k = {args.k}, unless a row says otherwise"
    )


def main(argv: list[str] | None = None) -> dict[str, list[Row]]:
    """Time the chosen sections, print their tables and write a wanted record after each."""
    args = parse(argv)
    if args.device.type == "cpu":
        torch.set_num_threads(args.threads)
    print(announcement(args), flush=True)
    results = earlier(args)
    asked, args.only = args.only, [*results, *(x for x in args.only if x not in results)]
    for section in asked:
        results[section] = run_section(section, args)
        if args.out is not None:
            write_record(args, args.device, results)
    measured = {section: results[section] for section in asked}
    for section, rows in measured.items():
        print(f"\n## {section}\n\n{markdown(rows)}")
    write_record(args, args.device, results)
    return measured


if __name__ == "__main__":
    main()
