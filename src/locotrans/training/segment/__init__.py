"""Trained segmenters on anybody's files: a label for every point of clouds of any size."""

from locotrans.training.segment.files import Segmented, segment
from locotrans.training.segment.network import SegmenterNetwork, load_segmenter
from locotrans.training.segment.scenes import segment_blocks, segment_scene, segment_shape
from locotrans.training.segment.writers import write_labels

__all__ = [
    "Segmented",
    "SegmenterNetwork",
    "load_segmenter",
    "segment",
    "segment_blocks",
    "segment_scene",
    "segment_shape",
    "write_labels",
]
