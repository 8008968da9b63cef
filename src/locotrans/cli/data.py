"""`locotrans data`: data sets on disk."""

from pathlib import Path

import tyro

from locotrans.counting import counted


def data_commands() -> None:
    """Check, export and prepare data sets: `locotrans data --help`."""


def check_data(
    root: tyro.conf.Positional[Path | None] = None,
    /,
    data: str | None = None,
    classes: bool = False,
    twins: Path | None = None,
) -> None:
    """Say which data sets lie in a folder, what they hold, and what is wrong.

    Args:
        root: Folder to look into, or a table of paths and labels; by default as for `train`: the
            environment variable LOCOTRANS_DATA, then the cache folder.
        data: What to take the folder for, as of `train`, such as folder:sphere=1.0 for scenes of
            your own; by default what is recognised.
        classes: Count the shapes of every class too, of scenes the points.
        twins: File to list the shapes of other splits in that have the points of shapes to train
            on, say because a file is there twice; `eval --exclude` takes it. Clouds that were
            sampled anew from one mesh, as in ModelNet40's HDF5 release, are not equal.
    """
    from locotrans.data import check
    from locotrans.training.record import write_atomically

    report = check(root, data)
    if not report.sets:
        raise ValueError(report.problems[0])
    for line in report.lines(classes=classes):
        print(line)
    if twins is not None:
        names = sorted({name for found in report.sets for name in found.twins})
        write_atomically(twins, "".join(f"{name}\n" for name in names).encode())
        print(f"{counted(len(names), 'twin')} (clouds of equal points) -> {twins}")
    if report.problems:
        raise ValueError(f"{counted(len(report.problems), 'problem')}, named above")


def export_data(
    layout: tyro.conf.Positional[str],
    out: tyro.conf.Positional[Path],
    /,
    train: int = 200,
    test: int = 60,
    points: int = 2048,
    seed: int = 0,
) -> None:
    """Write the built-in set as files of an official layout, to try every path without the data.

    Args:
        layout: Name and layout, for example modelnet40:hdf5, shapenetpart:normal, s3dis.
        out: Folder to write into, new or empty; it is then the --root of `train` and `eval`.
        train: Training shapes.
        test: Test shapes.
        points: Points per shape.
        seed: Seed of the shapes.
    """
    from locotrans.data import export

    root = export(layout, out, train=train, test=test, points=points, seed=seed)
    print(f"{layout} is in {root}")


def prepare_rooms(raw: tyro.conf.Positional[Path], out: tyro.conf.Positional[Path], /) -> None:
    """Turn the raw annotations of S3DIS into the usual arrays of its rooms.

    Args:
        raw: The unpacked Stanford3dDataset_v1.2_Aligned_Version.
        out: Folder for the arrays, such as stanford_indoor3d.
    """
    from locotrans.data.s3dis_raw import prepare_s3dis

    rooms = counted(len(prepare_s3dis(raw, out)), "room is", "rooms are")
    print(f"{rooms} in {out}")
