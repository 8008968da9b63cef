"""Training, evaluation protocols, checkpoints and records: the only room with a loop."""

from locotrans.training.checkpoint import load_weights
from locotrans.training.config import TrainConfig, read_config
from locotrans.training.evaluate import evaluate
from locotrans.training.loop import train

__all__ = ["TrainConfig", "evaluate", "load_weights", "read_config", "train"]
