"""Stereolithography meshes (stl), text and binary."""

import re

import numpy as np

from locotrans.data.readers.raw import Array, Raw
from locotrans.data.readers.source import Source
from locotrans.data.readers.text import table, unix_lines

HEADER = 84
FACET = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
CORNER = re.compile(rb"^[ \t]*vertex[ \t]+([^\n]*)", re.MULTILINE)


def read_stl(source: Source) -> Raw:
    """Read triangles; corners are not merged, and the normals come from them."""
    data = source.read()
    facets = int.from_bytes(data[80:HEADER], "little") if len(data) >= HEADER else 0
    size = HEADER + facets * FACET.itemsize
    titled = data.lstrip()[:5].lower() == b"solid"  # as text is, and some binary files are, too
    if titled and (len(data) < size or (len(data) > size and b"endsolid" in data.lower())):
        corners = _read_text(source, data)
    else:
        if size > len(data):
            raise source.error(
                f"promises {facets} triangles, but has {len(data)} bytes: no stl file, or cut short"
            )
        corners = np.frombuffer(data, FACET, facets, HEADER)["corners"].reshape(-1, 3)
    if len(corners) == 0:
        raise source.error("holds no triangles", "write the mesh again, or leave the file out")
    return Raw(corners, faces=np.arange(len(corners)).reshape(-1, 3))


def _read_text(source: Source, data: bytes) -> Array:
    text = unix_lines(data).lower()
    if b"endsolid" not in text:
        raise source.error("is cut short: endsolid is missing")
    corners = table(source, b"\n".join(CORNER.findall(text)), "lines vertex")
    if len(corners) and corners.shape[1] != 3:
        raise source.error(f"lines vertex have {corners.shape[1]} numbers, not 3")
    if len(corners) % 3 or len(corners) != 3 * text.count(b"endfacet"):
        raise source.error(f"has {len(corners)} vertices for {text.count(b'endfacet')} triangles")
    return corners
