"""The file that is read, checked before anything is read from it; and the one error of readers."""

import errno
import re
import stat
from dataclasses import dataclass
from pathlib import Path

AGAIN = "fetch or write it again"
"""What to do about a damaged file."""


INDEXED = re.compile(r"(.+\.(?:h5|hdf5))#(\d{1,9})", re.IGNORECASE)


class ReadError(ValueError):
    """A file cannot be read: the message names the file, what is wrong and what to do."""


@dataclass(frozen=True)
class Source:
    """An existing, regular file of tolerable size."""

    path: Path
    """As it was asked for, with the index of a cloud if there was one."""
    file: Path
    size: int
    max_bytes: int
    """Limit for the file, and for what is unpacked from it."""
    index: int | None = None
    """Which cloud of the file, from ``file.h5#12``."""

    def error(self, problem: str, remedy: str = AGAIN) -> ReadError:
        """Return the error to raise."""
        return ReadError(f"{self.path}: {problem}: {remedy}")

    def read(self, size: int | None = None) -> bytes:
        """Return the first ``size`` bytes, or all."""
        try:
            with self.file.open("rb") as file:
                return file.read(self.size if size is None else size)
        except OSError as error:
            raise _os_error(self.path, error) from None

    def check_size(self, size: int, what: str) -> None:
        """Refuse to unpack more than ``max_bytes``."""
        if size > self.max_bytes:
            raise self.error(
                f"{what} would take {size:,} bytes, the limit is {self.max_bytes:,}",
                "cut it into smaller ones, or read it with a larger max_bytes if you trust it",
            )


def file_of(path: Path) -> Path:
    """Return the file that a path lies in: ``many.h5`` for ``many.h5#12``."""
    match = INDEXED.fullmatch(path.name)
    return path.with_name(match[1]) if match and not path.exists() else path


def open_source(path: Path, max_bytes: int) -> Source:
    """Find the file of ``path``, which may end in ``.h5#12``."""
    file, index = path, None
    match = INDEXED.fullmatch(path.name)
    try:
        if match and not path.exists():
            file, index = path.with_name(match[1]), int(match[2])
        status = file.stat()
    except OSError as error:
        raise _os_error(path, error) from None
    except ValueError as error:  # a zero byte in the name
        raise ReadError(f"{str(path)!r}: {error}: check the path") from None
    if stat.S_ISDIR(status.st_mode):
        raise ReadError(f"{path}: is a folder: name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise ReadError(f"{path}: is no regular file: copy its contents into one")
    if status.st_size == 0:
        raise ReadError(f"{path}: is empty: {AGAIN}")
    source = Source(path, file, status.st_size, max_bytes, index)
    source.check_size(source.size, "reading the file")
    return source


def _os_error(path: Path, error: OSError) -> ReadError:
    problem, remedy = {
        errno.ENOENT: ("there is no such file", "check the path"),
        errno.EACCES: ("may not be read", "change its permissions, such as chmod u+r"),
        errno.EPERM: ("may not be read", "change its permissions, such as chmod u+r"),
        errno.ELOOP: ("is a loop of symbolic links", "make the link point to a file"),
        errno.EISDIR: ("is a folder", "name a file in it"),
        errno.ENOTDIR: ("a part of the path is a file, not a folder", "check the path"),
        errno.ENAMETOOLONG: ("the name is too long", "check the path"),
    }.get(error.errno or 0, (error.strerror or str(error), "check the disk and the path"))
    return ReadError(f"{path}: {problem}: {remedy}")
