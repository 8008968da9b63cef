"""LocoTrans written edge by edge: the baseline that the factorised layers are measured against.

The same function of the same weights as `locotrans.models.LocoTrans`, in the way that a reader of
the paper would first write it: neighbours by the whole distance matrix and `topk`, the edges
[v_j - v_r, v_r] built in memory, one product per edge, one pass over them for each operation. It is
no straw man: channels lie last, so that no product needs a transposed copy, and layers that act on
points alone are those of the library.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from locotrans import create_model
from locotrans.geometry.vectors import center
from locotrans.models.locotrans import LocoTrans
from locotrans.models.output import ClassifierOutput
from locotrans.nn import EdgeConv, FrameConv, RelativePoseConv, VNEdgeConv, VNLayer, VNProjection
from locotrans.nn.lcrf import LEARNED_FRAMES

SLOPE = 0.2
EPS = 1e-6


def full() -> nn.Module:
    """Return the full network, edge by edge, with fresh weights."""
    return EdgeByEdge(create_model("locotrans_dgcnn"))


def light() -> nn.Module:
    """Return the light network, edge by edge, with fresh weights."""
    return EdgeByEdge(create_model("locotrans_dgcnn_light"))


def nearest(x: Float[Tensor, "b n c"], k: int) -> Int[Tensor, "b n k"]:
    """Return the k nearest neighbours, by the matrix of all squared distances."""
    squares = x.square().sum(-1)
    distances = squares.unsqueeze(2) - 2 * x @ x.mT + squares.unsqueeze(1)
    return distances.topk(k, largest=False).indices


def neighbor_rows(x: Tensor, neighbors: Int[Tensor, "b n k"]) -> Tensor:
    """Return x_j of every edge: (b, n, *f) becomes (b, n, k, *f)."""
    b, n, k = neighbors.shape
    rows = neighbors + n * torch.arange(b, device=x.device).view(-1, 1, 1)
    return x.flatten(0, 1)[rows.flatten()].view(b, n, k, *x.shape[2:])


def edges(x: Tensor, neighbors: Int[Tensor, "b n k"]) -> Tensor:
    """Return [x_j - x_r, x_r] of every edge."""
    x_j = neighbor_rows(x, neighbors)
    x_r = x.unsqueeze(2).expand_as(x_j)
    return torch.cat([x_j - x_r, x_r], dim=-1)


def vn_layer(layer: VNLayer | VNEdgeConv, v: Float[Tensor, "*batch 3 c"]) -> Tensor:
    """Map vectors: a product, batch norm of the lengths, the leaky ReLU along directions."""
    p, q = layer.linear(v), layer.direction(v)
    length = p.norm(dim=-2, keepdim=True) + EPS
    p = p / length * layer.norm.norm(length)
    along = (p * q).sum(-2, keepdim=True)
    outside = p - along / ((q * q).sum(-2, keepdim=True) + EPS) * q
    return torch.where(along < 0, SLOPE * p + (1 - SLOPE) * outside, p)


def vn_project(projection: VNProjection, v: Float[Tensor, "b n 3 c"]) -> Float[Tensor, "b n 3 m"]:
    return projection.linear(vn_layer(projection.layer2, vn_layer(projection.layer1, v)))


def in_frame(frames: Float[Tensor, "b n 3 3"], v: Float[Tensor, "b n k 3 c"]) -> Tensor:
    """Return U_r^T v of every edge, flattened."""
    return torch.einsum("bnij,bnkic->bnkjc", frames, v).flatten(-2)


def activated_max(layer: FrameConv | EdgeConv | RelativePoseConv, x: Tensor) -> Tensor:
    """Normalise and activate every edge, and take the maximum over the neighbours."""
    return F.leaky_relu(layer.norm(layer.linear(x)), SLOPE).max(dim=2).values


def frame_conv(
    layer: FrameConv, points: Tensor, neighbors: Tensor, frames: Tensor
) -> Float[Tensor, "b n d"]:
    """Eq. 13."""
    p_j = neighbor_rows(points, neighbors)
    p_r = points.unsqueeze(2).expand_as(p_j)
    local = in_frame(frames, (p_j - p_r).unsqueeze(-1))
    if layer.reference_point:
        local = torch.cat([local, in_frame(frames, p_r.unsqueeze(-1))], dim=-1)
    return activated_max(layer, local)


def relative_pose_conv(
    layer: RelativePoseConv, x: Tensor, v: Tensor, neighbors: Tensor, frames: Tensor
) -> Float[Tensor, "b n d"]:
    """Eqs. 15-17."""
    v_j = neighbor_rows(v, neighbors)
    pose = in_frame(frames, v_j - v.unsqueeze(2))
    kernel = layer.kernel2(F.relu(layer.kernel_norm(layer.kernel1(pose))))
    x_hat = F.relu(layer.pose_norm(kernel * neighbor_rows(layer.basis(x), neighbors)))
    if layer.refine is not None and layer.refine_norm is not None:
        x_hat = F.relu(layer.refine_norm(layer.refine(x_hat)))
    x_r = x.unsqueeze(2).expand_as(x_hat)
    return activated_max(layer, torch.cat([x_hat - x_r, x_r], dim=-1))


class EdgeByEdge(nn.Module):
    """A `LocoTrans` whose forward pass is the one of this file; weights and output are the same."""

    def __init__(self, network: LocoTrans) -> None:
        super().__init__()
        config = network.config
        if config.frames not in LEARNED_FRAMES or config.relative_pose != "equivariant":
            raise ValueError("only networks with learned frames and the equivariant pose are here")
        self.network = network

    def forward(self, points: Float[Tensor, "b n 3"]) -> ClassifierOutput:
        """Classify clouds."""
        network, k = self.network, self.network.config.k
        if network.config.center:
            points = center(points)
        branch = network.equivariant_branch
        v, layers, graphs = points.unsqueeze(-1), [], []
        for conv in branch.backbone.convs:
            graphs.append(nearest(v.flatten(-2), k))
            v = vn_layer(conv, edges(v, graphs[-1])).mean(dim=2)
            layers.append(v)
        v = vn_layer(branch.backbone.embed, torch.cat(layers, dim=-1))
        if branch.backbone.append_mean:
            v = torch.cat([v, v.mean(dim=1, keepdim=True).expand_as(v)], dim=-1)
        invariants = (vn_project(branch.invariants.projection, v).mT @ v).flatten(-2)
        hidden = branch.hidden(_pooled(invariants))
        vectors = vn_project(branch.lcrf.projection, v.detach())
        frames = LEARNED_FRAMES[branch.lcrf.kind](*vectors.unbind(-1))
        x, seen = self._invariant(points, layers, graphs, frames)
        return self._classify(x, seen, hidden, vectors, frames, graphs[0])

    def _invariant(
        self, points: Tensor, layers: list[Tensor], graphs: list[Tensor], frames: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the features of every point, and a hidden vector of the shape."""
        branch, config = self.network.invariant_branch, self.network.config
        xs = [frame_conv(branch.first, points, graphs[0], frames)]
        for i, conv in enumerate(branch.convs):
            graph = graphs[i + 1] if config.shared_graphs else nearest(xs[-1], config.k)
            xs.append(relative_pose_conv(conv, xs[-1], layers[i], graph, frames.detach()))
        x = branch.embed(torch.cat(xs, dim=-1))
        return x, branch.hidden(_pooled(x))

    def _classify(
        self,
        x: Tensor,
        seen: Tensor,
        hidden: Tensor,
        vectors: Tensor,
        frames: Tensor,
        graph: Tensor,
    ) -> ClassifierOutput:
        network = self.network
        equivariant, invariant = network.equivariant_head(hidden), network.invariant_head(seen)
        fused = None
        if network.fusion is not None and network.fused_head is not None:
            fused = network.fused_head(network.fusion(seen, hidden))
        return ClassifierOutput(
            logits=equivariant + (invariant if fused is None else fused),
            invariant=invariant,
            equivariant=equivariant,
            fused=fused,
            vectors=vectors,
            frames=frames,
            embedding=torch.cat([seen, hidden], dim=-1),
            point_features=x,
            neighbors=graph,
        )


def _pooled(x: Float[Tensor, "b n c"]) -> Float[Tensor, "b c2"]:
    return torch.cat([x.max(dim=1).values, x.mean(dim=1)], dim=-1)
