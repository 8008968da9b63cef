"""Every LocoTrans variant, trained for two steps: invariant, and able to fail the same checks."""

from itertools import product
from typing import get_args

import pytest
import torch

from locotrans import create_model, list_models
from locotrans.geometry.frames import FrameKind
from locotrans.losses import classification_losses
from locotrans.models.locotrans import RelativePose
from locotrans.testing import (
    assert_batch_independent,
    assert_equivariant,
    assert_invariant,
    assert_permutation_equivariant,
    assert_permutation_invariant,
)

K, POINTS, CLOUDS, CLASSES = 8, 64, 4, 5
SMALL = {
    "k": K,
    "vector_widths": (4, 5),
    "vector_embedding": 8,
    "widths": (8, 10),
    "embedding": 16,
    "head_widths": (12, 8),
}
SMALL_BASELINE = {"k": K, "widths": (8, 10), "embedding": 16, "head_widths": (12, 8)}
LOCOTRANS = [name for name in list_models() if name.startswith("locotrans")]
HEADS = ("logits", "invariant", "equivariant", "fused")
MIRROR = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64))[None]
VARIANTS = [
    {"frames": frames, "relative_pose": pose, "fusion": fusion, "reference_point": reference}
    for frames, pose, fusion, reference in product(
        get_args(FrameKind), get_args(RelativePose), (True, False), (True, False)
    )
]


def clouds(dtype=torch.float64, n=POINTS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(CLOUDS, n, 3, generator=generator, dtype=dtype)


def trained(name, *, dtype=torch.float64, n=POINTS, **options):
    """Build a model and take two steps of SGD on random clouds."""
    torch.manual_seed(0)
    model = create_model(name, CLASSES, **options).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(2):
        labels = torch.arange(CLOUDS) % CLASSES
        loss = classification_losses(model(clouds(dtype, n, seed=10 + step)), labels).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def present_heads(model):
    output = model(clouds())
    return tuple(head for head in HEADS if getattr(output, head) is not None)


def heads(output):
    return {head: getattr(output, head) for head in HEADS if getattr(output, head) is not None}


@pytest.mark.parametrize("name", LOCOTRANS)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_locotrans_variants(name, variant):
    model = trained(name, **{**SMALL, **variant})
    points = clouds()
    expected = {"logits", "invariant", "equivariant"} | ({"fused"} if variant["fusion"] else set())
    assert heads(model(points)).keys() == expected
    for training in (True, False):
        model.train(training)
        assert_invariant(model, points, output=heads, rotations=2)
        assert_permutation_invariant(model, points, output=heads, permutations=1)
        assert_equivariant(model, points, output="frames", rotations=2)
        assert_permutation_equivariant(model, points, output="frames", permutations=1)
        if variant["frames"] != "handcrafted":
            assert_equivariant(model, points, output="vectors", rotations=2)
        with pytest.raises(AssertionError, match="not invariant"):
            assert_invariant(model, points, output="invariant", rotations=MIRROR, tolerance=1e-4)
    assert_batch_independent(model, points[:2], output=heads)
