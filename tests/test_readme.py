"""What the README says can be done, can be done."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from locotrans.align import write_cloud
from locotrans.cli import main
from locotrans.data import export
from locotrans.models import create_model, list_models

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


def test_the_two_commands_are_all_the_set_up():
    assert "pip install -c constraints.txt -e . && locotrans demo" in COMMANDS
    assert 'pip install -c constraints.txt -e ".[dev]" && pytest' in COMMANDS
    assert "grep -m 1 '&& pytest$' README.md" in (ROOT / ".ci" / "run").read_text()


def test_python_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        small = block.replace("randn(8, 1024, 3)", "randn(2, 64, 3)")
        exec(compile(small, "README.md", "exec"), {})


@pytest.mark.slow
def test_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_files()
    for command in COMMANDS:
        # an export takes a minute: tests/test_export.py runs the command
        if command.startswith("locotrans ") and not command.startswith("locotrans export"):
            run(command)
            assert capsys.readouterr() != ("", ""), command
    rows = Path("answers.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["new/a.npy", "new/b.xyz", "scan.pcd"]
    assert all(row.endswith(",40,") for row in rows[1:])  # points, and no error
    assert np.load("embeddings.npz")["embeddings"].shape[0] == 60


def make_files():
    """What a reader has already."""
    export("folder", "shapes", train=40, test=20, points=64)
    Path("objects").mkdir()
    for name in ("chair.ply", "objects/cup.ply"):
        write_cloud(Path(name), np.random.default_rng(2).normal(size=(300, 3)))
    scan = np.random.default_rng(0).normal(size=(50, 3))
    scan[::5] = np.nan
    cloud = np.random.default_rng(1).normal(size=(60, 3))
    write_cloud(Path("one_pose.ply"), cloud)
    write_cloud(Path("other_pose.ply"), cloud[:, [1, 2, 0]])
    Path("new").mkdir()
    np.save("new/a.npy", scan)
    np.savetxt("new/b.xyz", scan)
    header = "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 50\nPOINTS 50\nDATA ascii\n"
    with Path("scan.pcd").open("w") as file:
        np.savetxt(file, scan, header=header.strip(), comments="")


def run(command):
    """Run a command as it stands, on a tiny budget."""
    words = shlex.split(command)[1:]
    if words[0] == "train":
        words += ["--points", "32", "--epochs", "1", "--options", "k=4", "--batch-size", "16"]
        words.pop(words.index("--epochs") + 1)
        words.remove("--epochs")
    if words[0] == "certify":
        words += ["--points", "24", "--shapes", "2", "--radius", "120", "--rotations", "1"]
    if words[0] == "align":
        words += ["--points", "60"]
    if words[0] == "view":
        words += ["--poses", "1"]
    if words[0] == "perturb":
        words += ["--noise", "0.01", "--corruptions", "ball", "drop", "--severities", "1"]
    if words[0] in ("train", "eval", "perturb") and "builtin" in words:
        words += ["--shapes", "32"] + ["--test-shapes", "32"] * (words[0] == "train")
    if words[0] == "eval":
        words += ["--rotations", "1"]
    main(words)


def percent(share):
    return f"{100 * share:.1f}%"


def record_of(name):
    return json.loads((ROOT / "benchmarks" / "records" / f"{name}.json").read_text())


def test_the_figures_are_those_of_the_records():
    demo = record_of("demo")["networks"]
    titles = {
        "LocoTrans": "LocoTrans",
        "LocoTrans, Gram-Schmidt": "LocoTrans, Gram-Schmidt frames",
        "DGCNN": "DGCNN",
    }
    for network, title in titles.items():
        figures = [percent(demo[network][key]) for key in ("accuracy_z_z", "accuracy_z_so3")]
        assert f"| {title} | {' | '.join(figures)} |" in README
    text = " ".join(README.split())
    for name, sentence in {
        "locotrans_dgcnn_light": "reaches {} about the up axis and {} in any pose",
        "dgcnn": "DGCNN falls from {} to {}",
    }.items():
        measured = record_of(f"learning_{name}")["evaluations"]
        figures = [percent(measured[rotation]["overall_accuracy"]) for rotation in ("z", "so3")]
        assert sentence.format(*figures) in text


def test_parameters_in_the_table_of_models():
    classes = {"classification": 40, "parts": 50, "scenes": 13}
    counts = {
        name: sum(p.numel() for p in create_model(name, classes[task]).parameters()) / 1e6
        for task in classes
        for name in list_models(task)
    }
    rows = re.findall(r"^\| (`.*?`) \| ([\d., M]+) \|", README, re.MULTILINE)
    said = {}
    for names, numbers in rows:
        first, *more = re.findall(r"`(.*?)`", names)
        wanted = [first, *(name.replace("...", first) for name in more)]
        said |= dict(zip(wanted, re.findall(r"[\d.]+", numbers), strict=True))
    assert len(said) == 15
    assert said == {name: f"{counts[name]:.2f}" for name in said}
    baselines = [x for n, x in counts.items() if "seg" in n and not n.startswith("locotrans")]
    assert f"| {min(baselines):.2f}-{max(baselines):.2f} M | their baselines |" in README
