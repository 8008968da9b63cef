import pytest
import torch

from drawing import B, K, N, draw
from locotrans.nn import FrameConv, RelativePoseConv


def leaky(x):
    return torch.where(x > 0, x, 0.2 * x)


def naive_norm(norm, values):
    """Normalise a list of edge features by their own mean and variance."""
    values = torch.stack(values)
    mean = values.mean(0)
    var = (values - mean).square().mean(0)
    return list((values - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias)


@pytest.mark.parametrize("refine", [True, False])
def test_relative_pose_conv_edge_by_edge(refine, neighbors):
    torch.manual_seed(0)
    conv = RelativePoseConv(5, 8, 7, refine=refine).double().train()
    with torch.no_grad():
        for name, parameter in conv.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    x, pose = draw(B, N, 8), draw(B, N, K, 5, seed=3)
    edges = [(b, r, a) for b in range(B) for r in range(N) for a in range(K)]
    hidden = [conv.kernel1.weight @ pose[e] + conv.kernel1.bias for e in edges]
    hidden = [h.relu() for h in naive_norm(conv.kernel_norm, hidden)]
    kernels = [conv.kernel2.weight @ h + conv.kernel2.bias for h in hidden]
    x_hat = [
        kernel * (conv.basis.weight @ x[b, neighbors[b, r, a]])
        for kernel, (b, r, a) in zip(kernels, edges, strict=True)
    ]
    x_hat = [h.relu() for h in naive_norm(conv.pose_norm, x_hat)]
    if refine:
        x_hat = [conv.refine.weight @ h + conv.refine.bias for h in x_hat]
        x_hat = [h.relu() for h in naive_norm(conv.refine_norm, x_hat)]
    messages = [
        conv.linear.weight @ torch.cat([h - x[b, r], x[b, r]])
        for h, (b, r, _) in zip(x_hat, edges, strict=True)
    ]
    messages = [leaky(m) for m in naive_norm(conv.norm, messages)]
    expected = torch.stack(messages).reshape(B, N, K, 7).amax(2)
    torch.testing.assert_close(conv(x, pose, neighbors), expected)


def test_light_convolution_has_no_refining_layer():
    assert RelativePoseConv(5, 8, 7, refine=False).refine is None


@pytest.mark.parametrize("reference_point", [True, False])
def test_frame_conv_edge_by_edge(reference_point, neighbors, frames):
    conv = FrameConv(5, reference_point=reference_point).double().train()
    points = draw(B, N, 3)
    edges = []
    for b in range(B):
        for r in range(N):
            for j in neighbors[b, r]:
                local = frames[b, r].T @ (points[b, j] - points[b, r])
                if reference_point:
                    local = torch.cat([local, frames[b, r].T @ points[b, r]])
                edges.append(conv.linear.weight @ local)
    messages = torch.stack([leaky(m) for m in naive_norm(conv.norm, edges)])
    expected = messages.reshape(B, N, K, 5).amax(2)
    torch.testing.assert_close(conv(points, neighbors, frames), expected)
    # with U_r^T p_r the layer knows where the cloud lies, without it does not
    moved = conv(points + draw(B, 1, 3, seed=4), neighbors, frames)
    assert torch.allclose(moved, expected) != reference_point


def test_frame_conv_sends_gradient_into_the_frames(neighbors, frames):
    frames.requires_grad_()
    conv = FrameConv(5).double()
    (conv(draw(B, N, 3), neighbors, frames) * draw(5, seed=1)).sum().backward()
    assert frames.grad.abs().amax((-1, -2)).min() > 0
