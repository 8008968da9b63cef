"""Processes that share a batch have by the kernels the gradients and statistics of the whole."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

# Each of two processes takes its half of a batch; the first has taken the whole before, alone. The
# processes are forked, and so need not import torch again.
LAUNCHER = """
import importlib
import json
import sys
import torch
import torch._dynamo
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from locotrans import create_model
from locotrans.losses import classification_losses

folder, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
rooms = ("vn", "invariants", "edge", "graph", "rpr", "lcrf", "heads")
for room in (*("nn." + name for name in rooms), "losses"):
    importlib.import_module("locotrans." + room).use_kernels = lambda x: True

def differentiate(share, wrap):
    torch.manual_seed(6)  # of a hundred draws, that in which rounding grows least
    model = create_model(name, 5, **options)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):  # which draws its own numbers in each process
            module.p = 0.0
    points, labels = torch.randn(6, 7, 3)[share], (torch.arange(6) % 5)[share]
    network = wrap(model)
    classification_losses(network(points), labels).total.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return {"gradients": gradients, "statistics": dict(model.named_buffers())}

def work(rank):
    torch.set_num_threads(1)
    if rank == 0:
        torch.save(differentiate(slice(None), lambda model: model), f"{folder}/whole")
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    half = differentiate(slice(rank, None, 2), DistributedDataParallel)
    torch.save(half, f"{folder}/half-{rank}")
    distributed.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, nprocs=2, start_method="fork")
"""
LOCOTRANS = """{
    "k": 4, "vector_widths": [5, 6], "vector_embedding": 9, "widths": [16, 32], "embedding": 24,
    "head_widths": [16, 8]
}"""
DGCNN = '{"k": 4, "widths": [16, 32], "embedding": 24, "head_widths": [16, 8]}'
SHARE = 1e-3  # of the whole gradient, below which that of a parameter is mostly rounding


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("locotrans_dgcnn", LOCOTRANS), ("dgcnn", DGCNN)])
def test_halves_of_a_batch_give_the_gradients_and_statistics_of_the_whole(name, options, tmp_path):
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    done = subprocess.run(
        [sys.executable, tmp_path / "launcher.py", tmp_path, name, options],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    whole, *halves = (
        torch.load(tmp_path / file, weights_only=True) for file in ("whole", "half-0", "half-1")
    )
    total = torch.stack([x.norm() for x in whole["gradients"].values()]).norm().item()
    floors = {"gradients": SHARE * total, "statistics": 1e-6}
    wrong = []
    for rank, half in enumerate(halves):
        for kind, floor in floors.items():
            assert half[kind].keys() == whole[kind].keys()
            for key, value in whole[kind].items():
                error = (half[kind][key] - value).double().norm().item()
                if not error <= 1e-4 * max(value.double().norm().item(), floor):
                    wrong.append(f"process {rank}, {key}: {error:.1e}")
    assert not wrong, "\n".join(wrong)
