"""Evaluation of whole scenes: every point counts once."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from locotrans.data import CloudSet
from locotrans.data.scenes import Scene
from locotrans.data.transforms import RotationProtocol
from locotrans.training.evaluate import evaluating, facts_of, sample_rotations
from locotrans.training.evaluate_points import Tally
from locotrans.training.segment.network import SegmenterNetwork
from locotrans.training.segment.scenes import Report
from locotrans.training.tasks import check_points_of, is_segmenter, labels_parts


@torch.inference_mode()
def evaluate_scenes(
    model: nn.Module,
    data: CloudSet,
    rotation: RotationProtocol,
    *,
    rotations_per_shape: int = 3,
    seed: int = 0,
    turns: int = 2,
    batch_size: int = 32,
    device: torch.device | str = "cpu",
    report: Report | None = None,
) -> dict[str, Any]:
    """Measure a network on the whole scenes of a data set, as `evaluate` does on their blocks.

    Blocks and spheres overlap, and blocks leave points out, so that figures over them count some
    points several times and others never. Here every point of a scene gets the label that the votes
    of all its blocks give it, as in `locotrans segment`, and counts once. A scene is read, and its
    votes are held, alone; only the network's own answer is measured, not every head.

    Args:
        model: a network for scenes.
        data: a set that was cut from scenes; they are cut the same way.
        rotation: the protocol; all blocks of a scene are turned alike.
        rotations_per_shape: poses of each scene; "none" has one.
        seed: seed of the rotations.
        turns: spheres that every point is in, at least.
        batch_size: blocks at a time.
        device: where to compute.
        report: hears how many scenes are done, of how many.
    """
    if not is_segmenter(model) or labels_parts(model):
        raise ValueError("whole scenes are for networks that label scenes (..._semseg)")
    if data.scenes is None:
        raise ValueError(f"{data.name} ({data.split}) was not cut from scenes")
    if rotations_per_shape < 1:
        raise ValueError("rotations must be at least 1")
    check_points_of(model, data)
    cut, poses = data.scenes, 1 if rotation == "none" else rotations_per_shape
    R = sample_rotations(rotation, data.up, len(cut.files), poses, seed)  # s r 3 3
    with evaluating(model, device):
        network = SegmenterNetwork(
            model,
            "scenes",
            data.part_names,
            data.class_names,
            data.points.shape[1],
            cut.sphere or 1.0,
            turns=turns,
            batch_size=batch_size,
            device=device,
        )

        def labels(scene: Scene, turn: Float[Tensor, "3 3"]) -> Int[Tensor, "1 n"]:
            return torch.from_numpy(network.segment_turned(scene, cut, turn).argmax(1))[None]

        tally = Tally(model, data)
        for number, path in enumerate(cut.files):
            scene = cut.read(path)
            try:
                stored = labels(scene, torch.eye(3))
                turned = [stored] if rotation == "none" else [labels(scene, x) for x in R[number]]
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            truth = torch.from_numpy(scene.labels)[None]
            tally.add(torch.stack(turned), stored, truth, torch.zeros(1, dtype=torch.long))
            if report is not None:
                report(number + 1, len(cut.files))
    figures = tally.figures()
    return {
        **figures,
        "heads": {"combined": figures},
        **facts_of(model, data, rotation, poses, seed),
        "samples": len(cut.files),
        "split_size": len(cut.files),
        "items": "scenes",
        "cut": data.items,
        "turns": turns if cut.sphere else None,
    }
