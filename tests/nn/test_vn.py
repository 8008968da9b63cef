import pytest
import torch

from drawing import draw
from locotrans.geometry import random_rotations
from locotrans.nn import (
    BatchNorm,
    VNBatchNorm,
    VNEdgeConv,
    VNInvariants,
    VNLayer,
    VNProjection,
    vn_leaky_relu,
)

ROTATION = random_rotations(generator=torch.Generator().manual_seed(9), dtype=torch.float64)
X, Y = torch.eye(3, dtype=torch.float64)[:2, :, None]


def test_leaky_relu_by_hand():
    # along the direction: unchanged; against it: a fifth; across it: unchanged
    torch.testing.assert_close(vn_leaky_relu(2 * X, X), 2 * X)
    torch.testing.assert_close(vn_leaky_relu(Y - 2 * X, X), Y - 0.4 * X, rtol=0, atol=1e-5)
    torch.testing.assert_close(vn_leaky_relu(Y, X), Y)


def test_leaky_relu_does_not_mind_the_length_of_the_direction():
    v, q = draw(6, 3, 4), draw(6, 3, 4, seed=1)
    torch.testing.assert_close(vn_leaky_relu(v, 5 * q), vn_leaky_relu(v, q), rtol=0, atol=1e-4)


def test_leaky_relu_of_zero_direction_passes():
    v = draw(2, 3, 4).requires_grad_()
    out = vn_leaky_relu(v, torch.zeros_like(v))
    assert torch.equal(out, v)
    assert torch.autograd.grad(out.sum(), v)[0].isfinite().all()


def test_batch_norm_starts_without_turning_vectors_round():
    norm, v = VNBatchNorm(4).double().train(), draw(2000, 3, 4)

    def turned():
        return ((norm(v) * v).sum(-2) < 0).double().mean()

    def length_of_the_shortest():
        return norm(v).norm(dim=-2).gather(0, v.norm(dim=-2).argmin(0, keepdim=True)).max()

    assert turned() < 0.005
    assert length_of_the_shortest() < 0.25
    with torch.no_grad():  # as the authors' starts
        norm.norm.weight.fill_(1)
        norm.norm.bias.zero_()
    assert turned() > 0.5
    assert length_of_the_shortest() > 2


def test_one_direction_for_all_channels():
    v, q = draw(6, 3, 4), draw(6, 3, 1, seed=1)
    torch.testing.assert_close(vn_leaky_relu(v, q), vn_leaky_relu(v, q.expand_as(v)))


def test_batch_norm_normalises_lengths_and_keeps_directions():
    norm = VNBatchNorm(4).double().train()
    with torch.no_grad():
        norm.norm.bias.copy_(torch.tensor([5.0, 6.0, 7.0, 8.0]))  # lengths are not negative
        norm.norm.weight.fill_(1)
    v = draw(50, 3, 4)
    out = norm(v)
    torch.testing.assert_close(torch.cosine_similarity(out, v, dim=-2), torch.ones(50, 4).double())
    length = out.norm(dim=-2)
    torch.testing.assert_close(length.mean(0), norm.norm.bias.detach(), rtol=0, atol=1e-4)
    torch.testing.assert_close(
        length.var(0, unbiased=False), torch.ones(4).double(), rtol=0, atol=1e-3
    )


def test_batch_norm_of_zero_vectors_is_finite():
    norm = VNBatchNorm(4).double()
    v = draw(6, 3, 4).index_fill(0, torch.tensor([2]), 0).requires_grad_()
    out = norm(v)
    assert (out[2] == 0).all()
    assert torch.autograd.grad(out.square().sum(), v)[0].isfinite().all()


def test_scalar_batch_norm_counts_all_axes_but_the_last():
    norm = BatchNorm(4).double()
    out = norm(draw(2, 5, 3, 4))
    assert out.shape == (2, 5, 3, 4)
    torch.testing.assert_close(out.mean((0, 1, 2)), torch.zeros(4).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "module",
    [
        VNLayer(4, 6),
        VNLayer(4, 6, shared_direction=True),
        VNBatchNorm(4),
        VNProjection(4, 2),
    ],
    ids=["layer", "shared direction", "batch norm", "projection"],
)
def test_vector_layers_are_equivariant(module, training):
    module = module.double().train(training)
    v = draw(2, 7, 3, 4)
    out = module(v)
    torch.testing.assert_close(module(ROTATION @ v), ROTATION @ out)
    mirror = torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(module(mirror @ v), mirror @ out)
    stretch = torch.diag(torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(module(stretch @ v), stretch @ out)


def test_edge_conv_is_the_mean_of_a_layer_on_explicit_edges():
    conv, layer = VNEdgeConv(2, 5).double().eval(), VNLayer(4, 5).double().eval()
    layer.load_state_dict(conv.state_dict())
    v = draw(2, 7, 3, 2)
    index = torch.randint(7, (2, 7, 3), generator=torch.Generator().manual_seed(1))
    out = conv(v, index)
    for b in range(2):
        for r in range(7):
            edges = [torch.cat([v[b, j] - v[b, r], v[b, r]], dim=-1) for j in index[b, r]]
            torch.testing.assert_close(out[b, r], layer(torch.stack(edges)).mean(0))


def test_invariants_are_inner_products_with_three_vectors():
    module = VNInvariants(8).double().eval()
    v = draw(2, 7, 3, 8)
    out, z = module(v), module.projection(v)
    assert out.shape == (2, 7, 24)
    expected = torch.cat([(z[..., i : i + 1] * v).sum(-2) for i in range(3)], dim=-1)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(module(ROTATION @ v), out)


@pytest.mark.parametrize(
    "module", [VNLayer(8, 6), VNProjection(8, 2), VNInvariants(8)], ids=lambda m: type(m).__name__
)
def test_mean_of_the_cloud_counts_as_channels_behind_those_of_a_point(module):
    module = module.double()
    v = draw(2, 7, 3, 4)
    mean = v.mean(1, keepdim=True)
    appended = torch.cat([v, mean.expand_as(v)], dim=-1)
    torch.testing.assert_close(module(v, mean), module(appended))
    assert not torch.allclose(module(v, 2 * mean), module(appended))
