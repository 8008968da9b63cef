"""Large files in parts that travel one by one, and whole again.

``checkpoint.safetensors`` becomes ``checkpoint.safetensors.part-0-of-3`` and so on, and a small
``checkpoint.safetensors.parts.json`` with their sizes and checksums. Every step leaves either the
file or all of its parts whole.
"""

import glob
import hashlib
import re
from pathlib import Path

from locotrans.training.record import read_json, write_atomically, write_json

MEBIBYTE = 2**20
LISTING = ".parts.json"
_PART = re.compile(r".+\.part-\d+-of-\d+")


def in_parts(path: Path) -> bool:
    """Say whether a file is there in parts only, with their listing or without."""
    return not path.exists() and any(path.parent.glob(f"{glob.escape(path.name)}.part*"))


def refuse_parts(path: Path) -> None:
    """Raise a ValueError that says what to do, if a file is there in parts only."""
    listing = path.with_name(path.name + LISTING)
    if in_parts(path) and not listing.exists():
        raise ValueError(f"{path} is in parts, and their listing {listing.name} is not; fetch it")
    if in_parts(path):
        raise ValueError(f"{path} is in parts; first run: locotrans checkpoint join {path.parent}")


def split(path: Path, size: int = 16 * MEBIBYTE) -> list[Path]:
    """Replace a file, or every file of a folder that is larger than ``size`` bytes, by parts.

    Returns:
        The parts.
    """
    if size < 1:
        raise ValueError(f"a part must hold at least 1 byte, got {size}")
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file() and p.suffix != ".tmp")
        return [part for file in files if file.stat().st_size > size for part in split(file, size)]
    content = path.read_bytes()
    pieces = [content[start : start + size] for start in range(0, len(content), size)] or [b""]
    parts = [path.with_name(f"{path.name}.part-{i}-of-{len(pieces)}") for i in range(len(pieces))]
    for part, piece in zip(parts, pieces, strict=True):
        write_atomically(part, piece)
    names = {part.name: _digest(piece) for part, piece in zip(parts, pieces, strict=True)}
    listing = {"bytes": len(content), "sha256": _digest(content), "parts": names}
    write_json(path.with_name(path.name + LISTING), listing)
    path.unlink()
    return parts


def join(path: Path) -> list[Path]:
    """Put a file, or every file of a folder, together again from its parts, and remove those.

    Raises:
        ValueError: if a part is missing or damaged, or another file is in the place; everything is
            left as it is.

    Returns:
        The files that are whole again.
    """
    if path.is_dir():
        listings = sorted(path.glob(f"*{LISTING}"))
        return [file for x in listings for file in join(Path(str(x).removesuffix(LISTING)))]
    listing_file = path.with_name(path.name + LISTING)
    if not listing_file.exists():
        raise ValueError(f"{path} has no parts here: there is no {listing_file.name}")
    listing = read_json(listing_file)
    pieces = []
    for name, digest in listing["parts"].items():
        part = path.with_name(name)
        if not _PART.fullmatch(part.name) or not part.is_file():
            raise ValueError(f"{path}: its part {name} is missing; fetch it again")
        pieces.append(part.read_bytes())
        if _digest(pieces[-1]) != digest:
            raise ValueError(f"{part} is damaged (its checksum does not match); fetch it again")
    content = b"".join(pieces)
    if _digest(content) != listing["sha256"]:
        raise ValueError(f"{listing_file} is damaged: the parts are not those of {path.name}")
    if path.exists() and _digest(path.read_bytes()) != listing["sha256"]:
        raise ValueError(f"{path} is there, and not what its parts make; remove it, or the parts")
    write_atomically(path, content)
    listing_file.unlink()
    for name in listing["parts"]:
        path.with_name(name).unlink()
    return [path]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
