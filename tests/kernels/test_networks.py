"""Whole networks with the kernels against the same networks without."""

import copy

import pytest
import torch

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


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-6)).item()


QUICK = {
    ("full", True),
}  # the rest is slow when interpreted
CASES = [
    pytest.param(name, training, marks=[] if (name, training) in QUICK else [pytest.mark.slow])
    for name in NETWORKS
    for training in (True, False)
]


@pytest.mark.parametrize(("name", "training"), CASES)
def test_kernels_change_nothing_but_rounding(name, training, device, monkeypatch):
    torch.manual_seed(0)
    kind, options = NETWORKS[name]
    plain = create_model(kind, 5, **options).to(device).train(training)
    fused = copy.deepcopy(plain)
    points = torch.randn(2, 13, 3, device=device)
    labels = torch.tensor([0, 3], device=device)
    given = [points]
    if name == "segmenter":
        given.append(torch.tensor([2, 0], device=device))
        labels = torch.arange(26, device=device).view(2, 13) % 5
    outputs = []
    for model, on in ((plain, False), (fused, True)):
        switch(monkeypatch, on)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        output = model(*given)
        classification_losses(output, labels).total.backward()
        outputs.append(output)
    assert relative(outputs[1].logits, outputs[0].logits) < 1e-3
    if outputs[0].frames is not None:
        assert relative(outputs[1].frames, outputs[0].frames) < 1e-3
    for (name_, a), b in zip(plain.state_dict().items(), fused.state_dict().values(), strict=True):
        assert relative(b.float(), a.float()) < 1e-3, name_
    gradients = [torch.cat([p.grad.flatten() for p in m.parameters()]) for m in (plain, fused)]
    difference = (gradients[0] - gradients[1]).norm() / gradients[0].norm()
    assert difference < 1e-2  # float32 through a random network: conditioning, not the kernels
