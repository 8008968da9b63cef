"""`locotrans search`: the shapes of an index that are most like a file, or like each other."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from locotrans.counting import counted
from locotrans.training.predict.embeddings import embeddings_of
from locotrans.training.predict.files import printable
from locotrans.training.predict.progress import load_inference
from locotrans.training.predict.samples import load_sample
from locotrans.training.record import write_atomically, write_json
from locotrans.training.search.build import unit
from locotrans.training.search.index import Index
from locotrans.training.search.nearest import find_duplicates, find_nearest
from locotrans.training.search.page import Card, Row, page_of_shapes
from locotrans.training.search.same import SamePoints

NEAR = 0.01
"""Distance up to which embeddings may be those of the same shape. Copies of 200 built-in shapes in
other poses were at most 0.006 apart, by a small LocoTrans in single precision."""
SHOWN = 300
"""Shapes on a page, at most."""


def search_file(
    path: Path,
    file: Path,
    *,
    k: int = 10,
    weights: Path | None = None,
    html: Path | None = None,
    json: Path | None = None,
    device: str = "auto",
) -> None:
    """Print the shapes of an index that are nearest to a file, which may lie in any pose.

    Args:
        path: The index.
        file: Point cloud or mesh.
        k: How many.
        weights: Where the weights of the index are now, if they were moved.
        html: Page of pictures to write.
        json: File to write the answer to.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    index = Index.open(path)
    found = find_nearest(index.embeddings, embed_file(index, file, weights, device), k)
    for row, distance in found:
        print(f"{distance:.6f}  {printable(index.file(row))}")
    if json is not None:
        rows = [{"path": str(index.file(row)), "distance": distance} for row, distance in found]
        write_json(json, {"index": str(path), "query": str(file), "nearest": rows})
    if html is not None:
        cards = [Card(file, "the query"), *_cards(index, found)]
        title = f"The {counted(len(found), 'shape')} of {path.name} nearest to {file.name}"
        write_page(html, title, index, [Row("", cards)])


def embed_file(
    index: Index, file: Path, weights: Path | None = None, device: str = "auto"
) -> np.ndarray:
    """Return the unit vector of a file, by the network of an index and its choice of points.

    Raises:
        ValueError: the file cannot be read, or the weights are not those of the index.
    """
    where = index.weights if weights is None else weights
    if weights is None and not where.exists():
        raise ValueError(f"{index.path} was built with {where}, which is gone: name it (--weights)")
    facts = index.facts
    inference, metadata = load_inference(where, facts.points, facts.seed, 1, device, 0)
    if metadata["sha256"] != facts.sha256:
        raise ValueError(
            f"{where} is not what {index.path} was built with: name the right file (--weights), "
            "or make the index anew"
        )
    sample = load_sample(file, facts.points, facts.seed, choice=facts.choice)
    if sample.points is None:
        raise ValueError(f"{file}: {sample.error}")
    dtype = next(inference.model.parameters()).dtype
    cloud = torch.from_numpy(sample.points)[None].to(inference.device, dtype)
    vector = unit(embeddings_of(inference.model, False, cloud)[0])
    if not np.isfinite(vector).all():
        raise ValueError(f"{file}: its embedding is not finite; are the weights whole?")
    return vector


def search_duplicates(
    path: Path, *, within: float | None = None, html: Path | None = None, json: Path | None = None
) -> None:
    """Print groups of shapes that are the same up to pose, order, position and scale.

    Args:
        path: The index.
        within: Distance of embeddings up to which two shapes count as the same; by default they
            must be near, and then the points of their files decide.
        html: Page of pictures to write.
        json: File to write the answer to.
    """
    index = Index.open(path)
    if within is None:
        groups = find_duplicates(index.embeddings, NEAR, SamePoints(index))
    else:
        groups = find_duplicates(index.embeddings, within)
    for group in groups:
        for row, distance in group:
            print(f"{distance:.6f}  {printable(index.file(row))}")
        print()
    extra = sum(len(group) - 1 for group in groups)
    again = counted(extra, "repeats", "repeat")
    print(f"{counted(len(groups), 'group')}; of {counted(len(index), 'shape')}, {again} another")
    if json is not None:
        listed = [
            [{"path": str(index.file(row)), "distance": d} for row, d in group] for group in groups
        ]
        write_json(json, {"index": str(path), "within": within, "groups": listed})
    if html is not None:
        alike = "the same shape" if within is None else f"shapes within {within} of each other"
        title = f"{counted(len(groups), 'group')} of {alike} in {path.name}"
        rows, count = [], 0
        for number, group in enumerate(groups, start=1):
            if count >= SHOWN:
                title += f" (the first {number - 1} are shown)"
                break
            count += len(group)
            rows.append(Row(f"group {number}: {len(group)} shapes", _cards(index, group)[:SHOWN]))
        write_page(html, title, index, rows)


def write_page(path: Path, title: str, index: Index, rows: Sequence[Row]) -> None:
    """Write a page of pictures, whole or not at all."""
    write_atomically(path, page_of_shapes(title, index.folder, rows, index.facts.points).encode())


def _cards(index: Index, found: Sequence[tuple[int, float]]) -> list[Card]:
    return [Card(index.file(row), f"{distance:.6f}") for row, distance in found]
