"""Commands that train, and that work on finished runs."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

from locotrans.cli.shared import print_evaluation
from locotrans.data.roots import read_lines
from locotrans.training.config import TrainConfig, join_options
from locotrans.training.presets import base_config, read_config

STOPPED = 3  # exit status of a run that --stop-after ended
Flags = Annotated[TrainConfig, tyro.conf.arg(name="")]  # no prefix: --epochs, not --flags.epochs


def demo(out: Path = Path("demo"), seed: int = 0) -> None:
    """Train small networks on the built-in set and show what rotations do to them.

    Args:
        out: Folder for the pictures and the record.
        seed: Seed of everything random.
    """
    from locotrans.training.demo import run_demo

    run_demo(out, seed)


def train_command(arguments: Sequence[str]) -> Callable[..., None]:
    """Return the `train` subcommand; a config file or a preset that is named gives the defaults."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--config", type=Path, nargs="?")
    finder.add_argument("--preset", nargs="?")
    finder.add_argument("--model", nargs="?")
    given = finder.parse_known_args(arguments)[0]
    if given.config is not None and given.preset is not None:
        raise ValueError("--config and --preset both give the defaults; name one of them")
    in_use = list(arguments[:1]) == ["train"]  # other commands may have such flags too
    defaults = base_config(given.preset, given.model) if in_use else TrainConfig()
    if given.config is not None:
        defaults = read_config(given.config, given.model)

    def train(
        flags: Flags = defaults, config: Path | None = None, stop_after: float | None = None
    ) -> None:
        """Train a model; a run that was cut goes on if its command is repeated.

        Under torchrun, processes share every batch:
        torchrun --nproc-per-node 2 -m -- locotrans train ...

        Args:
            flags: The settings of the run.
            config: JSON or TOML file of settings; flags override it.
            stop_after: Seconds after which to stop with a checkpoint and exit status 3 (0 under
                torchrun, which takes any other for a failure); the same command goes on.
        """
        from locotrans.training import Stopped
        from locotrans.training import train as run

        together = "TORCHELASTIC_RUN_ID" in os.environ
        speaks = not together or os.environ.get("RANK", "0") == "0"  # the others would repeat it
        recipe = base_config(flags.preset, flags.model)
        flags = replace(flags, options=join_options(recipe.options, flags.options))
        try:
            record = run(flags, stop_after=stop_after)
        except Stopped as stopped:
            if speaks:
                print(stopped)
            sys.exit(0 if together else STOPPED)
        if speaks:
            print_evaluation(record["evaluation"])

    return train


def pack_run(
    run: tyro.conf.Positional[Path], /, out: Path | None = None, replace: bool = False
) -> None:
    """Pack a finished run's weights with their description and a model card.

    Args:
        run: Run folder of `train`.
        out: Folder to write into; by default that of the package, where --pretrained looks.
        replace: Overwrite the weights of this model that are there.
    """
    from locotrans.training.pack import pack

    print(pack(run, out, replace=replace))


def report(
    records: tyro.conf.Positional[tuple[Path, ...]],
    /,
    out: Path | None = None,
    curves: Path | None = None,
) -> None:
    """Write the paper's tables beside ours, as Markdown, and a plot of training curves.

    Each recipe has its own tables; a cell that was not run stays empty.

    Args:
        records: Run folders, with the evaluations that lie in them, and JSON files of `eval`,
            `perturb` and `samplings`; files of other commands are left out.
        out: Markdown file to write; by default it is printed.
        curves: PNG file for the training curves of the run folders.
    """
    from locotrans.pictures import curves_figure, save_figure
    from locotrans.training.record import write_atomically
    from locotrans.training.report import read_curves, read_results, render

    useless = {path: reason for path in records if (reason := why_left_out(path))}
    if len(useless) < len(set(records)):  # else the first is refused
        records = tuple(path for path in records if path not in useless)
        for path, reason in useless.items():
            print(f"{path} is {reason}, and left out", file=sys.stderr)
    results = read_results(records)
    if curves is not None:
        lines = read_curves(records)
        if not lines:
            raise ValueError("--curves needs run folders among the records; a file has no epochs")
        save_figure(curves_figure(lines), curves)
    shown = curves if curves is None or out is None else Path(os.path.relpath(curves, out.parent))
    text = render(results, shown)
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text.encode())


def why_left_out(path: Path) -> str | None:
    """Say what a path is instead of a result: a run under way, or what another command wrote."""
    from locotrans.training.report import writer_of

    if (path / "config.json").exists() and not (path / "record.json").exists():
        return "not finished"
    command = writer_of(path)
    return None if command is None else f"no evaluation (`locotrans {command}` wrote it)"


def convert(
    file: tyro.conf.Positional[Path],
    /,
    out: Path = Path("weights.safetensors"),
    class_names: Path | None = None,
    points: int = 1024,
) -> None:
    """Write weights that the authors' program saved as weights of ours, for `eval` and `predict`.

    Args:
        file: Their checkpoint, such as model.t7: a state dict of the full or the light network.
        out: Weights file to write, .safetensors.
        class_names: Text file with the name of a class in every line, in the order of the labels;
            without it classes are numbers, and stand for those of any data set with as many.
        points: Points per shape that the network was trained with.
    """
    from locotrans.convert import read_authors
    from locotrans.training.checkpoint import write_tensors
    from locotrans.training.config import to_json

    network = read_authors(file)
    count = network.num_classes
    names = [str(i) for i in range(count)]
    if class_names is not None:
        names = read_lines(class_names)
        if len(names) != count:
            raise ValueError(
                f"{class_names} names {len(names)} classes, {file} tells {count} apart"
            )
    name = "locotrans_dgcnn" if network.config.fusion else "locotrans_dgcnn_light"
    facts = {"model": name, "config": to_json(network.config), "num_classes": count}
    facts |= {"class_names": names, "part_names": [], "data": "modelnet40", "points": points}
    write_tensors(out, network.state_dict(), {**facts, "converted_from": file.name})
    print(f"{name} with {count} classes is in {out}")


def checkpoint_commands() -> None:
    """Cut large files into parts, and join them: `locotrans checkpoint --help`."""


def split_files(path: tyro.conf.Positional[Path], /, size: int = 16) -> None:
    """Cut a file, or all large files of a run folder, into parts; the whole ones are removed.

    Args:
        path: File or folder.
        size: Largest part in MiB.
    """
    from locotrans.training.parts import MEBIBYTE, split

    parts = split(path, size * MEBIBYTE)
    print("\n".join(map(str, parts)) or f"{path}: nothing is larger than {size} MiB")


def join_files(path: tyro.conf.Positional[Path], /) -> None:
    """Put files together again from their parts; the parts are removed.

    Args:
        path: File or folder.
    """
    from locotrans.training.parts import join

    print("\n".join(map(str, join(path))) or f"{path}: there are no parts to join")
