"""A prepared cache: what a slow format was read into, as one memory-mapped file.

The file is safetensors: arrays that are mapped, not read, and a header that says how long they
are, so that a file cut short is noticed. It also holds a fingerprint of the source files; another
fingerprint, or a file that cannot be read, means that it is built again.
"""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from locotrans.data.registry import log
from locotrans.data.roots import cache_root

FORMAT = "2"
"""Raised whenever what is stored changes its meaning."""

SAMPLE, SAMPLED = 4096, 512
"""Bytes at either end of a source file that enter the fingerprint, and of how many files."""


def cached(
    key: str, folder: Path, sources: Sequence[Path], build: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Return what ``build`` gives, from the cache if the sources are what they were.

    A cache that cannot be written costs time, never the result.

    Args:
        key: Names the result among those of the same folder, such as "modelnet40-text-train".
        folder: Folder of the sources.
        sources: Every file that the result depends on.
        build: Reads the sources.
    """
    path = cache_path(key, folder)
    mark = fingerprint(folder, sources)
    if path.exists():
        tensors = _read(path, mark)
        if tensors is not None:
            return tensors
    tensors = build()
    try:
        _write(path, tensors, mark)
    except OSError as error:
        log.warning(
            "cannot keep a prepared copy of %s (%s); the next load reads it again", key, error
        )
    return tensors


def cache_path(key: str, folder: Path) -> Path:
    """Return the file of a key: one for each place that the sources lie in."""
    place = hashlib.blake2b(f"{folder.resolve()}|{key}".encode(), digest_size=8).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", key)[:80]
    return cache_root() / "prepared" / f"{name}-{place}.safetensors"


def fingerprint(folder: Path, sources: Sequence[Path]) -> str:
    """Condense path, size and times of change of each source, and the ends of some.

    Reading all to see whether they have to be read would save nothing. The time of the last
    change of state is one that no copying program sets back.
    """
    digest = hashlib.blake2b(FORMAT.encode(), digest_size=16)
    prefix, step = str(folder), -(-len(sources) // SAMPLED)
    for number, path in enumerate(sources):
        state = path.stat()
        times = f"{state.st_size}|{state.st_mtime_ns}|{state.st_ctime_ns}|"
        digest.update(f"{str(path).removeprefix(prefix)}|{times}".encode())
        if number % step == 0:
            with path.open("rb") as file:
                digest.update(file.read(SAMPLE))
                if state.st_size > 2 * SAMPLE:
                    file.seek(-SAMPLE, os.SEEK_END)
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def _read(path: Path, mark: str) -> dict[str, Tensor] | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("fingerprint") == mark:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        log.info("%s: the sources have changed since it was prepared; preparing again", path)
    except (SafetensorError, OSError) as error:
        log.warning("%s is damaged (%s); preparing again", path, error)
    return None


def _write(path: Path, tensors: dict[str, Tensor], mark: str) -> None:
    """Write under a name of this process, see it to the disk, and rename it into place."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        ready = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(ready, temporary, metadata={"fingerprint": mark})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except SafetensorError as error:
        raise OSError(str(error)) from None
    finally:
        temporary.unlink(missing_ok=True)
