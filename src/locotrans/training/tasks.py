"""What a network is trained for decides which labels it sees, and what it is given beside points.

Classification has a label a shape. Segmentation of parts has one a point, and the category of each
shape is given; of scenes, one a point, and perhaps colours are given.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from locotrans.counting import counted
from locotrans.data import CloudSet
from locotrans.data.parttable import SHAPENET
from locotrans.models import create_model, model_task

log = logging.getLogger("locotrans.data")
STRAY = 1000
"""Times as many points of one class as of another, from which those of the other look wrong."""
OWN = ("folder", "csv")
"""Data sets of a user's own files, whose name does not say which data they are."""


def build_model(name: str, data: CloudSet, options: dict[str, Any]) -> nn.Module:
    """Build a model for the classes of a data set, or for its parts and categories.

    Raises:
        ValueError: the data set does not have the labels that the model is for.
    """
    task = model_task(name)
    if task != "scenes" and data.items != "shapes":
        raise ValueError(
            f"{data.name} is {data.items} of scenes, and {name} is for whole shapes: train a "
            "network for scenes, such as locotrans_dgcnn_semseg_light"
        )
    if task == "classification":
        return create_model(name, len(data.class_names), **options)
    if data.parts is None:
        why = "".join(f" ({note})" for note in data.notes if note.startswith("labels of points"))
        raise ValueError(f"{data.name} has no labels of points, which {name} is trained by{why}")
    if task == "parts":
        count = len(data.class_names)
        if options.get("categories", count) != count:
            raise ValueError(
                f"{data.name} has {count} categories, the option says {options['categories']}; "
                "leave it out"
            )
        options = {**options, "categories": count}
    elif data.items == "shapes":
        own = data.name.partition(":")[0]
        remedy = f"cut scenes into spheres (--data {own}:sphere=RADIUS, in the units of the files)"
        raise ValueError(
            f"{data.name} scales every cloud to radius 1, as shapes are, and {name} is for scenes, "
            f"which keep their scale: {f'{remedy}, or ' * (own in OWN)}train a network for parts "
            f"({name.replace('semseg', 'partseg')})"
        )
    model = create_model(name, len(data.part_names), **options)
    check_points_of(model, data)
    return model


def is_numbered(part_names: Sequence[str]) -> bool:
    """Say whether parts have numbers instead of names."""
    return list(part_names) == [str(number) for number in range(len(part_names))]


def name_parts(model: str, train: CloudSet, held_out: CloudSet) -> tuple[CloudSet, CloudSet]:
    """Name parts that only have numbers, for a model that labels parts of given categories.

    A number that shapes of one category alone have is a part of it, "chair/3", so that others are
    not given it as an answer; any other number, "3", is a part of all. Both sets get all names.
    """
    numbered = is_numbered(train.part_names) and is_numbered(held_out.part_names)
    if model_task(model) == "classification" or not train.part_names or not numbered:
        return train, held_out
    owners: list[set[int]] = [set() for _ in max(train.part_names, held_out.part_names, key=len)]
    for data in (train, held_out):
        for number, own in enumerate(owners):
            if data.parts is not None:
                own.update(data.labels[(data.parts == number).any(1)].tolist())
    several = model_task(model) == "parts" and len(train.class_names) > 1
    for number, own in enumerate(owners) if several else ():
        _doubt_shared(train, number, sorted(own))
    names = tuple(
        f"{train.class_names[min(own)]}/{number}" if several and len(own) == 1 else str(number)
        for number, own in enumerate(owners)
    )

    def named(data: CloudSet) -> CloudSet:
        if data.parts is None or data.part_names == names:
            return data
        return replace(data, part_names=names, given_checksum=data.source)

    return named(train), named(held_out)


def _doubt_shared(data: CloudSet, number: int, own: Sequence[int]) -> None:
    """Say so where next to no point of a class has a part that another class has for real."""
    if len(own) < 2 or data.parts is None:
        return
    counts = [int((data.parts[data.labels == label] == number).sum()) for label in own]
    few, many = min(counts), max(counts)
    if 0 < few * STRAY < many:
        one, other = (data.class_names[own[counts.index(x)]] for x in (few, many))
        log.warning(
            "part %d becomes one that all classes may have: %s of %s and %s of %s have it; is that "
            "a wrong label?",
            number,
            counted(few, "point"),
            one,
            counted(many, "point"),
            other,
        )


def is_segmenter(model: nn.Module) -> bool:
    """Say whether a network labels points."""
    return hasattr(getattr(model, "config", None), "categories")


def labels_parts(model: nn.Module) -> bool:
    """Say whether a network labels the parts of shapes whose category is given."""
    config: Any = model.config
    return bool(config.categories)


def check_points_of(model: nn.Module, data: CloudSet) -> None:
    """Raise a ValueError that says what is wrong, unless a data set's points can be learned from.

    There must be labelled points, colours if the network takes them, and for parts no label
    outside the parts of the shape's own category.
    """
    where = f"{data.name} ({data.split})"
    config: Any = model.config
    if data.parts is None:
        raise ValueError(f"{where} has no labels of points")
    known = data.parts >= 0
    if not bool(known.any()):
        raise ValueError(
            f"{where}: all points are unlabelled; there is nothing to learn or measure"
        )
    if config.colors and data.colors is None:
        raise ValueError(f"{where} has no colours: build the network without the option colors")
    if not labels_parts(model):
        return
    if len(data.class_names) != config.categories:
        raise ValueError(
            f"{where} has {len(data.class_names)} categories, the network knows {config.categories}"
        )
    allowed = data.allowed_parts.to(data.parts.device)[data.labels]  # s parts
    foreign = known & ~allowed.gather(1, data.parts.clamp_min(0))
    if bool(foreign.any()):
        rows = foreign.any(1).nonzero().flatten()
        row = int(rows[0])
        part = data.part_names[int(data.parts[row][foreign[row]][0])]
        shape = data.ids[row] if data.ids else f"shape {row}"
        raise ValueError(
            f"{where}: {counted(len(rows), 'shape has', 'shapes have')} points on parts of another "
            "category: "
            f"{shape}, of category {data.class_names[int(data.labels[row])]}, on {part}. "
            "Correct the labels, or set them to -1"
        )


def targets(model: nn.Module, data: CloudSet) -> Int[Tensor, "s *m"]:
    """Return what a network is to answer: a class for each shape, or a label for each point."""
    if not is_segmenter(model):
        return data.labels
    assert data.parts is not None  # by `check_points_of`
    return data.parts


def given(model: nn.Module, data: CloudSet) -> dict[str, Tensor]:
    """Return what a network is given of each shape beside its points, by argument."""
    extra: dict[str, Tensor] = {}
    if is_segmenter(model):
        config: Any = model.config
        if config.categories:
            extra["category"] = data.labels
        if config.colors:
            assert data.colors is not None  # by `check_points_of`
            extra["colors"] = data.colors
    return extra


def category_numbers(categories: Sequence[str]) -> dict[str, int]:
    """Return the numbers of categories by their names, in lower case.

    Those of ShapeNetPart have the names of the official folders, too, such as 03001627 for Chair.
    """
    numbers = {name.lower(): number for number, name in enumerate(categories)}
    for name, synset, _ in SHAPENET:
        if name.lower() in numbers:
            numbers.setdefault(synset, numbers[name.lower()])
    return numbers


def folder_category(path: Path, categories: Sequence[str]) -> int:
    """Return the category of a file: that of the nearest folder so named, or the only one.

    Raises:
        ValueError: there is none.
    """
    if len(categories) == 1:
        return 0
    known = category_numbers(categories)
    for folder in path.resolve().parents:
        if folder.name.lower() in known:
            return known[folder.name.lower()]
    raise ValueError(
        "its category is not known: name it (--category), or keep the file in a folder of that "
        f"name. Known: {', '.join(categories)}"
    )


def typical_radius(data: CloudSet) -> float:
    """Return the radius of the clouds of a data set: the median, about their means.

    Of spheres it is that about their middles, which they were cut by.
    """
    middle = 0.0 if data.items == "spheres" else data.points.mean(1, keepdim=True)
    centred = data.points - middle
    return float(torch.linalg.vector_norm(centred, dim=-1).amax(1).median())
