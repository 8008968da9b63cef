"""What a run leaves beside its weights: where it ran, and one JSON record of its result.

Files are replaced whole or not at all (`replacing`).
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import torch

SELECTION = "last epoch"  # how the weights of a result were chosen


class UnwritableError(OSError):
    """A file cannot be written; the message names it."""


@contextmanager
def replacing(path: Path, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
    """Open a file that takes the place of ``path`` when the block ends, and vanishes if it fails.

    The content goes to a temporary name in the same folder, reaches the disk, and is renamed;
    a process killed in between leaves the earlier file and a ``.tmp`` that the next write reuses.

    Args:
        path: the file; where it is a link, the link stays and its target is replaced.
        mode: as for ``open``.
        **options: as for ``open``.
    """
    if path.exists() and not path.is_file():
        raise UnwritableError(f"cannot write {path}: it is not a file; name another one")
    path = path.resolve()
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open(mode, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except UnwritableError:  # another file's
        raise
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Find out before long work, rather than after it, whether a file can be written.

    Raises:
        UnwritableError: as writing it would.
    """
    if path.exists() and not path.is_file():
        raise UnwritableError(f"cannot write {path}: it is not a file; name another one")
    path = path.resolve()
    temporary = path.with_name(path.name + ".tmp")  # what `replacing` writes
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``, or leave it as it was and raise `OSError`."""
    with replacing(path) as file:
        file.write(content)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read what `append_line` wrote."""
    lines = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number} is damaged ({error}); restore it from a copy, or train "
                "again in another --out"
            ) from None
    return lines


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Add one JSON line to ``path`` and see it to the disk."""
    try:
        with path.open("a") as file:
            file.write(json.dumps(value) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UnwritableError:
    reason = error.strerror or str(error)
    return UnwritableError(
        f"cannot write {path}: {reason}; nothing that was there before is lost. "
        "Make room or choose another folder, then repeat the command"
    )


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write ``value`` to ``path`` as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote."""
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {error}; remove it, or restore it from a copy"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold one object of keys and values")
    return value


def find_device(name: str) -> torch.device:
    """Return the named device; "auto" is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # the latter from a torch without CUDA
        raise ValueError(f"device {name!r} is not available here; try cpu or auto") from None
    return device


def environment(device: torch.device) -> dict[str, Any]:
    """Describe the machine and the programs that a result was computed with, and say when."""
    on_gpu = device.type == "cuda"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "locotrans": version("locotrans"),
        "commit": git_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if on_gpu else device.type,
        "threads": torch.get_num_threads(),
    }


def git_commit() -> str | None:
    """Return the commit of the checkout this package runs from, with "-dirty" for local changes.

    An installed package, or a machine without git, gives None.
    """
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def make_record(
    config: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    train_checksum: str,
    up: str,
    seconds: float,
    device: torch.device,
) -> dict[str, Any]:
    """Put together the record of a finished run.

    Args:
        config: the run's config as JSON values.
        evaluation: what `evaluate` returned for the last epoch's weights.
        train_checksum: checksum of the training data; the test data's is in ``evaluation``.
        up: the up axis of the data set, which the rotation z turns about.
        seconds: time spent in training, over all the parts of a run that was cut.
        device: where the last part ran.
    """
    return {
        "protocol": f"{config['rotation']}/{evaluation['rotation']}",
        "axis": up if "z" in (config["rotation"], evaluation["rotation"]) else None,
        "head": "combined",
        "selection": SELECTION,
        "seed": config["seed"],
        "precision": config["precision"],
        "config": config,
        "data_checksums": {
            "train": train_checksum,
            evaluation["split"]: evaluation["data_checksum"],
        },
        "seconds": round(seconds, 3),
        "evaluation": evaluation,
        "environment": environment(device),
    }
