r"""Networks as files that need no Python: ONNX, and torch.export's ``.pt2``.

**Sizes.** A file takes any batch, and clouds of any size from k points on; memory grows with the
square of the size, since all distances are computed at once.
**Neighbours.** Distances, candidates and the tie rule are those of `locotrans.geometry.neighbors`
(no k-d tree, no kernel). What differs: of more than k + 32 candidates that tie, ONNX takes those of
the lowest index and torch any; and other roundings may order near-ties in another way.
"""

from locotrans.export.comparison import ALLOWED, TOLERANCE, Comparison, compare, latency
from locotrans.export.files import export_network, load_exported, plain_code, with_category

__all__ = [
    "ALLOWED",
    "TOLERANCE",
    "Comparison",
    "compare",
    "export_network",
    "latency",
    "load_exported",
    "plain_code",
    "with_category",
]
