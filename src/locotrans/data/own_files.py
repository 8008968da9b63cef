"""One file of one's own data: its points, its parts, and what is worth a word."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from locotrans.counting import counted
from locotrans.data.below import PART_NAMES
from locotrans.data.cloud import Cloud
from locotrans.data.clouds import allowed_parts
from locotrans.data.listing import Entry
from locotrans.data.prepared import Ragged, read_table, resample
from locotrans.data.roots import read_lines

KEEP = 8192
"""Points that are kept of each file, unless more are asked for, and drawn from a mesh."""
MOST_PARTS = 4096
"""Labels of points beyond this are not numbers of parts."""


def part_names(folder: Path) -> tuple[str, ...]:
    """Read the names of the parts, if a file beside the data tells them."""
    file = folder / PART_NAMES
    return tuple(read_lines(file)) if file.exists() else ()


def left_out(names: Sequence[str]) -> list[str]:
    """Say which files are left out, if any are."""
    if not names:
        return []
    one, more = "file cannot be read and is", "files cannot be read and are"
    return [f"{counted(len(names), one, more)} left out: {', '.join(names)}"]


def sources_of(entries: Sequence[Entry]) -> list[Path]:
    """List every file that the entries depend on, each once."""
    from locotrans.data.readers import buffers_of, file_of

    sources: dict[Path, None] = {}
    for entry in entries:
        file = file_of(entry.path)
        beside = entry.parts or entry.path.with_suffix(".seg")
        more = [beside] if beside.exists() else []
        sources.update(dict.fromkeys([file, *more, *buffers_of(file)]))
    return list(sources)


@dataclass
class Findings:
    """What is worth a word about the files of a split, once they are read."""

    files: int = 0
    holes: int = 0
    """Points of nan alone."""
    labelled: int = 0
    """Files whose points have parts."""
    unlabelled: str = ""
    """The first file whose points have none."""
    foreign: int = 0
    """Files whose points have labels that are no parts."""

    def remarks(self) -> list[str]:
        """Say it."""
        said = []
        if self.holes:
            holes = counted(self.holes, "nan point of scans is", "nan points of scans are")
            said.append(f"{holes} left out")
        if self.foreign:
            said.append(
                f"labels of points in {counted(self.foreign, 'file')} are no parts (-1 to "
                f"{MOST_PARTS - 1:,}) and are left out"
            )
        if 0 < self.labelled < self.files:
            said.append(
                f"labels of points in {self.labelled:,} of {self.files:,} files are left out: "
                f"others have none, such as {self.unlabelled} (-1 is a label not known)"
            )
        return said


def read_entry(
    entry: Entry, keep: int, seed: int, found: Findings, names: Sequence[str] = ()
) -> Ragged:
    """Read a file, at most ``keep`` of its points, with its parts if it has any.

    Where parts have names, all points of the file must have parts of its class.
    """
    from locotrans.data.readers import read_cloud

    whole = read_whole(entry, keep, seed, found, read_cloud)
    if names and whole.parts is not None:
        check_numbers(entry, whole.parts.long(), names)
        _check_owner(entry, whole.parts.long(), names)
    if len(whole.points) <= keep:
        return whole
    some = resample(whole, keep, seed=seed)
    kept = [None if t is None else t[0] for t in (some.normals, some.colors, some.parts)]
    return Ragged.of(some.points[0], *kept)


def read_whole(
    entry: Entry, samples: int, seed: int, found: Findings, read: Callable[..., Cloud]
) -> Ragged:
    """Read all points of a file, with their parts if there are any.

    Args:
        entry: the file.
        samples: points of a mesh.
        seed: of these.
        found: is told what is found.
        read: `read_cloud` or `read_scene`.
    """
    cloud = read(entry.path, samples=samples, seed=seed)
    check_extent(entry.path, cloud.points)
    parts = _read_parts(entry, cloud)
    if parts is None and cloud.labels is not None:
        low, high = cloud.labels.aminmax()
        parts = cloud.labels if low >= -1 and high < MOST_PARTS else None
        found.foreign += parts is None
    found.files += 1
    found.holes += cloud.holes
    found.labelled += parts is not None
    if parts is None:
        found.unlabelled = found.unlabelled or str(entry.path)
    return Ragged.of(cloud.points, cloud.normals, cloud.colors, parts)


def check_numbers(entry: Entry, parts: Int[Tensor, "n"], names: Sequence[str]) -> None:
    """Refuse a part that has no name."""
    if int(parts.max()) >= len(names):
        raise ValueError(
            f"{entry.path} has the part number {int(parts.max())}, and {PART_NAMES} names "
            f"{counted(len(names), 'part')}, from 0; correct one of them"
        )


def _check_owner(entry: Entry, parts: Int[Tensor, "n"], names: Sequence[str]) -> None:
    allowed = torch.cat([allowed_parts([entry.label], names)[0], torch.tensor([True])])  # of -1
    foreign = parts[~allowed[parts]]
    if len(foreign):
        raise ValueError(
            f"{entry.path}, of class {entry.label}, has points on {names[int(foreign[0])]}, a part "
            "of another class; correct the labels, or set them to -1"
        )


def check_extent(path: Path, points: Tensor, size: int | None = None) -> None:
    """Refuse a cloud whose points differ by no more than rounding.

    Args:
        path: its file.
        points: the points, or some of them.
        size: how many the file has, where that is another number.
    """
    wide = points.double()
    middle = wide.mean(0)
    if not (wide - middle).norm(dim=1).max() > 1e-6 * middle.abs().max():
        count = len(points) if size is None else size
        if (wide != wide[0]).any():
            raise ValueError(
                f"{path}: its {count} points differ by no more than rounding, so far from the "
                "origin: write them in float64, or subtract an offset"
            )
        what = "has one point only" if count == 1 else f"its {count} points are all the same"
        raise ValueError(f"{path}: {what}: leave the file out")


def _read_parts(entry: Entry, cloud: Cloud) -> Int[Tensor, "n"] | None:
    """Read the parts from the file that is named for them, or that lies beside the cloud."""
    beside = entry.parts or entry.path.with_suffix(".seg")
    if entry.parts is None and not beside.exists():
        return None
    numbers = torch.from_numpy(read_table(beside, 1)[:, 0])
    if cloud.rows is not None and len(numbers) == len(cloud) + cloud.holes:
        numbers = numbers[cloud.rows]  # the holes have lines, too
    if len(numbers) != len(cloud):
        raise ValueError(
            f"{beside} has {len(numbers)} lines for the {len(cloud)} points of {entry.path}"
        )
    wrong = (numbers < -1) | (numbers >= MOST_PARTS) | (numbers != numbers.floor())
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"{beside}, value {row + 1}: {numbers[row]:g} is no part; parts are whole numbers up "
            f"to {MOST_PARTS - 1:,}, and -1 where none is known"
        )
    return numbers.long()
