"""ScanObjectNN: objects cut from real scans, in variants that are different tasks."""

from pathlib import Path

from locotrans.data.clouds import CloudSet
from locotrans.data.hdf5 import as_axis, load_clouds
from locotrans.data.registry import register_dataset
from locotrans.data.roots import check_split, count_note, data_root, missing, read_lines
from locotrans.data.transforms import normalize

_NAMES = "bag bin box cabinet chair desk display door shelf table bed pillow sink sofa toilet"
CLASSES = tuple(_NAMES.split())
VARIANTS = {
    "obj_only": ("main_split_nobg", "objectdataset", (2309, 581)),
    "obj_bg": ("main_split", "objectdataset", (2309, 581)),
    "pb_t25": ("main_split", "objectdataset_augmented25_norot", (0, 0)),
    "pb_t25_r": ("main_split", "objectdataset_augmented25rot", (0, 0)),
    "pb_t50_r": ("main_split", "objectdataset_augmentedrot", (0, 0)),
    "pb_t50_rs": ("main_split", "objectdataset_augmentedrot_scale75", (11416, 2882)),
}
"""Folder, end of the file's name, and official sizes (train, test) where the paper's are known."""

FILES = {"train": "training", "test": "test"}
HOME = (
    "h5_files.zip, on request (terms of use) from the project's page, "
    "hkust-vgd.github.io/scanobjectnn"
)


@register_dataset("scanobjectnn")
def load_scanobjectnn(
    split: str,
    *,
    root: Path | None = None,
    points: int = 1024,
    seed: int = 0,
    variant: str = "",
    up: str = "y",
) -> CloudSet:
    """Load a variant of ScanObjectNN, main split; clouds are normalised after the choice of points.

    ``masks`` is True on the object and False on its background (-1 in the files).

    Args:
        split: "train" or "test".
        root: Folder that holds ``h5_files``, or that folder.
        points: Points of each shape, of 2,048.
        seed: Seed of the choice of points: the files' order is not random.
        variant: "obj_only", "obj_bg" or "pb_t50_rs", the three that papers report; or "pb_t25",
            "pb_t25_r", "pb_t50_r". There is no default: figures of different variants do not
            compare.
        up: The axis that points up; y in the official files.
    """
    known = ", ".join(f"scanobjectnn:{name}" for name in VARIANTS)
    if variant not in VARIANTS:
        got = f"got {variant!r}" if variant else "name one"
        raise ValueError(f"the variants of ScanObjectNN are different tasks; {got}: {known}")
    check_split("scanobjectnn", split, tuple(FILES))
    folder, stem, official = VARIANTS[variant]
    name = f"{folder}/{FILES[split]}_{stem}.h5"
    place = data_root(root)
    path = next((base / name for base in _bases(place) if (base / name).exists()), None)
    if path is None:
        raise missing(f"scanobjectnn:{variant}", place, [f"{place}/h5_files/{name}"], HOME)
    arrays = load_clouds([path], points, optional=("mask",), seed=seed)
    size = official[list(FILES).index(split)]
    notes = count_note("shapes", len(arrays["label"]), (size,)) if size else []
    names_file = path.parents[1] / "shape_names.txt"
    names = tuple(read_lines(names_file)) if names_file.exists() else CLASSES
    if names != CLASSES:
        notes.append(f"{len(names)} class names that are not those of ScanObjectNN")
    return CloudSet(
        name=f"scanobjectnn:{variant}",
        split=split,
        up=as_axis(up),
        points=normalize(arrays["data"]),
        labels=arrays["label"],
        class_names=names,
        masks=arrays["mask"] >= 0 if "mask" in arrays else None,
        notes=tuple(notes),
    )


def find_scanobjectnn(root: Path) -> list[str]:
    """List the variants that lie under ``root``."""
    return [
        f"scanobjectnn:{variant}"
        for variant, (folder, stem, _) in VARIANTS.items()
        if any(
            (base / folder / f"{f}_{stem}.h5").exists()
            for base in _bases(root)
            for f in FILES.values()
        )
    ]


def _bases(root: Path) -> list[Path]:
    """Return where the release may have been unpacked."""
    return [base / name for base in (root, root / "ScanObjectNN") for name in ("h5_files", ".")]
