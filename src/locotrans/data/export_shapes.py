"""Writers of the classification layouts; each takes the out folder, the splits and the variant."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from locotrans.data.clouds import CloudSet
from locotrans.data.scanobjectnn import FILES, VARIANTS

Sets = dict[str, CloudSet]


def write_h5(path: Path, **arrays: Any) -> None:
    """Write arrays under their names."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def write_lines(path: Path, lines: Any) -> None:
    """Write lines of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def y_up(vectors: torch.Tensor) -> torch.Tensor:
    """Turn vectors with z up so that y is up."""
    return torch.stack([vectors[..., 0], vectors[..., 2], -vectors[..., 1]], dim=-1)


def shape_ids(sets: Sets) -> dict[str, list[str]]:
    """Name shapes as ModelNet40 does, chair_0001, counting on from train to test."""
    counts: dict[str, int] = {}
    names: dict[str, list[str]] = {}
    for split, clouds in sets.items():
        names[split] = []
        for label in clouds.labels.tolist():
            kind = clouds.class_names[label]
            counts[kind] = counts.get(kind, 0) + 1
            names[split].append(f"{kind}_{counts[kind]:04d}")
    return names


def modelnet_hdf5(out: Path, sets: Sets, variant: str) -> None:
    """Write ``modelnet40_ply_hdf5_2048``: two files a split, y up."""
    folder, ids = out / "modelnet40_ply_hdf5_2048", shape_ids(sets)
    for split, clouds in sets.items():
        half = (len(clouds) + 1) // 2
        for number, rows in enumerate((slice(half), slice(half, None))):
            data = y_up(clouds.points[rows]).numpy()
            label = clouds.labels[rows, None].numpy().astype(np.uint8)
            if len(data):
                write_h5(folder / f"ply_data_{split}{number}.h5", data=data, label=label)
                listing = folder / f"ply_data_{split}_{number}_id2file.json"
                listing.write_text(json.dumps(ids[split][rows]))
    write_lines(folder / "shape_names.txt", sets["train"].class_names)


def modelnet_text(out: Path, sets: Sets, variant: str) -> None:
    """Write ``modelnet40_normal_resampled``: x,y,z,nx,ny,nz a line, y up."""
    folder, ids = out / "modelnet40_normal_resampled", shape_ids(sets)
    for split, clouds in sets.items():
        assert clouds.normals is not None
        tables = torch.cat([y_up(clouds.points), y_up(clouds.normals)], dim=-1).numpy()
        write_lines(folder / f"modelnet40_{split}.txt", ids[split])
        for name, table in zip(ids[split], tables, strict=True):
            path = folder / name.rpartition("_")[0] / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savetxt(path, table, fmt="%.6f", delimiter=",")
    write_lines(folder / "modelnet40_shape_names.txt", sets["train"].class_names)


def modelnet_off(out: Path, sets: Sets, variant: str) -> None:
    """Write ``ModelNet40/<class>/<split>/*.off``: a small triangle at each point, z up."""
    ids = shape_ids(sets)
    for split, clouds in sets.items():
        assert clouds.normals is not None
        for row, name in enumerate(ids[split]):
            path = out / "ModelNet40" / name.rpartition("_")[0] / split / f"{name}.off"
            corners = _triangles(clouds.points[row].numpy(), clouds.normals[row].numpy())
            count = len(corners) // 3
            rows = [f"{x:.6f} {y:.6f} {z:.6f}" for x, y, z in corners]
            faces = [f"3 {3 * i} {3 * i + 1} {3 * i + 2}" for i in range(count)]
            write_lines(path, ["OFF", f"{3 * count} {count} 0", *rows, *faces])


def _triangles(points: np.ndarray, normals: np.ndarray, size: float = 0.02) -> np.ndarray:
    """Return the corners of a triangle across the normal at each point, (3 n, 3)."""
    helper = np.eye(3, dtype=np.float32)[np.abs(normals).argmin(1)]
    u = np.cross(normals, helper)
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    v = np.cross(normals, u)
    turns = np.deg2rad([90, 210, 330])
    corners = [points + size * (np.cos(a) * u + np.sin(a) * v) for a in turns]
    return np.stack(corners, axis=1).reshape(-1, 3)


def scanobjectnn(out: Path, sets: Sets, variant: str) -> None:
    """Write a variant's files; every fourth point becomes a floor, but in obj_only."""
    folder, stem, _ = VARIANTS[variant]
    for split, clouds in sets.items():
        points = y_up(clouds.points).clone()
        mask = clouds.labels[:, None].expand(points.shape[:2]).clone()
        if variant != "obj_only":
            points[:, ::4, 1] = points[..., 1].amin(1, keepdim=True)
            mask[:, ::4] = -1
        path = out / "h5_files" / folder / f"{FILES[split]}_{stem}.h5"
        arrays = {"data": points, "label": clouds.labels, "mask": mask}
        write_h5(path, **{name: tensor.numpy() for name, tensor in arrays.items()})
    write_lines(out / "h5_files" / "shape_names.txt", sets["train"].class_names)


def hdf5(out: Path, sets: Sets, variant: str) -> None:
    """Write ``train.h5`` and ``test.h5``."""
    for split, clouds in sets.items():
        labels = clouds.labels.numpy()
        write_h5(out / f"{split}.h5", data=clouds.points.numpy(), label=labels)
    write_lines(out / "shape_names.txt", sets["train"].class_names)


def folder(out: Path, sets: Sets, variant: str) -> None:
    """Write ``<class>/<split>/*.xyz``, with normals."""
    for split, names in shape_ids(sets).items():
        for row, name in enumerate(names):
            _write_xyz(out / name.rpartition("_")[0] / split / f"{name}.xyz", sets[split], row)


def table(out: Path, sets: Sets, variant: str) -> None:
    """Write ``shapes.csv`` and the files that it names, with the part of each point."""
    rows = [("path", "label", "split", "parts")]
    for split, names in shape_ids(sets).items():
        parts = sets[split].parts
        assert parts is not None
        for row, name in enumerate(names):
            _write_xyz(out / "clouds" / f"{name}.xyz", sets[split], row)
            write_lines(out / "clouds" / f"{name}.seg", parts[row].tolist())
            kind = name.rpartition("_")[0]
            rows.append((f"clouds/{name}.xyz", kind, split, f"clouds/{name}.seg"))
    write_lines(out / "part_names.txt", sets["train"].part_names)
    with (out / "shapes.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def _write_xyz(path: Path, clouds: CloudSet, row: int) -> None:
    assert clouds.normals is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [clouds.points[row].numpy(), clouds.normals[row].numpy()]
    np.savetxt(path, np.concatenate(columns, axis=1), fmt="%.6f")
