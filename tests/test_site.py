"""The documentation site builds without a warning, and its examples run."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_end_in_a_check(path):
    assert "\nassert " in path.read_text() or 'raise AssertionError("' in path.read_text()
    runpy.run_path(str(path))


def test_examples_are_shown_and_pictures_exist():
    pages = {page: page.read_text() for page in DOCS.rglob("*.md")}
    text = "".join(pages.values())
    for path in EXAMPLES:
        assert f"examples/{path.name}" in text
    for page, content in pages.items():
        for line in content.splitlines():
            if line.startswith("```{image} "):
                assert (page.parent / line.split()[1]).is_file(), f"{page}: {line}"


def test_commands_are_those_of_the_readme():
    """Whose commands are run."""
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / "tools.md").read_text(), re.DOTALL)
    commands = "".join(blocks).splitlines()
    assert len(commands) > 5
    assert set(commands) <= set((DOCS.parent / "README.md").read_text().splitlines())


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", DOCS, tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    page = (tmp_path / "guide" / "lcrf.html").read_text()
    assert "<msub><mi>u</mi><mn>1</mn></msub>" in page  # a formula
    assert not re.search(r'(src|href)="https?://[^"]*\.(js|css|woff2?)"', page)  # works offline
