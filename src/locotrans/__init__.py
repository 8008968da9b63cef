"""Rotation-invariant point-cloud learning: LocoTrans and the layers it is made of."""

from importlib.metadata import version

from locotrans.models import Recorded, create_model, list_models

__version__ = version("locotrans")
__all__ = ["Recorded", "__version__", "create_model", "list_models"]
