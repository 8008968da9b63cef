"""Object file format (off), with colours or normals of vertices, as ModelNet40 is published."""

import re

import numpy as np

from locotrans.data.readers.meshes import fan
from locotrans.data.readers.raw import Array, Raw
from locotrans.data.readers.source import Source
from locotrans.data.readers.text import (
    numbers,
    read_text,
    split_lines,
    table,
    without_blank_lines,
    without_comments,
)

# some files of ModelNet40 have the counts on the first line, without a blank: OFF3514 3546 0
HEADER = re.compile(rb"(ST)?(C?)(N?)(C?)OFF\s*(\d{1,18})\s+(\d{1,18})(?:[ \t]+\d+)?[ \t]*(?:\n|$)")


def read_off(source: Source) -> Raw:
    """Read vertices and polygons; colours of faces are left out."""
    text = without_blank_lines(without_comments(read_text(source), b"#"))
    match = HEADER.match(text)
    if not match:
        first = text[:40].split(b"\n")[0].decode("latin-1")
        raise source.error(
            f"begins with {first!r}, not with OFF and the numbers of vertices and faces",
            "give it the suffix of its format, or write it again",
        )
    vertices, faces = int(match[5]), int(match[6])
    body = text[match.end() :]
    if (vertices + faces) * 2 > len(body) + 2:  # a digit and an end of line each
        raise source.error(
            f"promises {vertices} vertices and {faces} faces, but has {len(body)} bytes for them"
        )
    head, tail, _ = split_lines(body, [vertices, faces])
    values = table(source, head, "vertices")
    if len(values) != vertices:
        raise source.error(f"promises {vertices} vertices, but has {len(values)}")
    normals = 3 if match[3] else 0
    least = 3 + normals + (3 if match[2] or match[4] else 0) + (2 if match[1] else 0)
    if values.shape[1] < least:
        raise source.error(f"vertices have {values.shape[1]} numbers each, not {least} or more")
    colored = bool(match[2] or match[4])
    return Raw(
        points=values[:, :3],
        normals=values[:, 3:6] if normals else None,
        colors=values[:, 3 + normals : 6 + normals] if colored else None,
        faces=_read_faces(source, tail, faces) if faces else None,
    )


def _read_faces(source: Source, tail: bytes, count: int) -> Array:
    """Lines of a number of corners, the corners, and perhaps a colour."""
    lines = tail.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if len(lines) != count:
        raise source.error(f"promises {count} faces, but has {len(lines)}")
    widths = {line.count(b" ") for line in lines[:1000]}
    if len(widths) == 1:  # perhaps all alike: one table
        flat = numbers(source, tail, "faces")
        columns = flat.size // count
        if flat.size == count * columns and columns > 3:
            rows = flat.reshape(count, columns)
            corners = int(rows[0, 0]) if 0 <= rows[0, 0] < columns else 0
            if corners and (rows[:, 0] == corners).all():
                return fan([(np.arange(count), whole(source, rows[:, 1 : 1 + corners]))])
    groups: dict[int, tuple[list[int], list[list[int]]]] = {}
    for row, line in enumerate(lines):
        words = line.split()
        try:
            corners = int(words[0])
            face = [int(word) for word in words[1 : 1 + corners]]
        except (ValueError, IndexError):
            raise source.error(f"face {row} is {line[:60].decode('latin-1')!r}") from None
        if corners < 0 or len(face) != corners or max(map(abs, face), default=0) >= 2**62:
            raise source.error(f"face {row} is {line[:60].decode('latin-1')!r}, cut short")
        rows_, faces = groups.setdefault(corners, ([], []))
        rows_.append(row)
        faces.append(face)
    return fan((np.array(r), np.array(f).reshape(len(r), -1)) for r, f in groups.values())


def whole(source: Source, values: Array) -> Array:
    """Convert indices that were parsed as floating point."""
    if not (np.abs(values) < 2**53).all() or (values != np.floor(values)).any():
        raise source.error("has indices of vertices that are not whole numbers")
    return values.astype(np.int64)
