"""The prepared cache: taken when it may be, built again when it must be."""

import os

import pytest
import torch

from locotrans.data import load_dataset
from locotrans.data.cache import cache_path, cached


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "sources" / "a.txt"
    path.parent.mkdir()
    path.write_text("one")
    return path


class Build:
    """Counts how often it is asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"points": torch.full((50, 3), float(self.calls)), "ids": torch.arange(50)}


def get(source, build):
    return cached("toy", source.parent, [source], build)["points"]


def test_second_load_takes_the_first_ones_file(source):
    build = Build()
    first, second = get(source, build), get(source, build)
    assert build.calls == 1
    assert torch.equal(first, second)


def test_changed_sources_are_noticed(source):
    build = Build()
    get(source, build)
    os.utime(source, ns=(1, 1))  # touched
    get(source, build)
    assert build.calls == 2
    state = source.stat()
    source.write_text("two")  # same size, and the time set back
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (get(source, build) == 3).all()
    other = source.with_name("b.txt")
    source.rename(other)
    get(other, build)
    assert build.calls == 4


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_half_written_file_is_built_again(source, share, caplog):
    build = Build()
    get(source, build)
    path = cache_path("toy", source.parent)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert (get(source, build) == 2).all()
    assert "damaged" in caplog.text
    get(source, build)
    assert build.calls == 2


def test_failure_to_write_costs_only_time(source, monkeypatch, caplog):
    monkeypatch.setenv("LOCOTRANS_CACHE", str(source))  # a file: no folder can be made in it
    build = Build()
    assert (get(source, build) == 1).all()
    assert "cannot keep a prepared copy" in caplog.text


def test_failed_build_leaves_nothing(source, own_cache):
    def fail():
        raise ValueError("broken source")

    with pytest.raises(ValueError, match="broken source"):
        cached("toy", source.parent, [source], fail)
    assert not own_cache.exists() or not list(own_cache.iterdir())


@pytest.mark.parametrize(
    "name", ["modelnet40:text", "shapenetpart:normal", "folder", "s3dis:area1"]
)
def test_loaders_use_it_and_see_changes(name, exported, own_cache):
    layout = name if not name.startswith("s3dis") else "s3dis"
    root = exported(layout)
    first = load_dataset(name, "test", root=root, points=64)
    (prepared,) = own_cache.iterdir()
    stamp = prepared.stat().st_mtime_ns
    again = load_dataset(name, "test", root=root, points=64)
    assert again.checksum == first.checksum
    assert prepared.stat().st_mtime_ns == stamp
    for path in root.rglob("*.*"):
        if path.suffix in (".txt", ".xyz", ".npy") and path.stat().st_size > 4000:
            os.utime(path, ns=(7, 7))
    load_dataset(name, "test", root=root, points=64)
    assert prepared.stat().st_mtime_ns != stamp
