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


def modules_after(statement):
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(run.stdout.split())


def test_importing_the_package_imports_nothing_heavy():
    baseline = modules_after("import torch")
    ours = modules_after("import locotrans, locotrans.convert, locotrans.losses, locotrans.testing")
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
