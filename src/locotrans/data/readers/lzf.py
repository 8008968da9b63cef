"""LZF decompression, for compressed pcd files."""


class LzfError(ValueError):
    """The compressed bytes are damaged."""


def decompress(data: bytes, size: int) -> bytes:
    """Unpack to exactly ``size`` bytes.

    A control byte below 32 announces that many literal bytes and one more. Any other one holds a
    length in its upper three bits (7: plus the next byte) and, with the byte after it, how far back
    to copy from.
    """
    output = bytearray()
    place, end = 0, len(data)
    try:
        while place < end and len(output) <= size:
            control = data[place]
            place += 1
            if control < 32:
                output += data[place : place + control + 1]
                place += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += data[place]
                place += 1
            length += 2
            start = len(output) - ((control & 31) << 8) - data[place] - 1
            place += 1
            if start < 0:
                raise LzfError("refers to bytes before its beginning")
            piece = output[start : start + length]
            if len(piece) < length:  # it overlaps what it writes: a repeated pattern
                piece = (piece * (length // len(piece) + 1))[:length]
            output += piece
    except IndexError:
        raise LzfError("is cut short") from None
    if place > end or len(output) != size:
        raise LzfError(f"gives {len(output)} bytes, not {size}")
    return bytes(output)
