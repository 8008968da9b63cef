"""Whether the lengths in a compressed scan (laz) can be true.

The decompressor takes memory for whatever a damaged file claims, and where there is not so much it
ends the whole process. So each length is compared with the size of the file first.
"""

import io
import struct
from typing import Any

import numpy as np

from locotrans.data.readers.source import Source

LAYERED = 3  # the compressor that stores the parts of a point one after the other
LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}  # by the type of an item; 14 has one for each byte


def check_laz(source: Source, lazrs: Any, data: bytes, start: int, width: int, count: int) -> None:
    """Check the chunks of a laz file.

    Args:
        source: The file.
        lazrs: The module that reads its table of chunks.
        data: All bytes of the file.
        start: Where the points begin.
        width: Bytes of an unpacked point.
        count: How many points there are.
    """
    record = _find_record(source, data[:start])
    compressor, items = struct.unpack_from("<H", record)[0], struct.unpack_from("<H", record, 32)[0]
    if len(record) < 34 + 6 * items:
        raise source.error("the record of its compression is cut short")
    kinds = [struct.unpack_from("<HH", record, 34 + 6 * item) for item in range(items)]
    if sum(size for _, size in kinds) != width:
        raise source.error(f"its points have {width} bytes, but not those that are compressed")
    layers = sum(LAYERS.get(kind, size) for kind, size in kinds)
    place = start + 8
    for size in _chunk_sizes(source, lazrs, record, data, start, count):
        if size < 0 or place + size > len(data):
            raise source.error("its compressed points go beyond the end of the file")
        if compressor == LAYERED:
            head = width + 4 + 4 * layers
            if size < head:
                raise source.error("a chunk of its compressed points is cut short")
            lengths = np.frombuffer(data, "<u4", layers, place + width + 4)
            if head + int(lengths.sum(dtype=np.int64)) > size:
                raise source.error("the layers of a chunk are longer than the chunk")
        place += size


def _find_record(source: Source, head: bytes) -> bytes:
    """The record that says how the points are compressed."""
    place = head.find(b"laszip encoded\0")
    if place >= 2 and len(head) >= place + 52:
        size = struct.unpack_from("<H", head, place + 18)[0]
        record = head[place + 52 : place + 52 + size]
        if len(record) == size >= 34:
            return record
    raise source.error("is compressed, but its header does not say how")


def _chunk_sizes(
    source: Source, lazrs: Any, record: bytes, data: bytes, start: int, count: int
) -> list[int]:
    """Bytes of each chunk, from the table at the end."""
    table = struct.unpack_from("<q", data, start)[0] if start + 8 <= len(data) else 0
    if table == -1:  # it was not known yet when the beginning was written
        table = struct.unpack_from("<q", data, len(data) - 8)[0]
    if not start + 8 <= table <= len(data) - 8:
        raise source.error("the table of its chunks is missing")
    chunks = struct.unpack_from("<I", data, table + 4)[0]
    if not 0 < chunks <= count:
        raise source.error(f"claims {chunks} chunks of {count} points")
    stream = io.BytesIO(data)
    stream.seek(start)
    return [size for _, size in lazrs.read_chunk_table(stream, lazrs.LazVlr(record))]
