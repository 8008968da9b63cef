"""Whether two shapes of an index have the same points, but for pose, order and scale.

An embedding alone does not tell: a network that has learned little gives different shapes nearly
the same one, and in single precision a copy in another pose may have another neighbour somewhere.
"""

import numpy as np
from jaxtyping import Float, Float64

from locotrans.training.predict.samples import load_sample
from locotrans.training.search.index import Index

POINTS = 1024
"""Points of a shape that are compared, at most."""
RANKS = 256
"""Of the distances between its points, that are compared."""
TOLERANCE = 2e-4
"""In radii. Measured: copies in single precision, a hundred radii from the origin, 1e-5; different
built-in shapes at least 0.009; two samplings of a sphere, the hardest case, at least 7e-4."""


class SamePoints:
    """Compares the files of two rows by the sorted distances between their points.

    Symmetry: invariant under rotation, translation, scale and permutation; also under reflection,
        so that mirror images are told apart by their embeddings alone.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.known: dict[int, tuple[int, Float64[np.ndarray, "ranks"]]] = {}

    def __call__(self, first: int, second: int) -> bool:
        """Tell whether two rows are of the same points."""
        (count, distances), (other, others) = self._points(first), self._points(second)
        return count == other and bool(np.abs(distances - others).max() <= TOLERANCE)

    def _points(self, row: int) -> tuple[int, Float64[np.ndarray, "ranks"]]:
        """Return how many points of a shape are compared, and distances between them."""
        if row not in self.known:
            file, facts = self.index.file(row), self.index.facts
            count = min(facts.points, POINTS)
            # whatever the embeddings were made of: these do not depend on the order of the points
            sample = load_sample(file, count, facts.seed, choice="farthest", filled=False)
            if sample.points is None:
                raise ValueError(
                    f"{file}: {sample.error}: bring the index up to date by `locotrans index`, or "
                    "compare embeddings alone (--within)"
                )
            self.known[row] = len(sample.points), ranked_distances(sample.points)
        return self.known[row]


def ranked_distances(points: Float[np.ndarray, "n 3"]) -> Float64[np.ndarray, "ranks"]:
    """Return distances between the points of a cloud, from the least to the greatest."""
    from scipy.spatial.distance import pdist

    distances = np.sort(pdist(points.astype(np.float64)))
    return distances[np.linspace(0, len(distances) - 1, RANKS).round().astype(np.int64)]
