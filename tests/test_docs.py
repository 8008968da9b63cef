"""The maps of the paper and of the differences name objects, tests and commands that exist."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from locotrans import cli
from locotrans.models import model_config
from locotrans.training.config import parse_options

ROOT = Path(__file__).parents[1]
NUMBERS = {"Eq.": 36, "Table": 13, "Figure": 8}
CODE = re.compile(r"`([^`]+)`")


def tables(name):
    """Return the rows of every table of a page: the heading, and cells by column."""
    found, header = [], None
    for line in (ROOT / "docs" / name).read_text().splitlines():
        if not line.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if header is None:
            header = cells
        elif not set(line) <= set("|-"):
            assert len(cells) == len(header), line
            found.append((header, dict(zip(header, cells, strict=True))))
    return found


def codes(name):
    return sorted(set(CODE.findall((ROOT / "docs" / name).read_text())))


OBJECTS = sorted(
    {
        c
        for page in ("equations.md", "differences.md")
        for c in codes(page)
        if re.fullmatch(r"locotrans(\.\w+)+", c)
    }
)
TESTS = sorted(
    {
        c
        for page in ("equations.md", "differences.md")
        for c in codes(page)
        if c.startswith("tests/")
    }
)
COMMANDS = [c for c in codes("equations.md") if c.startswith("locotrans ")]


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_number_occurs_once(kind):
    rows = [cells for header, cells in tables("equations.md") if header[0] == kind]
    assert [int(cells[kind]) for cells in rows] == list(range(1, NUMBERS[kind] + 1))


def test_every_row_names_something_or_says_open():
    for header, cells in tables("equations.md"):
        realised = cells["realised by"]
        assert CODE.search(realised) or "**open**" in realised, cells[header[0]]
        assert cells["held by"] or "**open**" in realised or "`locotrans demo`" in realised, cells
        assert all(code.startswith("tests/") for code in CODE.findall(cells["held by"]))
        for code in CODE.findall(realised):
            assert code in OBJECTS or code in COMMANDS, code


def test_every_difference_names_an_object_and_a_test():
    rows = [cells for header, cells in tables("differences.md") if header[0] == "difference"]
    assert len(rows) > 15
    for cells in rows:
        assert [c for c in CODE.findall(cells["object"]) if c in OBJECTS], cells["difference"]
        assert [c for c in CODE.findall(cells["test"]) if c in TESTS], cells["difference"]
        assert cells["why"], cells["difference"]


@pytest.mark.parametrize("path", OBJECTS)
def test_objects_exist(path):
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("test", TESTS)
def test_tests_exist(test):
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text()
    assert re.search(rf"^def {name}\(", text, re.MULTILINE)


def test_links_lead_to_files():
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page}: {link}"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command, monkeypatch, capsys):
    parsed = []

    def train(config, stop_after=None):
        model_config(config.model, **parse_options(config.model, config.options))
        parsed.append(config)
        return {"evaluation": {}}

    monkeypatch.setattr("locotrans.training.train", train)
    monkeypatch.setattr(
        "locotrans.training.segment.segment", lambda *_, **__: parsed.append(command) or 0
    )
    monkeypatch.setattr("locotrans.cli.learn.print_evaluation", lambda result: None)
    monkeypatch.setattr(
        "locotrans.cli.describe.shape_flow", lambda *_: parsed.append(command) or []
    )
    if command == "locotrans demo":
        with pytest.raises(SystemExit) as caught:
            cli.main(["demo", "--help"])
        assert caught.value.code == 0
        assert "--out" in capsys.readouterr().out
        return
    cli.main(shlex.split(command)[1:])
    assert len(parsed) == 1


def test_a_command_with_a_mistake_would_be_found(monkeypatch):
    monkeypatch.setattr("locotrans.training.train", lambda config, stop_after: {"evaluation": {}})
    with pytest.raises(SystemExit):
        cli.main(["train", "--model", "locotrans_dgcnn", "--frames", "gram_schmidt"])
