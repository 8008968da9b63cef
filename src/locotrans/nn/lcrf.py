"""The local-consistent reference frame (LCRF) of every point, learned from vector features."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from locotrans.geometry.frames import (
    gram_schmidt_frame,
    printed_symmetric_frame,
    symmetric_frame,
)
from locotrans.kernels import use_kernels
from locotrans.nn.vn import VNProjection

LEARNED_FRAMES = {
    "symmetric": symmetric_frame,
    "symmetric_printed": printed_symmetric_frame,
    "gram_schmidt": gram_schmidt_frame,
}


class LCRF(nn.Module):
    """Project vector features to two vectors a point and build the frame from them (Eqs. 3-8).

    Symmetry: SO(3)-equivariant, ``U(R p) = R U(p)``.
    Gradient: the features come in detached: the frame losses train this head and not the branch
        below it.
    """

    def __init__(self, channels: int, kind: str = "symmetric") -> None:
        super().__init__()
        self.projection = VNProjection(channels, 2)
        self.kind = kind

    def forward(
        self, v: Float[Tensor, "b n 3 c"], mean: Float[Tensor, "b 1 3 c"] | None = None
    ) -> tuple[Float[Tensor, "b n 3 2"], Float[Tensor, "b n 3 3"]]:
        """Return the two vectors, not normalised, and the frames."""
        vectors = self.projection(v.detach(), None if mean is None else mean.detach())
        if self.kind == "symmetric" and use_kernels(vectors):
            from locotrans.kernels.frames import symmetric_frames

            return vectors, symmetric_frames(vectors.flatten(0, 1)).unflatten(0, v.shape[:2])
        v1, v2 = vectors.unbind(-1)
        return vectors, LEARNED_FRAMES[self.kind](v1, v2)


def to_frame(
    frames: Float[Tensor, "*batch 3 3"], v: Float[Tensor, "*batch k 3 c"]
) -> Float[Tensor, "*batch k c3"]:
    """Express edge vectors in the frame of their reference point: ``U_r^T v``, flattened.

    Symmetry: invariant when the frames and the vectors turn together.
    """
    return torch.einsum("...ij,...kic->...kjc", frames, v).flatten(-2)
