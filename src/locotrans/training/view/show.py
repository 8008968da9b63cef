"""`locotrans view`, from the command's arguments to a page."""

from pathlib import Path

from locotrans.counting import counted
from locotrans.training.record import find_device, write_atomically
from locotrans.training.tasks import folder_category
from locotrans.training.view.networks import load_viewed
from locotrans.training.view.page import saved_page
from locotrans.training.view.scenes import Viewer
from locotrans.training.view.server import serve


def view(
    path: Path,
    weights: Path,
    *,
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

    Args:
        path: Point cloud or mesh.
        weights: Run folder or weights file, of a classifier or of a network for parts.
        against: A second network to stand beside it.
        category: Category of the shape, for parts; by default the nearest folder so named.
        save: Page to write instead of serving one.
        poses: Random poses that a saved page holds the answers for.
        host: Address to serve at.
        port: Port to serve at; 0 takes any that is free.
        seed: Seed of the choice of points and of the saved poses.
        device: Device: auto, cpu, cuda or cuda:INDEX.
    """
    place = find_device(device)
    chosen = [weights] if against is None else [weights, against]
    viewer = Viewer([load_viewed(weights, place) for weights in chosen], seed)
    if category is not None and category.lower() not in map(str.lower, viewer.categories):
        known = ", ".join(viewer.categories) or "none, as no network labels parts"
        raise ValueError(f"unknown category {category!r}; known: {known}")
    if save is not None and not save.parent.is_dir():
        raise ValueError(f"--save {save}: there is no folder {save.parent}; make it first")
    if category is None and viewer.categories:
        try:
            category = viewer.categories[folder_category(path, viewer.categories)]
        except ValueError as error:
            if save is not None:  # a live page lets one choose
                raise ValueError(f"{path}: {error}") from None
    number = viewer.open(path, path.name, category or "")
    if save is None:
        viewer.state(number)  # what cannot be answered shows before a page is opened
        serve(viewer, number, host, port)
        return
    write_atomically(save, saved_page(viewer, number, poses).encode())
    print(f"{save} shows {path.name} in its own pose and in {counted(poses, 'random one')}")
