"""Whole networks with the kernels against the same networks without."""

import copy
import itertools

import pytest
import torch
from torch.optim.swa_utils import update_bn

from interpreted import LONG
from locotrans import create_model
from locotrans.losses import classification_losses

pytest.importorskip("triton", reason="Triton is not installed")

SMALL = {
    "k": 4,
    "vector_widths": (5, 6),
    "vector_embedding": 9,
    "widths": (16, 32),
    "embedding": 24,
    "head_widths": (16, 8),
    "dropout": 0.0,
}
SEGMENTER = {**SMALL, "k": 2, "head_widths": (16, 16, 8), "categories": 3}
NETWORKS = {
    "segmenter": ("locotrans_dgcnn_partseg_light", SEGMENTER),
    "full": ("locotrans_dgcnn", SMALL),
    "light": ("locotrans_dgcnn_light", {**SMALL, "reference_point": True}),
    "coordinates": ("locotrans_dgcnn", {**SMALL, "relative_pose": "coordinates"}),
    "no pose": ("locotrans_dgcnn", {**SMALL, "relative_pose": "none"}),
    "patches": ("locotrans_pct", {**SMALL, "patches": (4, 3)}),
    "vn_dgcnn": ("vn_dgcnn", {"k": 4, "widths": (5, 6), "embedding": 9, "head_widths": (16, 8)}),
    "dgcnn": ("dgcnn", {"k": 4, "widths": (16, 32), "embedding": 24, "head_widths": (16, 8)}),
}


def switch(monkeypatch, on):
    layers = ("vn", "invariants", "edge", "graph", "rpr", "lcrf", "heads")
    for room in (*(f"nn.{name}" for name in layers), "losses"):
        monkeypatch.setattr(
            f"locotrans.{room}.use_kernels", lambda x: on and x.dtype == torch.float32
        )


CASES = [
    pytest.param(name, training, marks=LONG) for name in NETWORKS for training in (True, False)
]


FLOOR = 5e-4  # of an error that is let pass, relative to the norm
SHARE = 1e-3  # of the whole gradient, below which that of a parameter is mostly rounding
DRAWS = 100
STIR = 2**-22  # a relative change, some times what rounding does
GROWN = 1e-3  # relative, what may become of it
STIRRED = 6


def draw(name, training, seed, device):
    """Draw a network, clouds, what else it is given, and labels.

    Five clouds: batch norm of the two values of two clouds is their sign, and has no gradient but
    rounding.
    """
    torch.manual_seed(seed)
    kind, options = NETWORKS[name]
    model = create_model(kind, 5, **options).to(device).train(training)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    points = torch.randn(5, 7, 3, device=device)
    labels = torch.tensor([0, 3, 1, 4, 2], device=device)
    if name != "segmenter":
        return model, points, [], labels
    labels = (labels[:, None] + torch.arange(7, device=device)) % 5
    return model, points, [torch.tensor([2, 0, 1, 1, 0], device=device)], labels


def outcome(model, points, given, labels):
    """Run a copy of the network; return its outputs and statistics, and its gradients, by name."""
    model = copy.deepcopy(model)
    output = model(points, *given)
    classification_losses(output, labels).total.backward()
    found = {"logits": output.logits, "frames": output.frames, **dict(model.named_buffers())}
    found = {key: x.detach().double() for key, x in found.items() if x is not None}
    return found, {f"gradient of {key}": p.grad.double() for key, p in model.named_parameters()}


def errors(results, exact):
    """Return the error of every tensor, relative to its norm."""
    whole = torch.stack([x.norm() for x in exact[1].values()]).norm().item()
    return {
        key: (kind[key] - true).norm().item() / max(true.norm().item(), floor, 1e-6)
        for kind, truth, floor in zip(results, exact, (0.0, SHARE * whole), strict=True)
        for key, true in truth.items()
    }


def stirred(model, points, seed):
    """Change every parameter and coordinate a little, in float64."""
    generator = torch.Generator().manual_seed(seed)
    model, points = copy.deepcopy(model).double(), points.double()
    with torch.no_grad():
        for x in [points, *model.parameters()]:
            noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
            x.mul_(1 + STIR * noise.to(x.device))
    return model, points


def decided_draw(name, training, device):
    """Find a draw in which rounding decides no maximum and no neighbour.

    Where it does, gradients differ by more than rounding. So the plain network in float32, and
    the exact one with all its numbers stirred, have to stay near the exact one. The kernels have
    no say in it.

    Returns:
        The draw, and the results of the exact network and of the plain one.
    """
    for seed in range(DRAWS):
        model, points, *rest = drawn = draw(name, training, seed, device)
        exact = outcome(copy.deepcopy(model).double(), points.double(), *rest)
        plain = outcome(*drawn)
        others = (outcome(*stirred(model, points, i), *rest) for i in range(STIRRED))
        if all(max(errors(x, exact).values()) <= GROWN for x in itertools.chain([plain], others)):
            return drawn, exact, plain
    pytest.fail(f"rounding decides something in each of {DRAWS} draws")


@pytest.mark.parametrize(("name", "training"), CASES)
def test_kernels_change_nothing_but_rounding(name, training, device, monkeypatch):
    switch(monkeypatch, False)
    drawn, exact, plain = decided_draw(name, training, device)
    switch(monkeypatch, True)
    usual = errors(plain, exact)
    wrong = [
        f"{key}: {error:.1e}, and {usual[key]:.1e} without kernels"
        for key, error in errors(outcome(*drawn), exact).items()
        if not error <= 3 * min(usual[key], FLOOR) + FLOOR
    ]
    assert not wrong, "\n".join(wrong)


def test_update_bn_takes_the_mean_over_all_batches(device, monkeypatch):
    model, points, _, _ = draw("light", True, 0, device)
    exact, points = copy.deepcopy(model).double(), points[:4, :5]
    switch(monkeypatch, True)
    for other in ("use_kernels", "has_loops"):  # which take longer than all the rest
        monkeypatch.setattr(f"locotrans.nn.graph.{other}", lambda x: False)
    update_bn(points.split(2), model)
    update_bn(points.double().split(2), exact)
    for (name, a), b in zip(model.named_buffers(), exact.buffers(), strict=True):
        assert (a - b).double().norm() <= FLOOR * b.double().norm(), name
