"""What a look into a folder found, and how it is said."""

from dataclasses import dataclass, field
from pathlib import Path

from locotrans.counting import counted
from locotrans.data.own_files import KEEP


@dataclass(frozen=True)
class SplitReport:
    """One split: how many shapes, points, and shapes of each class.

    Scenes have blocks in the place of shapes, and sampled points of each class.
    """

    split: str
    shapes: int
    points: int | None
    """Of every shape; None where clouds are sampled from files of any size."""
    classes: dict[str, int]
    parts: dict[str, int]
    """Points on each part."""
    notes: tuple[str, ...]
    sizes: tuple[int, int, int] | None = None
    """The least, the median and the greatest number of points of one's own files."""
    items: str = "shapes"
    """What the shapes are: `CloudSet.items`."""
    rooms: int = 0
    """How many rooms the blocks are of."""

    def line(self) -> str:
        """Say how much there is."""
        occurring = sum(count > 0 for count in self.classes.values())
        rooms = f" of {counted(self.rooms, 'room')}" if self.rooms else ""
        return (
            f"{self.split}: {counted(self.shapes, self.items[:-1])}{rooms}{self.size()}, "
            f"{occurring} of {counted(len(self.classes), 'class', 'classes')}"
        )

    def size(self) -> str:
        """Say how many points a shape has, where that is known."""
        if self.sizes is None:
            return "" if self.points is None else f" of {counted(self.points, 'point')}"
        least, median, most = self.sizes
        more = " or more" if most == KEEP else ""
        if least == most:
            return f" of {least:,}{more} points"
        return f" of {least:,} to {most:,}{more} points (median {median:,})"


@dataclass
class SetReport:
    """One data set, by the name that `load_dataset` takes it with."""

    name: str
    folder: Path
    up: str = ""
    splits: list[SplitReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    twins: list[str] = field(default_factory=list)
    """Shapes of other splits that have the same points as one to train on."""
    seen: set[bytes] = field(default_factory=set)
    """Digests of the clouds to train on."""


@dataclass
class Report:
    """What was found under a folder."""

    root: Path
    sets: list[SetReport]

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong; empty if all that was found can be used."""
        if not self.sets:
            return [_nothing(self.root)]
        return [f"{found.name}: {problem}" for found in self.sets for problem in found.problems]

    def lines(self, *, classes: bool = True) -> list[str]:
        """Say it in lines of text."""
        text = []
        for found in self.sets:
            up = f", {found.up} up" if found.up else ""
            text.append(f"{found.name} in {found.folder}{up}")
            for part in found.splits:
                text.append(f"  {part.line()}")
                if classes:
                    counts = (f"{name} {count:,}" for name, count in part.classes.items())
                    text.append(
                        ("    sampled points: " if part.rooms else "    ") + ", ".join(counts)
                    )
                    if part.parts:
                        counts = (f"{name} {count:,}" for name, count in part.parts.items())
                        text.append("    points on parts: " + ", ".join(counts))
                text += [f"    note: {note}" for note in part.notes]
            text += [f"  note: {note}" for note in found.notes]
            text += [f"  problem: {problem}" for problem in found.problems]
        return text or [_nothing(self.root)]


def _nothing(root: Path) -> str:
    from locotrans.data.readers import FORMATS

    files = sum(path.suffix.lower() in FORMATS for path in root.iterdir() if path.is_file())
    hint = (
        f"; it holds {counted(files, 'cloud')}: put them into a folder per class or, if they are "
        "scenes whose points are labelled, train with --data folder:sphere=RADIUS"
        if files
        else ""
    )
    return f"nothing is recognised under {root}{hint}"
