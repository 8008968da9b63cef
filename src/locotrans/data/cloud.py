"""One point cloud: what one file holds."""

from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Cloud:
    """The points of one file, with whatever the file says of them."""

    points: Float[Tensor, "n 3"]
    """Single precision; the coordinates of the file are ``points + offset``."""
    normals: Float[Tensor, "n 3"] | None = None
    """As the file gives them, or unit normals of the faces where a mesh was sampled."""
    colors: Float[Tensor, "n 3"] | None = None
    """Red, green, blue in [0, 1]."""
    labels: Int[Tensor, "n"] | None = None
    """One whole number for each point."""
    faces: Int[Tensor, "f 3"] | None = None
    """Triangles as indices of points; None once a mesh has been sampled."""
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Subtracted in double precision; zero unless single precision would lose the shape."""
    holes: int = 0
    """Points of nan alone, as scanners write where they saw nothing; they are left out."""
    rows: Int[Tensor, "n"] | None = None
    """Which points of the file these are, where holes were left out."""
    sampled: bool = False
    """Whether the points were drawn from a mesh."""
    path: Path | None = None
    """Where it was read from."""

    def __len__(self) -> int:
        return self.points.shape[0]
