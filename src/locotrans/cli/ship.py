"""Commands that prove a network, and take it elsewhere."""

from pathlib import Path
from typing import Literal

import tyro

from locotrans.cli.shared import shipped_file


def trained(name: str, options: tuple[str, ...]) -> str:
    """Return the file of the weights that come with the package for a model."""
    if options:
        raise ValueError("--options are for fresh weights: those of --pretrained have their own")
    return str(shipped_file(name))


def certify(
    target: tyro.conf.Positional[str],
    files: tyro.conf.Positional[tuple[Path, ...]] = (),
    /,
    pretrained: bool = False,
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
        target: Model (see `locotrans list`) with fresh weights, run folder, .safetensors or .onnx
            file, or module:function, which is a network on points (b, n, 3) or makes one.
        files: Clouds to try; by default some of the data set.
        pretrained: Take the weights that come with locotrans for the model of that name, instead.
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
        classes: Classes of a named model with fresh weights.
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
    network = load_target(trained(target, options) if pretrained else target, options, classes)
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


def export(
    target: tyro.conf.Positional[str],
    out: tyro.conf.Positional[Path],
    files: tyro.conf.Positional[tuple[Path, ...]] = (),
    /,
    pretrained: bool = False,
    outputs: tuple[str, ...] = ("logits",),
    points: int = 64,
    radius: float = 50.0,
    json: Path | None = None,
    options: tuple[str, ...] = (),
    classes: int = 40,
) -> int:
    """Write a network as ONNX or .pt2, run the file against it, and certify the file.

    The file takes any batch and any number of points from k on. The exit status is 1 if its
    answers are not those of the network, to 1e-4, or if it fails the certificate. Vectors, frames
    and features of points may differ from the network in float64 by three times what float32 does.

    Args:
        target: Run folder, .safetensors file, or model (see `locotrans list`), with fresh weights.
        out: File to write, .onnx (with the extra export) or .pt2.
        files: Clouds to try it on, beside random ones; by default four built-in shapes.
        pretrained: Take the weights that come with locotrans for the model of that name, instead.
        outputs: What the file gives: logits embedding point_features vectors frames.
        points: Points of each of these clouds.
        radius: Guarantee of the certificate's search for the worst rotation, in degrees.
        json: File to write the comparison, the times and the certificate to.
        options: Options of a named model as KEY=VALUE.
        classes: Classes of a named model with fresh weights.
    """
    from rich.console import Console
    from rich.table import Table

    from locotrans.certify.run import certify_exported, load_clouds
    from locotrans.certify.targets import load_network
    from locotrans.export import ALLOWED, compare, export_network, latency
    from locotrans.training.record import environment, find_device, write_json

    spec = trained(target, options) if pretrained else target
    network, facts = load_network(spec, options, classes)
    clouds, what = load_clouds(files, shapes=4, points=points)
    export_network(network, out, outputs=outputs, metadata=facts)
    console = Console()
    rows = compare(network, out, outputs, clouds)
    table = Table(title=f"{out} against torch, relative differences (allowed: {ALLOWED})")
    for column in ("clouds", "batch", "points", "output", "from torch", "from float64", "torch's"):
        table.add_column(column, justify="right")
    for row in rows:
        errors = (row.error, row.exact_error, row.torch_error)
        figures = ["" if error is None else f"{error:.1e}" for error in errors]
        table.add_row(row.clouds, str(row.batch), str(row.points), row.output, *figures)
    console.print(table)
    sizes = dict.fromkeys([(1, points), (8, points), (1, 1024)])
    times = latency(network, out, list(sizes))
    table = Table(title="processor time on the CPU, side by side")
    for column in ("batch", "points", "torch", "file", "torch / file"):
        table.add_column(column, justify="right")
    for time in times:
        spent = [f"{time[key]:.1f} ms" for key in ("torch_ms", "file_ms")]
        table.add_row(str(time["batch"]), str(time["points"]), *spent, f"{time['ratio']:.2f}")
    console.print(table)
    certificate = certify_exported(network, out, clouds, radius=radius, clouds=what)
    print(certificate)
    same = all(row.passes for row in rows)
    if json is not None:
        compared = [{**row._asdict(), "passes": row.passes} for row in rows]
        measured = {"comparison": compared, "latency": times, "certificate": certificate.to_json()}
        write_json(json, {**facts, **measured, "environment": environment(find_device("cpu"))})
    if not same:
        print(f"{out} fails: its answers are not those of the network, to {ALLOWED}")
    return 0 if same and certificate.passed else 1
