"""Polygon file format (ply): text and binary of both byte orders, any elements and properties.

The file is seen as units: bytes of a binary file, numbers of a text file. A property then takes a
fixed number of units, a list as many as its count says, and both kinds are read by the same code.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from locotrans.data.readers.meshes import fan
from locotrans.data.readers.off import whole
from locotrans.data.readers.ply_header import Element, Header, Property, read_header
from locotrans.data.readers.raw import Array, Raw, from_names
from locotrans.data.readers.source import Source
from locotrans.data.readers.text import numbers, unix_lines

FACE_LISTS = ("vertex_indices", "vertex_index")


def read_ply(source: Source) -> Raw:
    """Read the vertices and, where there are faces, their triangles."""
    data = source.read()
    header = read_header(source, data)
    names = [element.name for element in header.elements]
    if "vertex" not in names:
        raise source.error(f"has no element vertex, but {names}", "write the points as vertex")
    body = _Body.of(source, header, data)
    raw, faces, start = None, None, 0
    for element in header.elements:
        table = _Table.find(body, element, start)
        start = table.end
        if element.name == "vertex":
            columns = {p.name: table.scalars(p) for p in element.properties if p.count is None}
            raw = from_names(source, columns)
        corners = [p for p in element.properties if p.name in FACE_LISTS and p.count is not None]
        if element.name == "face" and corners and element.rows:
            faces = fan(table.lists(corners[0]))
    assert raw is not None
    return replace(raw, faces=faces)


@dataclass(frozen=True)
class _Body:
    """What follows the header, as an array of units."""

    source: Source
    units: Array  # (m,) uint8 of a binary file, float64 of a text
    binary: bool

    @staticmethod
    def of(source: Source, header: Header, data: bytes) -> "_Body":
        if header.order:
            return _Body(source, np.frombuffer(data, np.uint8, offset=header.size), True)
        text = unix_lines(data[header.size :])
        return _Body(source, numbers(source, text, "numbers after the header"), False)

    def size(self, type_: np.dtype[np.generic]) -> int:
        return type_.itemsize if self.binary else 1

    def values(self, starts: Array, type_: np.dtype[np.generic], items: int = 1) -> Array:
        """Numbers of one type that begin at ``starts`` (m,), as (m, items)."""
        width = self.size(type_) * items
        units = self.units[starts[:, None] + np.arange(width)]
        return np.ascontiguousarray(units).view(type_) if self.binary else units

    def counter(self, type_: np.dtype[np.generic], element: str) -> Callable[[int], int]:
        """Return a function from where a list begins to the number of its items."""
        size, end = self.size(type_), len(self.units)
        order: Literal["big", "little"] = "big" if type_.byteorder == ">" else "little"
        data, signed = self.units.data, type_.kind == "i"

        def count(place: int) -> int:
            if place + size > end:
                raise self.source.error(f"is cut short in the element {element}")
            if self.binary:
                value = int.from_bytes(data[place : place + size], order, signed=signed)
            else:
                value = data[place]
            if not 0 <= value <= end or value != int(value):
                raise self.source.error(f"a list of the element {element} has the length {value}")
            return int(value)

        return count


@dataclass(frozen=True)
class _Table:
    """Where the rows of an element are: ``width`` apart if alike, else one by one."""

    body: _Body
    element: Element
    start: int
    end: int
    offsets: dict[str, int]  # of the first row; enough if all rows are alike
    counts: dict[str, int]
    places: dict[str, Array] | None  # (rows,) for each property, if they are not

    @staticmethod
    def find(body: _Body, element: Element, start: int) -> "_Table":
        least = sum(body.size(p.count or p.type) for p in element.properties)
        if element.rows * least > len(body.units) - start:
            raise body.source.error(
                f"promises {element.rows} rows of the element {element.name}, but is cut short"
            )
        if element.rows == 0 or least == 0:
            return _Table(body, element, start, start, {}, {}, None)
        offsets, counts, place = {}, {}, start
        for p in element.properties:
            offsets[p.name] = place - start
            if p.count is not None:
                counts[p.name] = body.counter(p.count, element.name)(place)
                place += body.size(p.count)
            place += body.size(p.type) * counts.get(p.name, 1)
        width = place - start
        table = _Table(body, element, start, start + width * element.rows, offsets, counts, None)
        return table if table._all_alike() else table._walk()

    def _column(self, offset: int, type_: np.dtype[np.generic], items: int = 1) -> Array:
        """The numbers at the same place of all rows that are alike, (rows, items)."""
        units = self.body.units[self.start : self.end].reshape(self.element.rows, -1)
        block = units[:, offset : offset + self.body.size(type_) * items]
        return np.ascontiguousarray(block).view(type_) if self.body.binary else block

    def _all_alike(self) -> bool:
        if self.end > len(self.body.units):
            return False
        for p in self.element.properties:
            if p.count is not None:
                counts = self._column(self.offsets[p.name], p.count)
                if (counts != self.counts[p.name]).any():
                    return False
        return True

    def _walk(self) -> "_Table":
        """Go through rows of different lengths one after the other."""
        places: dict[str, list[int]] = {p.name: [] for p in self.element.properties}
        steps = []
        for p in self.element.properties:
            count, skip = None, 0
            if p.count is not None:
                count = self.body.counter(p.count, self.element.name)
                skip = self.body.size(p.count)
            steps.append((places[p.name].append, count, skip, self.body.size(p.type)))
        place = self.start
        for _ in range(self.element.rows):
            for remember, count, skip, size in steps:
                remember(place)
                place += size if count is None else skip + count(place) * size
        if place > len(self.body.units):
            raise self.body.source.error(f"is cut short in the element {self.element.name}")
        arrays = {name: np.array(list_) for name, list_ in places.items()}
        return replace(self, end=place, places=arrays)

    def scalars(self, p: Property) -> Array:
        """One number of each row, (rows,)."""
        if self.element.rows == 0:
            return np.empty(0)
        if self.places is not None:
            values = self.body.values(self.places[p.name], p.type)[:, 0]
        else:
            values = self._column(self.offsets[p.name], p.type)[:, 0]
        if p.type == np.uint8 and ((values >= 0) & (values <= 255)).all():
            return values.astype(np.uint8)  # so that a colour of 1 is not full brightness
        return values

    def lists(self, p: Property) -> list[tuple[Array, Array]]:
        """Rows and items of the lists of each length, ((m,), (m, items))."""
        assert p.count is not None
        skip, rows = self.body.size(p.count), np.arange(self.element.rows)
        if self.places is None:
            items = self._column(self.offsets[p.name] + skip, p.type, self.counts[p.name])
            return [(rows, whole(self.body.source, items))]
        starts = self.places[p.name]
        counts = self.body.values(starts, p.count)[:, 0].astype(np.int64)
        groups = []
        for count in np.unique(counts):
            mask = counts == count
            items = self.body.values(starts[mask] + skip, p.type, int(count))
            groups.append((rows[mask], whole(self.body.source, items)))
        return groups
