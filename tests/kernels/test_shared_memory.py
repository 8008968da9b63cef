"""Kernels fit the shared memory that they are chosen for, by what Triton's compiler says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
from locotrans.kernels.rpr_plan import LARGE, SMALL

SCRIPT = Path(__file__).parents[1] / "compiled.py"


def needed(capability, memory, *options, folder):
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    command = [sys.executable, SCRIPT, str(capability), str(memory), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("options", [(), pytest.param(("all",), marks=pytest.mark.slow)])
def test_small_tiles_fit_a_geforce(options, tmp_path):
    bytes_ = needed(86, SMALL, *options, folder=tmp_path)
    assert max(bytes_.values()) <= SMALL, bytes_


@pytest.mark.slow
def test_large_tiles_fit_an_a100_and_no_geforce(tmp_path):
    bytes_ = needed(80, LARGE, "all", folder=tmp_path)
    assert max(bytes_.values()) <= LARGE, bytes_
    for kernel in ("pose_kernel tf32x3", "max_kernel tf32x3", "last_kernel tf32x3"):
        assert bytes_[kernel] > SMALL
