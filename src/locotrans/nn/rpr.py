"""Relative pose recovery (RPR) and the first layer of the invariant branch."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans.geometry.neighbors import gather, global_index
from locotrans.kernels import (
    product_precision,
    stored_dtype,
    use_kernels,
    use_learning_loops,
    use_loops,
)
from locotrans.nn.edge import by_rows, leaky_max
from locotrans.nn.lcrf import to_frame
from locotrans.nn.norm import BatchNorm
from locotrans.nn.vn import narrow


class FrameConv(nn.Module):
    """Eq. 13: ``x_r = max_j psi(U_r^T (p_j - p_r))``, optionally of ``U_r^T p_r`` too.

    Symmetry: SO(3)-invariant; and translation-invariant without ``U_r^T p_r``.
    Gradient: flows into the frames here, and only here.
    Differs: the authors' program leaves ``U_r^T p_r`` out, and so do we unless asked.
    """

    def __init__(self, out_channels: int, *, reference_point: bool = False) -> None:
        super().__init__()
        self.reference_point = reference_point
        self.linear = nn.Linear(6 if reference_point else 3, out_channels, bias=False)
        self.norm = BatchNorm(out_channels)

    def forward(
        self,
        points: Float[Tensor, "b n 3"],
        neighbors: Int[Tensor, "b n k"],
        frames: Float[Tensor, "b n 3 3"],
    ) -> Float[Tensor, "b n d"]:
        """Convolve the coordinates of every neighbourhood, seen from its own frame."""
        index = global_index(neighbors)
        p, U = points.flatten(0, 1), frames.flatten(0, 1)
        # W U_r^T (p_j - p_r): the matrix W U_r^T once a point, as its transpose (m, 3, d)
        matrix = F.linear(U, self.linear.weight[:, :3])
        offset = None
        if self.reference_point:
            offset = F.linear((p.unsqueeze(1) @ U).squeeze(1), self.linear.weight[:, 3:])
        if use_kernels(points) and not points.requires_grad:
            from locotrans.kernels.edge_max import frame_conv

            out = frame_conv(p, index, matrix, self.norm.statistics(), w=offset)
        elif use_loops(points, training=self.norm.training):
            from locotrans.kernels import cpu

            scale, shift = cpu.fold(self.norm)
            offset = shift.expand(len(p), -1) if offset is None else offset * scale + shift
            out = cpu.frame_conv(p, matrix * scale, offset, index)
        else:

            def edges(rows: slice) -> Tensor:
                e = (gather(p, index[rows]) - p[rows].unsqueeze(1)) @ matrix[rows]
                e = e if offset is None else e + offset[rows].unsqueeze(1)
                return leaky_max(self.norm(e))

            out = by_rows(edges, index, matrix.shape[-1], self.norm.training)
        return out.unflatten(0, points.shape[:2])


class PoseRecovery(nn.Module):
    """Eq. 15: ``x^_j = W_j(F) x_j``, a neighbour's features turned into the pose of the point.

    The kernel has two layers on the relative pose F.

    Args:
        pose_channels: size of the relative pose F of an edge.
        channels: features.
        refine: one more layer on ``x^_j`` (the full network has it, the light one has not).
    """

    def __init__(self, pose_channels: int, channels: int, *, refine: bool = True) -> None:
        super().__init__()
        c = channels
        self.basis = nn.Linear(c, c, bias=False)
        self.kernel1 = nn.Linear(pose_channels, c // 2)
        self.kernel_norm = BatchNorm(c // 2)
        self.kernel2 = nn.Linear(c // 2, c)
        self.pose_norm = BatchNorm(c)
        self.refine = nn.Linear(c, c) if refine else None
        self.refine_norm = BatchNorm(c) if refine else None

    def turn(
        self, basis: Float[Tensor, "*batch k c"], pose: Float[Tensor, "*batch k f"]
    ) -> Float[Tensor, "*batch k c"]:
        """Turn neighbours' features.

        Args:
            basis: ``basis(x)`` of the neighbours.
            pose: the relative pose of every edge.
        """
        kernel = self.kernel2(F.relu(self.kernel_norm(self.kernel1(pose))))
        x_hat = F.relu(self.pose_norm(kernel * basis))
        if self.refine is not None and self.refine_norm is not None:
            x_hat = F.relu(self.refine_norm(self.refine(x_hat)))
        return x_hat


class RelativePoseConv(PoseRecovery):
    """Edge convolution of turned neighbours: ``x'_r = max_j phi(x_r, x^_j - x_r)`` (Eq. 16).

    Args:
        pose_channels: size of the relative pose F of an edge.
        in_channels: features in.
        out_channels: features out.
        refine: as in `PoseRecovery`.
    """

    def __init__(
        self, pose_channels: int, in_channels: int, out_channels: int, *, refine: bool = True
    ) -> None:
        super().__init__(pose_channels, in_channels, refine=refine)
        c = in_channels
        self.linear = nn.Linear(2 * c, out_channels, bias=False)
        self.norm = BatchNorm(out_channels)

    def forward(
        self,
        x: Float[Tensor, "b n c"],
        pose: Float[Tensor, "b n _ _"],
        neighbors: Int[Tensor, "b n k"],
        frames: Float[Tensor, "b n 3 3"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Convolve features over neighbourhoods.

        Args:
            x: features of every point.
            pose: the relative pose of every edge, (b, n, k, f); or, with frames, the vectors of
                every point, (b, n, 3, cv), that the pose of Eq. 17 comes from. Its numbers then
                need not exist all at once, and there are kernels for it.
            neighbors: the neighbourhoods.
            frames: the frame of every point.
        """
        if frames is None:
            flat = pose.flatten(0, 1)
            return self._convolve(x, neighbors, lambda rows: flat[rows])
        return self._from_vectors(x, pose, neighbors, frames)

    def _from_vectors(
        self,
        x: Float[Tensor, "b n c"],
        v: Float[Tensor, "b n 3 cv"],
        neighbors: Int[Tensor, "b n k"],
        frames: Float[Tensor, "b n 3 3"],
    ) -> Float[Tensor, "b n d"]:
        if use_kernels(x) and self._kernels_do(x, v, neighbors, frames):
            return self._fused(x, v, neighbors, frames)
        v = narrow(v, self.kernel1.in_features // 3)
        index, flat, U = global_index(neighbors), v.flatten(0, 1), frames.flatten(0, 1)
        if use_loops(x, training=self._learns()):
            return self._by_loops(x, flat, index, U)
        wanted = torch.is_grad_enabled() and frames.requires_grad
        fits = 3 * v.shape[-1] == self.kernel1.in_features
        if use_learning_loops(x, training=all(self._modes())) and fits and not wanted:
            return self._by_learning_loops(x, flat, index, U)

        def pose(rows: slice) -> Tensor:
            return to_frame(U[rows], gather(flat, index[rows]) - flat[rows].unsqueeze(1))

        return self._convolve(x, neighbors, pose)

    def _convolve(
        self,
        x: Float[Tensor, "b n c"],
        neighbors: Int[Tensor, "b n k"],
        pose: Callable[[slice], Tensor],
    ) -> Float[Tensor, "b n d"]:
        index = global_index(neighbors)
        basis = self.basis(x).flatten(0, 1)
        # W [x^_j - x_r; x_r] = W1 x^_j + (W2 - W1) x_r: the second product is per point
        w1, w2 = self.linear.weight.chunk(2, dim=-1)
        reference = F.linear(x, w2 - w1).flatten(0, 1)

        def edges(rows: slice) -> Tensor:
            x_hat = self.turn(gather(basis, index[rows]), pose(rows))
            e = F.linear(x_hat, w1) + reference[rows].unsqueeze(1)
            return leaky_max(self.norm(e))  # Eq. 16

        out = by_rows(edges, index, len(w1), self._learns())
        return out.unflatten(0, x.shape[:2])

    def _modes(self) -> list[bool]:
        """Say of every batch norm whether it is in training."""
        norms = (self.kernel_norm, self.pose_norm, self.refine_norm, self.norm)
        return [norm.training for norm in norms if norm is not None]

    def _learns(self) -> bool:
        return any(self._modes())

    def _kernels_do(
        self,
        x: Float[Tensor, "b n c"],
        v: Float[Tensor, "b n 3 cv"],
        neighbors: Int[Tensor, "b n k"],
        frames: Float[Tensor, "b n 3 3"],
    ) -> bool:
        """Say whether kernels do this: one mode of batch norms, no gradient of frames, it fits."""
        from locotrans.kernels.rpr import supported

        if len(set(self._modes())) > 1 or (torch.is_grad_enabled() and frames.requires_grad):
            return False
        d, given = self.norm.num_features, v.shape[-1]
        enough = given >= self.kernel1.in_features // 3
        return enough and supported(given, x.shape[-1], d, neighbors.shape[-1], x.device)

    def _by_loops(
        self,
        x: Float[Tensor, "b n c"],
        v: Float[Tensor, "m 3 cv"],
        index: Int[Tensor, "m k"],
        frames: Float[Tensor, "m 3 3"],
    ) -> Float[Tensor, "b n d"]:
        from locotrans.kernels import cpu

        scale, shift = cpu.fold(self.norm)
        w1, w2 = self.linear.weight.chunk(2, dim=-1)
        layers = [
            cpu.fold_linear(self.kernel1, self.kernel_norm),
            (self.kernel2.bias, self.kernel2.weight.mT),
        ]
        if self.refine is not None and self.refine_norm is not None:
            layers.append(cpu.fold_linear(self.refine, self.refine_norm))
        out = cpu.rpr_conv(
            v,
            frames,
            index,
            cpu.product(x.flatten(0, 1), self.basis.weight.mT),
            cpu.product(x.flatten(0, 1), (scale[:, None] * (w2 - w1)).mT) + shift,
            layers,
            cpu.fold(self.pose_norm),
            (scale[:, None] * w1).mT.contiguous(),
        )
        return out.unflatten(0, x.shape[:2])

    def _by_learning_loops(
        self,
        x: Float[Tensor, "b n c"],
        v: Float[Tensor, "m 3 cv"],
        index: Int[Tensor, "m k"],
        frames: Float[Tensor, "m 3 3"],
    ) -> Float[Tensor, "b n d"]:
        from locotrans.kernels import learning_rpr

        w1, w2 = self.linear.weight.chunk(2, dim=-1)
        layers = [
            (self.kernel1, self.kernel_norm.statistics()),
            (self.kernel2, self.pose_norm.statistics()),
        ]
        if self.refine is not None and self.refine_norm is not None:
            layers.append((self.refine, self.refine_norm.statistics()))
        basis, reference = self.basis(x).flatten(0, 1), F.linear(x, w2 - w1).flatten(0, 1)
        points = (basis, reference, v, frames, index, x.shape[1])
        out = learning_rpr.rpr_conv(*points, w1, self.norm.statistics(), layers)
        return out.unflatten(0, x.shape[:2])

    def _fused(
        self,
        x: Float[Tensor, "b n c"],
        v: Float[Tensor, "b n 3 cv"],
        neighbors: Int[Tensor, "b n k"],
        frames: Float[Tensor, "b n 3 3"],
    ) -> Float[Tensor, "b n d"]:
        from locotrans.kernels.rpr import rpr_conv
        from locotrans.kernels.rpr_plan import layers_of
        from locotrans.kernels.rpr_points import point_products

        store = stored_dtype()
        x_basis, z, w1 = point_products(
            x.flatten(0, 1).to(store), self.basis.weight, self.linear.weight
        )
        out = rpr_conv(
            x_basis,
            z,
            v.flatten(0, 1),
            frames.flatten(0, 1),
            global_index(neighbors),
            w1,
            layers_of(self),
            store=store,
            precision=product_precision(),
        )
        return out.unflatten(0, x.shape[:2])
