"""A run so small that it takes a second."""

import dataclasses
import io
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from locotrans.training import TrainConfig, train

TINY_MODEL = (
    "k=4",
    "widths=8,8",
    "vector_widths=4,4",
    "embedding=16",
    "vector_embedding=8",
    "head_widths=16,8",
)


TINY = TrainConfig(
    model="locotrans_dgcnn_light",
    options=TINY_MODEL,
    points=16,
    shapes=26,  # 3 steps of 8 an epoch, 2 shapes left over
    test_shapes=10,
    batch_size=8,
    epochs=3,
    checkpoint_seconds=0.0,
    evaluate_every=2,
    device="cpu",
)


@pytest.fixture(scope="session")
def tiny_config():
    return TINY


@pytest.fixture
def tiny(tmp_path):
    return dataclasses.replace(TINY, out=tmp_path / "run")


class WholeRun(NamedTuple):
    """A run that was trained without a break."""

    folder: Path
    record: dict[str, Any]
    said: str


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    config = dataclasses.replace(TINY, out=tmp_path_factory.mktemp("uncut") / "run")
    output = io.StringIO()
    record = train(config, Console(file=output))
    return WholeRun(config.out, record, output.getvalue())


@pytest.fixture(scope="session")
def uncut(whole_run):
    """The folder of a run that was trained without a break."""
    return whole_run.folder
