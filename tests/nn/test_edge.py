import pytest
import torch
from torch.nn import functional as F

from drawing import draw
from locotrans.nn.edge import EdgeConv, PointLayer, edge_products, leaky_max, max_mean_pool


def some_neighbors(b=2, n=7, k=3):
    return torch.randint(n, (b, n, k), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("inner", [(), (3,)], ids=["scalars", "vectors"])
def test_edge_products_give_the_linear_layer_of_the_explicit_edges(inner):
    x, index, weight = draw(2, 7, *inner, 4), some_neighbors(), draw(5, 8, seed=2)
    u, w = edge_products(x, weight)
    assert u.shape == w.shape == (2, 7, *inner, 5)
    for b in range(2):
        for r in range(7):
            for j in index[b, r].tolist():
                edge = torch.cat([x[b, j] - x[b, r], x[b, r]], dim=-1)
                torch.testing.assert_close(u[b, j] + w[b, r], edge @ weight.mT)


def test_leaky_max_is_the_max_of_leaky_relus():
    x = draw(2, 5, 4, 6) - 1  # many maxima are negative
    assert (x.amax(2) < 0).any()
    assert torch.equal(leaky_max(x), F.leaky_relu(x, 0.2).amax(2))


def test_edge_conv_pools_by_the_maximum_of_normalised_edges():
    conv = EdgeConv(4, 5).double().train()
    x, index = draw(2, 7, 4), some_neighbors()
    neighbors = torch.stack([cloud[i] for cloud, i in zip(x, index, strict=True)])
    center = x[:, :, None].expand_as(neighbors)
    edges = F.linear(torch.cat([neighbors - center, center], dim=-1), conv.linear.weight)
    mean, var = edges.mean((0, 1, 2)), edges.var((0, 1, 2), unbiased=False)
    expected = F.leaky_relu((edges - mean) / (var + 1e-5).sqrt(), 0.2).amax(2)
    torch.testing.assert_close(conv(x, index), expected)


def test_edge_conv_does_not_mind_the_order_of_neighbours():
    conv = EdgeConv(4, 5).double()
    x, index = draw(2, 7, 4), some_neighbors()
    torch.testing.assert_close(conv(x, index), conv(x, index.flip(-1)))


def test_point_layer_acts_on_every_point_alone():
    layer = PointLayer(4, 5).double().eval()
    x = draw(2, 7, 4)
    torch.testing.assert_close(layer(x)[:, 3], layer(x[:, 3]))


def test_pooling_puts_the_maximum_first():
    x = draw(2, 7, 4)
    assert torch.equal(max_mean_pool(x), torch.cat([x.amax(1), x.mean(1)], dim=-1))


def test_rows_can_be_taken_a_few_at_a_time_in_evaluation(monkeypatch):
    conv = EdgeConv(4, 5).double().eval()
    x, index = draw(2, 7, 4), some_neighbors()
    whole = conv(x, index)
    monkeypatch.setattr("locotrans.nn.edge.CACHE", 45)  # three rows
    with torch.inference_mode():
        torch.testing.assert_close(conv(x, index), whole)
