"""Commands that take files and give answers."""

import sys
from pathlib import Path
from typing import Literal

import tyro

from locotrans.cli.shared import weights_or_shipped

FAR = 0.05  # of the extent: a residual of clouds that do not lie on each other, if not sparse


def predict(
    paths: tyro.conf.Positional[tuple[Path, ...]],
    /,
    weights: Path | None = None,
    csv: Path | None = None,
    json: Path | None = None,
    rotations: int = 0,
    points: int | None = None,
    seed: int = 0,
    choice: Literal["random", "farthest", "even"] | None = None,
    batch_size: int = 32,
    device: str = "auto",
) -> int:
    """Classify files; print the answers, or write them as CSV or JSON.

    A row for each file: path, class, confidence, agreement, points, and the error of one that could
    not be read. The exit status is 1 if there was such a file.

    Args:
        paths: Files or folders (searched at any depth); any mix of formats and sizes.
        weights: Run folder of `train`, a .safetensors file, or the name of weights that come with
            locotrans; by default locotrans_dgcnn_light, for ModelNet40's 40 classes.
        csv: CSV file to write.
        json: JSON file to write.
        rotations: Average over this many random poses of each file, and report which share of them
            agrees with the answer; 0 takes the pose of the file.
        points: Points chosen of each file; by default as in training.
        seed: Seed of the poses and of the choice of points.
        choice: How points are chosen: at random, farthest points, which even out a density that
            varies much within a scan, or even (farthest ones of the points and others between
            them); by default as in training: even for a network trained so, or else at random.
        batch_size: Files at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training.predict import predict as run

    return run(
        paths,
        weights_or_shipped(weights),
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
    out: Path,
    weights: Path | None = None,
    per_point: bool = False,
    points: int | None = None,
    seed: int = 0,
    choice: Literal["random", "farthest", "even"] | None = None,
    batch_size: int = 32,
    device: str = "auto",
) -> int:
    """Write the embedding of each file, as .npz or .safetensors.

    Arrays: embeddings (files, channels) and paths; failed and reasons of files that could not be
    read. Per point also points, centers and radii: points * radius + center are the coordinates of
    the file. In .safetensors, texts are JSON lists in the metadata.

    Args:
        paths: Files or folders (searched at any depth); any mix of formats and sizes.
        out: File to write, .npz or .safetensors.
        weights: Run folder of `train`, a .safetensors file, or the name of weights that come with
            locotrans; by default locotrans_dgcnn_light, for ModelNet40's 40 classes.
        per_point: Write the features of every point instead of one vector a file.
        points: Points chosen of each file; by default as in training.
        seed: Seed of the choice of points.
        choice: How points are chosen: at random, farthest points, which even out a density that
            varies much within a scan, or even (farthest ones of the points and others between
            them); by default as in training: even for a network trained so, or else at random.
        batch_size: Files at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training.predict import embed as run

    return run(
        paths,
        weights_or_shipped(weights),
        out,
        per_point=per_point,
        points=points,
        seed=seed,
        choice=choice,
        batch_size=batch_size,
        device=device,
        workers=None,
    )


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
    html: bool = False,
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
            default those for the 16 categories of ShapeNetPart that come with locotrans.
        out: Folder for the labelled clouds.
        format: ply (label, confidence, colour of the label), npz, or las (with the extra las).
        category: Category of the shapes, for parts; by default the nearest folder so named.
        radius: Radius of the spheres that a scene is cut into; by default as in training.
        points: Points of a block; by default as in training.
        turns: Spheres that every point of a scene is in, at least; their votes are added.
        picture: Write a picture of each file, too.
        html: Write a page of each file, too, that turns with the mouse; one self-contained file.
        seed: Seed of the choice of points.
        batch_size: Blocks at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training.segment import segment as run

    return run(
        paths,
        weights_or_shipped(weights, parts=True),
        out,
        form=format,
        category=category,
        radius=radius,
        points=points,
        turns=turns,
        picture=picture,
        html=html,
        seed=seed,
        batch_size=batch_size,
        device=device,
    )


def align(
    a: tyro.conf.Positional[Path],
    b: tyro.conf.Positional[Path],
    /,
    weights: Path | None = None,
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
        weights: Run folder of `train`, or a .safetensors file, of a LocoTrans or a VN-DGCNN; by
            default locotrans_dgcnn_light, which comes with locotrans.
        out: File, .ply or .npy, for the first cloud as it lies on the second.
        json: File to write the motion to.
        points: Points of each that the network sees.
        refine: Improve the network's answer by iterated closest points.
        seed: Seed of the choice of points.
    """
    from locotrans.align import align as find
    from locotrans.align import angle_of, check_cloud_file, read_points, write_cloud
    from locotrans.training import load_weights
    from locotrans.training.predict.samples import trained_choice
    from locotrans.training.record import check_writable, write_json

    if out is not None:
        check_cloud_file(out)
    if json is not None:
        check_writable(json)
    network, metadata = load_weights(weights_or_shipped(weights))
    first, second = read_points(a), read_points(b)
    choice = trained_choice(metadata)
    found = find(network, first, second, points=points, refine=refine, seed=seed, choice=choice)
    if not found.same_size:
        scale = f"{found.scale:.3g}"
        print(
            f"warning: {b} is {scale} times as large as {a}, and the rotation may be wrong: if "
            f"both are of one object, multiply the coordinates of {a} by {scale}",
            file=sys.stderr,
        )
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
    if found.residual > max(FAR * radius, 2 * found.spacing):
        print(
            f"warning: the clouds do not lie on each other to {FAR:.0%} of the extent: they may be "
            "of different objects, or one a mirror image, or the motion wrong",
            file=sys.stderr,
        )
    if out is not None:
        write_cloud(out, found.apply(first))
    if json is not None:
        plain = {
            key: x if isinstance(x, float) else x.tolist() for key, x in found._asdict().items()
        }
        more = {"degrees": found.degrees, "same_size": found.same_size}
        write_json(json, {"a": str(a), "b": str(b), **more, **plain})
