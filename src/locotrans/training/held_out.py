"""What a run trains on, and what it is evaluated on."""

from dataclasses import replace

import torch

from locotrans.data import CloudSet, load_dataset
from locotrans.training.config import VALIDATION, TrainConfig, derive_seed


def load_data(config: TrainConfig) -> tuple[CloudSet, CloudSet]:
    """Load what a run trains on, and what it is evaluated on: the test split, or a held-out share.

    The held-out shapes are a share of the training split that depends on the seed alone. What was
    cut from one scene overlaps, and stays together.
    """

    def load(split: str, points: int, shapes: int | None) -> CloudSet:
        return load_dataset(config.data, split, root=config.root, points=points, shapes=shapes)

    train = load(config.train_split, config.draw_from or config.points, config.shapes)
    if config.validation == 0:
        return train, load("test", config.points, config.test_shapes)
    scenes = [name.partition("@")[0] for name in train.ids] if train.items != "shapes" else []
    numbers = {name: number for number, name in enumerate(dict.fromkeys(scenes))}
    groups = torch.tensor([numbers[name] for name in scenes] or range(len(train)))
    total = len(numbers) or len(train)
    count = round(config.validation * total)
    if not 0 < count < total:
        what = "scenes" if numbers else "shapes"
        raise ValueError(
            f"validation {config.validation} of {total} {what} leaves {total - count} to "
            f"train on and {count} to evaluate on; choose another share"
        )
    generator = torch.Generator().manual_seed(derive_seed(config.seed, VALIDATION))
    order = torch.randperm(total, generator=generator)
    held = torch.isin(groups, order[:count])
    whole = (
        train
        if config.draw_from is None
        else load(config.train_split, config.points, config.shapes)
    )
    some = whole.subset(held.nonzero().flatten())
    held_out = replace(some, split="validation", split_size=None, scenes=None)
    return train.subset((~held).nonzero().flatten()), held_out
