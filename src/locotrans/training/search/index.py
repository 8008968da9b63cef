"""One file of embeddings: a row for every shape of a folder, and what made it.

The file is a .safetensors of the unit vectors ``embeddings`` (rows, channels), and of the ``sizes``
and ``times`` of the files, which tell whether one has changed. Paths, relative to the folder, and
the facts are JSON in its header.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64
from safetensors import SafetensorError, safe_open

from locotrans.training.predict.arrays import ArrayWriter
from locotrans.training.predict.samples import Choice
from locotrans.training.record import replacing

FORMAT = 4


@dataclass(frozen=True)
class Facts:
    """What the embeddings are a function of, besides the files."""

    model: str
    sha256: str
    """Of the weights."""
    points: int
    """Points chosen of each file."""
    seed: int
    """Seed of their choice, and of the points drawn from meshes."""
    choice: Choice
    """How they are chosen: see `choose_points`."""


@dataclass(frozen=True)
class Index:
    """An index as it lies on disk; the embeddings are read when they are looked at."""

    path: Path
    folder: Path
    """That the names are relative to."""
    weights: Path
    """Where the weights were when it was built."""
    facts: Facts
    names: list[str]
    embeddings: Float32[np.ndarray, "n c"]
    """Unit vectors, mapped from the disk."""
    sizes: Int64[np.ndarray, "n"]
    """Bytes of each file."""
    times: Int64[np.ndarray, "n"]
    """When each file was last changed, in nanoseconds."""

    @classmethod
    def open(cls, path: Path) -> "Index":
        """Open an index.

        Raises:
            ValueError: the file is damaged, or no index.
        """
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such index: make it by `locotrans index`")
        try:
            with safe_open(path, framework="np") as file:
                texts = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
                sizes, times = (file.get_tensor(name) for name in ("sizes", "times"))
            head = json.loads(texts["index"][0])
            form = head.pop("format")
            folder, weights = Path(head.pop("folder")), Path(head.pop("weights"))
            facts, names = Facts(**head) if form == FORMAT else None, texts["paths"]
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged or no index ({' '.join(str(error).split())}): "
                "name another file, or remove it and make it anew by `locotrans index`"
            ) from None
        if facts is None:
            raise ValueError(
                f"{path} has format {form}, this version reads {FORMAT}: remove it, and make it "
                "anew by `locotrans index`"
            )
        return cls(path, folder, weights, facts, names, _mapped(path), sizes, times)

    def __len__(self) -> int:
        return len(self.names)

    def file(self, row: int) -> Path:
        """Return where the shape of a row lies."""
        return self.folder / self.names[row]

    def stamps(self) -> dict[str, tuple[int, int, int]]:
        """Return the row, the size and the time of each name."""
        numbers = zip(self.sizes.tolist(), self.times.tolist(), strict=True)
        pairs = zip(self.names, numbers, strict=True)
        return {name: (row, *stamp) for row, (name, stamp) in enumerate(pairs)}


def _mapped(path: Path) -> Float32[np.ndarray, "n c"]:
    """Map the embeddings: a search of many rows need not hold them."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))["embeddings"]
    start = 8 + length + entry["data_offsets"][0]
    return np.memmap(path, np.float32, "r", start, tuple(entry["shape"]))


def save_index(
    path: Path,
    rows: ArrayWriter,
    names: Sequence[str],
    folder: Path,
    weights: Path,
    facts: Facts,
) -> None:
    """Replace ``path`` by an index of the rows, whole or not at all."""
    head = {
        "format": FORMAT,
        "folder": str(folder.resolve()),
        "weights": str(weights.resolve()),
        **asdict(facts),
    }
    rows.texts = {"paths": list(names), "index": [json.dumps(head)]}
    with replacing(path) as file:
        rows.write_safetensors(file)
