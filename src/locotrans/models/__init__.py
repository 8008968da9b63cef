"""Whole networks, by name."""

from locotrans.models.locotrans import LIGHT, LocoTrans, LocoTransConfig
from locotrans.models.output import ClassifierOutput
from locotrans.models.registry import create_model, list_models, model_config

__all__ = [
    "LIGHT",
    "ClassifierOutput",
    "LocoTrans",
    "LocoTransConfig",
    "create_model",
    "list_models",
    "model_config",
]
