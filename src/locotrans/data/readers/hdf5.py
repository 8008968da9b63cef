"""HDF5 files of one cloud, or of many with an index: ``file.h5#12``."""

from pathlib import Path
from typing import Any

from locotrans.data.readers.arrays import POINTS, SEGMENTS, choose, from_arrays
from locotrans.data.readers.raw import Array, Raw
from locotrans.data.readers.source import ReadError, Source

MOST_CLOUDS = 10**6
"""Beyond this, a file is not listed cloud by cloud."""


def read_hdf5(source: Source) -> Raw:
    """Read points (or xyz, pos, data) and normals, colors and labels (or seg, pid) of one cloud.

    Points (s, n, 3) are s clouds, of which the path names one from 0. Labels (s,) or (s, 1) of
    whole clouds, numbers or words, are left out. Links to other files are not followed.
    """
    import h5py

    source.read(1)  # says so if it may not be read
    try:
        with h5py.File(source.file, "r") as file:
            sets = {name: file[name] for name in file if _is_plain(h5py, file, name)}
            names = choose(source, sets, ", ".join(list(sets)[:20]))
            lead = _check_points(source, sets[next(n for n in POINTS if n in names)])
            names = [n for n in names if not _is_word(n, sets[n], lead)]
            return from_arrays(source, {n: _read_set(source, n, sets[n], lead) for n in names})
    except ReadError:
        raise
    except MemoryError:
        raise source.error("claims more than there is memory for") from None
    except Exception as error:  # h5py gives errors of the C library as any of a dozen types
        problem = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise source.error(f"is a damaged HDF5 file ({problem})") from None


def clouds_of(path: Path) -> list[Path]:
    """List the clouds of an h5 file of several: ``many.h5#0`` and so on.

    Any other file is one cloud, also one that cannot be read: that shows when it is read.
    """
    import h5py

    if path.suffix.lower() not in (".h5", ".hdf5"):
        return [path]
    try:
        with h5py.File(path, "r") as file:
            name = next(name for name in POINTS if name in file and _is_plain(h5py, file, name))
            shape = file[name].shape
    except Exception:  # h5py gives errors of the C library as any of a dozen types
        return [path]
    several = len(shape) == 3 and 1 < shape[0] <= MOST_CLOUDS
    return [path.with_name(f"{path.name}#{i}") for i in range(shape[0])] if several else [path]


def _is_plain(h5py: Any, file: Any, name: str) -> bool:
    """Whether it is a data set of this very file."""
    link = file.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink) or file.get(name, getclass=True) is not h5py.Dataset:
        return False
    data = file[name]
    return not data.is_virtual and not data.external


def _is_word(name: str, data: Any, clouds: int | None) -> bool:
    """Whether it is the class of each cloud as text."""
    return name in SEGMENTS and data.dtype.kind in "OSU" and data.size == (clouds or 1)


def _check_points(source: Source, data: Any) -> int | None:
    """Return the number of clouds if there are several."""
    clouds = None if data.ndim != 3 or data.shape[0] == 1 else data.shape[0]
    if data.ndim not in (2, 3):
        raise source.error(f"points have the shape {data.shape}", "save (n, 3) or (clouds, n, 3)")
    if clouds is None:
        if source.index not in (None, 0):
            raise source.error("holds one cloud only", "leave out the index after #")
    elif source.index is None:
        raise source.error(
            f"holds {clouds} clouds", f"name one: {source.path.name}#0 to #{clouds - 1}"
        )
    elif source.index >= clouds:
        raise source.error(f"holds {clouds} clouds", f"take #0 to #{clouds - 1}")
    return clouds


def _read_set(source: Source, name: str, data: Any, clouds: int | None) -> Array:
    if data.dtype.kind not in "fiub":
        raise source.error(f"{name} holds {data.dtype}, not numbers", "save float32")
    count = data.size
    if clouds is not None:
        if data.ndim < 1 or data.shape[0] != clouds:
            raise source.error(f"{name} has the shape {data.shape}, but there are {clouds} clouds")
        count //= max(clouds, 1)
    source.check_size(count * data.dtype.itemsize, name)
    array: Array = data[()] if clouds is None else data[source.index]
    return array if array.ndim else array.reshape(1)
