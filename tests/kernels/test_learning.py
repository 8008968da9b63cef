"""Training by the compiled loops of the CPU against the plain code that specifies it."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from locotrans import create_model
from locotrans.kernels import set_kernels, use_learning_loops
from locotrans.nn import RelativePoseConv, VNEdgeConv
from locotrans.nn.norm import BatchNorm

pytest.importorskip("numba", reason="Numba is not installed")

from locotrans.kernels import learning_rpr, learning_stages, learning_vn

# clouds, points, k
SIZES = [(2, 1, 1), (1, 2, 1), (2, 37, 5), (1, 70, 64), (3, 300, 20), (5, 33, 2)]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def prepared(layer):
    """Give batch norms weights of both signs, and statistics unlike those at the start."""
    for norm in layer.modules():
        if isinstance(norm, BatchNorm):
            nn.init.uniform_(norm.weight, -1.5, 1.5)
            nn.init.normal_(norm.bias)
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.2, 3)
    return layer.train()


def graph(b, n, k):
    return torch.rand(b, n, n).topk(k).indices


def rotations(b, n):
    return torch.linalg.qr(torch.randn(b, n, 3, 3)).Q


def step(layer, inputs, others, grad, setting="auto"):
    """Return output, gradients and statistics of a layer after one pass forward and backward."""
    layer = copy.deepcopy(layer)
    inputs = [x.clone().requires_grad_() for x in inputs]
    before = set_kernels(setting)
    try:
        out = layer(*inputs, *others)
        out.backward(grad)
    finally:
        set_kernels(before)
    return {
        "output": out.detach(),
        **{f"gradient {i}": x.grad for i, x in enumerate(inputs)},
        **{name: x.grad for name, x in layer.named_parameters()},
        **dict(layer.named_buffers()),
    }


def agrees(layer, inputs, others=(), *, centred=()):
    """Compare with the plain code in float64: 2e-5, or three times what plain float32 differs.

    Args:
        layer: the layer.
        inputs: with gradients.
        others: without.
        centred: names of parameters whose gradient is zero but for rounding.
    """
    with torch.no_grad():
        grad = torch.randn_like(copy.deepcopy(layer)(*inputs, *others))
    fast, plain = (step(layer, inputs, others, grad, setting) for setting in ("auto", "off"))
    wide = [x.double() if x.is_floating_point() else x for x in others]
    exact = step(
        copy.deepcopy(layer).double(), [x.double() for x in inputs], wide, grad.double(), "off"
    )
    for name, x in fast.items():
        if name in centred:
            assert x.abs().max() == 0
            assert exact[name].abs().max() < 1e-9
            continue
        scale = exact[name].abs().max().clamp_min(0.1)
        error, usual = ((y - exact[name]).abs().max() / scale for y in (x, plain[name]))
        assert error < max(2e-5, 3 * usual), name


@pytest.mark.parametrize(("b", "n", "k"), SIZES)
@pytest.mark.parametrize("channels", [(1, 3), (7, 21)])
def test_vector_edges(b, n, k, channels):
    v = torch.randn(b, n, 3, channels[0])
    agrees(prepared(VNEdgeConv(*channels)), [v], [graph(b, n, k)])


@pytest.mark.parametrize("refine", [True, False])
def test_clouds_in_several_parts(monkeypatch, refine):
    monkeypatch.setattr(learning_stages, "CACHE", 588)  # numbers: 7 points of 37 at a time
    layer = prepared(RelativePoseConv(12, 8, 21, refine=refine))
    inputs, others = [torch.randn(3, 37, 8), torch.randn(3, 37, 3, 4)], [graph(3, 37, 4)]
    agrees(layer, inputs, [*others, rotations(3, 37)], centred=["kernel1.bias", "refine.bias"])


def test_weights_of_zero_behind_the_last_product():
    layer = prepared(RelativePoseConv(12, 8, 6))
    with torch.no_grad():
        layer.norm.weight[:3] = 0  # all edges tie: the first one counts
    inputs, others = [torch.randn(2, 30, 8), torch.randn(2, 30, 3, 4)], [graph(2, 30, 4)]
    agrees(layer, inputs, [*others, rotations(2, 30)], centred=["kernel1.bias", "refine.bias"])


def test_checkpoints_recompute():
    """Their hooks let a saved tensor be taken out once."""
    layer = prepared(RelativePoseConv(12, 8, 21))
    x, v = torch.randn(2, 30, 8).requires_grad_(), torch.randn(2, 30, 3, 4).requires_grad_()
    inputs = (x, v, graph(2, 30, 4), rotations(2, 30))
    expected = torch.autograd.grad(layer(*inputs).square().sum(), [x, v])
    out = checkpoint(layer, *inputs, use_reentrant=False)
    for found, wanted in zip(
        torch.autograd.grad(out.square().sum(), [x, v]), expected, strict=True
    ):
        torch.testing.assert_close(found, wanted)


def test_two_backward_passes_add_up():
    layer = prepared(VNEdgeConv(3, 6))
    v = torch.randn(2, 20, 3, 3).requires_grad_()
    out = layer(v, graph(2, 20, 4)).square().sum()
    (once,) = torch.autograd.grad(out, v, retain_graph=True)
    assert torch.equal(torch.autograd.grad(out, v)[0], once)


def test_a_backward_pass_under_autocast():
    layer = prepared(RelativePoseConv(12, 8, 21))
    x, v = torch.randn(2, 30, 8).requires_grad_(), torch.randn(2, 30, 3, 4)
    out = layer(x, v, graph(2, 30, 4), rotations(2, 30)).square().sum()
    (expected,) = torch.autograd.grad(out, x, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad(out, x)
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1 * expected.abs().max().item())


def test_functional_derivatives_go_by_the_plain_code():
    model = create_model("locotrans_dgcnn_light", 5, k=4).eval()
    points = torch.randn(1, 24, 3)

    def score(x):
        return model(x).logits[0, 0]

    found = torch.func.grad(score)(points)
    expected = points.clone().requires_grad_()
    score(expected).backward()
    torch.testing.assert_close(found, expected.grad, rtol=1e-3, atol=1e-5)


def test_vector_edges_wider_than_a_block():
    agrees(prepared(VNEdgeConv(5, 300)), [torch.randn(2, 20, 3, 5)], [graph(2, 20, 4)])


def test_vector_edges_of_length_zero():
    v = torch.randn(2, 30, 3, 6)
    v[:, 15:] = v[:, :1].clone()
    layer = prepared(VNEdgeConv(6, 9))
    with torch.no_grad():  # edges of duplicates are zero, and their directions are not
        layer.linear.weight[:, 6:] = 0
    agrees(layer, [v], [graph(2, 30, 8)])


@pytest.mark.parametrize("refine", [True, False])
@pytest.mark.parametrize(("b", "n", "k"), SIZES[2:])
def test_relative_pose_conv(b, n, k, refine):
    layer = prepared(RelativePoseConv(15, 8, 21, refine=refine))
    inputs, others = [torch.randn(b, n, 8), torch.randn(b, n, 3, 5)], [graph(b, n, k)]
    centred = ["kernel1.bias", "refine.bias"]
    agrees(layer, inputs, [*others, rotations(b, n)], centred=centred)


def test_relative_pose_conv_of_coordinates():
    layer = prepared(RelativePoseConv(3, 16, 24))
    x, points, others = torch.randn(2, 40, 16), torch.randn(2, 40, 3, 1), [graph(2, 40, 6)]
    others.append(rotations(2, 40))
    with torch.no_grad():
        grad = torch.randn_like(copy.deepcopy(layer)(x, points, *others))
    fast = step(layer, [x], [points, *others], grad)  # whose points want no gradient
    plain = step(layer, [x], [points, *others], grad, "off")
    assert torch.allclose(fast["gradient 0"], plain["gradient 0"], rtol=1e-3, atol=1e-5)


def test_every_edge_is_one_point():
    """Of points that lie in one place, all poses are zero, and neighbours tie."""
    layer = prepared(RelativePoseConv(15, 8, 21))
    x, v = torch.randn(2, 1, 8).expand(2, 30, 8), torch.randn(2, 1, 3, 5).expand(2, 30, 3, 5)
    others = [graph(2, 30, 4), rotations(2, 30)]
    with torch.no_grad():
        grad = torch.randn_like(copy.deepcopy(layer)(x, v, *others))
    fast = step(layer, [x, v], others, grad)
    assert all(x.isfinite().all() for x in fast.values())


def test_results_do_not_depend_on_the_threads():
    b, n, layer = 5, 300, prepared(RelativePoseConv(15, 8, 21))
    index = graph(b, n, 6).flatten(0, 1).int() + n * torch.arange(b).repeat_interleave(n)[:, None]
    frames, weight, grads = (
        rotations(b, n).flatten(0, 1),
        torch.randn(21, 8),
        torch.randn(b * n, 3, 9),
    )
    points = [torch.randn(b * n, *shape).requires_grad_() for shape in ((8,), (21,), (3, 5))]
    vectors = [torch.randn(b * n, 3, 18).requires_grad_() for _ in range(2)]
    norms = [layer.kernel_norm, layer.pose_norm, layer.refine_norm]
    layers = list(zip([layer.kernel1, layer.kernel2, layer.refine], norms, strict=True))

    def pass_through():
        stages = [(linear, norm.statistics()) for linear, norm in layers]
        x = learning_rpr.rpr_conv(
            *points, frames, index.int(), n, weight, layer.norm.statistics(), stages
        )
        v = learning_vn.vn_edge_conv(*vectors, index.int(), n, BatchNorm(9).statistics())
        asked = [*points, *vectors, *(p for linear, norm in layers for p in linear.parameters())]
        return [x, v, *torch.autograd.grad([x, v], asked, [grads[:, 0, :7].repeat(1, 3), grads])]

    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(pass_through())
    finally:
        torch.set_num_threads(before)
    for first, *others in zip(*results, strict=True):
        assert all(torch.equal(first, other) for other in others)


def test_no_numbers_do_not_crash():
    layer = prepared(RelativePoseConv(15, 8, 21))
    x, v = torch.full((2, 30, 8), torch.nan), torch.randn(2, 30, 3, 5)
    fast = step(layer, [x, v], [graph(2, 30, 4), rotations(2, 30)], torch.randn(2, 30, 21))
    assert fast["output"].isnan().all()


@pytest.mark.parametrize("layer", [VNEdgeConv(3, 4), RelativePoseConv(9, 8, 5)])
def test_one_edge_is_refused(layer):
    index, v = torch.zeros(1, 1, 1, dtype=torch.long), torch.randn(1, 1, 3, 3)
    inputs = (v, index)
    if isinstance(layer, RelativePoseConv):
        inputs = (torch.randn(1, 1, 8), *inputs, rotations(1, 1))
    with pytest.raises(ValueError, match="two edges"):
        layer.train()(*inputs)


def test_where_the_loops_are_used():
    x = torch.zeros(1)
    assert use_learning_loops(x, training=True)
    assert not use_learning_loops(x, training=False)
    assert not use_learning_loops(x.double(), training=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert not use_learning_loops(x, training=True)
    before = set_kernels("off")
    try:
        assert not use_learning_loops(x, training=True)
    finally:
        set_kernels(before)


@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics_follow_in_two_batches(momentum):
    layer = prepared(VNEdgeConv(3, 6))
    layer.norm.norm.momentum = momentum
    plain, neighbors = copy.deepcopy(layer), graph(2, 20, 4)
    for _ in range(2):
        v = torch.randn(2, 20, 3, 3)
        layer(v, neighbors)
        before = set_kernels("off")
        plain(v, neighbors)
        set_kernels(before)
    for name, x in layer.named_buffers():
        assert torch.allclose(x, dict(plain.named_buffers())[name], rtol=1e-5), name


@pytest.mark.parametrize("frozen", ["kernel_norm", "norm"])
def test_a_batch_norm_with_fixed_statistics_goes_by_the_plain_code(frozen):
    layer = prepared(RelativePoseConv(15, 8, 21))
    getattr(layer, frozen).eval()
    inputs, others = [torch.randn(2, 30, 8), torch.randn(2, 30, 3, 5)], [graph(2, 30, 4)]
    others.append(rotations(2, 30))
    grad = torch.randn(2, 30, 21)
    fast, plain = (step(layer, inputs, others, grad, s) for s in ("auto", "off"))
    for name, x in fast.items():
        assert torch.equal(x, plain[name]), name


@pytest.mark.parametrize("name", ["locotrans_dgcnn", "locotrans_dgcnn_light"])
def test_networks_learn_alike(name, monkeypatch):
    """The first loss is that of the plain code; both learn a batch (steps diverge by rounding)."""
    used = []
    for module, function in ((learning_rpr, "rpr_conv"), (learning_vn, "vn_edge_conv")):
        loops = getattr(module, function)
        monkeypatch.setattr(module, function, lambda *x, f=loops: (used.append(f), f(*x))[1])
    first = create_model(name, 5, k=6, dropout=0.0, vector_embedding=24, embedding=32)
    points, labels = torch.randn(8, 40, 3), torch.randint(5, (8,))
    results = []
    for setting in ("auto", "off"):
        model, before = copy.deepcopy(first).train(), set_kernels(setting)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        losses = []
        try:
            for _ in range(20):
                output = model(points)
                heads = (output.invariant, output.equivariant, output.fused)
                loss = sum(nn.functional.cross_entropy(x, labels) for x in heads if x is not None)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        finally:
            set_kernels(before)
        results.append(losses)
    fast, plain = results
    assert len(used) == 20 * (4 + 3)  # layers, in one of the two runs
    assert fast[0] == pytest.approx(plain[0], rel=1e-5)
    assert all(losses[-1] < losses[0] / 4 for losses in results)


SHARED = """
import sys
import torch
from torch import distributed
from locotrans.nn import RelativePoseConv, VNEdgeConv

def take(share, count):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, v = torch.randn(4, 30, 8), torch.randn(4, 30, 3, 4)
    index, U = torch.rand(4, 30, 30).topk(5).indices, torch.linalg.qr(torch.randn(4, 30, 3, 3)).Q
    grads = torch.randn(4, 30, 21), torch.randn(4, 30, 3, 6)
    layers = RelativePoseConv(12, 8, 21).train(), VNEdgeConv(4, 6).train()
    x, v, index, U, *grads = (t[share] for t in (x, v, index, U, *grads))
    v.requires_grad_()
    out = layers[0](x, v, index, U), layers[1](v, index)
    torch.autograd.backward(out, grads)
    names = {f"{i} {n}": p for i, layer in enumerate(layers) for n, p in layer.named_parameters()}
    buffers = {f"{i} {n}": b for i, layer in enumerate(layers) for n, b in layer.named_buffers()}
    return {"v": v.grad, **{n: p.grad for n, p in names.items()}}, buffers

def work(rank, folder):
    if rank == 0:
        torch.save(take(slice(None), 1), f"{folder}/whole")
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.save(take(slice(rank, None, 2), 2), f"{folder}/half-{rank}")

if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, (sys.argv[1],), 2, start_method="fork")
"""


def test_two_processes_share_statistics_and_gradients(tmp_path):
    (tmp_path / "shared.py").write_text(SHARED)
    subprocess.run([sys.executable, str(tmp_path / "shared.py"), str(tmp_path)], check=True)
    (whole, statistics), *halves = (
        torch.load(tmp_path / name, weights_only=True) for name in ("whole", "half-0", "half-1")
    )
    for name, wanted in whole.items():
        parts = [gradients[name] for gradients, _ in halves]
        found = torch.stack(parts, 1).flatten(0, 1) if name == "v" else sum(parts)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, msg=name)
    for _, found in halves:
        for name, wanted in statistics.items():
            torch.testing.assert_close(found[name], wanted, rtol=1e-5, atol=1e-6, msg=name)
