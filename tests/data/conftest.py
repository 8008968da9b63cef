"""Exports of the built-in set, and a prepared cache of the tests' own."""

import shutil
from functools import cache
from pathlib import Path

import pytest

from locotrans.data import export
from locotrans.data.builtin import load_builtin

draw_once = cache(load_builtin)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    """Keep the tests out of the user's cache and data."""
    monkeypatch.setenv("LOCOTRANS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LOCOTRANS_DATA", raising=False)
    return tmp_path / "cache" / "prepared"


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """Export a layout: 40 training shapes, 20 test shapes, 256 points."""
    monkeypatch.setattr("locotrans.data.exports.load_builtin", draw_once)

    def write(layout: str, points: int = 256) -> Path:
        # one beside the other, as a user's data lie
        new = export(layout, tmp_path / "new", train=40, test=20, points=points)
        shutil.copytree(new, tmp_path / "data", dirs_exist_ok=True)
        shutil.rmtree(new)
        return tmp_path / "data"

    return write
