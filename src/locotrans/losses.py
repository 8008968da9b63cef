"""The losses of the paper, each term by name."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from locotrans.distributed import count_over_processes
from locotrans.geometry.neighbors import gather, global_index
from locotrans.geometry.vectors import safe_normalize
from locotrans.kernels import use_kernels


class LossTerms(NamedTuple):
    """The five terms of Eq. 18 and their weighted sum; a term that a network has not is None."""

    total: Float[Tensor, ""]
    invariant: Float[Tensor, ""] | None = None
    equivariant: Float[Tensor, ""] | None = None
    fused: Float[Tensor, ""] | None = None
    orthogonality: Float[Tensor, ""] | None = None
    consistency: Float[Tensor, ""] | None = None


@runtime_checkable
class Classified(Protocol):
    """What `classification_losses` needs of a network's output."""

    logits: Tensor
    invariant: Tensor | None
    equivariant: Tensor | None
    fused: Tensor | None
    vectors: Tensor | None
    neighbors: Tensor | None


def smoothed_cross_entropy(
    logits: Float[Tensor, "b classes"], labels: Int[Tensor, "b"], smoothing: float = 0.2
) -> Float[Tensor, ""]:
    """Return the cross-entropy with ``smoothing`` spread evenly over the *other* classes.

    Differs: `torch.nn.functional.cross_entropy` spreads it over all classes; the same mass on the
        others needs ``label_smoothing = smoothing * classes / (classes - 1)``.
    """
    classes = logits.shape[-1]
    spread = smoothing * classes / (classes - 1) if classes > 1 else 0.0
    if use_kernels(logits):
        from locotrans.kernels.cross_entropy import cross_entropy

        return cross_entropy(logits, labels, spread)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    return F.cross_entropy(logits, labels, label_smoothing=spread)


def orthogonality_loss(vectors: Float[Tensor, "b n 3 2"]) -> Float[Tensor, ""]:
    """Return the mean squared cosine between the two vectors of a point (Eq. 10).

    Differs: Eq. 10 is printed without the square, which has no minimum at a right angle.
    """
    v1, v2 = safe_normalize(vectors, dim=-2).unbind(-1)
    return (v1 * v2).sum(-1).square().mean()


def consistency_loss(
    vectors: Float[Tensor, "b n 3 2"], neighbors: Int[Tensor, "b n k"]
) -> Float[Tensor, ""]:
    """Return how much less consistent one axis is than the other over a neighbourhood (Eq. 12).

    For every point, and every neighbour a of it, the cosines ``<v_a, v_b>`` to all neighbours b are
    taken for the first and for the second vector. Of these two rows, the one with the larger mean
    is the teacher, the other is pulled to it by a mean squared error. Rows taught by the first
    and rows taught by the second vector are averaged separately, and added.

    Gradient: stops at the teacher.
    Degenerate: a case without rows counts 0.
    Differs: Eq. 12 prints the squared difference alone; teacher, stopped gradient and separate
        averages are those of the authors' program.
    """
    if use_kernels(vectors):
        return _vector_terms(vectors, neighbors)[1]
    v = gather(safe_normalize(vectors, dim=-2), neighbors)  # (b, n, k, 3, 2)
    cosines = torch.einsum("bnaic,bndic->cbnad", v, v)  # (2, b, n, k, k)
    first, second = cosines
    first_teaches = first.mean(-1) > second.mean(-1)  # (b, n, k)
    pull_second = (second - first.detach()).square().mean(-1)
    pull_first = (first - second.detach()).square().mean(-1)
    return _masked_mean(pull_second, first_teaches) + _masked_mean(pull_first, ~first_teaches)


def _vector_terms(
    vectors: Float[Tensor, "b n 3 2"], neighbors: Int[Tensor, "b n k"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return orthogonality and consistency, by the kernel for both where there is one."""
    if use_kernels(vectors):
        from locotrans.kernels.consistency import vector_losses

        return vector_losses(vectors.flatten(0, 1), global_index(neighbors))
    return orthogonality_loss(vectors), consistency_loss(vectors, neighbors)


def _masked_mean(x: Float[Tensor, "*shape"], mask: Tensor) -> Float[Tensor, ""]:
    """Return the mean of ``x`` where ``mask`` holds, 0 where it nowhere does, without a wait.

    Where several processes train together, the average of what they return is the mean over all.
    """
    return (x * mask).sum() / count_over_processes(mask, x.dtype)


def point_cross_entropy(
    logits: Float[Tensor, "b n classes"], labels: Int[Tensor, "b n"], smoothing: float = 0.2
) -> Float[Tensor, ""]:
    """Return the mean of `smoothed_cross_entropy` over all points that have a label.

    A label of -1 says that there is none; where no point has one, the loss is 0. Where several
    processes train together, the average of what they return is the mean over the points of all.
    """
    classes = logits.shape[-1]
    spread = smoothing * classes / (classes - 1) if classes > 1 else 0.0
    total = F.cross_entropy(
        logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)),
        labels.flatten(),
        ignore_index=-1,
        label_smoothing=spread,
        reduction="sum",
    )
    return total / count_over_processes(labels >= 0, total.dtype)


def balanced_cross_entropy(
    logits: Float[Tensor, "b *n classes"],
    labels: Int[Tensor, "b *n"],
    offsets: Float[Tensor, " classes"],
    smoothing: float = 0.2,
) -> Float[Tensor, ""]:
    """Return the cross-entropy of logits to which every class's offset is added.

    With logarithms of how frequent the classes are, a network learns what it would answer if all
    were equally so. ``smoothing`` is spread over all classes in proportion to those frequencies: if
    it were spread evenly, the offsets would make a class so probable that it is answered where it
    is as good as excluded. A label of -1 says that there is none.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_p = (wide + offsets).log_softmax(-1)
    right = log_p.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    spread = (log_p * offsets.softmax(-1)).sum(-1)
    return -_masked_mean((1 - smoothing) * right + smoothing * spread, labels >= 0)


def classification_losses(
    output: Classified,
    labels: Int[Tensor, "b *n"],
    smoothing: float = 0.2,
    orthogonality_weight: float = 0.1,
    consistency_weight: float = 0.1,
    offsets: Float[Tensor, " classes"] | None = None,
) -> LossTerms:
    """Return every term of Eq. 18, and their sum as ``total``.

    A network without the heads of LocoTrans is trained by its combined logits alone. Labels of
    points instead of shapes give the losses of segmentation: the cross-entropies are then means
    over the points (`point_cross_entropy`).

    Args:
        output: of a network.
        labels: of the shapes, or of their points (-1: none).
        smoothing: of the labels.
        orthogonality_weight: of the loss of Eq. 10.
        consistency_weight: of the loss of Eq. 12.
        offsets: what `balanced_cross_entropy` adds to the logits of each class, if anything.
    """

    def cross_entropy(logits: Tensor) -> Float[Tensor, ""]:
        if offsets is not None:
            return balanced_cross_entropy(logits, labels, offsets, smoothing)
        entropy = smoothed_cross_entropy if labels.dim() == 1 else point_cross_entropy
        return entropy(logits, labels, smoothing)

    heads = {
        "invariant": output.invariant,
        "equivariant": output.equivariant,
        "fused": output.fused,
    }
    terms = {name: cross_entropy(x) for name, x in heads.items() if x is not None}
    total = torch.stack(list(terms.values())).sum() if terms else cross_entropy(output.logits)
    if output.vectors is not None and output.neighbors is not None:
        orthogonality, consistency = _vector_terms(output.vectors, output.neighbors)
        terms |= {"orthogonality": orthogonality, "consistency": consistency}
        total = torch.add(total, orthogonality, alpha=orthogonality_weight)
        total = torch.add(total, consistency, alpha=consistency_weight)
    return LossTerms(total=total, **terms)
