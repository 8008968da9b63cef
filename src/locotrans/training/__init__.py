"""Training, evaluation protocols, checkpoints and records: the only room with a loop."""

from locotrans.training.checkpoint import load_weights
from locotrans.training.config import TrainConfig
from locotrans.training.evaluate import evaluate
from locotrans.training.loop import Stopped, train
from locotrans.training.presets import list_presets, preset_config, read_config

__all__ = [
    "Stopped",
    "TrainConfig",
    "evaluate",
    "list_presets",
    "load_weights",
    "preset_config",
    "read_config",
    "train",
]
