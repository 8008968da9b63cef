"""What the README says can be done, can be done."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]


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


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("locotrans ")])
def test_commands_run(command, readme_folder):
    words = shlex.split(command)[1:]
    if words[0] == "train":  # the same command on a tiny budget
        words += ["--shapes", "64", "--points", "32", "--epochs", "1", "--options", "k=4"]
        words.remove("20")
        words.remove("--epochs")
    if words[0] == "eval":
        words += ["--shapes", "32", "--rotations", "1"]
    if words[0] == "certify":
        words += ["--points", "24", "--shapes", "2", "--radius", "120", "--rotations", "1"]
    ran = subprocess.run(
        [sys.executable, "-m", "locotrans", *words],
        cwd=readme_folder,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def readme_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")
