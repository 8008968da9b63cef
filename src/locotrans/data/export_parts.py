"""Writers of the layouts with labelled points: parts of shapes, and rooms."""

import json
from pathlib import Path

import numpy as np

from locotrans.data.clouds import CloudSet
from locotrans.data.export_shapes import Sets, shape_ids, write_h5, write_lines, y_up
from locotrans.data.s3dis import CLASSES

ROOM = 6
"""Shapes in a room, in two rows on a floor of 3 m x 2 m."""


def _synset(label: int) -> str:
    return f"{label:08d}"


def _overall(clouds: CloudSet) -> dict[str, int]:
    """Number parts as the HDF5 release does: "category_part", parts from 1, to the overall one."""
    result, counts = {}, dict.fromkeys(clouds.class_names, 0)
    for number, name in enumerate(clouds.part_names):
        kind = name.partition("/")[0]
        counts[kind] += 1
        result[f"{_synset(clouds.class_names.index(kind))}_{counts[kind]}"] = number
    return result


def _write_tables(folder: Path, clouds: CloudSet, categories_file: str) -> None:
    rows = (f"{name}\t{_synset(label)}" for label, name in enumerate(clouds.class_names))
    write_lines(folder / categories_file, rows)
    (folder / "catid_partid_to_overallid.json").write_text(json.dumps(_overall(clouds)))


def _with_val(sets: Sets) -> Sets:
    """Make the last fifth of the training shapes a validation split."""
    cut = max(1, len(sets["train"]) * 4 // 5)
    rows = range(len(sets["train"]))
    return {
        "train": sets["train"].subset(rows[:cut]),
        "val": sets["train"].subset(rows[cut:] or rows[-1:]),
        "test": sets["test"],
    }


def parts_hdf5(out: Path, sets: Sets, variant: str) -> None:
    """Write ``hdf5_data/ply_data_*.h5`` with data, label and pid."""
    folder = out / "hdf5_data"
    for split, clouds in _with_val(sets).items():
        assert clouds.parts is not None
        write_h5(
            folder / f"ply_data_{split}0.h5",
            data=y_up(clouds.points).numpy(),
            label=clouds.labels[:, None].numpy().astype(np.uint8),
            pid=clouds.parts.numpy().astype(np.uint8),
        )
        write_lines(folder / f"{split}_hdf5_file_list.txt", [f"ply_data_{split}0.h5"])
    _write_tables(folder, sets["train"], "all_object_categories.txt")


def _write_lists(folder: Path, sets: Sets) -> dict[str, list[str]]:
    names = shape_ids(sets)
    for split, clouds in sets.items():
        labels = clouds.labels.tolist()
        entries = [
            f"shape_data/{_synset(k)}/{n}" for k, n in zip(labels, names[split], strict=True)
        ]
        path = folder / "train_test_split" / f"shuffled_{split}_file_list.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(entries))
    return names


def parts_normal(out: Path, sets: Sets, variant: str) -> None:
    """Write the text layout with normals: x y z nx ny nz part."""
    folder = out / "shapenetcore_partanno_segmentation_benchmark_v0_normal"
    splits = _with_val(sets)
    names = _write_lists(folder, splits)
    for split, clouds in splits.items():
        assert clouds.parts is not None
        assert clouds.normals is not None
        for row, name in enumerate(names[split]):
            path = folder / _synset(int(clouds.labels[row])) / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            vectors = (
                y_up(clouds.points[row]),
                y_up(clouds.normals[row]),
                clouds.parts[row, :, None],
            )
            columns = np.concatenate([vector.numpy() for vector in vectors], axis=1)
            np.savetxt(path, columns, fmt="%.6f")
    _write_tables(folder, sets["train"], "synsetoffset2category.txt")


def parts_pts(out: Path, sets: Sets, variant: str) -> None:
    """Write the .pts and .seg layout, parts numbered from 1 within each category."""
    folder = out / "shapenetcore_partanno_segmentation_benchmark_v0"
    splits = _with_val(sets)
    names = _write_lists(folder, splits)
    within = {
        number: int(key.rpartition("_")[2]) for key, number in _overall(sets["train"]).items()
    }
    for split, clouds in splits.items():
        assert clouds.parts is not None
        for row, name in enumerate(names[split]):
            place = folder / _synset(int(clouds.labels[row]))
            numbers = [within[number] for number in clouds.parts[row].tolist()]
            write_lines(place / "points_label" / f"{name}.seg", numbers)
            (place / "points").mkdir(exist_ok=True)
            np.savetxt(
                place / "points" / f"{name}.pts", y_up(clouds.points[row]).numpy(), fmt="%.5f"
            )
    _write_tables(folder, sets["train"], "synsetoffset2category.txt")


def make_rooms(sets: Sets) -> dict[str, list[tuple[str, np.ndarray]]]:
    """Stand shapes on floors: rooms by name, each with the arrays of its objects by class.

    Test rooms are area 5; training rooms go round the other five.
    """
    rooms: dict[str, list[tuple[str, np.ndarray]]] = {}
    side = np.random.default_rng(0)
    for split, clouds in sets.items():
        areas = (5,) if split == "test" else (1, 2, 3, 4, 6)
        for start in range(0, len(clouds), ROOM):
            area = areas[start // ROOM % len(areas)]
            xy = side.uniform((0, 0), (3, 2), (4096, 2))
            floor = np.column_stack([xy, np.zeros(len(xy)), np.full((len(xy), 3), 120.0)])
            objects = [("floor", floor)]
            for place, row in enumerate(range(start, min(start + ROOM, len(clouds)))):
                label = int(clouds.labels[row])
                xyz = 0.45 * clouds.points[row].numpy()
                xyz += np.array([place % 3 + 0.5, place // 3 + 0.5, -xyz[:, 2].min()])
                color = np.broadcast_to(np.array([12.0 * label, 90, 255 - 12 * label]), xyz.shape)
                kind = CLASSES[2 + label % (len(CLASSES) - 2)]
                objects.append((kind, np.column_stack([xyz, color])))
            rooms[f"Area_{area}_office_{start // ROOM + 1}"] = objects
    return rooms


def rooms(out: Path, sets: Sets, variant: str) -> None:
    """Write ``stanford_indoor3d/Area_N_room.npy``."""
    folder = out / "stanford_indoor3d"
    folder.mkdir(parents=True, exist_ok=True)
    for name, objects in make_rooms(sets).items():
        rows = [np.column_stack([o, np.full(len(o), CLASSES.index(kind))]) for kind, o in objects]
        np.save(folder / f"{name}.npy", np.concatenate(rows).astype(np.float32))


def raw_rooms(out: Path, sets: Sets, variant: str) -> None:
    """Write the raw layout: ``Area_N/room/Annotations/class_1.txt``."""
    for name, objects in make_rooms(sets).items():
        area, room = name[:6], name[7:]
        folder = out / area / room / "Annotations"
        folder.mkdir(parents=True, exist_ok=True)
        for number, (kind, table) in enumerate(objects, start=1):
            np.savetxt(folder / f"{kind}_{number}.txt", table, fmt="%.3f")
