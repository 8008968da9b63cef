"""Every annotation of a shape is checked while the tests run."""

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import install_import_hook

pytest_plugins = ["pytester"]
ROOMS = "geometry nn backbones models losses metrics testing data training convert pictures"
ROOMS += " certify export align cli"
# not kernels: Triton reads the source of its functions and cannot have them wrapped
install_import_hook([f"locotrans.{room}" for room in ROOMS.split()], "beartype.beartype")
torch.set_num_threads(1)  # two workers share two cores
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """Run as users do, who meet our own errors and not those of the annotations."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Leave the user's cache folder alone."""
    os.environ["LOCOTRANS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """Ten clouds of each of three classes, in two formats."""
    rng = np.random.default_rng(0)
    for kind in ("apple", "pear", "plum"):
        (tmp_path / "own" / kind).mkdir(parents=True)
        for i in range(10):
            cloud = rng.normal(size=(100, 3)) * 1000 + 5
            path = tmp_path / "own" / kind / f"{i}"
            if i % 2:
                np.save(path.with_suffix(".npy"), cloud)
            else:
                np.savetxt(path.with_suffix(".xyz"), cloud)
    return tmp_path / "own"
