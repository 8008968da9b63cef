"""JSON files of ours that hold no result: what `certify` wrote may lie among evaluations."""

import json
from pathlib import Path

WRITERS = (
    ("certify", {"target", "passed", "search"}),
    ("export", {"comparison", "latency", "certificate"}),
    ("align", {"a", "b", "rotation", "residual"}),
    ("search", {"index", "query", "nearest"}),
    ("search", {"index", "within", "groups"}),
    ("predict", {"path", "class", "confidence"}),
    ("segment", {"weights", "names", "files"}),
    ("pack", {"sha256", "preprocessing", "record"}),
    ("demo", {"networks", "frame_consistency", "poses"}),
    ("checkpoint split", {"bytes", "sha256", "parts"}),
    ("train", {"model", "epochs", "batch_size", "out"}),  # config.json
    ("train", {"torch", "python", "platform", "device"}),  # environment.json
)
"""Commands, and keys that together only their files have; of a list, its first entry."""


def writer_of(file: Path) -> str | None:
    """Name the command that wrote a JSON file without results.

    None stands for all that is left to the reader of results: those, files that cannot be read, and
    files of no command of ours.
    """
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    first = document[0] if isinstance(document, list) and document else document
    if not isinstance(first, dict):
        return None
    return next((name for name, keys in WRITERS if keys <= first.keys()), None)
