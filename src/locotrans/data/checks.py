"""What lies in a folder: the data sets that are recognised there, their counts, what is wrong."""

import hashlib
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from locotrans.counting import counted
from locotrans.data.check_report import Report, SetReport, SplitReport
from locotrans.data.clouds import CloudSet
from locotrans.data.hdf5 import FewerPointsError
from locotrans.data.listing import is_split, is_table
from locotrans.data.modelnet import LAYOUTS as MODELNET
from locotrans.data.own import file_sizes
from locotrans.data.parttext import read_lists
from locotrans.data.prepared import UnreadableFilesError
from locotrans.data.registry import load_dataset
from locotrans.data.roots import cache_root, data_root, find_layouts
from locotrans.data.s3dis import LAYOUT as S3DIS
from locotrans.data.scanobjectnn import find_scanobjectnn
from locotrans.data.shapenetpart import LAYOUTS as SHAPENETPART

GENERIC = ("train*.h5", "test*.h5")
RAW_ROOMS = "Area_*/*/Annotations"
SAME = "the points of shapes to train on (--twins FILE lists them, for `eval --exclude`)"
SAMPLED = 1024  # points to load where clouds are sampled from files of any size


def check(root: Path | str | None = None, data: str | None = None) -> Report:
    """Recognise the data sets under a folder, load each split, and report.

    Args:
        root: The folder, as for `load_dataset`; folders directly below it are looked into as well.
        data: The data set that it is to be, such as "folder:sphere=1.0", instead of what it is
            recognised as.
    """
    place = data_root(None if root is None else Path(root))
    if not place.exists():
        raise FileNotFoundError(f"{place} does not exist")
    sets = recognise(place) if data is None else [(data, place)]
    return Report(place, [_check_set(name, folder) for name, folder in sets])


def recognise(root: Path) -> list[tuple[str, Path]]:
    """List the data sets under a folder: names for `load_dataset`, and the root to give it."""
    if root.is_file():
        if root.suffix.lower() == ".csv":
            return [("csv", root)]
        raise ValueError(f"{root} is a file; name the folder of the data, or a table (.csv)")
    found = [(f"modelnet40:{la.name}", place) for la, place in find_layouts(root, MODELNET)]
    found += [(name, root) for name in find_scanobjectnn(root)]
    found += [(f"shapenetpart:{la.name}", place) for la, place in find_layouts(root, SHAPENETPART)]
    for _, place in find_layouts(root, (S3DIS,)):
        names = ["s3dis"] if (place / "rooms_split.json").exists() else []
        areas = sorted({path.stem.split("_")[1] for path in place.glob("Area_*_*.npy")})
        if len(areas) > 1:
            names += [f"s3dis:area{area}" for area in areas]
        found += [(name, place) for name in names or [f"s3dis:area{areas[0]}"]]
    for place in (root, *_below(root)):
        if any(place.glob(RAW_ROOMS)):
            found.append(("s3dis:raw", place))
    taken = {place for _, place in found}
    for place in (root, *_below(root)):
        if place not in taken and any(any(place.glob(mark)) for mark in GENERIC):
            found.append(("hdf5", place))
        elif place not in taken and place != root and find_layouts(place, SHAPENETPART[1:]):
            found.append(
                (f"shapenetpart:{find_layouts(place, SHAPENETPART[1:])[0][0].name}", place)
            )
    if not found:
        found = [("csv", path) for path in sorted(root.glob("*.csv")) if is_table(path)]
    if not found and _below(root) and root.resolve() != cache_root().resolve():
        found = [("folder", root)]
    return found


def _below(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir())


def _check_set(name: str, folder: Path) -> SetReport:
    report = SetReport(name, folder)
    if name == "s3dis:raw":
        remedy = f"`locotrans data prepare-s3dis {folder} OUT` makes the arrays that are read"
        report.problems.append(f"these are raw annotations: {remedy}")
        return report
    if name == "folder":
        report.notes += _loose(folder)
    splits = ["train", "test"]
    if name.startswith("shapenetpart"):
        splits = ["train", "val", "test"]
        if ":" in name and not name.endswith("hdf5"):
            splits = [split for split, shapes in read_lists(folder).items() if shapes]
    elif name == "hdf5":
        splits = [split for split in splits if any(folder.glob(f"{split}*.h5"))]
    for split in splits:
        try:
            (_check_own if name in ("folder", "csv") else _check_split)(report, split)
        except UnreadableFilesError as error:
            report.problems += [f"{split}: {' '.join(reason.split())}" for reason in error.reasons]
        except (ValueError, OSError, json.JSONDecodeError) as error:
            report.problems.append(f"{split}: {' '.join(str(error).split())}")
    return report


def _check_split(report: SetReport, split: str) -> None:
    """Load a split with as many points as its files have, or sample them."""

    def load(points: int) -> CloudSet:
        return load_dataset(report.name, split, root=report.folder, points=points, log_notes=False)

    exact = report.name.endswith("hdf5") or report.name.startswith("scanobjectnn")
    try:
        _count(report, load(2**31 if exact else SAMPLED), sampled=not exact)
    except FewerPointsError as error:  # 2**31 is more than any file has
        _count(report, load(error.available))


def _check_own(report: SetReport, split: str) -> None:
    """Load the files of a split that can be read, and name every other one."""
    name, skip = report.name, False
    try:
        sizes = file_sizes(name, report.folder, split)
    except UnreadableFilesError as error:
        report.problems += [f"{split}: {' '.join(reason.split())}" for reason in error.reasons]
        if error.total == len(error.reasons):
            return
        skip = True
        sizes = file_sizes(name, report.folder, split, skip=True)
    name += ":skip=true" if skip else ""
    clouds = load_dataset(name, split, root=report.folder, points=min(sizes), log_notes=False)
    middle = round(statistics.median(sizes))
    _count(report, clouds, (min(sizes), middle, max(sizes)))


def _count(
    report: SetReport,
    clouds: CloudSet,
    sizes: tuple[int, int, int] | None = None,
    *,
    sampled: bool = False,
) -> None:
    report.up = clouds.up
    count, classes, parts, rooms = None, clouds.class_counts, {}, 0
    notes = clouds.notes
    scenes = clouds.items != "shapes"
    if clouds.parts is not None and (scenes or not sampled):
        known = clouds.parts[clouds.parts >= 0]
        numbers = known.bincount(minlength=len(clouds.part_names))
        parts = dict(zip(clouds.part_names, numbers.tolist(), strict=True))
    if scenes:
        classes, parts = parts, {}
        rooms = len({name.partition("@")[0] for name in clouds.ids})
    elif (name := clouds.split) == "train":
        report.seen.update(map(_digest, clouds.points.numpy()))
    else:
        twins = [row for row, x in enumerate(clouds.points.numpy()) if _digest(x) in report.seen]
        report.twins += [clouds.ids[row] if clouds.ids else f"{name}#{row}" for row in twins]
        if twins:
            notes = (*notes, f"{counted(len(twins), 'shape has', 'shapes have')} {SAME}")
    if not sampled:
        count = clouds.points.shape[1]
    report.splits.append(
        SplitReport(
            split=clouds.split,
            shapes=len(clouds),
            points=count,
            classes=classes,
            parts=parts,
            notes=notes,
            sizes=sizes,
            items=clouds.items,
            rooms=rooms,
        )
    )


def _digest(points: Float[np.ndarray, "n 3"]) -> bytes:
    """Digest a cloud; the same file gives the same points, also of a mesh."""
    return hashlib.sha256(points.tobytes()).digest()


def _loose(root: Path) -> list[str]:
    """Say which clouds lie beside the folders of classes, or of splits."""
    notes = []
    names = _clouds_beside(root)
    if names:
        files = counted(len(names), "file")
        notes.append(f"{files} beside the class folders, of no class: {_some(names)}")
    split = [place for place in _below(root) if any(is_split(x.name) for x in _below(place))]
    names = [f"{place.name}/{name}" for place in split for name in _clouds_beside(place)]
    if names:
        files = counted(len(names), "file")
        notes.append(f"{files} beside the folders of splits, of no split: {_some(names)}")
    return notes


def _clouds_beside(folder: Path) -> list[str]:
    """Name the clouds directly in a folder; tables and notes are text as well."""
    from locotrans.data.readers import FORMATS

    known = set(FORMATS) - {".txt", ".csv"}
    return sorted(x.name for x in folder.iterdir() if x.is_file() and x.suffix.lower() in known)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
