"""Commands that measure trained weights on a data set."""

from pathlib import Path
from typing import Any

import tyro

from locotrans.cli.shared import (
    load_test,
    print_evaluation,
    progress_of,
    protocol_of,
    shipped_file,
    write_result,
)
from locotrans.data.corruptions import SEVERITIES
from locotrans.data.roots import read_lines
from locotrans.data.transforms import RotationProtocol
from locotrans.training.perturb import LADDERS, NOISE
from locotrans.training.samplings import COUNTS


def evaluate(
    weights: tyro.conf.Positional[Path],
    /,
    data: str | None = None,
    root: Path | None = None,
    rotation: RotationProtocol = "so3",
    pretrained: bool = False,
    exclude: Path | None = None,
    json: Path | None = None,
    split: str = "test",
    points: int | None = None,
    shapes: int | None = None,
    rotations: int = 3,
    whole: bool = False,
    seed: int = 0,
    batch_size: int = 32,
    device: str = "auto",
) -> None:
    """Measure trained weights on a data set whose shapes are rotated.

    Args:
        weights: Run folder of `train`, a .safetensors file, or the name of weights that come with
            locotrans.
        data: Data set (see `locotrans list`); by default the one trained on.
        root: Folder that holds the data set's files.
        rotation: Rotation of each shape: z (about the data set's up axis), so3 or none.
        pretrained: Take those that come with locotrans, even if a file has that name.
        exclude: Text file with the id of a shape in every line, such as airplane_0630, or of files
            of yours chair/a.ply; figures without these shapes (say, those whose mesh is in the
            training set too) are added.
        json: File to write the result to.
        split: Split of the data set.
        points: Points per shape; by default as in training.
        shapes: Shapes to take or to generate; by default as many as the run took, or else all, or
            the usual number of a set that is generated.
        rotations: Rotations of each shape.
        whole: Label whole scenes, as `segment` does, and count each of their points once, instead
            of those of their blocks or spheres; it takes longer.
        seed: Seed of the rotations.
        batch_size: Shapes at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training import evaluate as measure
    from locotrans.training.evaluate_scenes import evaluate_scenes
    from locotrans.training.predict.samples import as_trained
    from locotrans.training.record import find_device

    if whole and (shapes is not None or exclude is not None):
        raise ValueError("--whole measures all scenes: leave out --shapes and --exclude")
    excluded = () if exclude is None else read_lines(exclude)
    if exclude is not None and not excluded:
        raise ValueError(f"{exclude} names no shapes to exclude")
    place = find_device(device)
    weights = shipped_file(weights) if pretrained else weights
    model, metadata, clouds = load_test(weights, data, root, split, points, shapes, json)
    settings: dict[str, Any] = {
        "rotations_per_shape": rotations,
        "seed": seed,
        "batch_size": batch_size,
        "device": place,
    }
    if whole:
        with progress_of("scenes") as report:
            result = evaluate_scenes(model, clouds, rotation, report=report, **settings)
    else:
        clouds = as_trained(clouds, metadata, place)
        result = measure(model, clouds, rotation, excluded=excluded, **settings)
    write_result(json, result, weights, metadata, place)
    print_evaluation(result)


def perturb(
    weights: tyro.conf.Positional[Path],
    /,
    data: str | None = None,
    root: Path | None = None,
    rotation: RotationProtocol = "so3",
    pretrained: bool = False,
    json: Path | None = None,
    split: str = "test",
    points: int | None = None,
    shapes: int | None = None,
    noise: tuple[float, ...] = NOISE,
    dropped: tuple[int, ...] | None = None,
    corruptions: tuple[str, ...] = LADDERS,
    severities: tuple[int, ...] = SEVERITIES,
    rotations: int = 1,
    seed: int = 0,
    batch_size: int = 32,
    device: str = "auto",
) -> None:
    """Measure a classifier under noise, dropped points and corruptions of growing severity.

    Args:
        weights: Run folder of `train`, a .safetensors file, or the name of weights that come with
            locotrans.
        data: Data set, as for `eval`; by default the one trained on.
        root: Folder that holds the data set's files.
        rotation: Rotation of each perturbed shape: z (about the data set's up axis), so3 or none.
        pretrained: Take those that come with locotrans, even if a file has that name.
        json: File to write the result to, with every head.
        split: Split of the data set.
        points: Points per shape; by default as in training.
        shapes: Shapes to take or to generate; by default as many as the run took, or else all, or
            the usual number of a set that is generated.
        noise: Deviations of the noise, in radii of the cloud: the paper's Tab. 9.
        dropped: Numbers of points that are dropped; by default those of the paper's Tab. 9 (0, 100,
            200 and 300 of 1,024), of a smaller cloud the same shares.
        corruptions: Ladders of corruptions; without a name after it, none.
        severities: Steps of the ladders, from 1 to 5.
        rotations: Rotations of each shape.
        seed: Seed of the perturbations and rotations.
        batch_size: Shapes at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from rich.console import Console

    from locotrans.training.perturb import perturb as measure
    from locotrans.training.perturb import perturbation_tables
    from locotrans.training.predict.samples import trained_choice
    from locotrans.training.record import find_device

    place = find_device(device)
    weights = shipped_file(weights) if pretrained else weights
    model, metadata, clouds = load_test(weights, data, root, split, points, shapes, json)
    with progress_of("cases") as report:
        result = measure(
            model,
            clouds,
            noise=noise,
            dropped=dropped,
            corruptions=corruptions,
            severities=severities,
            rotation=rotation,
            rotations_per_shape=rotations,
            seed=seed,
            even=trained_choice(metadata) == "even",
            batch_size=batch_size,
            device=place,
            report=report,
        )
    console = Console()
    write_result(json, result, weights, metadata, place)
    console.print(protocol_of(result), soft_wrap=True, markup=False)
    console.print(*perturbation_tables(result))
    for case in result["skipped"]:
        console.print(f"left out: {case}", markup=False)


def samplings(
    weights: tyro.conf.Positional[Path],
    /,
    data: str | None = None,
    root: Path | None = None,
    rotation: RotationProtocol = "so3",
    pretrained: bool = False,
    counts: tuple[int, ...] = COUNTS,
    dense: int = 8192,
    json: Path | None = None,
    split: str = "test",
    shapes: int | None = None,
    rotations: int = 1,
    seed: int = 0,
    batch_size: int = 32,
    device: str = "auto",
) -> None:
    """Measure a classifier on shapes that are sampled in other ways and numbers.

    Clouds are sampled uniformly by area, by farthest points, by a voxel grid and along scan lines.

    Args:
        weights: Run folder of `train`, a .safetensors file, or the name of weights that come with
            locotrans.
        data: Data set of dense clouds: meshes, as modelnet40:off, or files of yours, as hdf5:up=y
            if y points up in them; by default the one trained on.
        root: Folder that holds the data set's files.
        rotation: Rotation of each shape: z (about the data set's up axis), so3 or none.
        pretrained: Take those that come with locotrans, even if a file has that name.
        counts: Points of the sampled clouds.
        dense: Points of the clouds that are sampled from.
        json: File to write the result to.
        split: Split of the data set.
        shapes: Shapes to take or to generate; by default as for `eval`.
        rotations: Rotations of each shape.
        seed: Seed of the samplings and rotations.
        batch_size: Shapes at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from rich.console import Console

    from locotrans.data.hdf5 import FewerPointsError
    from locotrans.training.predict.samples import trained_choice
    from locotrans.training.record import find_device
    from locotrans.training.samplings import measure_samplings, samplings_table

    place = find_device(device)
    weights = shipped_file(weights) if pretrained else weights
    try:
        model, metadata, clouds = load_test(weights, data, root, split, dense, shapes, json)
    except FewerPointsError as error:
        raise ValueError(
            f"{error} by --dense and --counts, or name denser clouds: meshes, as --data "
            "modelnet40:off, or files of yours, as --data hdf5:up=y --root DIR"
        ) from None
    with progress_of("samplings") as report:
        result = measure_samplings(
            model,
            clouds,
            metadata["points"],
            counts=counts,
            rotation=rotation,
            rotations_per_shape=rotations,
            seed=seed,
            choice=trained_choice(metadata),
            batch_size=batch_size,
            device=place,
            report=report,
        )
    console = Console()
    write_result(json, result, weights, metadata, place)
    console.print(protocol_of(result), soft_wrap=True, markup=False)
    console.print(samplings_table(result))
