"""The command line: parses, calls, prints.

What a user can get wrong ends in one line, "error: ...", and exit status 2; anything else is a
bug and shows its traceback. A run that `--stop-after` ended has the exit status 3. A subcommand
imports what it needs when it runs.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

# Read when torch is imported. By default its threads wait for each other by spinning, and a step of
# a second takes a minute on a machine that is busy with something else.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from locotrans import __version__
from locotrans.data.corruptions import SEVERITIES
from locotrans.data.transforms import RotationProtocol
from locotrans.training.config import TrainConfig, parse_options
from locotrans.training.perturb import LADDERS, NOISE
from locotrans.training.presets import base_config, list_presets, read_config

if TYPE_CHECKING:
    import torch
    from rich.table import Table
    from torch import Tensor, nn

    from locotrans.data import CloudSet

CLASSIFIERS = ("locotrans_dgcnn", "locotrans_dgcnn_light")
SEGMENTER = "locotrans_dgcnn_partseg_light"
STOPPED = 3  # exit status of a run that --stop-after ended
TITLES = {
    "instance_miou": "instance mIoU",
    "class_miou": "class mIoU",
    "miou": "mIoU",
    "overall_accuracy": "overall",
    "class_accuracy": "class mean",
    "rotation_agreement": "agreement",
}
"""Figures of an evaluation, as columns."""
Flags = Annotated[TrainConfig, tyro.conf.arg(name="")]  # no prefix: --epochs, not --flags.epochs


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `locotrans` program."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(f"locotrans {__version__}")
        return
    try:
        commands: dict[str, Callable[..., Any]] = {
            "demo": demo,
            "train": train_command(arguments),
            "eval": evaluate,
            "perturb": perturb,
            "predict": predict,
            "embed": embed,
            "segment": segment,
            "certify": certify,
            "samplings": samplings,
            "pack": pack_run,
            "report": report,
            "view": view,
            "index": index,
            "search": search,
            "export": export,
            "align": align,
            "convert": convert,
            "info": info,
            "list": list_names,
            "data": data_commands,
            "checkpoint": checkpoint_commands,
        }
        if list(arguments[:1]) == ["data"]:
            tyro.extras.subcommand_cli_from_dict(
                {"check": check_data, "export": export_data, "prepare-s3dis": prepare_rooms},
                prog="locotrans data",
                description="Look at data sets on disk, and write them.",
                args=arguments[1:],
            )
            return
        if list(arguments[:1]) == ["checkpoint"]:
            tyro.extras.subcommand_cli_from_dict(
                {"split": split_files, "join": join_files},
                prog="locotrans checkpoint",
                description="Cut large files of a run into parts that can travel, and join them.",
                args=arguments[1:],
            )
            return
        status = tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="locotrans",
            description="Rotation-invariant point-cloud learning: LocoTrans and its baselines.",
            args=arguments,
        )
        if status:
            sys.exit(status)
    except BrokenPipeError:  # whoever read our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; a training run goes on if its command is repeated", file=sys.stderr)
        sys.exit(130)


def demo(out: Path = Path("demo"), seed: int = 0) -> None:
    """Train small networks on the built-in set and show what rotations do to them.

    Args:
        out: Folder for the pictures and the record.
        seed: Seed of everything random.
    """
    from locotrans.training.demo import run_demo

    run_demo(out, seed)


def train_command(arguments: Sequence[str]) -> Callable[..., None]:
    """Return the `train` subcommand; a config file or a preset that is named gives the defaults."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--config", type=Path, nargs="?")
    finder.add_argument("--preset", nargs="?")
    finder.add_argument("--model", nargs="?")
    given = finder.parse_known_args(arguments)[0]
    if given.config is not None and given.preset is not None:
        raise ValueError("--config and --preset both give the defaults; name one of them")
    in_use = list(arguments[:1]) == ["train"]  # other commands may have such flags too
    defaults = base_config(given.preset, given.model) if in_use else TrainConfig()
    if given.config is not None:
        defaults = read_config(given.config)

    def train(
        flags: Flags = defaults, config: Path | None = None, stop_after: float | None = None
    ) -> None:
        """Train a model; a run that was cut goes on if its command is repeated.

        Under torchrun, processes share every batch:
        torchrun --nproc-per-node 2 -m locotrans train ...

        Args:
            flags: The settings of the run.
            config: JSON or TOML file of settings; flags override it.
            stop_after: Seconds after which to stop with a checkpoint and exit status 3 (0 under
                torchrun, which takes any other for a failure); the same command goes on.
        """
        from locotrans.training import Stopped
        from locotrans.training import train as run

        try:
            record = run(flags, stop_after=stop_after)
        except Stopped as stopped:
            print(stopped)
            sys.exit(0 if "TORCHELASTIC_RUN_ID" in os.environ else STOPPED)
        print_evaluation(record["evaluation"])

    return train


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
    seed: int = 0,
    batch_size: int = 32,
    device: str = "auto",
) -> None:
    """Measure trained weights on a data set whose shapes are rotated.

    Args:
        weights: Run folder of `train`, or a .safetensors file; with --pretrained, a model.
        data: Data set (see `locotrans list`); by default the one trained on.
        root: Folder that holds the data set's files.
        rotation: Rotation of each shape: z (about the data set's up axis), so3 or none.
        pretrained: Take the weights that come with locotrans for the model of that name.
        exclude: Text file with the id of a shape in every line, such as airplane_0630; figures
            without these shapes (say, those whose mesh is in the training set too) are added.
        json: File to write the result to.
        split: Split of the data set.
        points: Points per shape; by default as in training.
        shapes: Shapes to generate, for a set that is generated; by default its usual number.
        rotations: Rotations of each shape.
        seed: Seed of the rotations.
        batch_size: Shapes at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training import evaluate as measure
    from locotrans.training.record import find_device

    place = find_device(device)
    weights = shipped_file(weights) if pretrained else weights
    model, metadata, clouds = load_test(weights, data, root, split, points, shapes, json)
    result = measure(
        model,
        clouds,
        rotation,
        rotations_per_shape=rotations,
        seed=seed,
        batch_size=batch_size,
        device=place,
        excluded=() if exclude is None else exclude.read_text().split(),
    )
    print_evaluation(result)
    write_result(json, result, weights, metadata, place)


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
    """Measure trained weights under noise, dropped points and corruptions of growing severity.

    Args:
        weights: Run folder of `train`, or a .safetensors file; with --pretrained, a model.
        data: Data set, as for `eval`; by default the one trained on.
        root: Folder that holds the data set's files.
        rotation: Rotation of each perturbed shape: z (about the data set's up axis), so3 or none.
        pretrained: Take the weights that come with locotrans for the model of that name.
        json: File to write the result to, with every head.
        split: Split of the data set.
        points: Points per shape; by default as in training.
        shapes: Shapes to generate, for a set that is generated; by default its usual number.
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
    from rich.progress import Progress

    from locotrans.training.perturb import perturb as measure
    from locotrans.training.perturb import perturbation_tables
    from locotrans.training.record import find_device

    place = find_device(device)
    weights = shipped_file(weights) if pretrained else weights
    model, metadata, clouds = load_test(weights, data, root, split, points, shapes, json)
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("cases", total=None)
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
            batch_size=batch_size,
            device=place,
            report=lambda done, total: bar.update(task, completed=done, total=total),
        )
    console = Console()
    console.print(protocol_of(result), soft_wrap=True, markup=False)
    console.print(*perturbation_tables(result))
    for case in result["skipped"]:
        console.print(f"left out: {case}", markup=False)
    write_result(json, result, weights, metadata, place)


def predict(
    paths: tyro.conf.Positional[tuple[Path, ...]],
    /,
    weights: Path | None = None,
    csv: Path | None = None,
    json: Path | None = None,
    rotations: int = 0,
    points: int | None = None,
    seed: int = 0,
    choice: Literal["random", "farthest"] = "random",
    batch_size: int = 32,
    device: str = "auto",
) -> int:
    """Classify files; print the answers, or write them as CSV or JSON.

    A row for each file: path, class, confidence, agreement, points, and the error of one that could
    not be read. The exit status is 1 if there was such a file.

    Args:
        paths: Files or folders (searched at any depth); any mix of formats and sizes.
        weights: Run folder of `train`, or a .safetensors file; by default those that come with
            locotrans, which has none yet.
        csv: CSV file to write.
        json: JSON file to write.
        rotations: Average over this many random poses of each file, and report which share of them
            agrees with the answer; 0 takes the pose of the file.
        points: Points chosen of each file; by default as in training.
        seed: Seed of the poses and of the choice of points.
        choice: How points are chosen: at random as in training, or farthest points, which even out
            a density that varies much within a scan.
        batch_size: Files at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training.predict import predict as run

    return run(
        paths,
        default_weights() if weights is None else weights,
        csv=csv,
        json=json,
        rotations=rotations,
        points=points,
        seed=seed,
        choice=choice,
        batch_size=batch_size,
        device=device,
        workers=None,
    )


def embed(
    paths: tyro.conf.Positional[tuple[Path, ...]],
    /,
    weights: Path,
    out: Path,
    per_point: bool = False,
    points: int | None = None,
    seed: int = 0,
    choice: Literal["random", "farthest"] = "random",
    batch_size: int = 32,
    device: str = "auto",
) -> int:
    """Write the embedding of each file, as .npz or .safetensors.

    Arrays: embeddings (files, channels) and paths; failed and reasons of files that could not be
    read. Per point also points, centers and radii: points * radius + center are the coordinates of
    the file. In .safetensors, texts are JSON lists in the metadata.

    Args:
        paths: Files or folders (searched at any depth); any mix of formats and sizes.
        weights: Run folder of `train`, or a .safetensors file.
        out: File to write, .npz or .safetensors.
        per_point: Write the features of every point instead of one vector a file.
        points: Points chosen of each file; by default as in training.
        seed: Seed of the choice of points.
        choice: How points are chosen: at random as in training, or farthest points, which even out
            a density that varies much within a scan.
        batch_size: Files at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training.predict import embed as run

    return run(
        paths,
        weights,
        out,
        per_point=per_point,
        points=points,
        seed=seed,
        choice=choice,
        batch_size=batch_size,
        device=device,
        workers=None,
    )


def load_test(
    weights: Path,
    data: str | None,
    root: Path | None,
    split: str,
    points: int | None,
    shapes: int | None,
    json: Path | None,
) -> tuple["nn.Module", dict[str, Any], "CloudSet"]:
    """Load trained weights, their header, and the data set to measure them on."""
    from locotrans.data import load_dataset
    from locotrans.models import model_task
    from locotrans.training import load_weights
    from locotrans.training.record import check_writable

    if json is not None:
        if not json.parent.is_dir():
            raise ValueError(f"--json {json}: there is no folder {json.parent}; make it first")
        check_writable(json)
    model, metadata = load_weights(weights)
    for key in ("data", "points", "class_names"):
        if key not in metadata:
            raise ValueError(f"{weights} does not say what it was trained on: it has no {key!r}")
    name = data or metadata["data"]
    points = metadata["points"] if points is None else points
    clouds = load_dataset(name, split, root=root, points=points, shapes=shapes)
    numbers = [str(i) for i in range(len(clouds.class_names))]  # where no names are known
    same = metadata["class_names"] in (list(clouds.class_names), numbers)
    if model_task(metadata["model"]) != "classification":
        same = same and list(clouds.part_names) == metadata.get("part_names")
    if not same:
        raise ValueError(
            f"{weights} tells other classes apart than data set {name!r} has "
            f"({other_names(metadata, clouds)}); evaluate it on {metadata['data']!r}"
        )
    return model, metadata, clouds


def other_names(metadata: dict[str, Any], clouds: "CloudSet") -> str:
    """Say which classes or parts are only in the weights, or only in the data."""
    said = []
    for what, theirs in (("classes", clouds.class_names), ("parts", clouds.part_names)):
        known = metadata.get("class_names" if what == "classes" else "part_names") or []
        for where, names in (
            ("the weights", [name for name in known if name not in theirs]),
            ("the data", [name for name in theirs if name not in known]),
        ):
            if names and known:
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                said.append(f"{what} of {where} alone: {', '.join(names[:5])}{more}")
    return "; ".join(said) or "in another order"


def write_result(
    path: Path | None,
    result: dict[str, Any],
    weights: Path,
    metadata: dict[str, Any],
    device: "torch.device",
) -> None:
    """Write a measurement to the file of ``--json``, with what it was measured of."""
    from locotrans.training.record import environment, write_json

    if path is not None:
        facts = {"weights": str(weights), "training": metadata, "environment": environment(device)}
        write_json(path, {**result, "model": metadata["model"], **facts})


def segment(
    paths: tyro.conf.Positional[tuple[Path, ...]],
    /,
    weights: Path | None = None,
    out: Path = Path("segments"),
    format: Literal["ply", "npz", "las"] = "ply",
    category: str | None = None,
    radius: float | None = None,
    points: int | None = None,
    turns: int = 2,
    picture: bool = False,
    seed: int = 0,
    batch_size: int = 8,
    device: str = "auto",
) -> int:
    """Label every point of files of any size: parts of shapes, or classes in scenes.

    Each file gives a labelled cloud, in its own order and units, in the folder of `--out`, with a
    list, segments.json. The exit status is 1 if some files could not be read.

    Args:
        paths: Files or folders (searched at any depth); any mix of formats and sizes.
        weights: Run folder of `train`, or a .safetensors file, of a network that segments; by
            default those for ShapeNetPart that come with locotrans.
        out: Folder for the labelled clouds.
        format: ply (label, confidence, colour of the label), npz, or las (with the extra las).
        category: Category of the shapes, for parts; by default the name of each file's folder.
        radius: Radius of the spheres that a scene is cut into; by default as in training.
        points: Points of a block; by default as in training.
        turns: Spheres that every point of a scene is in, at least; their votes are added.
        picture: Write a picture of each file, too.
        seed: Seed of the choice of points.
        batch_size: Blocks at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training.segment import segment as run

    return run(
        paths,
        shipped_file(Path(SEGMENTER)) if weights is None else weights,
        out,
        form=format,
        category=category,
        radius=radius,
        points=points,
        turns=turns,
        picture=picture,
        seed=seed,
        batch_size=batch_size,
        device=device,
    )


def certify(
    target: tyro.conf.Positional[str],
    files: tyro.conf.Positional[tuple[Path, ...]] = (),
    /,
    data: str = "builtin",
    root: Path | None = None,
    split: str = "test",
    shapes: int = 8,
    points: int = 128,
    keeps: tuple[str, ...] | None = None,
    breaks: tuple[str, ...] | None = None,
    outputs: tuple[str, ...] | None = None,
    radius: float = 20.0,
    searched: int = 1,
    rotations: int = 8,
    precision: Literal["float64", "float32"] | None = None,
    tolerance: float | None = None,
    json: Path | None = None,
    picture: Path | None = None,
    options: tuple[str, ...] = (),
    classes: int = 40,
    seed: int = 0,
    batch_size: int = 32,
    device: str = "auto",
) -> int:
    """Measure how invariant a network is, and where it is worst; exit status 1 if it fails.

    Args:
        target: Model (see `locotrans list`), run folder, .safetensors or .onnx file, or
            module:function, which is a network on points (b, n, 3) or makes one.
        files: Clouds to try; by default some of the data set.
        data: Data set to take clouds from.
        root: Folder that holds the data set's files.
        split: Split of the data set.
        shapes: Shapes of the data set.
        points: Points of each cloud.
        keeps: Properties that must hold: rotation permutation translation scale reflection batch
            duplicates ties float32 tf32 bfloat16; by default those that the target declares.
        breaks: Properties that must not hold; the rest are reported.
        outputs: Further outputs to hold to it, as NAME=invariant or NAME=equivariant.
        radius: The search enters every ball of rotations of this radius, in degrees; half of it
            takes eight times as long.
        searched: Clouds that are searched for their worst rotation.
        rotations: Random rotations of each cloud.
        precision: Precision of the network; by default float64 where it can be had.
        tolerance: Error that is forgiven, in units of the spread of the answers.
        json: File to write the result to.
        picture: PNG file for a map of the error over all rotations.
        options: Options of a named model as KEY=VALUE.
        classes: Classes of a named model.
        seed: Seed of everything random.
        batch_size: Clouds at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from rich.console import Console
    from rich.progress import Progress

    from locotrans.certify.picture import error_map
    from locotrans.certify.run import certify_target, load_clouds
    from locotrans.certify.targets import load_target
    from locotrans.pictures import save_figure
    from locotrans.training.record import environment, find_device, write_json

    for flag, path in (("--json", json), ("--picture", picture)):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{flag} {path}: there is no folder {path.parent}; make it first")
    place = find_device(device)
    network = load_target(target, options, classes)
    clouds, facts = load_clouds(files, data, root, split, shapes, points, seed)
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("rotations", total=None)
        certificate = certify_target(
            network,
            clouds,
            keeps=keeps,
            breaks=breaks,
            outputs=outputs,
            clouds=facts,
            radius=radius,
            searched=searched,
            rotations=rotations,
            precision=precision,
            tolerance=tolerance,
            device=place,
            batch_size=batch_size,
            seed=seed,
            report=lambda done: progress.update(task, advance=done),
        )
    print(certificate)
    if json is not None:
        write_json(json, {**certificate.to_json(), "environment": environment(place)})
    if picture is not None:
        save_figure(error_map(certificate), picture)
    return 0 if certificate.passed else 1


def samplings(
    weights: tyro.conf.Positional[Path],
    /,
    data: str | None = None,
    root: Path | None = None,
    rotation: RotationProtocol = "so3",
    pretrained: bool = False,
    counts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192),
    dense: int = 8192,
    json: Path | None = None,
    split: str = "test",
    shapes: int | None = None,
    rotations: int = 1,
    seed: int = 0,
    batch_size: int = 32,
    device: str = "auto",
) -> None:
    """Measure trained weights on shapes that are sampled in other ways and numbers.

    Clouds are sampled uniformly by area, by farthest points, by a voxel grid and along scan lines.

    Args:
        weights: Run folder of `train`, or a .safetensors file; with --pretrained, a model.
        data: Data set of dense clouds; by default the one trained on.
        root: Folder that holds the data set's files.
        rotation: Rotation of each shape: z (about the data set's up axis), so3 or none.
        pretrained: Take the weights that come with locotrans for the model of that name.
        counts: Points of the sampled clouds.
        dense: Points of the clouds that are sampled from.
        json: File to write the result to.
        split: Split of the data set.
        shapes: Shapes to take; by default all.
        rotations: Rotations of each shape.
        seed: Seed of the samplings and rotations.
        batch_size: Shapes at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from rich.console import Console

    from locotrans.training.record import find_device
    from locotrans.training.samplings import measure_samplings, samplings_table

    place = find_device(device)
    weights = shipped_file(weights) if pretrained else weights
    model, metadata, clouds = load_test(weights, data, root, split, dense, shapes, json)
    result = measure_samplings(
        model,
        clouds,
        metadata["points"],
        counts=counts,
        rotation=rotation,
        rotations_per_shape=rotations,
        seed=seed,
        batch_size=batch_size,
        device=place,
    )
    console = Console()
    console.print(protocol_of(result), soft_wrap=True, markup=False)
    console.print(samplings_table(result))
    write_result(json, result, weights, metadata, place)


def report(
    records: tyro.conf.Positional[tuple[Path, ...]],
    /,
    out: Path | None = None,
    curves: Path | None = None,
) -> None:
    """Write the paper's tables beside ours, as Markdown, and a plot of training curves.

    Each recipe has its own tables; a cell that was not run stays empty.

    Args:
        records: Run folders, and JSON files of `eval`, `perturb` and `samplings`.
        out: Markdown file to write; by default it is printed.
        curves: PNG file for the training curves of the run folders.
    """
    from locotrans.pictures import curves_figure, save_figure
    from locotrans.training.record import write_atomically
    from locotrans.training.report import read_curves, render
    from locotrans.training.results import read_results

    results = read_results(records)
    if curves is not None:
        lines = read_curves(records)
        if not lines:
            raise ValueError("--curves needs run folders among the records; a file has no epochs")
        save_figure(curves_figure(lines), curves)
    shown = curves if curves is None or out is None else Path(os.path.relpath(curves, out.parent))
    text = render(results, shown)
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text.encode())


def pack_run(run: tyro.conf.Positional[Path], /, out: Path | None = None) -> None:
    """Pack a finished run's weights with their description and a model card.

    Args:
        run: Run folder of `train`.
        out: Folder to write into; by default that of the package, where --pretrained looks.
    """
    from locotrans.training.pack import pack

    print(pack(run, out))


def view(
    path: tyro.conf.Positional[Path],
    /,
    weights: Path,
    against: Path | None = None,
    category: str | None = None,
    save: Path | None = None,
    poses: int = 12,
    host: str = "127.0.0.1",
    port: int = 8321,
    seed: int = 0,
    device: str = "auto",
) -> None:
    """Show a cloud in a browser: its frames, and what networks say of it as it turns.

    The page is served to this machine alone, until Ctrl-C; or it is saved as one file that needs no
    server.

    Args:
        path: Point cloud or mesh.
        weights: Run folder or weights file, of a classifier or of a network for parts.
        against: A second network to stand beside it, for example a DGCNN.
        category: Category of the shape, for parts; by default the name of the file's folder.
        save: Page to write instead of serving one.
        poses: Random poses that a saved page holds the answers for.
        host: Address to serve at; with another than the default, others can reach the page.
        port: Port to serve at; 0 takes any that is free.
        seed: Seed of the choice of points and of the saved poses.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training.view import view as show

    show(
        path,
        weights,
        against=against,
        category=category,
        save=save,
        poses=poses,
        host=host,
        port=port,
        seed=seed,
        device=device,
    )


def index(
    folder: tyro.conf.Positional[Path],
    /,
    out: Path,
    weights: Path | None = None,
    points: int | None = None,
    seed: int = 0,
    batch_size: int = 32,
    device: str = "auto",
    workers: int | None = None,
) -> int:
    """Make an index of a folder of shapes, to be searched whatever way they lie.

    Repeated, the command embeds the files that are new or have changed and drops those that are
    gone; killed, it leaves an index that is whole. The exit status is 1 if some files could not be
    read.

    Args:
        folder: Folder of point clouds and meshes, searched at any depth.
        out: File of the index.
        weights: Run folder of `train`, or a .safetensors file; by default as the index was built.
        points: Points chosen of each file; by default as in training.
        seed: Seed of their choice.
        batch_size: Files at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
        workers: Processes that read; by default none for a few files, else one a core.
    """
    from locotrans.training.search import build_index

    return build_index(
        folder,
        out,
        weights,
        points=points,
        seed=seed,
        batch_size=batch_size,
        device=device,
        workers=workers,
    )


def search(
    index: tyro.conf.Positional[Path],
    file: tyro.conf.Positional[Path | None] = None,
    /,
    k: int = 10,
    duplicates: bool = False,
    within: float = 0.01,
    html: Path | None = None,
    json: Path | None = None,
    weights: Path | None = None,
    device: str = "auto",
) -> None:
    """Find the shapes of an index that are most like a file, or like each other.

    Distances are between unit vectors, from 0 (the same) to 2.

    Args:
        index: File that `locotrans index` wrote.
        file: Point cloud or mesh, in any pose.
        k: How many shapes to name.
        duplicates: Instead of a file: list shapes that are the same but for pose and scale.
        within: Distance up to which shapes count as the same.
        html: Page of pictures to write, one self-contained file.
        json: File to write the answer to.
        weights: Where the weights of the index are now, if they were moved.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training.search import search_duplicates, search_file

    if duplicates == (file is not None):
        raise ValueError("name a file to search for, or else give --duplicates")
    if file is None:
        search_duplicates(index, within=within, html=html, json=json)
        return
    search_file(index, file, k=k, weights=weights, html=html, json=json, device=device)


def export(
    target: tyro.conf.Positional[str],
    out: tyro.conf.Positional[Path],
    /,
    outputs: tuple[str, ...] = ("logits",),
    points: int = 64,
    radius: float = 50.0,
    json: Path | None = None,
    options: tuple[str, ...] = (),
    classes: int = 40,
) -> int:
    """Write a network as ONNX or .pt2, run the file against it, and certify the file.

    The file takes any batch and any number of points from k on. The exit status is 1 if its
    answers are not those of the network, to 1e-4, or if it fails the certificate.

    Args:
        target: Run folder, .safetensors file, or model (see `locotrans list`).
        out: File to write, .onnx (with the extra export) or .pt2.
        outputs: What the file gives: logits embedding point_features vectors frames.
        points: Points of the built-in clouds that it is tried on.
        radius: Guarantee of the certificate's search for the worst rotation, in degrees.
        json: File to write the comparison, the times and the certificate to.
        options: Options of a named model as KEY=VALUE.
        classes: Classes of a named model.
    """
    from rich.console import Console
    from rich.table import Table

    from locotrans.certify.run import certify_exported, load_clouds
    from locotrans.certify.targets import load_network
    from locotrans.export import TOLERANCE, compare, export_network, latency
    from locotrans.training.record import environment, find_device, write_json

    network, facts = load_network(target, options, classes)
    clouds, what = load_clouds([], shapes=4, points=points)
    export_network(network, out, outputs=outputs, metadata=facts)
    console = Console()
    rows = compare(network, out, outputs, clouds)
    table = Table(title=f"{out} against torch (allowed: {TOLERANCE:g})")
    for column in ("clouds", "batch", "points", "relative difference"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row.clouds, str(row.batch), str(row.points), f"{row.error:.1e}")
    console.print(table)
    times = latency(network, out, [(1, points), (8, points)])
    table = Table(title="processor time on the CPU, side by side")
    for column in ("batch", "points", "torch", "file", "torch / file"):
        table.add_column(column, justify="right")
    for time in times:
        spent = [f"{time[key]:.1f} ms" for key in ("torch_ms", "file_ms")]
        table.add_row(str(time["batch"]), str(time["points"]), *spent, f"{time['ratio']:.2f}")
    console.print(table)
    certificate = certify_exported(network, out, clouds, radius=radius, clouds=what)
    print(certificate)
    same = all(row.error <= TOLERANCE for row in rows)
    if json is not None:
        compared = [row._asdict() for row in rows]
        measured = {"comparison": compared, "latency": times, "certificate": certificate.to_json()}
        write_json(json, {**facts, **measured, "environment": environment(find_device("cpu"))})
    if not same:
        print(f"{out} fails: its answers are not those of the network, to {TOLERANCE:g}")
    return 0 if same and certificate.passed else 1


def align(
    a: tyro.conf.Positional[Path],
    b: tyro.conf.Positional[Path],
    /,
    weights: Path,
    out: Path | None = None,
    json: Path | None = None,
    points: int = 1024,
    refine: bool = True,
    seed: int = 0,
) -> None:
    """Find the rotation between two clouds of one object, in the same unit; the points may differ.

    Args:
        a: File that is laid onto the other.
        b: File of the same object in another pose.
        weights: Run folder of `train`, or a .safetensors file, of a LocoTrans or a VN-DGCNN.
        out: File, .ply or .npy, for the first cloud as it lies on the second.
        json: File to write the motion to.
        points: Points of each that the network sees.
        refine: Improve the network's answer by iterated closest points.
        seed: Seed of the choice of points.
    """
    from locotrans.align import align as find
    from locotrans.align import angle_of, read_points, write_cloud
    from locotrans.training import load_weights
    from locotrans.training.record import write_json

    network, _ = load_weights(weights)
    first, second = read_points(a), read_points(b)
    found = find(network, first, second, points=points, refine=refine, seed=seed)
    print(f"x -> R x + t lays {a} onto {b}; R:")
    for row in found.rotation.tolist():
        print(" ".join(f"{x:12.8f}" for x in row))
    print("t:", " ".join(f"{x:.8g}" for x in found.translation.tolist()))
    radius = float(abs(second - second.mean(0)).max())
    print(
        f"angle {found.degrees:.3f} degrees (by the network alone "
        f"{angle_of(found.first_rotation):.3f}); residual {found.residual:.4g}, "
        f"{found.residual / radius:.2%} of the cloud's extent"
    )
    if out is not None:
        write_cloud(out, found.apply(first))
    if json is not None:
        plain = {
            key: x if isinstance(x, float) else x.tolist() for key, x in found._asdict().items()
        }
        write_json(json, {"a": str(a), "b": str(b), "degrees": found.degrees, **plain})


def convert(
    file: tyro.conf.Positional[Path],
    /,
    out: Path = Path("weights.safetensors"),
    class_names: Path | None = None,
    points: int = 1024,
) -> None:
    """Write weights that the authors' program saved as weights of ours, for `eval` and `predict`.

    Args:
        file: Their checkpoint, such as model.t7: a state dict of the full or the light network.
        out: Weights file to write, .safetensors.
        class_names: Text file with the name of a class in every line, in the order of the labels;
            without it classes are numbers, and stand for those of any data set with as many.
        points: Points per shape that the network was trained with.
    """
    from locotrans.convert import read_authors
    from locotrans.training.checkpoint import write_tensors
    from locotrans.training.config import to_json

    network = read_authors(file)
    count = network.num_classes
    names = [str(i) for i in range(count)]
    if class_names is not None:
        names = class_names.read_text().split()
        if len(names) != count:
            raise ValueError(
                f"{class_names} names {len(names)} classes, {file} tells {count} apart"
            )
    name = CLASSIFIERS[0 if network.config.fusion else 1]
    facts = {"model": name, "config": to_json(network.config), "num_classes": count}
    facts |= {"class_names": names, "part_names": [], "data": "modelnet40", "points": points}
    write_tensors(out, network.state_dict(), {**facts, "converted_from": file.name})
    print(f"{name} with {count} classes is in {out}")


def data_commands() -> None:
    """Check, export and prepare data sets: `locotrans data --help`."""


def check_data(root: tyro.conf.Positional[Path | None] = None, /, classes: bool = False) -> None:
    """Say which data sets lie in a folder, what they hold, and what is wrong.

    Args:
        root: Folder to look into, or a table of paths and labels; by default as for `train`: the
            environment variable LOCOTRANS_DATA, then the cache folder.
        classes: Count the shapes of every class too.
    """
    from locotrans.data import check

    report = check(root)
    for line in report.lines(classes=classes):
        print(line)
    if report.problems:
        more = f"; and {len(report.problems) - 3} more, above" if len(report.problems) > 3 else ""
        raise ValueError("; ".join(report.problems[:3]) + more)


def export_data(
    layout: tyro.conf.Positional[str],
    out: tyro.conf.Positional[Path],
    /,
    train: int = 200,
    test: int = 60,
    points: int = 2048,
    seed: int = 0,
) -> None:
    """Write the built-in set as files of an official layout, to try every path without the data.

    Args:
        layout: Name and layout, for example modelnet40:hdf5, shapenetpart:normal, s3dis.
        out: Folder to write into, new or empty; it is then the --root of `train` and `eval`.
        train: Training shapes.
        test: Test shapes.
        points: Points per shape.
        seed: Seed of the shapes.
    """
    from locotrans.data import export

    root = export(layout, out, train=train, test=test, points=points, seed=seed)
    print(f"{layout} is in {root}")


def prepare_rooms(raw: tyro.conf.Positional[Path], out: tyro.conf.Positional[Path], /) -> None:
    """Turn the raw annotations of S3DIS into the usual arrays of its rooms.

    Args:
        raw: The unpacked Stanford3dDataset_v1.2_Aligned_Version.
        out: Folder for the arrays, such as stanford_indoor3d.
    """
    from locotrans.data.s3dis_raw import prepare_s3dis

    print(f"{len(prepare_s3dis(raw, out))} rooms are in {out}")


def checkpoint_commands() -> None:
    """Cut large files into parts, and join them: `locotrans checkpoint --help`."""


def split_files(path: tyro.conf.Positional[Path], /, size: int = 16) -> None:
    """Cut a file, or all large files of a run folder, into parts; the whole ones are removed.

    Args:
        path: File or folder.
        size: Largest part in MiB.
    """
    from locotrans.training.parts import MEBIBYTE, split

    for part in split(path, size * MEBIBYTE):
        print(part)


def join_files(path: tyro.conf.Positional[Path], /) -> None:
    """Put files together again from their parts; the parts are removed.

    Args:
        path: File or folder.
    """
    from locotrans.training.parts import join

    for file in join(path):
        print(file)


def shipped_file(name: Path) -> Path:
    """Return the weights that come with the package for a model."""
    from locotrans.models import pretrained_weights

    return pretrained_weights(str(name))[0]


def default_weights() -> Path:
    """Return the weights that come with the package: the full network's, or the light one's."""
    from locotrans.models import list_pretrained

    shipped = [name for name in CLASSIFIERS if name in list_pretrained()]
    if not shipped:
        raise ValueError(
            "no trained weights come with locotrans yet; name a run folder of `locotrans train`, "
            "or a .safetensors file (--weights)"
        )
    return shipped_file(Path(shipped[0]))


def print_evaluation(result: dict[str, Any]) -> None:
    """Print what `evaluate` returned as a table of heads."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("head")
    shown = [key for key in TITLES if key in result]
    for key in shown:
        table.add_column(TITLES[key], justify="right")
    rows = list(result["heads"].items())
    if "without_excluded" in result:
        others = result["without_excluded"]["heads"].items()
        rows += [(f"{head}, without the excluded", figures) for head, figures in others]
    for head, figures in rows:
        table.add_row(head, *(f"{100 * figures[key]:.2f}%" for key in shown))
    console = Console()
    console.print(protocol_of(result), soft_wrap=True, markup=False)
    console.print(table)
    if "categories" in result:
        shares = {name: [iou] for name, iou in result["categories"].items()}
        console.print(table_of("category", ["mIoU"], shares))
    if "classes" in result:
        shares = {name: [row["iou"], row["accuracy"]] for name, row in result["classes"].items()}
        console.print(table_of("class", ["IoU", "accuracy"], shares))


def table_of(what: str, columns: Sequence[str], rows: dict[str, list[float]]) -> "Table":
    """Lay out shares by name."""
    from rich.table import Table

    table = Table()
    table.add_column(what)
    for column in columns:
        table.add_column(column, justify="right")
    for name, shares in rows.items():
        table.add_row(name, *(f"{100 * share:.2f}%" for share in shares))
    return table


def protocol_of(result: dict[str, Any]) -> str:
    """Say in a line what was measured how."""
    axis = f" (about the {result['axis']} axis)" if result["axis"] else ""
    return (
        f"{result['data']} {result['split']}, {result['samples']} shapes, "
        f"rotation {result['rotation']}{axis}, {result['rotations_per_shape']} per shape"
    )


def info(
    model: tyro.conf.Positional[str],
    /,
    options: tuple[str, ...] = (),
    classes: int = 40,
    points: int = 1024,
    depth: int = 2,
) -> None:
    """Print the parameters, the FLOPs and the flow of shapes of a model.

    Args:
        model: Model (see `locotrans list`).
        options: Options of the model as KEY=VALUE.
        classes: Classes to tell apart.
        points: Points of the cloud that is sent through.
        depth: How deep to follow modules within modules.
    """
    import torch
    from rich.console import Console
    from rich.table import Table
    from torch.utils.flop_counter import FlopCounterMode

    from locotrans import create_model
    from locotrans.kernels import set_kernels

    network = create_model(model, classes, **parse_options(model, options)).eval()
    cloud = torch.randn(1, points, 3, generator=torch.Generator().manual_seed(0))
    given: dict[str, Tensor] = {}
    if getattr(network.config, "categories", 0):
        given["category"] = torch.zeros(1, dtype=torch.long)
    if getattr(network.config, "colors", False):
        given["colors"] = torch.zeros_like(cloud)
    before = set_kernels("off")  # what a kernel computes is not counted
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            flow = shape_flow(network, cloud, depth, **given)
    finally:
        set_kernels(before)
    table = Table(title=f"{model}, one cloud of {points} points")
    table.add_column("module", no_wrap=True)
    table.add_column("output")
    table.add_column("parameters", justify="right")
    for name, shape, parameters in flow:
        table.add_row(name, shape, f"{parameters:,}")
    console = Console()
    console.print(table)
    console.print(network.config)
    console.print(f"parameters {sum(p.numel() for p in network.parameters()):,}", highlight=False)
    total = counter.get_total_flops()
    console.print(f"FLOPs {total:,} (products only, 2 per multiply-add)", highlight=False)


def shape_flow(
    model: "nn.Module", points: "Tensor", depth: int, **given: "Tensor"
) -> list[tuple[str, str, int]]:
    """Run the model and list the modules in order of their answers: name, shape, parameters."""
    from torch import Tensor

    flow = []

    def watch(name: str) -> Callable[..., None]:
        def note(module: "nn.Module", _: Any, output: Any) -> None:
            values = (output,) if isinstance(output, Tensor) else output
            names = getattr(values, "_fields", [""] * len(values))
            shapes = [
                f"{field} {tuple(value.shape)}".strip()
                for field, value in zip(names, values, strict=True)
                if isinstance(value, Tensor)
            ]
            flow.append((name, "\n".join(shapes), sum(p.numel() for p in module.parameters())))

        return note

    handles = [
        module.register_forward_hook(watch(name or "(whole)"))
        for name, module in model.named_modules()
        if level(name) <= depth
    ]
    model(points, **given)
    for handle in handles:
        handle.remove()
    return flow


def level(name: str) -> int:
    """Return how deep a module lies; the entries of a list lie where the list's owner does."""
    parts = name.split(".")
    return sum(not part.isdigit() for part in (parts[:-2] if parts[-1].isdigit() else parts))


def list_names() -> None:
    """List the models, the data sets and the presets."""
    from locotrans import list_models
    from locotrans.data import list_datasets

    print("models:   ", " ".join(list_models("classification")))
    print("parts:    ", " ".join(list_models("parts")))
    print("scenes:   ", " ".join(list_models("scenes")))
    print("data sets:", " ".join(list_datasets()))
    print("presets:  ", " ".join(list_presets()))
