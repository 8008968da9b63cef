"""From files on disk to batches and back to answers."""

import tempfile
from pathlib import Path

import numpy as np

from locotrans import create_model
from locotrans.data import load_dataset

rng = np.random.default_rng(0)
with tempfile.TemporaryDirectory() as folder:
    for kind, size in {"rod": (0.1, 0.1, 9.0), "plate": (5.0, 5.0, 0.1)}.items():
        for split in ("train", "test"):
            path = Path(folder, kind, split)
            path.mkdir(parents=True)
            for i in range(3):
                np.save(path / f"{i}.npy", rng.normal(size=(200, 3)) * size + 1000)
    train = load_dataset("folder", "train", points=64, root=folder)
    test = load_dataset("folder", "test", points=64, root=folder)

assert train.class_names == ("plate", "rod")
assert train.points.shape == (6, 64, 3)
assert test.points.norm(dim=-1).max() <= 1 + 1e-6

model = create_model("locotrans_dgcnn_light", num_classes=len(train.class_names))
assert model.eval()(test.points).logits.shape == (6, 2)
