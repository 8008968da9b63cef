"""`predict` on many files of mixed formats and sizes: processor time, memory over time, rows.

    python benchmarks/predict_files.py --files 1000 --out files.json

Makes the files (built-in shapes as clouds, deformed spheres as meshes, one in a hundred broken),
classifies them as `locotrans predict` does, and records the rows, the processor time of reading and
of inference, how many cores that kept busy, and the memory of each process in every tenth of
the run. Untrained weights cost what trained ones do.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import trimesh
from timing import device_argument, markdown, record_arguments, write_record

from locotrans import create_model
from locotrans.data import load_dataset
from locotrans.training.predict import Inference, find_files, predict_files
from locotrans.training.predict.stream import count_workers

CLOUDS = ("ply", "pcd", "npy", "npz", "h5", "xyz", "csv", "pts")
MESHES = ("off", "obj", "stl", "glb")
SIZES = (300, 1_000, 5_000, 20_000)
BROKEN = 100
"""One file in so many is cut off after a few bytes."""


def make_files(folder: Path, count: int, seed: int) -> None:
    """Write files, whose formats and sizes take turns."""
    shapes = load_dataset("builtin", "test", points=max(SIZES), shapes=20, seed=seed).points.numpy()
    for number in range(count):
        kind = (CLOUDS + MESHES)[number % len(CLOUDS + MESHES)]
        size = SIZES[number // len(CLOUDS + MESHES) % len(SIZES)]
        path = folder / f"{number:05d}.{kind}"
        if kind in MESHES:
            write_mesh(path, size, np.random.default_rng([seed, number]))
        else:
            write_points(path, shapes[number % len(shapes)][:size] * 1000)
        if number % BROKEN == BROKEN - 1:
            path.write_bytes(path.read_bytes()[:20])


def write_mesh(path: Path, size: int, rng: np.random.Generator) -> None:
    level = next(level for level in range(7) if 20 * 4**level >= size or level == 6)
    mesh = trimesh.creation.icosphere(subdivisions=level)
    mesh.apply_transform(np.diag([*rng.uniform(0.5, 2, 3), 1]))
    mesh.export(path)


def write_points(path: Path, points: np.ndarray) -> None:
    kind = path.suffix
    if kind == ".ply":
        trimesh.PointCloud(points).export(path)
    elif kind == ".npy":
        np.save(path, points)
    elif kind == ".npz":
        np.savez_compressed(path, points=points)
    elif kind == ".h5":
        with h5py.File(path, "w") as file:
            file["points"] = points
    else:
        head = {
            ".pcd": "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\n"
            f"WIDTH {len(points)}\nPOINTS {len(points)}\nDATA ascii",
            ".csv": "x,y,z",
            ".pts": str(len(points)),
        }.get(kind, "")
        separator = "," if kind == ".csv" else " "
        np.savetxt(path, points, "%.6f", separator, header=head, comments="")


class Memory(threading.Thread):
    """Looks at the resident memory of this process and of those below it, twice a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, int, list[int]]] = []
        """Seconds, bytes of this process, bytes of each other."""
        self.done = threading.Event()

    def run(self) -> None:
        """Look until it is done."""
        start = time.perf_counter()
        while True:
            others = [resident(process) for process in below(os.getpid())]
            self.seen.append((time.perf_counter() - start, resident(os.getpid()), others))
            if self.done.wait(0.5):
                return

    def tenths(self) -> list[dict[str, float]]:
        """Return the greatest memory of a process in each tenth of the time, in MiB."""
        end = self.seen[-1][0] or 1.0
        rows = []
        for tenth in range(10):
            some = [x for x in self.seen if min(int(10 * x[0] / end), 9) == tenth]
            if some:
                ours = max(own for _, own, _ in some)
                readers = max((size for _, _, others in some for size in others), default=0)
                row = {"until s": some[-1][0], "network": ours, "largest reader": readers}
                rows.append({k: v if k == "until s" else v / 2**20 for k, v in row.items()})
        return rows


@contextmanager
def watched() -> Iterator[Memory]:
    """Watch the memory within the block."""
    memory = Memory()
    memory.start()
    try:
        yield memory
    finally:
        memory.done.set()
        memory.join()


def resident(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:  # it has ended
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def below(process: int) -> list[int]:
    """List the processes that a process has started, and theirs."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:
            continue
    return found + [deeper for child in found for deeper in below(child)]


def measure(folder: Path, args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Classify the files of a folder, and say what it took."""
    model = create_model(args.model, 20)
    files = find_files([folder])
    workers = count_workers(len(files)) if args.workers is None else args.workers
    inference = Inference(model, args.points, device=device, workers=workers)
    names = [str(number) for number in range(20)]
    start, cpu = time.perf_counter(), time.process_time()
    with watched() as memory:
        answers = list(predict_files(inference, files, names))
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    own = cpu if workers else cpu - inference.reading  # without processes, a thread reads
    return {
        "files": len(files),
        "rows": len(answers),
        "failed": sum(answer.error is not None for answer in answers),
        "readers": workers,
        "seconds": wall,
        "reading, processor s": inference.reading,
        "inference, processor s": own,
        "cores busy": (inference.reading + own) / wall,
        "MiB": memory.tenths(),
    }


def show(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Print a result and, apart, its memory over time; write the record."""
    print(markdown([{key: value for key, value in result.items() if key != "MiB"}]))
    print(markdown(result["MiB"]))
    write_record(args, args.device, result)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--model", default="locotrans_dgcnn_light")
    parser.add_argument("--points", type=int, default=1024)
    parser.add_argument("--workers", type=int, help="by default as `predict` chooses")
    parser.add_argument("--seed", type=int, default=0, help="of the files")
    parser.add_argument("--device", default="auto", type=device_argument)
    record_arguments(parser)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), args.files, args.seed)
        result = measure(Path(folder), args, args.device)
    show(args, result)
    return result


if __name__ == "__main__":
    main()
