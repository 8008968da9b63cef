"""Kernels with neighbourhoods against the plain code in float64, at random shapes.

Batches, points and neighbours fit no block; points repeat; one may be all there is.
"""

import copy
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from locotrans.geometry.neighbors import knn, knn_features
from locotrans.losses import consistency_loss, orthogonality_loss
from locotrans.nn.edge import EdgeConv
from locotrans.nn.rpr import FrameConv, RelativePoseConv
from locotrans.nn.vn import VNEdgeConv

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels import knn as knn_kernel

FEW = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,  # of all draws, a few round a number to the other side of a ReLU
    phases=[Phase.explicit, Phase.generate],  # shrinking would take minutes of the interpreter
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Shape(NamedTuple):
    """What a kernel is given."""

    b: int
    n: int
    k: int
    distinct: int
    """How many points are no copies of others, in a cloud."""
    c: int
    """Channels of a point."""
    d: int
    """Channels of the output."""
    training: bool
    seed: int

    def copies(self) -> Tensor:
        """Draw which of the distinct points each point is."""
        return torch.randperm(self.n) % self.distinct

    def points(self, *shape: int) -> Tensor:
        """Draw numbers for every distinct point."""
        return torch.randn(self.b, self.distinct, *shape)

    def neighbors(self) -> Tensor:
        """Draw neighbours, some more than once."""
        return torch.randint(self.n, (self.b, self.n, self.k))


ONE_POINT = Shape(1, 1, 1, 1, 2, 3, training=False, seed=0)
MANY_NEIGHBORS = Shape(3, 3, 64, 3, 3, 37, training=True, seed=0)


@st.composite
def shapes(draw):
    b = draw(st.integers(1, 3))
    n = draw(st.integers(1, 35 // b))
    k = draw(st.integers(1, min(64, 150 // (b * n))))  # the interpreter takes them one by one
    c, d, distinct = draw(st.integers(2, 5)), draw(st.integers(1, 40)), draw(st.integers(1, n))
    # equal edges have no variance, and what divides by it is rounding alone
    training = distinct >= 4 and not draw(st.booleans())
    return Shape(b, n, k, distinct, c, d, training, draw(st.integers(0, 2**32 - 1)))


@contextmanager
def kernels(on):
    """Have the kernels used, or not, wherever tensors are."""
    with pytest.MonkeyPatch.context() as patch:
        for room in ("losses", "nn.edge", "nn.rpr", "nn.vn"):
            patch.setattr(f"locotrans.{room}.use_kernels", lambda x: on)
        yield


def used(layer, training):
    """Give a layer gammas of both signs, and running statistics that are not the initial ones."""
    for norm in layer.modules():
        if isinstance(norm, nn.BatchNorm1d):
            for x in (norm.weight.data, norm.running_var):
                x.uniform_(0.5, 1.5)
            norm.running_mean.uniform_(-0.1, 0.1)  # a far one costs RPR digits (`test_rpr`)
            norm.bias.data.uniform_(-1, 1)
            norm.weight.data[::2] *= -1
    return layer.train(training)


def outcome(function, layer, *given):
    """Return the output, all gradients, and the running statistics, by name."""
    given = [x.requires_grad_() for x in given]
    out = function(layer, *given)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    gradients = torch.autograd.grad(out, [*given, *parameters], cotangent)
    statistics = {name: x for name, x in layer.named_buffers() if x.is_floating_point()}
    names = [*(f"input {i}" for i in range(len(given))), *names]
    return {"out": out, **dict(zip(names, gradients, strict=True)), **statistics}


def compare(function, layer, *given, device):
    """Compare a float32 layer by the kernels with the float64 one by plain code.

    To 1e-4, or three times what plain float32 differs, where rounding grows. A gradient that ought
    to be nearly zero is held to a hundredth of the longest one.
    """
    given, layer = [x.to(device) for x in given], layer.to(device)
    exact, rounded = copy.deepcopy(layer).double(), copy.deepcopy(layer)
    with kernels(False):
        expected = outcome(function, exact, *(x.double() for x in given))
        plain = outcome(function, rounded, *given)
    with kernels(True):
        actual = outcome(function, layer, *given)
    sizes = {name: x.double().norm().item() for name, x in expected.items()}
    least = 1e-2 * max(sizes.values())
    for name, size in sizes.items():
        error, usual = ((x[name] - expected[name]).norm().item() for x in (actual, plain))
        assert error <= max(1e-4 * max(size, least), 3 * usual), f"{name}: {error:.1e}, {usual:.1e}"


@pytest.mark.parametrize(("conv", "axes"), [(VNEdgeConv, (3,)), (EdgeConv, ())])
@FEW
@example(shape=ONE_POINT)
@example(shape=MANY_NEIGHBORS)
@given(shape=shapes())
def test_edge_conv(conv, axes, shape, device):
    torch.manual_seed(shape.seed)
    copies, neighbors = shape.copies(), shape.neighbors().to(device)
    layer = used(conv(shape.c, shape.d), shape.training)
    points = shape.points(*axes, shape.c)
    compare(lambda layer, x: layer(x[:, copies], neighbors), layer, points, device=device)


@FEW
@example(shape=ONE_POINT, reference_point=True)
@example(shape=MANY_NEIGHBORS, reference_point=False)
@given(shape=shapes(), reference_point=st.booleans())
def test_frame_conv(shape, reference_point, device):
    torch.manual_seed(shape.seed)
    points, neighbors = shape.points(3)[:, shape.copies()], shape.neighbors().to(device)
    layer = used(FrameConv(shape.d, reference_point=reference_point), shape.training)

    def call(layer, frames):
        return layer(points.to(frames), neighbors, frames)

    compare(call, layer, torch.randn(*points.shape, 3), device=device)


@pytest.mark.usefixtures("small_blocks")
@FEW
@example(shape=ONE_POINT, half=4, refine=True)
@example(shape=MANY_NEIGHBORS, half=9, refine=False)
@given(shape=shapes(), half=st.integers(1, 17), refine=st.booleans())
def test_rpr_conv(shape, half, refine, device):
    torch.manual_seed(shape.seed)
    copies, neighbors = shape.copies(), shape.neighbors().to(device)
    layer = RelativePoseConv(3 * shape.c, 2 * half, shape.d, refine=refine)
    frames = torch.linalg.qr(shape.points(3, 3))[0][:, copies]

    def call(layer, x, v):
        return layer(x[:, copies], v[:, copies], neighbors, frames.to(x))

    given = shape.points(2 * half), shape.points(3, shape.c)
    compare(call, used(layer, shape.training), *given, device=device)


class Losses(nn.Module):
    """The losses of vectors with a weight each."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, v, neighbors):
        return self.weights @ torch.stack([orthogonality_loss(v), consistency_loss(v, neighbors)])


@FEW
@example(shape=ONE_POINT)
@example(shape=MANY_NEIGHBORS)
@given(shape=shapes())
def test_losses_of_vectors(shape, device):
    torch.manual_seed(shape.seed)
    k, copies = min(shape.k, shape.n), shape.copies()
    # of neighbours that are all equal, rounding chooses the teacher
    assume(k == 1 or k > -(-shape.n // shape.distinct))
    neighbors = torch.rand(shape.b, shape.n, shape.n).topk(k).indices.to(device)
    vectors = shape.points(3, 2)
    compare(lambda losses, v: losses(v[:, copies], neighbors), Losses(), vectors, device=device)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
@FEW
@example(shape=ONE_POINT, columns=1024, coordinates=True)
@example(shape=MANY_NEIGHBORS._replace(b=1, n=66, distinct=60), columns=1024, coordinates=False)
@given(shape=shapes(), columns=st.sampled_from([4, 1024]), coordinates=st.booleans())
def test_knn(shape, columns, coordinates, device):
    torch.manual_seed(shape.seed)
    x = shape.points(3 if coordinates else shape.d)[:, shape.copies()]
    k, plain = min(shape.k, shape.n), knn if coordinates else knn_features
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knn_kernel, "COLUMNS", columns)
        found = knn_kernel.nearest(x.to(device), k, coordinates=coordinates).cpu()
    assert torch.equal(found.long().sort(-1).values, plain(x, k).sort(-1).values)
