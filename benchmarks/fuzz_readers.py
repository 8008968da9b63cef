"""Damaged files to the readers: each is read, or refused by one kind of error.

    python benchmarks/fuzz_readers.py --mutations 20000 --out fuzz.json

Takes a file of every kind from the tests, damages it at random, and reads it. Anything but a cloud
or a `ReadError` ends the program with a traceback; the record says how many were read, and how long
the slowest took.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from timing import record_arguments, write_record

sys.path.append(str(Path(__file__).parents[1] / "tests"))


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    from data.readers import writers
    from data.readers.test_fuzz import fuzz

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    record_arguments(parser)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = writers.write_all(Path(folder))
        readable, (seconds, name) = fuzz(files, Path(folder), args.mutations, args.seed)
    result = {
        "mutations": args.mutations,
        "kinds of files": len(files),
        "read in spite of damage": readable.total(),
        "refused": args.mutations - readable.total(),
        "slowest, s": seconds,
        "slowest": name,
    }
    print(result)
    write_record(args, torch.device("cpu"), result)
    return result


if __name__ == "__main__":
    main()
