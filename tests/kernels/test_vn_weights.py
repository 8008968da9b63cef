"""The packed weights of vector-neuron layers against the same put together by torch."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels.vn_weights import aligned, pack_edges, pack_halves, pack_layer


def fill(x, rows=True):
    """Append zero columns and rows."""
    return F.pad(x, (0, -x.shape[1] % 8, 0, -x.shape[0] % 8 if rows else 0))


def compare(actual, expected, weights):
    assert torch.equal(actual, expected)
    cotangent = torch.randn(expected.shape).to(expected)
    pairs = (torch.autograd.grad(x, weights, cotangent) for x in (actual, expected))
    for a, b in zip(*pairs, strict=True):
        assert torch.equal(a, b)


def draw(d, e, c, device, dtype=torch.float32):
    return [torch.randn(x, c, device=device, dtype=dtype).requires_grad_() for x in (d, e)]


@pytest.mark.parametrize(("d", "c"), [(21, 1), (5, 9), (8, 16)])
def test_weights_of_edges(d, c, device):
    weights = draw(d, d, 2 * c, device)
    (p1, p2), (q1, q2) = (x.chunk(2, dim=1) for x in weights)
    expected = torch.cat([fill(x) for x in (p1, q1, p2 - p1, q2 - q1)])
    compare(pack_edges(*weights), expected, weights)


@pytest.mark.parametrize(("d", "e"), [(9, 9), (9, 1), (8, 8)])
def test_weights_of_points(d, e, device):
    weights = draw(d, e, 11, device, torch.float64)
    compare(pack_layer(*weights), torch.cat([fill(x) for x in weights]), weights)


def test_parts_of_the_input_are_filled_up_each(device):
    widths, weights = (3, 8, 17), draw(5, 5, 28, device)
    rows = [torch.cat([fill(x) for x in w.split(widths, dim=1)], dim=1) for w in weights]
    packed = pack_layer(*weights, widths)
    assert packed.shape[1] == sum(map(aligned, widths))
    compare(packed, torch.cat(rows), weights)


def test_without_directions_the_rows_stay(device):
    (weight, _) = draw(3, 1, 10, device)
    compare(pack_layer(weight, None), fill(weight, rows=False), [weight])


@pytest.mark.parametrize("e", [9, 1])
def test_weights_of_points_and_of_their_cloud(e, device):
    weights = draw(9, e, 12, device)
    halves = zip(*(x.chunk(2, dim=1) for x in weights), strict=True)
    for actual, half in zip(pack_halves(*weights), halves, strict=True):
        assert torch.equal(actual, torch.cat([fill(x) for x in half]))
    first, second = pack_halves(*weights)
    expected = torch.cat([fill(x) for part in (x.chunk(2, dim=1) for x in weights) for x in part])
    top, bottom = torch.cat([first, second], dim=1).split([16, 16 if e == 9 else 8])
    actual = torch.cat([*top.chunk(2, dim=1), *bottom.chunk(2, dim=1)])
    compare(actual, expected, weights)
