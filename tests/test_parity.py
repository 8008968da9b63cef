"""The authors' recorded tensors: our networks are the same functions, values and gradients."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from locotrans.convert import from_authors, our_name
from locotrans.losses import classification_losses
from locotrans.nn.norm import BatchNorm

DIR = os.environ.get("LOCOTRANS_PARITY_DIR")
pytestmark = pytest.mark.skipif(
    DIR is None, reason="LOCOTRANS_PARITY_DIR does not name the folder of recorded tensors"
)
CLOSE = {"rtol": 1e-6, "atol": 1e-9}


@pytest.fixture(scope="module", params=["full", "light"])
def recorded(request):
    with np.load(Path(str(DIR)) / f"official_{request.param}.npz") as file:
        return {name: torch.as_tensor(file[name]) for name in file.files}


@pytest.fixture(scope="module")
def model(recorded):
    state = {
        name.removeprefix("state/"): tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in recorded.items()
        if name.startswith("state/")
    }
    return from_authors(state)


def test_evaluation_agrees(recorded, model):
    with torch.inference_mode():
        output = model.eval()(recorded["points"].double())
    logits = {
        "invariant": output.invariant,
        "equivariant": output.equivariant,
        "fusion": output.fused,
    }
    names = [name for name in recorded if name.startswith("eval/logits_")]
    assert len(names) == sum(ours is not None for ours in logits.values())
    for name in names:
        torch.testing.assert_close(
            logits[name.removeprefix("eval/logits_")], recorded[name], **CLOSE
        )
    vectors = recorded["eval/vectors"].permute(0, 3, 1, 2)  # (b, 3, 2, n) there
    torch.testing.assert_close(output.vectors, vectors, **CLOSE)
    ours = output.neighbors.sort(-1).values
    assert torch.equal(ours, recorded["eval/knn_index_layer1"].long().sort(-1).values)


@pytest.mark.slow  # half a minute; .ci/run runs it
def test_training_losses_and_gradients_agree(recorded, model):
    for module in model.train().modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, BatchNorm):
            module.momentum = 0.0  # leaves the running statistics as recorded
    losses = classification_losses(model(recorded["points"].double()), recorded["labels"])
    terms = {
        "invariant": losses.invariant,
        "equivariant": losses.equivariant,
        "fusion": losses.fused,
        "orth": losses.orthogonality,
        "consist": losses.consistency,
        "total": losses.total,
    }
    names = [name for name in recorded if name.startswith("train/loss_")]
    assert len(names) == sum(ours is not None for ours in terms.values())
    for name in names:
        torch.testing.assert_close(terms[name.removeprefix("train/loss_")], recorded[name], **CLOSE)
    model.zero_grad()
    losses.total.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    compared = set()
    for name, norm in recorded.items():
        if not name.startswith("train/grad_norm/"):
            continue
        target = our_name(name.removeprefix("train/grad_norm/"))
        if target is not None:
            torch.testing.assert_close(
                gradients[target].norm(), norm, **CLOSE, msg=lambda text, t=target: f"{t}: {text}"
            )
            compared.add(target)
    assert compared == gradients.keys()
