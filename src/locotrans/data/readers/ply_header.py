"""The header of a ply file: which elements follow, and of which properties."""

import re
from dataclasses import dataclass

import numpy as np

from locotrans.data.readers.source import Source
from locotrans.data.readers.text import unix_lines

OLD = {"i1": "char", "u1": "uchar", "i2": "short", "u2": "ushort", "i4": "int", "u4": "uint"}
OLD |= {"f4": "float", "f8": "double"}
TYPES = {old: type_ for type_, old in OLD.items()}
TYPES |= {np.dtype(type_).name: type_ for type_ in OLD}
"""Both names of each type, such as uchar and uint8."""
ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}


@dataclass(frozen=True)
class Property:
    """A number, or a list of numbers preceded by how many."""

    name: str
    type: np.dtype[np.generic]
    count: np.dtype[np.generic] | None = None
    """The type of the number of items, of a list."""


@dataclass(frozen=True)
class Element:
    """A table of the file, such as vertex or face."""

    name: str
    rows: int
    properties: list[Property]


@dataclass(frozen=True)
class Header:
    """Everything up to end_header."""

    order: str
    """Byte order as numpy writes it; empty for text."""
    elements: list[Element]
    size: int
    """Bytes of the header."""


def read_header(source: Source, data: bytes) -> Header:
    """Parse the header of the file whose first bytes are ``data``."""
    if not re.match(rb"ply[ \t]*[\r\n]", data):
        raise source.error("does not begin with ply", "give it the suffix of its format")
    end = re.search(rb"[\r\n][ \t]*end_header[ \t]*(\r\n|\r|\n)", data)
    if end is None:
        raise source.error("its header has no end: end_header is missing")
    order, elements = None, list[Element]()
    for line in unix_lines(data[: end.start()]).decode("latin-1").split("\n")[1:]:
        match line.split():
            case ["format", kind, _] if kind in ORDERS:
                order = ORDERS[kind]
            case ["element", name, rows] if rows.isascii() and rows.isdigit() and len(rows) < 19:
                elements.append(Element(name, int(rows), []))
            case ["property", kind, name] if kind in TYPES and elements:
                elements[-1].properties.append(Property(name, _type(kind, order)))
            case ["property", "list", count, kind, name] if (
                count in TYPES and kind in TYPES and elements and TYPES[count][0] != "f"
            ):
                types = _type(kind, order), _type(count, order)
                elements[-1].properties.append(Property(name, *types))
            case [] | ["comment" | "obj_info", *_]:
                pass
            case _:
                raise source.error(f"its header has a line that is not ply: {line[:60]!r}")
    if order is None:
        raise source.error("its header names no format")
    for element in elements:
        names = [p.name for p in element.properties]
        if len(set(names)) < len(names):
            raise source.error(f"the properties of {element.name} have a name twice")
    return Header(order, elements, end.end())


def _type(kind: str, order: str | None) -> np.dtype[np.generic]:
    return np.dtype((order or "") + TYPES[kind])
