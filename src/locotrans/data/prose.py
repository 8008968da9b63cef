"""Whether a text file is words, and no points."""

import re
from pathlib import Path


def is_prose(path: Path) -> bool:
    """Say whether a .txt is words: no line of its first 20 has as many numbers as other words.

    Comments do not count; a file that is empty, binary or unreadable is left for the reader to
    refuse.
    """
    if path.suffix.lower() != ".txt":
        return False
    try:
        with path.open("rb") as file:
            head = file.read(2**12)
    except OSError:
        return False
    lines = [line.split(b"#")[0].split(b"//")[0] for line in head.splitlines()]
    words = [re.findall(rb"[^\s,;\"]+", line) for line in lines]
    words = [line for line in words if line][:20]
    if not words or b"\0" in head:
        return False
    return all(2 * sum(map(_is_number, line)) < len(line) for line in words)


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
