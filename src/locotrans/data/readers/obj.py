"""Wavefront obj: vertices (with colours), normals and polygons."""

import re

import numpy as np

from locotrans.data.readers.meshes import fan
from locotrans.data.readers.off import whole
from locotrans.data.readers.raw import Array, Raw
from locotrans.data.readers.source import Source
from locotrans.data.readers.text import read_text, table, without_comments

VERTEX = re.compile(rb"^[ \t]*v[ \t]+([^\n]*)", re.MULTILINE)
NORMAL = re.compile(rb"^[ \t]*vn[ \t]+([^\n]*)", re.MULTILINE)
FACE = re.compile(rb"^[ \t]*f[ \t]+([^\n]*)", re.MULTILINE)


def read_obj(source: Source) -> Raw:
    """Read the geometry; materials, textures and groups are left out.

    Colours are taken if every vertex has one. Normals of a file without faces are taken if there is
    one for each vertex. With faces, the normals come from these.
    """
    text = without_comments(read_text(source), b"#").replace(b"\\\n", b" ")
    vertices = table(source, _even(VERTEX.findall(text)), "vertices (lines v)")
    if len(vertices) == 0:
        raise source.error("has no vertices (lines v)", "give it the suffix of its format")
    if vertices.shape[1] < 3:
        raise source.error(f"vertices have {vertices.shape[1]} numbers, not 3 or more")
    # x y z, x y z w, x y z r g b, and both
    colors = {6: vertices[:, 3:6], 7: vertices[:, 4:7]}.get(vertices.shape[1])
    faces = _read_faces(source, text, len(vertices))
    normals = None
    if faces is None:
        normals = table(source, b"\n".join(NORMAL.findall(text)), "normals (lines vn)")
        if normals.shape != (len(vertices), 3):
            normals = None
    return Raw(vertices[:, :3], normals, colors, faces=faces)


def _even(lines: list[bytes]) -> bytes:
    """Join the lines of vertices; where colours stand on some alone, none are taken."""
    if lines and len(lines[0].split()) in (3, 4, 6, 7):
        sizes = {len(line.split()) for line in lines}
        if len(sizes) > 1 and sizes <= {3, 4, 6, 7}:
            lines = [b" ".join(line.split()[:3]) for line in lines]
    return b"\n".join(lines)


def _read_faces(source: Source, text: bytes, count: int) -> Array | None:
    lines = [match[1] for match in FACE.finditer(text)]
    if not lines:
        return None
    # 1/2/3, 1//3 and 1/2 all begin with the vertex
    lines = re.sub(rb"/[^ \t\n]*", b"", b"\n".join(lines)).split(b"\n")
    before: Array = np.full(len(lines), count)
    if any(b"-" in line for line in lines):  # -1 is the last vertex so far
        starts = np.array([match.start() for match in VERTEX.finditer(text)])
        before = np.searchsorted(starts, [match.start() for match in FACE.finditer(text)])
    sizes = np.array([len(line.split()) for line in lines])
    groups = []
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes == size)
        if size == 0:
            raise source.error(f"face {rows[0]} (lines f) has no corners")
        block = b"\n".join(lines[row] for row in rows)
        corners = whole(source, table(source, block, "faces (lines f)"))
        if (corners == 0).any():
            raise source.error("a face (lines f) refers to vertex 0; the first is 1")
        groups.append((rows, np.where(corners < 0, corners + before[rows, None], corners - 1)))
    return fan(groups)
