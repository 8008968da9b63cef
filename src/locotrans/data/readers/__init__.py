"""Files to clouds: one function for all formats, and one error for all that can go wrong."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path

import numpy as np

from locotrans.data.cloud import Cloud
from locotrans.data.readers.gltf import buffers_of, read_gltf
from locotrans.data.readers.hdf5 import clouds_of, read_hdf5
from locotrans.data.readers.las import read_las
from locotrans.data.readers.meshes import sample_mesh
from locotrans.data.readers.npy import read_npy, read_npz
from locotrans.data.readers.obj import read_obj
from locotrans.data.readers.off import read_off
from locotrans.data.readers.pcd import read_pcd
from locotrans.data.readers.ply import read_ply
from locotrans.data.readers.raw import Raw, finish
from locotrans.data.readers.source import ReadError, Source, file_of, open_source
from locotrans.data.readers.stl import read_stl
from locotrans.data.readers.xyz import read_xyz

__all__ = [
    "FORMATS",
    "ReadError",
    "buffers_of",
    "clouds_of",
    "file_of",
    "read_cloud",
    "read_mesh",
]

_READERS: dict[str, Callable[[Source], Raw]] = {
    ".ply": read_ply,
    ".pcd": read_pcd,
    ".off": read_off,
    ".obj": read_obj,
    ".stl": read_stl,
    ".glb": read_gltf,
    ".gltf": read_gltf,
    ".npy": read_npy,
    ".npz": read_npz,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".xyz": read_xyz,
    ".txt": read_xyz,
    ".csv": read_xyz,
    ".pts": read_xyz,
    ".las": read_las,
    ".laz": read_las,
}

FORMATS: tuple[str, ...] = tuple(_READERS)
"""The suffixes that `read_cloud` knows, in lower case."""

_MAGIC = {
    b"ply\n": ".ply",
    b"ply\r": ".ply",
    b"# .PCD": ".pcd",
    b"OFF": ".off",
    b"COFF": ".off",
    b"NOFF": ".off",
    b"glTF": ".glb",
    b"\x93NUMPY": ".npy",
    b"PK\x03\x04": ".npz",
    b"\x89HDF\r\n\x1a\n": ".h5",
    b"LASF": ".las",
}


def read_cloud(
    path: str | PathLike[str],
    *,
    samples: int = 8192,
    seed: int = 0,
    max_bytes: int = 4 * 2**30,
) -> Cloud:
    """Read the points of one file, whatever its format.

    Points come as they are, in their order, without the holes of a scan (points of nan; their
    number is ``holes``). A mesh is sampled: ``samples`` points, uniform over its surface, with the
    normals of the faces.

    Args:
        path: The suffix tells the format (`FORMATS`, in either case), or the first bytes where
            there is none. ``file.h5#12`` is cloud 12 of a file of several.
        samples: Points drawn from a mesh.
        seed: The same seed draws the same points.
        max_bytes: Limit for the size of the file and of what is unpacked from it.

    Raises:
        ReadError: Whatever is wrong with the file; the message names it and says what to do.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    source, mesh = _read(path, max_bytes)
    if mesh.faces is None:
        return mesh
    return sample_mesh(source, mesh, samples, seed)


def read_mesh(path: str | PathLike[str], *, max_bytes: int = 4 * 2**30) -> Cloud:
    """Read one file as `read_cloud` does, but with the vertices and faces of a mesh unsampled."""
    return _read(path, max_bytes)[1]


def _read(path: str | PathLike[str], max_bytes: int) -> tuple[Source, Cloud]:
    source = open_source(Path(path), max_bytes)
    reader = _find_reader(source)
    try:
        with np.errstate(all="ignore"):  # whatever a damaged number gives is checked
            return source, finish(source, reader(source))
    except MemoryError:
        raise source.error(
            "needs more memory than there is", "thin it out, or cut it into smaller ones"
        ) from None


def _find_reader(source: Source) -> Callable[[Source], Raw]:
    suffix = source.file.suffix.lower()
    head = source.read(16)
    actual = next((known for magic, known in _MAGIC.items() if head.startswith(magic)), None)
    reader, sniffed = _READERS.get(suffix), _READERS.get(actual or "")
    if reader is None:
        reader = sniffed
    if reader is None:
        raise source.error(
            f"its format is unknown (suffix {suffix!r})", f"known are {' '.join(FORMATS)}"
        )
    if sniffed not in (None, reader):
        raise source.error(f"is named {suffix}, but begins as {actual} does", f"rename it {actual}")
    return reader
