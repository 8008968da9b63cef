"""How fast the networks are: one command, one table for each section, one JSON record.

    python benchmarks/speed.py                          everything, on the GPU if there is one
    python benchmarks/speed.py --only train,inference
    python benchmarks/speed.py --device cpu --quick

Sections:
    train       a whole training step (forward, five losses, backward, SGD), by the `Step` that
                training uses. plain: kernels off, float32, launched from Python; fast: kernels,
                mixed precision, recorded as a CUDA graph.
    inference   plain, and the kernels in float32, with TF32 products, and with bfloat16; launched
                from Python ("eager", with the check of the points, which waits for the GPU) and
                replayed as a CUDA graph. On the CPU: against `edge_by_edge`, in turns.
    kernels     each kernel alone against its plain specification and next to its floor; on a GPU.
    scaling     how time grows with points, k and batch, as the networks run by default: on a GPU
                recorded, training in mixed precision, inference with TF32 products.
    parts       training and inference of the networks for part segmentation, 16 shapes of 2,048
                points, k = 40.
    large       one cloud of up to 100,000 points: time and memory of a forward pass.

Times are medians, by CUDA events on a GPU, after a warm-up. Peak memory is torch's: in use, and
reserved. Weights and statistics are those that a network starts with. Sections that are measured
later join those that the record holds already, if these are of the same commit and arguments.
"""

import argparse
import gc
import json
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from network_timing import (
    MODELS,
    SEGMENTERS,
    TF32_GRAPH,
    Row,
    cpu_inference_row,
    inference_rows,
    network,
    train_row,
)
from timing import (
    RECORDS,
    arguments,
    clouds,
    inference,
    markdown,
    measure,
    peak_memory,
    seconds_of,
    where,
    write_record,
)

from locotrans.kernels import float32_products
from locotrans.training.record import find_device

SECTIONS = ("train", "inference", "kernels", "scaling", "parts", "large")
CPU_SECTIONS = ("inference", "scaling", "large")  # unless others are asked for

Job = Callable[[], Iterable[Row]]  # gives some rows of a table


def train_jobs(args: argparse.Namespace) -> Iterator[Job]:
    modes = ("plain", "fast") if args.device.type == "cuda" else ("plain",)
    for name in args.models:
        for batch in args.batches:
            for mode in modes:
                yield partial(_one, train_row, args, name, mode, batch, args.points, args.k)


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
        trained = train_row(args, name, "fast", b, n, k)
        (answered,) = inference_rows(args, name, b, n, k, [TF32_GRAPH])
        for what, figures in {"train": trained, "inference": answered}.items():
            row |= {f"{what} ms": figures["ms"], f"{what} GiB": figures["peak_gib"]}
        return row
    x = clouds(b, n)
    call = inference(network(name, k, args.device).eval(), x)
    return row | {"inference ms": 1000 * measure(call, args.device, args.seconds).median}


def parts_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Time the segmenters at the size that they are trained at; --quick on a CPU: at any."""
    cuda = args.device.type == "cuda"
    small = (min(args.batches), args.points, args.k)
    size = small if args.quick and not cuda else (16, 2048, 40)
    for name in SEGMENTERS:
        for mode in ("plain", "fast") if cuda else ("plain",):
            yield partial(_one, train_row, args, name, mode, *size)
        if cuda:
            yield partial(inference_rows, args, name, *size)


def large_jobs(args: argparse.Namespace) -> Iterator[Job]:
    sizes = [2000] if args.quick else [25_000, 50_000, 100_000]
    for name in args.models:
        for points in sizes:
            yield partial(_one, large_row, args, name, points)


def large_row(args: argparse.Namespace, name: str, points: int) -> Row:
    """Take a forward pass once. On the CPU, memory is the most that the process has had yet."""
    device = args.device
    call = inference(network(name, args.k, device).eval(), clouds(1, points, device))
    with float32_products("high"), peak_memory(device) as peak:
        if device.type == "cuda":
            call()
        seconds = seconds_of(call, device)
    if device.type != "cuda":
        peak["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"network": name, "points": points, "k": args.k, "s": seconds, **peak}


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
    for job in JOBS[section](args):
        try:
            for row in job():
                rows.append(row)
                print(f"{section}: " + _line(row), flush=True)
        except (RuntimeError, ArithmeticError, ImportError) as error:  # out of memory is the first
            what = [x for x in job.args[1:] if isinstance(x, str | int)]
            rows.append({"failed": " ".join(map(str, what)), "error": str(error).split("\n")[0]})
            print(f"{section}: failed: {rows[-1]}", flush=True)
        gc.collect()
        if args.device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


def _line(row: Row) -> str:
    cells = (f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values())
    return ", ".join(cells)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_words, help=f"sections, of {','.join(SECTIONS)}")
    parser.add_argument("--device", default="auto", type=find_device)
    parser.add_argument("--models", type=_words, default=list(MODELS), help="of full,light")
    parser.add_argument("--batches", type=lambda text: [int(b) for b in text.split(",")])
    parser.add_argument("--points", type=int, default=1024)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--match", default="", help="kernels whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure, about")
    parser.add_argument("--rounds", type=int, help="turns on the CPU, instead of by the time")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, shorter timings")
    parser.add_argument("--out", type=Path, help="record; default: records/speed_DEVICE.json")
    parser.add_argument("--commit", help="for the record, where there is no git to ask")
    args = parser.parse_args(argv)
    cuda = args.device.type == "cuda"
    args.only = args.only or list(SECTIONS if cuda else CPU_SECTIONS)
    if unknown := [x for x in args.only if x not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if unknown := [x for x in args.models if x not in MODELS]:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(MODELS)}")
    args.batches = args.batches or ([32, 128] if cuda else [8])
    if args.quick:
        args.seconds = min(args.seconds, 0.1)
        args.batches = args.batches[:1]
    if args.out is None:
        device = torch.cuda.get_device_name(args.device) if cuda else "cpu"
        args.out = RECORDS / f"speed_{device.lower().replace(' ', '_')}.json"
    return args


def _words(text: str) -> list[str]:
    return text.split(",")


def earlier(args: argparse.Namespace) -> dict[str, list[Row]]:
    """Return what the record holds already, if it was measured by the same code in the same way."""
    if not args.out.is_file():
        return {}
    record = json.loads(args.out.read_text())
    now, asked = where(args, args.device), arguments(args)
    if not now["commit"] or now["commit"].endswith("-dirty"):
        return {}
    alike = all(
        record["environment"].get(key) == now[key] for key in ("commit", "torch", "device")
    ) and all(record["arguments"].get(key) == asked[key] for key in asked if key != "only")
    return record["results"] if alike else {}


def main(argv: list[str] | None = None) -> dict[str, list[Row]]:
    """Time the chosen sections, print their tables and write the record after each."""
    args = parse(argv)
    if args.device.type == "cpu":
        torch.set_num_threads(args.threads)
    results = earlier(args)
    asked, args.only = args.only, [*results, *(x for x in args.only if x not in results)]
    for section in asked:
        results[section] = run_section(section, args)
        write_record(args.out, args, args.device, results)
    results = {section: results[section] for section in asked}
    for section, rows in results.items():
        print(f"\n## {section}\n\n{markdown(rows)}")
    print(f"\nrecord: {args.out}")
    return results


if __name__ == "__main__":
    main()
