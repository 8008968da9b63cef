"""Laser scans: las, and laz with the extra ``las``."""

import struct
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from locotrans.data.readers.laz import check_laz
from locotrans.data.readers.raw import Array, Raw
from locotrans.data.readers.source import ReadError, Source

CHUNK = 1_000_000
COMPRESSED = 0xC0  # bits of the point format of a laz
COLORS = ("red", "green", "blue")
NORMALS = ("NormalX", "NormalY", "NormalZ")


@dataclass(frozen=True)
class _Header:
    start: int
    width: int
    count: int
    compressed: bool


def read_las(source: Source) -> Raw:
    """Read points, colours, classification as labels, and normals from extra bytes NormalX, ..."""
    try:
        import laspy

        lazrs = import_module("lazrs")
    except ImportError:
        raise source.error("needs laspy and lazrs", "pip install 'locotrans[las]'") from None
    head = _check_header(source, source.read(375))
    parts: list[dict[str, Any]] = []
    try:
        if head.compressed:
            check_laz(source, lazrs, source.read(), head.start, head.width, head.count)
        backend = laspy.LazBackend.Lazrs
        with laspy.open(source.file, laz_backend=backend, read_evlrs=False) as file:
            for chunk in file.chunk_iterator(CHUNK):
                parts.append(_columns(chunk))
    except ReadError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the decompressor is no Exception
        problem = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise source.error(f"is a damaged las or laz file ({problem})") from None
    found = sum(len(part["points"]) for part in parts)
    if found != head.count or not parts:
        raise source.error(f"promises {head.count} points, but has {found}")
    columns: dict[str, Any] = {}
    for name in parts[0]:
        columns[name] = np.concatenate([part[name] for part in parts])
    return Raw(**columns)


def _check_header(source: Source, head: bytes) -> _Header:
    """Compare what the header promises with the size of the file."""
    if head[:4] != b"LASF" or len(head) < 227:
        raise source.error("does not begin with LASF", "give it the suffix of its format")
    minor = head[25]
    size, start, records, kind, width, count = struct.unpack_from("<HIIBHI", head, 94)
    if minor >= 4 and len(head) >= 375:
        first, extra, count_ = struct.unpack_from("<QIQ", head, 235)
        count = count_ or count
        if extra and first + 60 * extra > source.size:
            raise source.error(f"its header promises {extra} records at its end, which is missing")
    if size > start or start > source.size or size + 54 * records > start:
        raise source.error(f"its header promises points at {start} of {source.size} bytes")
    if count == 0:
        raise source.error("holds no points", "write the scan again, or leave the file out")
    compressed = bool(kind & COMPRESSED)
    if not compressed and start + count * width > source.size:
        raise source.error(
            f"is cut short: {count} points take {count * width} bytes, {source.size - start} follow"
        )
    source.check_size(count * max(width, 24), "unpacking")
    return _Header(start, width, count, compressed)


def _columns(chunk: Any) -> dict[str, Array]:
    """Copy what `Raw` has a place for out of some points."""

    def stack(*names: str) -> Array:
        return np.stack([np.asarray(chunk[name]) for name in names], axis=1)

    names = set(chunk.point_format.dimension_names)
    columns = {"points": stack("x", "y", "z"), "labels": np.asarray(chunk.classification)}
    if names.issuperset(COLORS):
        columns["colors"] = stack(*COLORS)
    if names.issuperset(NORMALS):
        columns["normals"] = stack(*NORMALS)
    return columns
