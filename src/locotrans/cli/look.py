"""Commands that show shapes, and find those that are alike."""

from pathlib import Path
from typing import Literal

import tyro

from locotrans.cli.shared import weights_or_shipped


def view(
    path: tyro.conf.Positional[Path],
    /,
    weights: Path | None = None,
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
        weights: Run folder or weights file, of a classifier or of a network for parts; by default
            locotrans_dgcnn_light, or with a category locotrans_dgcnn_partseg_light, which come with
            locotrans.
        against: A second network to stand beside it, for example a DGCNN.
        category: Category of the shape, for parts; by default the nearest folder so named.
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
        weights_or_shipped(weights, parts=category is not None),
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
    seed: int | None = None,
    choice: Literal["farthest", "even", "random"] | None = None,
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
        weights: Run folder of `train`, or a .safetensors file; by default as the index was built,
            and in a new one locotrans_dgcnn_light, which comes with locotrans.
        points: Points chosen of each file; by default as in training.
        seed: Seed of their choice, and of the points drawn from meshes; by default as the index was
            built, and 0 in a new one.
        choice: How they are chosen: farthest points, which depend neither on the order of the
            points nor on the pose, even (farthest ones of the points and others between them), or
            at random; by default as the index was built, and in a new one even for a network
            trained so, or else farthest points. A search chooses as the index does.
        batch_size: Files at a time.
        device: Device: auto, cpu, cuda or cuda:INDEX.
        workers: Processes that read; by default none for a few files, else one a core.
    """
    from locotrans.training.search import build_index

    return build_index(
        folder,
        out,
        weights if out.exists() else weights_or_shipped(weights),
        points=points,
        seed=seed,
        choice=choice,
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
    within: float | None = None,
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
        duplicates: Instead of a file: list shapes whose points are the same but for pose, order
            and scale.
        within: Distance up to which --duplicates lists shapes, whatever their points.
        html: Page of pictures to write, one self-contained file.
        json: File to write the answer to.
        weights: Where the weights of the index are now, if they were moved.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    from locotrans.training.search import search_duplicates, search_file

    if duplicates == (file is not None):
        raise ValueError("name a file to search for, or else give --duplicates")
    if within is not None and not duplicates:
        raise ValueError("--within belongs to --duplicates; -k says how many shapes a file gets")
    if file is None:
        search_duplicates(index, within=within, html=html, json=json)
        return
    search_file(index, file, k=k, weights=weights, html=html, json=json, device=device)
