"""Shapes that are alike, whatever way they lie: an index of embeddings on disk, and its search."""

from locotrans.training.search.build import build_index
from locotrans.training.search.index import Facts, Index
from locotrans.training.search.nearest import find_duplicates, find_nearest
from locotrans.training.search.query import search_duplicates, search_file

__all__ = [
    "Facts",
    "Index",
    "build_index",
    "find_duplicates",
    "find_nearest",
    "search_duplicates",
    "search_file",
]
