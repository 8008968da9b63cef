"""A split of a data set as plain tensors."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from locotrans.counting import counted
from locotrans.data.parttable import NUMBERED_PARTS, OFFICIAL_PARTS
from locotrans.data.scenes import Scenes
from locotrans.geometry import AXES, Axis


@dataclass(frozen=True, eq=False)
class CloudSet:
    """One split of a data set, whole in memory.

    Every field is checked on construction, so that whoever holds a `CloudSet` may rely on it.
    """

    name: str
    split: str
    up: Axis
    """The axis that points up: the one that the protocol "z" turns about."""
    points: Float[Tensor, "s m 3"]
    labels: Int[Tensor, "s"]
    class_names: tuple[str, ...]
    normals: Float[Tensor, "s m 3"] | None = None
    """Unit normals that point out of the solid."""
    parts: Int[Tensor, "s m"] | None = None
    """The part that each point lies on, as an index into ``part_names``; -1 where none is known."""
    part_names: tuple[str, ...] = ()
    """One name for each part of each class, such as "chair/legs"; a name without a slash, such as
    "floor", is a part of every class."""
    colors: Float[Tensor, "s m 3"] | None = None
    """Red, green and blue from 0 to 1."""
    masks: Bool[Tensor, "s m"] | None = None
    """True where a point belongs to the object, False on its background."""
    ids: tuple[str, ...] = ()
    """Where each shape comes from (a file, a room), or nothing."""
    items: str = "shapes"
    """What the clouds are: shapes, or of a scene its blocks or spheres."""
    title: str = ""
    """Which data they are, where the name does not say it, such as which rooms of S3DIS."""
    split_size: int | None = None
    """Shapes of the split as a whole, where these are a choice of them; None if they are all."""
    notes: tuple[str, ...] = ()
    """What a user of the set should know, such as counts that are not the official ones."""
    scenes: Scenes | None = None
    """Of blocks or spheres, the whole scenes of the split."""
    given_checksum: str | None = None
    """Of the set as it was given, where it was changed since: evened out, or named anew."""

    def __post_init__(self) -> None:
        where = f"{self.name} ({self.split})"
        if self.up not in AXES:
            raise ValueError(f"{where}: up must be one of {', '.join(AXES)}, got {self.up!r}")
        _check_cloud(f"{where}: points", self.points)
        shapes, size = self.points.shape[:2]
        _check_ids(f"{where}: labels", self.labels, (shapes,), self.class_names, "class_names")
        if self.normals is not None:
            _check_cloud(f"{where}: normals", self.normals)
            if self.normals.shape != self.points.shape:
                raise ValueError(
                    f"{where}: normals are {tuple(self.normals.shape)}, "
                    f"but points are {tuple(self.points.shape)}"
                )
        if self.parts is not None:
            form, names = (shapes, size), self.part_names
            _check_ids(f"{where}: parts", self.parts, form, names, "part_names", least=-1)
        if self.colors is not None:
            _check_cloud(f"{where}: colors", self.colors)
        for what, field, shape in (
            ("colors", self.colors, (shapes, size, 3)),
            ("masks", self.masks, (shapes, size)),
        ):
            if field is not None and tuple(field.shape) != shape:
                raise ValueError(f"{where}: {what} must be {shape}, got {tuple(field.shape)}")
        if self.ids and len(self.ids) != shapes:
            raise ValueError(f"{where}: {len(self.ids)} ids for {shapes} shapes")

    def __len__(self) -> int:
        return self.points.shape[0]

    @property
    def num_classes(self) -> int:
        """How many classes there are, whether or not each of them occurs in this split."""
        return len(self.class_names)

    @property
    def class_counts(self) -> dict[str, int]:
        """How many shapes of each class there are, in the order of the labels."""
        counts = self.labels.bincount(minlength=self.num_classes).tolist()
        return dict(zip(self.class_names, counts, strict=True))

    @property
    def allowed_parts(self) -> Bool[Tensor, "classes parts"]:
        """True where a part belongs to a class, by its name; in scenes all classes may occur."""
        if self.items != "shapes":
            return torch.ones(self.num_classes, len(self.part_names), dtype=torch.bool)
        return allowed_parts(self.class_names, self.part_names)

    @property
    def source(self) -> str:
        """Checksum of the set as it was given."""
        return self.given_checksum or self.checksum

    @cached_property
    def checksum(self) -> str:
        """SHA-256 (hexadecimal) of the names and of every tensor's bytes."""
        digest = hashlib.sha256()
        names = NUMBERED_PARTS if self.part_names == OFFICIAL_PARTS else self.part_names
        digest.update(repr((self.up, self.class_names, names)).encode())
        for tensor in (self.points, self.labels, self.normals, self.parts):
            if tensor is None:
                digest.update(b"none")
                continue
            digest.update(repr((str(tensor.dtype), tuple(tensor.shape))).encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        for name in ("colors", "masks"):  # only where there are any: older checksums stay
            tensor = getattr(self, name)
            if tensor is not None:
                digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def with_points(self, points: Float[Tensor, "s m 3"]) -> "CloudSet":
        """Return the shapes with other points; what belonged to the old ones is left behind."""
        gone: dict[str, Any] = dict.fromkeys(("normals", "parts", "colors", "masks"))
        return replace(self, points=points, part_names=(), given_checksum=None, **gone)

    def subset(self, indices: Sequence[int] | Tensor) -> "CloudSet":
        """Return the shapes of the given indices, in the given order (repeats allowed)."""
        rows = torch.as_tensor(indices, dtype=torch.long, device=self.points.device)
        if rows.ndim != 1 or rows.numel() == 0:
            raise ValueError(f"indices must be a non-empty list, got shape {tuple(rows.shape)}")
        if rows.min() < -len(self) or rows.max() >= len(self):
            raise IndexError(
                f"indices span {int(rows.min())} to {int(rows.max())}, "
                f"but {self.name} ({self.split}) has {len(self)} shapes"
            )
        return replace(
            self,
            points=self.points[rows],
            labels=self.labels[rows],
            normals=None if self.normals is None else self.normals[rows],
            parts=None if self.parts is None else self.parts[rows],
            colors=None if self.colors is None else self.colors[rows],
            masks=None if self.masks is None else self.masks[rows],
            ids=tuple(self.ids[row] for row in rows.tolist()) if self.ids else (),
            split_size=self.split_size or len(self),
            given_checksum=None,
        )


def allowed_parts(
    class_names: Sequence[str], part_names: Sequence[str]
) -> Bool[Tensor, "classes parts"]:
    """Return where a part belongs to a class: "chair/legs" to "chair", "floor" to every one."""
    owners = [name.rpartition("/")[0] or None for name in part_names]
    rows = [[owner in (None, name) for owner in owners] for name in class_names]
    return torch.tensor(rows, dtype=torch.bool)


def _check_cloud(what: str, cloud: Tensor) -> None:
    if cloud.ndim != 3 or cloud.shape[-1] != 3:
        raise ValueError(f"{what} must be (shapes, points, 3), got {tuple(cloud.shape)}")
    if cloud.numel() == 0:
        raise ValueError(f"{what} are empty: {tuple(cloud.shape)}")
    if not cloud.is_floating_point():
        raise ValueError(f"{what} must be floating point, got {cloud.dtype}")
    low, high = cloud.aminmax()  # both become nan if there is one
    if not (low.isfinite() and high.isfinite()):
        broken = (~cloud.isfinite()).flatten(1).any(dim=1).nonzero().flatten()
        raise ValueError(
            f"{what} hold nan or infinity in {counted(len(broken), 'shape')}, the first is "
            f"{int(broken[0])}"
        )


def _check_ids(
    what: str,
    ids: Tensor,
    shape: tuple[int, ...],
    names: tuple[str, ...],
    names_field: str,
    least: int = 0,
) -> None:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"{what} must be integers, got {ids.dtype}")
    if tuple(ids.shape) != shape:
        raise ValueError(f"{what} must be {shape} to match the points, got {tuple(ids.shape)}")
    if len(set(names)) != len(names):
        raise ValueError(f"{what}: {names_field} repeats a name")
    low, high = int(ids.min()), int(ids.max())
    if low < least or high >= len(names):
        raise ValueError(f"{what} span {low} to {high}, but {names_field} has {len(names)} names")
