"""The command line: parses, calls, prints.

What a user can get wrong ends in one line, "error: ...", and exit status 2; anything else is a
bug and shows its traceback. A run that `--stop-after` ended has the exit status 3. A subcommand
imports what it needs when it runs.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

# Read when torch is imported. By default its threads wait for each other by spinning, and a step of
# a second takes a minute on a machine that is busy with something else.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from locotrans import __version__
from locotrans.cli.answer import align, embed, predict, segment
from locotrans.cli.data import check_data, data_commands, export_data, prepare_rooms
from locotrans.cli.describe import info, list_names
from locotrans.cli.learn import (
    checkpoint_commands,
    convert,
    demo,
    join_files,
    pack_run,
    report,
    split_files,
    train_command,
)
from locotrans.cli.look import index, search, view
from locotrans.cli.measure import evaluate, perturb, samplings
from locotrans.cli.ship import certify, export


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `locotrans` program."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(f"locotrans {__version__}")
        return
    try:
        commands: dict[str, Callable[..., Any]] = {
            "demo": demo,
            "train": train_command(arguments),
            "eval": evaluate,
            "perturb": perturb,
            "predict": predict,
            "embed": embed,
            "segment": segment,
            "certify": certify,
            "samplings": samplings,
            "pack": pack_run,
            "report": report,
            "view": view,
            "index": index,
            "search": search,
            "export": export,
            "align": align,
            "convert": convert,
            "info": info,
            "list": list_names,
            "data": data_commands,
            "checkpoint": checkpoint_commands,
        }
        if list(arguments[:1]) == ["data"]:
            tyro.extras.subcommand_cli_from_dict(
                {"check": check_data, "export": export_data, "prepare-s3dis": prepare_rooms},
                prog="locotrans data",
                description="Look at data sets on disk, and write them.",
                args=arguments[1:],
            )
            return
        if list(arguments[:1]) == ["checkpoint"]:
            tyro.extras.subcommand_cli_from_dict(
                {"split": split_files, "join": join_files},
                prog="locotrans checkpoint",
                description="Cut large files of a run into parts that can travel, and join them.",
                args=arguments[1:],
            )
            return
        status = tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="locotrans",
            description="Rotation-invariant point-cloud learning: LocoTrans and its baselines.",
            args=arguments,
        )
        if status:
            sys.exit(status)
    except BrokenPipeError:  # whoever read our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as error:
        print("error:", " ".join(_message(error).split()), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; a training run goes on if its command is repeated", file=sys.stderr)
        sys.exit(130)


def _message(error: ValueError | OSError) -> str:
    """Return what to tell the user; the system's own errors come as "[Errno 2] ..."."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror.lower()}"
    return str(error)
