"""A reader whose process dies on some files; a module that other processes can import."""

import os
from pathlib import Path
from typing import Any

from locotrans.training.predict.samples import Sample, load_sample


def die_on_plates(path: Path, **given: Any) -> Sample:
    """Read a cloud, or end the process when the file's name says plate."""
    if "plate" in path.name:
        os._exit(9)
    return load_sample(path, **given)
