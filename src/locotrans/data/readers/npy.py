"""Numpy's arrays: npy and npz. Pickled objects are refused, sizes are checked before reading."""

import io
import math
import struct
import tokenize
import zipfile
import zlib

import numpy as np
from numpy.lib import format as npy_format

from locotrans.data.readers.arrays import choose, from_arrays, matrix
from locotrans.data.readers.columns import from_columns
from locotrans.data.readers.raw import Array, Raw, from_names
from locotrans.data.readers.source import ReadError, Source

LARGE = 64 * 2**20
"""Above this size, a member of an npz may not be compressed to less than a 200th."""
BEST_RATIO = 200
HEADER_ERRORS = (
    *(ValueError, TypeError, SyntaxError, KeyError, RecursionError, tokenize.TokenError),
    *(AttributeError, IndexError, OverflowError, MemoryError, struct.error),
)
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_npy(source: Source) -> Raw:
    """Read one array: (n, 3 or more) numbers, or records with fields x, y, z."""
    array = _read_array(source, source.read(), "the array")
    if array.dtype.names is not None:
        fields = {name: array[name] for name in array.dtype.names}
        return from_names(
            source, {k: v for k, v in fields.items() if v.dtype.kind in "fiu" and v.ndim == 1}
        )
    return from_columns(source, matrix(source, array, "the array"))


def read_npz(source: Source) -> Raw:
    """Read points (or xyz, pos, data), and normals, colors and labels where present."""
    source.read(1)  # says so if it may not be read
    try:
        with zipfile.ZipFile(source.file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            names = choose(source, members, ", ".join(list(members)[:20]))
            total = sum(members[name].file_size for name in names)
            source.check_size(total, "unpacking")
            arrays = {name: _read_member(source, archive, members[name]) for name in names}
    except ReadError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise source.error(f"is a damaged or encrypted npz ({error})") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise source.error(f"is a damaged npz ({error})") from None
    return from_arrays(source, arrays)


def _read_member(source: Source, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    if info.compress_type not in METHODS:
        raise source.error(f"{info.filename} has a compression that numpy does not write")
    if info.file_size > LARGE and info.file_size > BEST_RATIO * info.compress_size:
        raise source.error(
            f"{info.filename} is {info.compress_size:,} bytes and claims to hold "
            f"{info.file_size:,}, as zip bombs do",
            "save it with numpy.savez, uncompressed",
        )
    with archive.open(info) as file:
        data = file.read(info.file_size)
    if len(data) != info.file_size:
        raise source.error(f"{info.filename} claims {info.file_size:,} bytes, has {len(data):,}")
    return _read_array(source, data, info.filename)


def _read_array(source: Source, data: bytes, what: str) -> Array:
    file = io.BytesIO(data)
    try:
        version = npy_format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = npy_format.read_array_header_1_0(file)
        else:
            shape, fortran, dtype = npy_format.read_array_header_2_0(file)
    except HEADER_ERRORS as error:
        problem = str(error).partition("\n")[0][:200]
        raise source.error(f"{what} is no npy ({problem})", "save it with numpy.save") from None
    if dtype.hasobject:
        raise source.error(
            f"{what} holds pickled objects, which could run code",
            "save an array of numbers: numpy.save(path, array.astype('float32'))",
        )
    if any(not isinstance(length, int) or length < 0 for length in shape):
        raise source.error(f"{what} has the shape {shape}")
    needed = math.prod(shape) * dtype.itemsize
    if needed > len(data) - file.tell():
        raise source.error(
            f"{what} is cut short: it takes {needed} bytes, {len(data) - file.tell()} follow"
        )
    if dtype.itemsize == 0:
        raise source.error(f"{what} holds {dtype}, not numbers", "save float32")
    array = np.frombuffer(data, dtype, math.prod(shape), file.tell())
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
