"""The two learned vectors of a point, and the derivative of their unit vectors."""

from typing import no_type_check

import triton
import triton.language as tl

EPS = tl.constexpr(1e-12)  # of `locotrans.geometry.vectors.safe_normalize`


@triton.jit
@no_type_check
def through_unit(gx, gy, gz, ux, uy, uz, inverse, regular):
    """Return the gradient of a vector v, from that of u = v / |v|; `regular` says |v| >= EPS."""
    along = tl.where(regular, gx * ux + gy * uy + gz * uz, 0.0)
    return (gx - along * ux) * inverse, (gy - along * uy) * inverse, (gz - along * uz) * inverse


@triton.jit
@no_type_check
def load_pair(v, r, inside):
    """Load the two vectors of some points, from rows (x1, x2, y1, y2, z1, z2)."""
    row = v + r.to(tl.int64) * 6
    x1 = tl.load(row, mask=inside, other=0.0)
    x2 = tl.load(row + 1, mask=inside, other=0.0)
    y1 = tl.load(row + 2, mask=inside, other=0.0)
    y2 = tl.load(row + 3, mask=inside, other=0.0)
    z1 = tl.load(row + 4, mask=inside, other=0.0)
    z2 = tl.load(row + 5, mask=inside, other=0.0)
    return x1, y1, z1, x2, y2, z2
