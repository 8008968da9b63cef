"""A run so small that it takes a second."""

import pytest

from locotrans.training import TrainConfig

TINY_MODEL = (
    "k=4",
    "widths=8,8",
    "vector_widths=4,4",
    "embedding=16",
    "vector_embedding=8",
    "head_widths=16,8",
)


@pytest.fixture
def tiny(tmp_path):
    return TrainConfig(
        model="locotrans_dgcnn_light",
        options=TINY_MODEL,
        points=16,
        shapes=26,  # 3 steps of 8 an epoch, 2 shapes left over
        test_shapes=10,
        batch_size=8,
        epochs=4,
        checkpoint_seconds=0,
        evaluate_every=2,
        out=tmp_path / "run",
        device="cpu",
    )
