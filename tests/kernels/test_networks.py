"""Whole networks with the kernels against the same networks without."""

import copy

import pytest
import torch

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
    "vn_dgcnn": ("vn_dgcnn", {"k": 4, "widths": (5, 6), "embedding": 9, "head_widths": (16, 8)}),
    "dgcnn": ("dgcnn", {"k": 4, "widths": (16, 32), "embedding": 24, "head_widths": (16, 8)}),
}


def switch(monkeypatch, on):
    for room in ("nn.vn", "nn.edge", "nn.graph", "nn.rpr", "nn.lcrf", "nn.heads", "losses"):
        monkeypatch.setattr(
            f"locotrans.{room}.use_kernels", lambda x: on and x.dtype == torch.float32
        )


CASES = [
    pytest.param(name, training, marks=LONG) for name in NETWORKS for training in (True, False)
]


FLOOR = 5e-4  # of an error that is let pass, relative to the norm
SHARE = 1e-3  # of the whole gradient, below which that of a parameter is mostly rounding
DRAWS = 5


def results(name, training, seed, device, monkeypatch):
    """Run the network plain, fused, and plain in float64; return named tensors of each.

    Five clouds: batch norm of the two values of two clouds is their sign, and has no gradient but
    rounding.
    """
    torch.manual_seed(seed)
    kind, options = NETWORKS[name]
    plain = create_model(kind, 5, **options).to(device).train(training)
    for module in plain.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    points = torch.randn(5, 7, 3, device=device)
    labels = torch.tensor([0, 3, 1, 4, 2], device=device)
    more = []
    if name == "segmenter":
        more = [torch.tensor([2, 0, 1, 1, 0], device=device)]
        labels = (labels[:, None] + torch.arange(7, device=device)) % 5
    fused, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
    for model, on in ((plain, False), (fused, True), (exact, False)):
        switch(monkeypatch, on)
        output = model(points.to(next(model.parameters()).dtype), *more)
        classification_losses(output, labels).total.backward()
        found = {"logits": output.logits, "frames": output.frames, **dict(model.named_buffers())}
        found = {key: x.detach().double() for key, x in found.items() if x is not None}
        gradients = {key: p.grad.double() for key, p in model.named_parameters()}
        yield found, gradients


def too_large(plain, fused, exact, scale=0.0):
    """Name the errors of the kernels that are not of the size of those of the plain code."""
    names = []
    for key, true in exact.items():
        norm = max(true.norm().item(), scale, 1e-6)
        error, usual = ((x[key] - true).norm().item() / norm for x in (fused, plain))
        if not error <= 3 * min(usual, FLOOR) + FLOOR:
            names.append(f"{key}: {error:.1e}, and {usual:.1e} without kernels")
    return names


@pytest.mark.parametrize(("name", "training"), CASES)
def test_kernels_change_nothing_but_rounding(name, training, device, monkeypatch):
    # Where rounding decides a maximum or a neighbour the other way, gradients differ by more. It
    # does so in one draw of the network and the points; a wrong kernel is wrong in all.
    for seed in range(DRAWS):
        plain, fused, exact = results(name, training, seed, device, monkeypatch)
        whole = torch.stack([x.norm() for x in exact[1].values()]).norm().item()
        wrong = too_large(plain[0], fused[0], exact[0])
        wrong += too_large(plain[1], fused[1], exact[1], SHARE * whole)
        if not wrong:
            return
    pytest.fail("\n".join(wrong))
