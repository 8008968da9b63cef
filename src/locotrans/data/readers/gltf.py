"""glTF scenes: glb, and gltf with the files it names beside it."""

import json
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np

from locotrans.data.readers.raw import Array, Raw
from locotrans.data.readers.source import ReadError, Source

SIZES = {5120: 1, 5121: 1, 5122: 2, 5123: 2, 5125: 4, 5126: 4}
ITEMS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT2": 4, "MAT3": 9, "MAT4": 16}
PACKED = ("KHR_draco_mesh_compression", "EXT_meshopt_compression")

Piece = tuple[Array, Array | None, Array | None]
"""Vertices, faces, colours."""


def read_gltf(source: Source) -> Raw:
    """Read all meshes of the scene where its nodes place them, or its points if it has no faces.

    Colours of vertices come along; materials and textures are not loaded.
    """
    import trimesh

    try:
        kind, content = _parse(source)
        _check_sizes(source, content)
        _check_nodes(source, content)
        with source.file.open("rb") as file:
            scene: Any = trimesh.load_scene(
                file,
                file_type=kind,
                resolver=trimesh.resolvers.FilePathResolver(str(source.file)),
                skip_materials=True,
            )
        dumped = scene.dump()
        pieces = [p for p in map(_piece, dumped if isinstance(dumped, list) else [dumped]) if p]
    except (ReadError, MemoryError):
        raise
    except Exception as error:  # a damaged file can give any error, from json to numpy
        problem = (str(error).splitlines() or [""])[0][:200]
        raise source.error(f"is damaged glTF ({type(error).__name__}: {problem})") from None
    return _join(source, pieces)


def buffers_of(path: Path) -> list[Path]:
    """List the files that a gltf file names and that lie beside it; none of any other file."""
    if path.suffix.lower() != ".gltf":
        return []
    try:
        names = [buffer.get("uri", "data:") for buffer in json.loads(path.read_bytes())["buffers"]]
        found = [path.parent / unquote(name) for name in names if not name.startswith("data:")]
        return [file for file in found if file.is_file()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []  # reading it will tell


def _parse(source: Source) -> tuple[str, dict[str, Any]]:
    data = source.read()
    if data[:4] != b"glTF":
        if source.file.suffix.lower() == ".glb":
            raise source.error("does not begin with glTF", "give it the suffix of its format")
        return "gltf", json.loads(data)
    if int.from_bytes(data[8:12], "little") > len(data) or len(data) < 20:
        raise source.error("is cut short")
    return "glb", json.loads(data[20 : 20 + int.from_bytes(data[12:16], "little")])


def _check_sizes(source: Source, content: dict[str, Any]) -> None:
    """Refuse what would take more memory than the bytes that are there."""
    packed = sorted({*content.get("extensionsRequired", ())} & {*PACKED})
    if packed:
        raise source.error(f"is compressed by {packed[0]}", "export it without mesh compression")
    total = source.size
    for buffer in content.get("buffers", ()):
        uri = buffer.get("uri", "data:")
        if not uri.startswith("data:"):
            total += _neighbor_size(source, unquote(uri))
    source.check_size(total, "reading its buffers")
    views = content.get("bufferViews", ())
    taken = sum(int(view["byteLength"]) for view in views)
    for accessor in content.get("accessors", ()):
        size = accessor["count"] * ITEMS[accessor["type"]] * SIZES[accessor["componentType"]]
        if accessor["count"] < 0 or size > total:
            raise source.error(f"an accessor takes {size} bytes, its buffers have {total}")
        taken += size
    source.check_size(taken, "unpacking")


def _neighbor_size(source: Source, uri: str) -> int:
    path = PurePosixPath(uri)
    file = source.file.parent / path
    if path.is_absolute() or ".." in path.parts or "://" in uri or not file.is_file():
        raise source.error(f"its buffer {uri[:100]!r} is no file beside it", "put it there")
    return file.stat().st_size


def _check_nodes(source: Source, content: dict[str, Any]) -> None:
    """A node has one parent: otherwise a few nodes could stand for any number of meshes."""
    nodes = content.get("nodes", ())
    children = [child for node in nodes for child in node.get("children", ())]
    if len(set(children)) < len(children) or not all(0 <= c < len(nodes) for c in children):
        raise source.error("a node of its scene has two parents, or none of its children exist")
    accessors, meshes = content.get("accessors", ()), content.get("meshes", ())
    points = 0
    for node in nodes:
        if "mesh" in node:
            for primitive in meshes[node["mesh"]]["primitives"]:
                points += accessors[primitive["attributes"]["POSITION"]]["count"]
                points += accessors[primitive["indices"]]["count"] if "indices" in primitive else 0
    source.check_size(24 * points, "placing its meshes")


def _piece(part: Any) -> Piece | None:
    """Take the arrays of a mesh or cloud of trimesh; lines have no surface."""
    vertices = np.asarray(part.vertices, np.float64)
    if hasattr(part, "faces"):
        colored = part.visual.kind == "vertex"
        colors = np.asarray(part.visual.vertex_colors)[:, :3] if colored else None
        return vertices, np.asarray(part.faces, np.int64), colors
    if hasattr(part, "colors"):
        colors = np.asarray(part.colors)
        return vertices, None, colors[:, :3] if colors.shape == (len(vertices), 4) else None
    return None


def _join(source: Source, pieces: list[Piece]) -> Raw:
    if any(piece[1] is not None for piece in pieces):  # points beside a surface have no area
        pieces = [piece for piece in pieces if piece[1] is not None]
    if not pieces:
        raise source.error("its scene has neither meshes nor points", "export the geometry, too")
    starts = np.cumsum([0, *(len(piece[0]) for piece in pieces)])
    faces = [f + start for (_, f, _), start in zip(pieces, starts, strict=False) if f is not None]
    colors = [piece[2] for piece in pieces if piece[2] is not None]
    return Raw(
        np.concatenate([piece[0] for piece in pieces]),
        colors=np.concatenate(colors) if len(colors) == len(pieces) else None,
        faces=np.concatenate(faces) if faces else None,
    )
