"""`locotrans segment`: a labelled cloud for each file."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from locotrans.counting import counted
from locotrans.data.cloud import Cloud
from locotrans.pictures import label_colors, labels_figure, save_figure
from locotrans.training.predict.files import find_files, printable, reason_of
from locotrans.training.record import find_device, read_json, write_json
from locotrans.training.segment.network import SegmenterNetwork, load_segmenter
from locotrans.training.segment.page import write_page
from locotrans.training.segment.scenes import Report
from locotrans.training.segment.writers import FORMATS, Format, write_labels
from locotrans.training.tasks import folder_category

MESH = 8192
"""Points drawn from a mesh."""
DRAWN = 20_000
"""Points of a picture, at most."""


class Segmented(NamedTuple):
    """The answer for one file; a file that failed has a path and an error."""

    path: Path
    out: Path | None = None
    points: int | None = None
    holes: int = 0
    """Points of nan in the file, which get the label -1."""
    sampled: bool = False
    """Whether the points were drawn from a mesh."""
    category: str | None = None
    labels: dict[str, int] | None = None
    """Points of each label that occurs."""
    warning: str | None = None
    """What makes the answer doubtful."""
    error: str | None = None

    def row(self) -> dict[str, Any]:
        """Return plain JSON values."""
        out = None if self.out is None else str(self.out)
        return {**self._asdict(), "path": str(self.path), "out": out}


def segment(
    paths: Sequence[Path],
    weights: Path | str,
    out: Path,
    *,
    form: Format = "ply",
    category: str | None = None,
    radius: float | None = None,
    points: int | None = None,
    turns: int = 2,
    picture: bool = False,
    html: bool = False,
    seed: int = 0,
    batch_size: int = 8,
    device: str = "auto",
) -> int:
    """Label every point of every file, and write clouds with labels.

    Each file gives one in ``out``, under its own name and at the same place below the folder that
    was named; ``segments.json`` lists them, and those that could not be read.

    Args:
        paths: Files or folders (searched at any depth); any mix of formats and sizes.
        weights: Run folder or weights file of a network for parts or scenes.
        out: Folder for the labelled clouds.
        form: ply, npz or las.
        category: Category of the shapes, for parts; by default the nearest folder so named.
        radius: Radius of the spheres that a scene is cut into; by default as in training.
        points: Points of a block; by default as in training.
        turns: Spheres that every point of a scene is in, at least.
        picture: Write a picture of each as well.
        html: Write a page of each as well, that turns with the mouse.
        seed: Seed of the choice of points.
        batch_size: Blocks at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.

    Returns:
        The exit status: 0, or 1 if some files could not be read.
    """
    if form not in FORMATS:
        raise ValueError(f"the format must be one of {', '.join(FORMATS)}, got {form!r}")
    network = load_segmenter(
        weights,
        points=points,
        radius=radius,
        turns=turns,
        batch_size=batch_size,
        seed=seed,
        device=find_device(device),
    )
    if category is not None:
        if network.task != "parts":
            raise ValueError("a category is for parts of shapes; this network labels scenes")
        network.category(category)
    jobs = place_outputs(paths, out, form)
    listing = out / "segments.json"
    by = {"weights": str(weights), "names": list(network.names)}
    others = _others(listing, by, jobs)
    for doubt in network.unlike_training():
        print(f"warning: {doubt}", flush=True)
    rows: list[Segmented] = []
    for row in segment_files(network, jobs, category, picture, html, seed):
        rows.append(row)
        print(_line(row), flush=True)
    out.mkdir(parents=True, exist_ok=True)
    write_json(listing, {**by, "files": [*others, *(row.row() for row in rows)]})
    failed = sum(row.error is not None for row in rows)
    Console(stderr=True).print(f"{counted(len(rows), 'file')}, {failed:,} failed", highlight=False)
    return int(failed > 0)


def _others(listing: Path, by: dict[str, Any], jobs: dict[Path, Path]) -> list[dict[str, Any]]:
    """Return what an earlier call listed of other files; nothing of theirs is overwritten.

    Raises:
        ValueError: if another network said it, or a file would take the place of another's answer.
    """
    if not listing.exists():
        return []
    earlier = read_json(listing)
    if any(earlier.get(key) != value for key, value in by.items()):
        raise ValueError(
            f"{listing} lists what other weights said ({earlier.get('weights')}); name another "
            "folder (--out), or remove it"
        )
    ours = {path.resolve() for path in jobs}
    others = [row for row in earlier["files"] if Path(row["path"]).resolve() not in ours]
    taken = {Path(row["out"]).resolve(): row["path"] for row in others if row["out"] is not None}
    for path, target in jobs.items():
        if target.resolve() in taken:
            raise ValueError(
                f"{target} is the answer for {taken[target.resolve()]}, and would be that for "
                f"{path}: name another folder (--out)"
            )
    return others


def place_outputs(paths: Sequence[Path], out: Path, form: Format) -> dict[Path, Path]:
    """Return where the answer for each file goes.

    What lies in ``out`` is the result of an earlier call, and is not read.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; name a folder")
    inside = out.resolve()
    folders = [path for path in map(Path, paths) if path.is_dir()]
    targets: dict[Path, Path] = {}
    for file in find_files(paths):
        if file.resolve().is_relative_to(inside):
            continue
        base = next((folder for folder in folders if file.is_relative_to(folder)), file.parent)
        target = out / file.relative_to(base).with_suffix(f".{form}")
        if target in targets.values():
            target = target.with_name(file.name + f".{form}")
        if target in targets.values():
            raise ValueError(f"two files would become {target}; segment them one by one")
        targets[file] = target
    if not targets:
        raise ValueError(f"all that was found lies in {out}, where results go; name another folder")
    return targets


def segment_files(
    network: SegmenterNetwork,
    jobs: dict[Path, Path],
    category: str | None,
    picture: bool,
    html: bool,
    seed: int,
) -> Iterator[Segmented]:
    """Yield the answer for each file, in order; nothing that a file can hold raises."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        files = bar.add_task("files", total=len(jobs))
        for path, out in jobs.items():
            votes = bar.add_task(path.name, total=None)

            def report(done: int, total: int, votes: Any = votes) -> None:
                bar.update(votes, completed=done, total=total)

            try:
                yield _segment(network, path, out, category, picture, html, seed, report)
            except Exception as error:  # also what was not foreseen must not end a long run
                yield Segmented(path, error=reason_of(error, path))
            bar.remove_task(votes)
            bar.advance(files)


def _segment(
    network: SegmenterNetwork,
    path: Path,
    out: Path,
    category: str | None,
    picture: bool,
    html: bool,
    seed: int,
    report: Report,
) -> Segmented:
    from locotrans.data.readers import read_cloud
    from locotrans.data.scenes import read_scene

    number, name = _category(network, path, category)
    cloud = (read_cloud if network.task == "parts" else read_scene)(path, samples=MESH, seed=seed)
    doubt = network.doubt(cloud.points.numpy())
    if doubt:
        print(f"warning: {printable(path)}: {doubt}", flush=True)  # before it takes its time
    colors = None if cloud.colors is None else cloud.colors.numpy()
    shares = network.segment(cloud.points.numpy(), colors, number, report)
    labels, confidence = shares.argmax(1), shares.max(1)
    palette = (255 * label_colors(len(network.names))).round().byte().numpy()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_labels(out, cloud, labels, confidence, palette, network.names)
    if picture:
        draw(out.with_suffix(".png"), cloud, labels, network.names, seed)
    if html:
        page, points = out.with_suffix(".html"), cloud.points.numpy()
        write_page(page, path.name, points, labels, palette, network.names, seed)
    counts = Counter({network.names[i]: int(n) for i, n in enumerate(np.bincount(labels)) if n})
    return Segmented(
        path,
        out,
        len(cloud),
        cloud.holes,
        cloud.sampled,
        name,
        dict(counts.most_common()),
        doubt,
    )


def _category(
    network: SegmenterNetwork, path: Path, category: str | None
) -> tuple[int | None, str | None]:
    """Return the category of a file, for parts: as given, or by the nearest folder so named."""
    if network.task != "parts":
        return None, None
    if category is not None:
        number = network.category(category)
    else:
        number = folder_category(path, network.categories)
    return number, network.categories[number]


def draw(
    path: Path, cloud: Cloud, labels: np.ndarray, names: tuple[str, ...], seed: int = 0
) -> None:
    """Write a picture of a labelled cloud, of some of its points if there are many."""
    points, known = cloud.points, torch.from_numpy(labels)
    if len(points) > DRAWN:
        rows = np.random.default_rng(seed).choice(len(points), DRAWN, replace=False)
        points, known = points[rows], known[rows]
    points = points - points.mean(0)
    save_figure(labels_figure([[points]], [[known]], names), path)


def _line(row: Segmented) -> str:
    path = printable(row.path)
    if row.error is not None or row.labels is None or row.points is None:
        return f"{path}: error: {row.error}"
    shares = ", ".join(f"{name} {n / row.points:.0%}" for name, n in list(row.labels.items())[:4])
    fate = "left out" if row.out and row.out.suffix == ".las" else "labelled -1"
    holes = f" ({counted(row.holes, 'nan point')} besides, {fate})" if row.holes else ""
    drawn = " drawn from the mesh" if row.sampled else ""
    return f"{path}: {counted(row.points, 'point')}{drawn}{holes}: {shares} -> {row.out}"
