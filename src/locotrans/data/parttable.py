"""Which parts belong to which category."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from locotrans.counting import counted
from locotrans.data.roots import read_lines

SHAPENET = (
    ("Airplane", "02691156", "body wing tail engine"),
    ("Bag", "02773838", "handle body"),
    ("Cap", "02954340", "crown brim"),
    ("Car", "02958343", "roof hood wheel body"),
    ("Chair", "03001627", "back seat leg arm"),
    ("Earphone", "03261776", "cup band wire"),
    ("Guitar", "03467517", "head neck body"),
    ("Knife", "03624134", "blade handle"),
    ("Lamp", "03636649", "base shade canopy pole"),
    ("Laptop", "03642806", "base lid"),
    ("Motorbike", "03790512", "tank seat wheel handlebar light frame"),
    ("Mug", "03797390", "handle body"),
    ("Pistol", "03948459", "barrel grip trigger"),
    ("Rocket", "04099429", "body fin nose"),
    ("Skateboard", "04225987", "wheel deck axle"),
    ("Table", "04379243", "top leg support"),
)
"""Category, its number in WordNet, and its parts, in the order of labels and of part numbers.

The releases number the parts; the words are ours, after what the points of each part show.
"""
OFFICIAL_PARTS = tuple(f"{name}/{part}" for name, _, parts in SHAPENET for part in parts.split())
NUMBERED_PARTS = tuple(
    f"{name}/{place}" for name, _, parts in SHAPENET for place in range(1, len(parts.split()) + 1)
)
"""What they were called before; checksums of the data are still of these."""


@dataclass(frozen=True)
class PartTable:
    """Categories and the numbers of their parts."""

    categories: tuple[str, ...]
    synsets: tuple[str, ...]
    """The folder names of the categories."""
    parts: tuple[tuple[int, ...], ...]
    """For each category, the numbers of its parts: number n of the .seg files is entry n - 1."""

    @property
    def official(self) -> bool:
        """Whether these are the categories of ShapeNetPart."""
        return self.synsets == tuple(synset for _, synset, _ in SHAPENET)

    @cached_property
    def part_names(self) -> tuple[str, ...]:
        """Names by part number: such as "Chair/back", or "robot/1" of other categories."""
        if self.official:
            return OFFICIAL_PARTS
        most = max(number for numbers in self.parts for number in numbers)
        names = [f"part/{number}" for number in range(most + 1)]
        for category, numbers in zip(self.categories, self.parts, strict=True):
            for place, number in enumerate(numbers, start=1):
                names[number] = f"{category}/{place}"
        return tuple(names)

    @cached_property
    def allowed(self) -> Bool[Tensor, "categories parts"]:
        """True where a part belongs to a category."""
        table = torch.zeros(len(self.categories), len(self.part_names), dtype=torch.bool)
        for row, numbers in enumerate(self.parts):
            table[row, list(numbers)] = True
        return table

    def check(
        self, labels: Int[Tensor, "s"], parts: Int[Tensor, "s m"], names: Sequence[str]
    ) -> None:
        """Refuse a number that is no category, or no part of the shape's own; -1 is no label.

        Args:
            labels: The categories of shapes.
            parts: The parts of all of their points.
            names: What to call the shapes.

        Raises:
            ValueError: naming the first such shape.
        """
        for what, values, size, least in (
            ("category", labels[:, None], len(self.categories), 0),
            ("part", parts, len(self.part_names), -1),
        ):
            wrong = (values < least) | (values >= size)
            if bool(wrong.any()):
                row = int(wrong.any(1).nonzero()[0, 0])
                number = int(values[row][wrong[row]][0])
                raise ValueError(
                    f"{names[row]} has the {what} number {number}, expected 0 to {size - 1}; "
                    "correct it"
                )
        foreign = ~self.allowed[labels[:, None], parts.clamp_min(0)] & (parts >= 0)
        if bool(foreign.any()):
            rows = foreign.any(1).nonzero()[:, 0].tolist()
            part = self.part_names[int(parts[rows[0]][foreign[rows[0]]][0])]
            raise ValueError(
                f"{counted(len(rows), 'shape has', 'shapes have')} points on parts of another "
                f"category: {names[rows[0]]}, of category {self.categories[int(labels[rows[0]])]}, "
                f"on {part}; correct the labels, or set them to -1"
            )


def with_words(names: Sequence[str]) -> list[str]:
    """Return the names of parts; those of ShapeNetPart that are numbers ("Chair/1") as words."""
    return list(OFFICIAL_PARTS if tuple(names) == NUMBERED_PARTS else names)


def read_table_of_parts(folder: Path, categories_file: str) -> PartTable | None:
    """Read the categories of a release, and find their parts.

    Args:
        folder: The release.
        categories_file: Lines of a name and a number, such as "Chair 03001627".

    Returns:
        None if these are not the categories of ShapeNetPart and no
        ``catid_partid_to_overallid.json`` tells their parts.
    """
    pairs = read_categories(folder / categories_file)
    if dict(pairs).items() <= {name: synset for name, synset, _ in SHAPENET}.items():
        pairs = [(name, synset) for name, synset, _ in SHAPENET]
        number = count()
        numbers = tuple(tuple(next(number) for _ in parts.split()) for *_, parts in SHAPENET)
    else:
        listing = folder / "catid_partid_to_overallid.json"
        if not listing.exists():
            return None
        overall = json.loads(listing.read_text())
        numbers = tuple(
            tuple(n for key, n in overall.items() if key.rpartition("_")[0] == synset)
            for _, synset in pairs
        )
    names, synsets = zip(*pairs, strict=True)
    return PartTable(names, synsets, numbers)


def read_categories(path: Path) -> list[tuple[str, str]]:
    """Read pairs of a category's name and its folder's name."""
    pairs = []
    for line in read_lines(path):
        name, _, synset = line.replace("\t", " ").rpartition(" ")
        if not name:
            raise ValueError(f"{path}: expected a name and a number in each line, got {line!r}")
        pairs.append((name.strip(), synset))
    if not pairs:
        raise ValueError(f"{path} names no category")
    return pairs
