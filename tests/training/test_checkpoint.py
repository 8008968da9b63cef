import errno
import json
import os
import resource

import pytest
import torch
from safetensors.torch import save_file

from locotrans.models import create_model
from locotrans.training import load_weights
from locotrans.training.checkpoint import (
    load_optimizer,
    optimizer_tensors,
    read_tensors,
    write_tensors,
)
from locotrans.training.config import to_json
from locotrans.training.record import append_line, write_atomically, write_json

SMALL = {"k": 4, "widths": (8, 8), "embedding": 16, "head_widths": (16, 8)}


@pytest.fixture
def model():
    return create_model("dgcnn", 3, **SMALL).eval()


@pytest.fixture
def weights(model, tmp_path):
    path = tmp_path / "weights.safetensors"
    metadata = {"model": "dgcnn", "config": to_json(model.config), "num_classes": 3}
    write_tensors(path, model.state_dict(), metadata)
    return path


def test_a_weights_file_is_enough(model, weights, generator):
    loaded, metadata = load_weights(weights)
    points = torch.randn(2, 16, 3, generator=generator)
    assert not loaded.training
    assert loaded.config == model.config
    assert metadata["model"] == "dgcnn"
    assert torch.equal(loaded(points).logits, model(points).logits)


def test_every_kind_of_tensor_survives(tmp_path):
    tensors = {
        "half": torch.randn(3, 2).bfloat16(),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "transposed": torch.arange(6.0).reshape(2, 3).mT,
    }
    write_tensors(tmp_path / "x.safetensors", tensors, {"step": 3})
    loaded, metadata = read_tensors(tmp_path / "x.safetensors")
    assert metadata["step"] == 3
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_optimizer_state_round_trip(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert optimizer_tensors(model, optimizer) == {}
    model(torch.randn(2, 16, 3)).logits.sum().backward()
    optimizer.step()
    saved = optimizer_tensors(model, optimizer)
    fresh = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    load_optimizer(model, fresh, saved)
    again = optimizer_tensors(model, fresh)
    assert again.keys() == saved.keys() != set()
    assert all(torch.equal(again[name], saved[name]) for name in saved)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_file(weights, keep):
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"weights\.safetensors is damaged or not"):
        load_weights(weights)


def test_one_flipped_bit(weights):
    content = bytearray(weights.read_bytes())
    content[-20] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"weights\.safetensors is damaged \(its checksum"):
        load_weights(weights)


def test_pickles_are_never_read(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    path = tmp_path / "weights.pt"
    torch.save({"x": Trap()}, path)
    with pytest.raises(ValueError, match="not a safetensors file"):
        load_weights(path)


def test_foreign_safetensors(tmp_path):
    path = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="not written by locotrans"):
        load_weights(path)
    save_file({"weight": torch.zeros(2)}, path, {"locotrans": json.dumps({"format": 99})})
    with pytest.raises(ValueError, match="has format 99"):
        load_weights(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "lenet"}, "unknown model 'lenet'"),
        ({"config": {"depth": 3}}, "unknown key 'depth'"),
        ({"num_classes": 4}, "does not fit the model"),
        ({}, "header has no 'config'"),
    ],
)
def test_headers_that_do_not_fit(model, tmp_path, change, reason):
    path = tmp_path / "weights.safetensors"
    whole = {"config": to_json(model.config), "num_classes": 3} if change else {}
    write_tensors(path, model.state_dict(), {"model": "dgcnn", **whole, **change})
    with pytest.raises(ValueError, match=reason) as caught:
        load_weights(path)
    assert str(path) in str(caught.value)


def test_missing_tensor(model, tmp_path):
    state = model.state_dict()
    name, _ = state.popitem()
    path = tmp_path / "weights.safetensors"
    metadata = {"model": "dgcnn", "config": to_json(model.config), "num_classes": 3}
    write_tensors(path, state, metadata)
    with pytest.raises(ValueError, match=f"does not fit the model.*{name}"):
        load_weights(path)


def test_an_error_does_not_name_every_tensor(model, tmp_path):
    path = tmp_path / "weights.safetensors"
    metadata = {"model": "dgcnn", "config": to_json(model.config), "num_classes": 3}
    write_tensors(path, {"other": torch.zeros(1)}, metadata)
    with pytest.raises(ValueError, match=r"Missing key.*\.\.\.\. It was written by") as caught:
        load_weights(path)
    assert len(str(caught.value)) < 600 + len(str(path))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_weights(tmp_path / "nowhere.safetensors")


def test_full_disk_leaves_the_earlier_file_whole(weights, monkeypatch):
    before = weights.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*weights\.safetensors: No space left"):
        write_tensors(weights, {"x": torch.zeros(9)}, {})
    assert weights.read_bytes() == before
    assert [path.name for path in weights.parent.iterdir()] == [weights.name]


def test_a_write_that_stops_halfway_leaves_the_earlier_file_whole(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match=r"cannot write .*file"):
            write_atomically(path, bytes(1 << 21))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_places_are_named(tmp_path):
    with pytest.raises(OSError, match=r"cannot write .*missing"):
        write_json(tmp_path / "missing" / "file.json", {})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_appending_to_a_full_disk(tmp_path):
    link = tmp_path / "metrics.jsonl"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"metrics\.jsonl: No space left"):
        append_line(link, {})
