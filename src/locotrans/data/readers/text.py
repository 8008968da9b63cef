"""Numbers written as text, parsed at some two million lines a second."""

import io
import re

import numpy as np

from locotrans.data.readers.raw import Array
from locotrans.data.readers.source import Source

MEMORY = 6  # bytes that parsing takes, at most about, for each byte of text
ONE_A_LINE = bytes.maketrans(b" \t\r\v\f", b"\n" * 5)
BLANK = re.compile(rb"\n[ \t\n]*\n")


def read_text(source: Source) -> bytes:
    r"""Return the file with ``\n`` as the only end of line, without a byte-order mark."""
    source.check_size(MEMORY * source.size, "its text as numbers")
    data = source.read()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            data = data.decode("utf-16").encode()
        except UnicodeError:
            raise source.error("is damaged UTF-16 text", "save it as UTF-8") from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data:
        raise source.error("is binary, not text", "give it the suffix of its format")
    return unix_lines(data)


def unix_lines(data: bytes) -> bytes:
    r"""Replace ``\r\n`` and lone ``\r`` by ``\n``."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data


def without_comments(data: bytes, *marks: bytes) -> bytes:
    """Cut every line at the first of the marks; the number of lines stays."""
    for mark in marks:
        if mark in data:
            data = re.sub(re.escape(mark) + rb"[^\n]*", b"", data)
    return data


def without_blank_lines(data: bytes) -> bytes:
    """Drop the lines that hold nothing."""
    return BLANK.sub(b"\n", data).strip(b" \t\n")


def split_lines(data: bytes, counts: list[int]) -> list[bytes]:
    """Cut into blocks of so many lines each, and a last one of all the rest."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    blocks, start, line = [], 0, 0
    for count in counts:
        line += count
        end = int(ends[line - 1]) if 0 < line <= len(ends) else (len(data) if line else 0)
        blocks.append(data[start:end])
        start = end
    return [*blocks, data[start:]]


def numbers(source: Source, data: bytes, what: str) -> Array:
    """Parse all numbers, whatever lines they are on; (m,) float64."""
    return table(source, data.translate(ONE_A_LINE), what)[:, 0]


def table(source: Source, data: bytes, what: str) -> Array:
    """Parse lines with the same number of columns each, separated by blanks; (n, c) float64."""
    if not data.strip():
        return np.empty((0, 1))
    try:
        stream = io.StringIO(data.decode("latin-1"))
        return np.loadtxt(stream, comments=None, ndmin=2)
    except ValueError as error:
        raise source.error(f"{what}: {_explain(data, error)}", "correct or remove it") from None


def _explain(data: bytes, error: ValueError) -> str:
    """Find the line that the parser refused: its own messages count rows, not lines."""
    columns = 0
    for line, content in enumerate(data.split(b"\n"), start=1):
        words = content.split()
        if not words:
            continue
        for word in words:
            try:
                float(word)
            except ValueError:
                return f"line {line} has {word[:40].decode('latin-1')!r} where a number belongs"
        if columns not in (0, len(words)):
            return f"line {line} has {len(words)} columns, those before have {columns}"
        columns = len(words)
    return str(error).partition(";")[0]
