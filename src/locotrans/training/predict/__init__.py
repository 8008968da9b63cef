"""Trained weights on anybody's files: classes (`predict`) and embeddings (`embed`)."""

from locotrans.training.predict.answers import Prediction, predict, predict_files
from locotrans.training.predict.embeddings import embed
from locotrans.training.predict.files import find_files
from locotrans.training.predict.samples import Sample, load_sample
from locotrans.training.predict.stream import Inference, read_samples

__all__ = [
    "Inference",
    "Prediction",
    "Sample",
    "embed",
    "find_files",
    "load_sample",
    "predict",
    "predict_files",
    "read_samples",
]
