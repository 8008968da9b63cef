"""`import locotrans` is light, and rooms import downwards only."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = (
    "matplotlib",
    "scipy",
    "h5py",
    "tyro",
    "rich",
    "trimesh",
    "triton",
    "numba",
    "beartype",
    "pytest",
)


CODE = """
import sys
import torch
print(*sys.modules)
import locotrans, locotrans.convert, locotrans.losses, locotrans.testing
print(*sys.modules)
"""


def test_importing_the_package_imports_nothing_heavy():
    run = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, cwd=ROOT
    )
    baseline, ours = (set(line.split()) for line in run.stdout.splitlines())
    assert "locotrans.models.locotrans" in ours
    added = {name.partition(".")[0] for name in ours - baseline}
    assert added.isdisjoint(HEAVY)
    assert {name for name in ours if name.startswith("locotrans.data")} == set()
    assert {name for name in ours if name.startswith("locotrans.training")} == set()


def test_import_contracts():
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "0 broken" in run.stdout
