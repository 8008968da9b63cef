"""Batch normalisation of the last axis."""

import pytest
import torch

from locotrans.nn.norm import BatchNorm, count_together


def counts(*layers):
    return [layer.num_batches_tracked.item() for layer in layers]


def test_batches_are_counted_at_once_or_together():
    a, b, unused = BatchNorm(3), BatchNorm(3), BatchNorm(3)
    x = torch.randn(2, 4, 3)
    b(a(x))
    assert counts(a, b, unused) == [1, 1, 0]
    with count_together():
        a(b(a(x)))
        b.eval()(x)
        assert counts(a, b) == [2, 1]  # a second time in a layer counts at once
    assert counts(a, b, unused) == [3, 2, 0]
    a(x)
    assert counts(a) == [4]


def test_a_batch_that_fails_leaves_counting_as_it_was():
    layer = BatchNorm(3)
    with pytest.raises(ValueError, match="more than 1 value"), count_together():
        layer(torch.randn(1, 3))
    layer(torch.randn(2, 3))
    assert counts(layer) == [2]  # torch counts a batch that it refuses
