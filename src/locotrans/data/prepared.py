"""Clouds of different sizes, joined end to end; and how they become clouds of one size."""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.counting import counted
from locotrans.data.cache import cached
from locotrans.data.filling import fill_points
from locotrans.data.transforms import normalize

CHUNK = 32  # clouds at a time; all at once, memory is what takes the time
LARGE = 2**17  # points of a cloud from which a permutation of all of them would take long


class UnreadableFilesError(ValueError):
    """Some of many files cannot be read; ``reasons`` has one for each."""

    def __init__(self, reasons: Sequence[str], total: int, remedy: str = "") -> None:
        some = "; ".join(reasons[:3]) + ("; ..." if len(reasons) > 3 else "")
        text = f"{len(reasons):,} of {counted(total, 'file')} cannot be read: {some}"
        super().__init__(f"{text} ({remedy})" if remedy else text)
        self.reasons = tuple(reasons)
        self.total = total


@dataclass(frozen=True, eq=False)
class Ragged:
    """Clouds one after the other: cloud i is the rows from ``offsets[i]`` to ``offsets[i + 1]``."""

    points: Float[Tensor, "n 3"]
    offsets: Int[Tensor, "s_1"]
    normals: Float[Tensor, "n 3"] | None = None
    colors: Float[Tensor, "n 3"] | None = None
    parts: Int[Tensor, "n"] | None = None
    """In the smallest type that the files need; `resample` gives long integers."""
    remarks: tuple[str, ...] = ()
    """What is worth a word about the files."""

    @classmethod
    def of(
        cls, points: Any, normals: Any = None, colors: Any = None, parts: Any = None
    ) -> "Ragged":
        """Make one of a single cloud of arrays or tensors."""
        points = torch.as_tensor(points, dtype=torch.float32)
        ids = None if parts is None else torch.as_tensor(parts, dtype=torch.int32)
        ends = torch.tensor([0, len(points)])
        return cls(points, ends, _vectors(normals), _vectors(colors), ids)

    @classmethod
    def join(cls, clouds: Sequence["Ragged"]) -> "Ragged":
        """Put several behind each other; a field that one with points lacks is left out."""
        sizes = torch.cat([cloud.offsets.diff() for cloud in clouds])
        joined: dict[str, Any] = {}
        for name in ("points", "normals", "colors", "parts"):
            values = [getattr(cloud, name) for cloud in clouds if len(cloud.points)]
            if all(value is not None for value in values):
                joined[name] = torch.cat(values)
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return cls(offsets=offsets, **joined)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that there are, by name; the remarks as bytes of JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        text = json.dumps(values.pop("remarks")).encode()
        remarks = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return {name: x for name, x in values.items() if x is not None} | {"remarks": remarks}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "Ragged":
        """Make one of what `tensors` gave."""
        values: dict[str, Any] = dict(tensors)
        remarks = json.loads(bytes(values.pop("remarks").tolist()))
        return cls(**values, remarks=tuple(remarks))


@dataclass(frozen=True, eq=False)
class Clouds:
    """Clouds of one size."""

    points: Float[Tensor, "s m 3"]
    normals: Float[Tensor, "s m 3"] | None
    colors: Float[Tensor, "s m 3"] | None
    parts: Int[Tensor, "s m"] | None


def resample(
    ragged: Ragged,
    points: int,
    *,
    rows: Sequence[int] | None = None,
    order: Literal["first", "random"] = "random",
    seed: int = 0,
    by_place: bool = True,
) -> Clouds:
    """Take ``points`` points of each cloud; a smaller cloud is filled up.

    It gets copies of its points: moved ones, by `fill`, or, if the points are labelled, plain
    ones, since a label belongs to a place. Normals and colours are those of the point copied.

    Args:
        ragged: The clouds.
        points: Points of each.
        rows: Which clouds, in which order; all by default.
        order: "first" takes the first points; "random" draws without replacement, from a stream
            of the seed and the cloud's place in ``ragged`` alone.
        seed: Seed of that.
        by_place: Whether the place matters; otherwise a cloud gives the same points wherever it
            stands, by `draw`.

    Degenerate: a cloud of fewer points gives each of them floor or ceil(points / size) times, the
        copies counted.
    """
    chosen = range(len(ragged)) if rows is None else rows
    starts, sizes = ragged.offsets[:-1].tolist(), ragged.offsets.diff().tolist()
    if order == "first" and rows is None and points <= min(sizes) == max(sizes):
        return _cut(ragged, sizes[0], points)
    index = np.empty((len(chosen), points), np.int64)
    for place, row in enumerate(chosen):
        if order == "first":
            picked = np.arange(min(points, sizes[row]))
        else:
            picked = draw(sizes[row], points, seed, row if by_place else 0)
        index[place] = starts[row] + np.resize(picked, points)
    flat = torch.from_numpy(index)
    taken = ragged.points[flat]
    if ragged.parts is None:
        for place, row in enumerate(chosen):
            if sizes[row] < points:
                own = taken[place, : sizes[row]]
                taken[place] = fill(own, points, seed, row if by_place else 0)
    return Clouds(
        points=taken,
        normals=None if ragged.normals is None else ragged.normals[flat],
        colors=None if ragged.colors is None else ragged.colors[flat],
        parts=None if ragged.parts is None else ragged.parts[flat].long(),
    )


def draw(size: int, points: int, seed: int, place: int = 0) -> Int[np.ndarray, "m"]:
    """Draw points of a cloud without replacement; of a smaller cloud, all."""
    rng = np.random.default_rng([seed, place])
    if size > LARGE and size > 2 * points:
        return rng.choice(size, points, replace=False)
    return rng.permutation(size)[:points]


def fill(cloud: Float[Tensor, "n 3"], points: int, seed: int, place: int = 0) -> Tensor:
    """Fill a small cloud up by `fill_points`, with random numbers of a stream of its own."""
    number = int(np.random.default_rng([seed, place, 1]).integers(2**62))
    return fill_points(cloud, points, generator=torch.Generator().manual_seed(number))


def _vectors(values: Any) -> Tensor | None:
    return None if values is None else torch.as_tensor(values, dtype=torch.float32)


def _cut(ragged: Ragged, size: int, points: int) -> Clouds:
    """Take the first points of clouds that have all the same size, without moving the others."""

    def cut(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        return values.unflatten(0, (-1, size))[:, :points]

    parts = None if ragged.parts is None else cut(ragged.parts.long())
    first = ragged.points.unflatten(0, (-1, size))[:, :points]
    return Clouds(first, cut(ragged.normals), cut(ragged.colors), parts)


def normalized(points: Float[Tensor, "s m 3"]) -> Float[Tensor, "s m 3"]:
    """Return what `normalize` does, without temporary tensors of the size of the whole set."""
    result = torch.empty(points.shape)
    for some, place in zip(points.split(CHUNK), result.split(CHUNK), strict=True):
        place.copy_(normalize(some))
    return result


def prepared(key: str, folder: Path, sources: Sequence[Path], read: Callable[[], Ragged]) -> Ragged:
    """Return what ``read`` gives, kept in the prepared cache."""
    try:
        return Ragged.from_tensors(cached(key, folder, sources, lambda: read().tensors()))
    except FileNotFoundError:
        absent = [path for path in sources if not path.exists()]
        if not absent:
            raise
        raise FileNotFoundError(
            f"{len(absent):,} of {len(sources):,} files of {folder} are missing, the first is "
            f"{absent[0]}; unpack the release again"
        ) from None


def read_files(
    paths: Sequence[Path], read: Callable[[Path], Ragged], *, skip: bool = False, remedy: str = ""
) -> Ragged:
    """Read files one by one and join them.

    Args:
        paths: The files.
        read: Reads one of them.
        skip: Let files that cannot be read be clouds of no point, unless there are no others.
        remedy: What a user can do about such files.

    Raises:
        UnreadableFilesError: when any cannot be read, with their number and three reasons.
    """
    clouds, reasons = [], []
    for path in paths:
        try:
            clouds.append(read(path))
        except (ValueError, OSError) as error:
            reasons.append(str(error))
            clouds.append(Ragged.of(np.empty((0, 3))))
    if reasons and (not skip or len(reasons) == len(paths)):
        raise UnreadableFilesError(reasons, len(paths), remedy)
    return Ragged.join(clouds)


def read_table(path: Path, columns: int, rows: int | None = None) -> Float[np.ndarray, "n c"]:
    """Read a text file of numbers, separated by spaces or commas, with one row a line.

    Args:
        path: The file.
        columns: Numbers in a line.
        rows: Lines to read at most.
    """
    text = path.read_text(encoding="latin-1")
    if rows is not None:
        text = "\n".join(text.split("\n", rows)[:rows])
    lines = text.count("\n") + (not text.endswith("\n"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # older numpy's word for the same
            values = np.fromstring(text.replace(",", " "), dtype=np.float32, sep=" ")
    except (ValueError, DeprecationWarning):
        values = np.empty(0, np.float32)
    if values.size != lines * columns or values.size == 0:
        values = _read_slowly(path, text, columns)
    if not np.isfinite(values).all():
        raise ValueError(f"{path} holds nan or infinity")
    return values.reshape(-1, columns)


def _read_slowly(path: Path, text: str, columns: int) -> Float[np.ndarray, "..."]:
    """Read line by line, to allow for blank lines and to name the line that is wrong."""
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.replace(",", " ").split()
        if not words:
            continue
        try:
            rows.append([float(word) for word in words])
        except ValueError:
            raise ValueError(f"{path}, line {number}: not numbers: {line[:40]!r}") from None
        if len(words) != columns:
            raise ValueError(f"{path}, line {number}: {len(words)} numbers, expected {columns}")
    if not rows:
        raise ValueError(f"{path} is empty")
    return np.array(rows, np.float32)
