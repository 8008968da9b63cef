"""Damaged files of every format: a cloud or a ReadError, and nothing else."""

import collections
import time

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.readers import writers
from locotrans.data.readers import FORMATS, ReadError, read_cloud

LIMIT = 64 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return writers.write_all(tmp_path_factory.mktemp("files"), n=12)


def try_to_read(path, data):
    """Return whether it could be read."""
    path.write_bytes(data)
    problem = None
    try:
        cloud = read_cloud(path, samples=16, max_bytes=LIMIT)
    except ReadError as error:
        problem = str(error)
    if problem is not None:
        assert path.name in problem
        assert problem.count(": ") >= 2  # file: problem: remedy
        return False
    assert torch.isfinite(cloud.points).all()
    for other in (cloud.normals, cloud.colors, cloud.labels):
        assert other is None or len(other) == len(cloud)
    return True


TOKENS = [b"nan", b"-1", b"1e400", b"99999999999", b"\0", b"\n", b" ", b"\xff" * 4, b"", b"#", b","]


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Damage in one to four places: flipped bytes, cuts, repeats, swaps, odd values."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        if not data:
            break
        # headers are short but decide everything: half of the damage goes there
        reach = len(data) if rng.random() < 0.5 else min(len(data), 400)
        place, length = int(rng.integers(reach)), int(rng.integers(1, 24))
        match rng.integers(7):
            case 0:
                data[place] ^= 1 << int(rng.integers(8))
            case 1:
                data[place] = int(rng.integers(256))
            case 2:
                del data[place : place + length]
            case 3:
                data[place:place] = data[place : place + length]
            case 4:
                data[place : place + length] = rng.bytes(length)
            case 5:
                data[place : place + length] = TOKENS[rng.integers(len(TOKENS))]
            case 6:
                width = 1 << int(rng.integers(4))
                value = (0, 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1)[rng.integers(4)]
                data[place : place + width] = value.to_bytes(width, "little")
    return bytes(data)


def fuzz(files, folder, count, seed):
    rng = np.random.default_rng(seed)
    originals = {name: path.read_bytes() for name, path in files.items()}
    names, readable, slowest = list(originals), collections.Counter(), (0.0, "")
    for turn in range(count):
        name = names[turn % len(names)]
        data = mutate(originals[name], rng)
        start = time.perf_counter()
        readable[name] += try_to_read(folder / f"fuzz{files[name].suffix}", data)
        slowest = max(slowest, (time.perf_counter() - start, name))
    return readable, slowest


def test_five_hundred_mutations(files, tmp_path):
    readable, (seconds, name) = fuzz(files, tmp_path, 500, seed=0)
    assert 0 < readable.total() < 500
    assert seconds < 5, name


@pytest.mark.slow
def test_twenty_thousand_mutations(files, tmp_path):
    readable, slowest = fuzz(files, tmp_path, 20_000, seed=1)
    print(f"read in spite of damage: {readable.total()} of 20,000; slowest {slowest}")
    assert slowest[0] < 10


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(FORMATS), st.binary(max_size=300))
def test_any_bytes(tmp_path_factory, suffix, data):
    try_to_read(tmp_path_factory.getbasetemp() / f"any{suffix}", data)


WORDS = (
    "OFF ply format ascii 1.0 element vertex face property list uchar int float x y z end_header "
    "solid endsolid facet vertex endfacet v vn f 1/1 // # FIELDS SIZE TYPE COUNT WIDTH POINTS DATA "
    "binary 4 3 1 0 -1 2.5 nan 1e999 , ; \n \n \r\n \t label"
)
words = st.sampled_from(WORDS.split(" "))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([".ply", ".off", ".obj", ".stl", ".pcd", ".xyz", ".csv", ".pts"]),
    st.sampled_from(["", "ply\nformat ascii 1.0\n", "OFF\n", "v 0 0 0\n", "solid a\n", "x y z\n"]),
    st.lists(words, max_size=40),
)
def test_any_words(tmp_path_factory, suffix, head, text):
    path = tmp_path_factory.getbasetemp() / f"words{suffix}"
    try_to_read(path, (head + " ".join(text)).encode())
