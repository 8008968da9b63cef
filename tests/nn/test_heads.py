import torch
from torch.nn import functional as F

from drawing import draw
from locotrans.nn import AttentionFusion, Head, HeadLayer
from locotrans.nn.heads import whole_linear


def test_head_layer_step_by_step():
    layer = HeadLayer(4, 6, dropout=0.0).double().train()
    x = draw(5, 4)
    h = F.linear(x, layer.linear.weight, layer.linear.bias)
    h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(layer(x), torch.where(h > 0, h, 0.2 * h))
    assert HeadLayer(4, 6, bias=False).linear.bias is None


def test_dropout_is_for_training_only():
    layer = HeadLayer(4, 50, dropout=0.5).double()
    x = draw(5, 4)
    assert 0.2 < (layer(x) == 0).double().mean() < 0.8
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    assert not (layer(x) == 0).any()


def test_head_gives_logits_of_its_hidden_layer():
    head = Head(4, 6, 3).double().eval()
    x = draw(5, 4)
    assert torch.equal(head(x), head.logits(head.hidden(x)))
    assert head(x).shape == (5, 3)


def test_fusion_gates_the_merged_features():
    fusion = AttentionFusion(4).double()
    invariant, equivariant = draw(5, 4), draw(5, 4, seed=1)
    x = F.linear(torch.cat([invariant, equivariant], -1), fusion.merge.weight, fusion.merge.bias)
    gate = 1 / (1 + torch.exp(-F.linear(x, fusion.gate.weight, fusion.gate.bias)))
    torch.testing.assert_close(fusion(invariant, equivariant), (x * gate).clamp(min=0))
    assert not torch.allclose(fusion(invariant, equivariant), fusion(equivariant, invariant))


def test_under_autocast_shapes_keep_float32_and_points_do_not():
    layer, head, fusion = HeadLayer(4, 6), Head(4, 6, 3), AttentionFusion(4)
    x = draw(5, 4).float()
    plain = layer.linear(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(whole_linear(layer.linear, x), plain)
        rounded = whole_linear(layer.linear, x.bfloat16())
        assert rounded.dtype == head(x).dtype == fusion(x, x).dtype == torch.float32
        assert layer.linear(x).dtype == torch.bfloat16
        assert whole_linear(layer.linear, x[None]).dtype == torch.bfloat16
    rounded.sum().backward()
    assert layer.linear.weight.grad.dtype == torch.float32
