"""Whole networks, by name."""

from locotrans.models.locotrans import LocoTrans
from locotrans.models.locotrans_config import LIGHT, LocoTransConfig
from locotrans.models.output import ClassifierOutput, SegmenterOutput
from locotrans.models.pretrained import list_pretrained, pretrained_weights
from locotrans.models.recorded import Recorded
from locotrans.models.registry import Task, create_model, list_models, model_config, model_task
from locotrans.models.segmentation import LocoTransSegmenter, LocoTransSegmenterConfig

__all__ = [
    "LIGHT",
    "ClassifierOutput",
    "LocoTrans",
    "LocoTransConfig",
    "LocoTransSegmenter",
    "LocoTransSegmenterConfig",
    "Recorded",
    "SegmenterOutput",
    "Task",
    "create_model",
    "list_models",
    "list_pretrained",
    "model_config",
    "model_task",
    "pretrained_weights",
]
