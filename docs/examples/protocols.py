"""Two fresh networks under three protocols: only one of them keeps its answers."""

import torch

from locotrans import create_model
from locotrans.data import load_dataset
from locotrans.training.evaluate import evaluate

torch.manual_seed(0)
test = load_dataset("builtin", "test", points=64, shapes=20)
agreement = {}
for name in ("locotrans_dgcnn_light", "dgcnn"):
    model = create_model(name, num_classes=20)
    for rotation in ("none", "z", "so3"):
        figures = evaluate(model, test, rotation)
        agreement[name, rotation] = figures["rotation_agreement"]

assert agreement["locotrans_dgcnn_light", "so3"] == 1
assert agreement["dgcnn", "so3"] < 1
