"""`locotrans report`: the paper's tables beside ours, from records."""

from locotrans.training.report.collect import read_results
from locotrans.training.report.curves import read_curves
from locotrans.training.report.document import render
from locotrans.training.report.others import writer_of

__all__ = ["read_curves", "read_results", "render", "writer_of"]
