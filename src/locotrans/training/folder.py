"""The folder of a run: whether it may be used, and by one process at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from locotrans.training.config import TrainConfig, differing_keys
from locotrans.training.parts import refuse_parts
from locotrans.training.presets import read_config

CHECKPOINT = "checkpoint.safetensors"
WEIGHTS = "weights.safetensors"


def check_folder(config: TrainConfig) -> None:
    """Refuse a folder that holds something else than this run.

    Settings may change until there is a checkpoint.

    Raises:
        ValueError: naming the settings that differ.
    """
    folder = config.out
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise ValueError(f"{place} is a file; choose another --out")
    saved, checkpoint = folder / "config.json", folder / CHECKPOINT
    refuse_parts(checkpoint)
    if saved.exists():
        before = read_config(saved)
        changed = [
            f"{name} was {getattr(before, name)}, is {getattr(config, name)}"
            for name in differing_keys(before, config)
        ]
        if changed and (checkpoint.exists() or (folder / "record.json").exists()):
            raise ValueError(
                f"{folder} holds a run with other settings ({'; '.join(changed)}); "
                "repeat its settings to go on with it, or choose another --out"
            )
    elif folder.exists() and any(path.suffix != ".tmp" for path in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no run; choose another --out")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, and keep others from training in it meanwhile, where the system has locks.

    Raises:
        ValueError: one does already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is training in {folder}; wait for it, or choose another --out"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)
