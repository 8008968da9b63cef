"""An index of shapes: built, brought up to date, killed, searched in any pose."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from locotrans.cli import main
from locotrans.data import load_dataset
from locotrans.geometry import random_rotations
from locotrans.models import create_model
from locotrans.training.checkpoint import write_tensors
from locotrans.training.config import parse_options, to_json
from locotrans.training.predict.samples import load_sample
from locotrans.training.report import writer_of
from locotrans.training.search import (
    Index,
    build_index,
    find_duplicates,
    find_nearest,
    search_duplicates,
    search_file,
)
from locotrans.training.search.query import embed_file
from locotrans.training.search.same import TOLERANCE, SamePoints, ranked_distances

MODEL = "locotrans_dgcnn_light"
OPTIONS = ("k=4", "widths=8,8", "vector_widths=4,4", "embedding=16", "vector_embedding=8")
POINTS = 32


def write_network(path, model=MODEL, seed=0, options=OPTIONS, sameness=0.0):
    """Write fresh weights; with ``sameness``, of a network that says nearly the same of all."""
    torch.manual_seed(seed)
    network = create_model(model, 20, **parse_options(model, options))
    if sameness:
        for branch in (network.equivariant_branch, network.invariant_branch):
            branch.hidden.norm.bias.data += sameness
    facts = {"model": model, "config": to_json(network.config), "num_classes": 20}
    write_tensors(path, network.state_dict(), {**facts, "points": POINTS})
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_network(tmp_path_factory.mktemp("weights") / "fresh.safetensors")


def write_shapes(folder, count, points=POINTS, split="test"):
    """Write shapes of the built-in set as a folder per class; return their files."""
    shapes = load_dataset("builtin", split, points=points, shapes=count)
    files = []
    for number, (cloud, label) in enumerate(zip(shapes.points, shapes.labels, strict=True)):
        file = folder / shapes.class_names[label] / f"{number:05}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, cloud.numpy())
        files.append(file)
    return files


@pytest.fixture
def shapes(tmp_path):
    """A folder of 20 shapes."""
    return write_shapes(tmp_path / "shapes", 20)


@pytest.fixture
def index(tmp_path, shapes, weights):
    out = tmp_path / "shapes.index"
    assert build_index(tmp_path / "shapes", out, weights) == 0
    return out


def turned(file, to, seed=0, scale=3.0, shift=(5.0, -2.0, 1.0)):
    """Write a file in another pose, size and place."""
    R = random_rotations(1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[0]
    np.save(to, scale * np.load(file).astype(np.float64) @ R.numpy().T + np.array(shift))
    return to


@pytest.mark.slow
def test_the_same_shape_in_another_pose_comes_first(tmp_path, weights):
    """200 queries by a network with fresh weights, at least 99% right."""
    files = write_shapes(tmp_path / "shapes", 200)
    build_index(tmp_path / "shapes", tmp_path / "index", weights)
    build_index(turned_folder(files, tmp_path / "turned"), tmp_path / "queries", weights)
    index, queries = Index.open(tmp_path / "index"), Index.open(tmp_path / "queries")
    found = [find_nearest(index.embeddings, query, k=1)[0] for query in queries.embeddings]
    right = [index.names[row] == name for (row, _), name in zip(found, queries.names, strict=True)]
    assert np.mean(right) >= 0.99


def test_a_network_that_sees_the_pose_does_not_find_it(tmp_path):
    """The twin: DGCNN has no reason to."""
    options = ("k=4", "widths=8,8", "embedding=16", "head_widths=16,8")
    weights = write_network(tmp_path / "dgcnn.safetensors", "dgcnn", options=options)
    files = write_shapes(tmp_path / "shapes", 40)
    build_index(tmp_path / "shapes", tmp_path / "index", weights)
    build_index(turned_folder(files, tmp_path / "turned"), tmp_path / "queries", weights)
    index, queries = Index.open(tmp_path / "index"), Index.open(tmp_path / "queries")
    found = [find_nearest(index.embeddings, query, k=1)[0][0] for query in queries.embeddings]
    right = [index.names[row] == name for row, name in zip(found, queries.names, strict=True)]
    assert np.mean(right) < 0.5


def turned_folder(files, out):
    """Write every file in a pose of its own, under the same name."""
    for seed, file in enumerate(files):
        to = out / file.relative_to(file.parents[1])
        to.parent.mkdir(parents=True, exist_ok=True)
        turned(file, to, seed)
    return out


def test_search_prints_the_nearest_and_writes_json(index, shapes, tmp_path, capsys):
    query = turned(shapes[7], tmp_path / "query.npy")
    capsys.readouterr()
    main(["search", str(index), str(query), "--k", "3", "--json", str(tmp_path / "out.json")])
    assert writer_of(tmp_path / "out.json") == "search"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(str(shapes[7]))
    distances = [float(line.split()[0]) for line in lines]
    assert distances == sorted(distances)
    assert distances[0] < 1e-3 < distances[1]
    answer = json.loads((tmp_path / "out.json").read_text())
    assert [row["path"] for row in answer["nearest"]] == [line.split()[1] for line in lines]


@pytest.mark.parametrize(("choice", "found"), [("farthest", True), ("random", False)])
def test_points_in_another_order_are_found_unless_they_are_chosen_at_random(
    choice, found, tmp_path, weights, capsys
):
    """Of 400 points the network takes 32; and 20 are filled up."""
    many = write_shapes(tmp_path / "shapes", 20, points=400)
    few = write_shapes(tmp_path / "shapes/few", 20, points=20, split="train")
    arguments = ["--out", str(tmp_path / "index"), "--weights", str(weights)]
    # farthest points are the default
    main(["index", str(tmp_path / "shapes"), *arguments, *["--choice", choice][: 2 * (not found)]])
    assert Index.open(tmp_path / "index").facts.choice == choice
    firsts = []
    for number, file in enumerate([*many[:4], *few[:4]]):
        query = turned(file, tmp_path / "query.npy", seed=number)
        np.save(query, np.random.default_rng(number).permutation(np.load(query)))
        search_file(tmp_path / "index", query, k=1, json=tmp_path / "out.json")
        (first,) = json.loads((tmp_path / "out.json").read_text())["nearest"]
        firsts.append(first["path"] == str(file) and first["distance"] < 1e-3)
    assert all(firsts) if found else not any(firsts)


def test_pages_are_one_file_with_a_picture_of_each_shape(index, shapes, tmp_path, capsys):
    page = tmp_path / "page.html"
    search_file(index, shapes[0], k=3, html=page)
    text = page.read_text()
    assert text.count("data:image/png;base64,iVBOR") == 4
    assert "http" not in text
    query = turned(shapes[0], tmp_path / "query.npy")
    shapes[0].unlink()  # a shape that is gone since
    search_file(index, query, k=2, html=page)
    assert "there is no such file" in page.read_text()
    copy = turned(shapes[3], shapes[3].with_name("<b>.npy"))
    build_index(tmp_path / "shapes", index)
    search_duplicates(index, html=page)
    text = page.read_text()
    assert "group 1: 2 shapes" in text
    assert "&lt;b&gt;.npy" in text
    assert copy.name not in text


def test_an_update_embeds_only_what_changed(index, shapes, tmp_path, capsys, monkeypatch):
    before = Index.open(index)
    vectors = dict(zip(before.names, np.array(before.embeddings), strict=True))
    read = []
    from locotrans.training.predict import stream

    real = stream.load_sample
    monkeypatch.setattr(stream, "load_sample", lambda *a, **k: read.append(a[0]) or real(*a, **k))
    capsys.readouterr()
    build_index(tmp_path / "shapes", index)  # nothing to do
    assert read == []
    assert "20 shapes; 20 kept, 0 embedded, 0 dropped, 0 failed" in capsys.readouterr().out
    new = turned(shapes[0], tmp_path / "shapes/new.npy")
    np.save(shapes[1], np.load(shapes[2]))  # changed
    os.utime(shapes[1], ns=(1, 1))
    shapes[3].unlink()
    build_index(tmp_path / "shapes", index)
    assert sorted(read) == sorted([new, shapes[1]])
    assert "20 shapes; 18 kept, 2 embedded, 1 dropped, 0 failed" in capsys.readouterr().out
    after = Index.open(index)
    assert len(after) == len(set(after.names)) == 20
    names = {file: file.relative_to(tmp_path / "shapes").as_posix() for file in (*shapes, new)}
    assert names[shapes[3]] not in after.names
    rows = dict(zip(after.names, after.embeddings, strict=True))
    for name in vectors.keys() & rows.keys() - {names[shapes[1]]}:
        assert np.array_equal(rows[name], vectors[name])
    assert np.abs(rows[names[shapes[1]]] - vectors[names[shapes[2]]]).max() < 1e-6
    fresh = tmp_path / "fresh"
    build_index(tmp_path / "shapes", fresh, before.weights)
    whole = Index.open(fresh)
    for name, vector in zip(whole.names, whole.embeddings, strict=True):
        assert np.abs(vector - rows[name]).max() < 1e-6  # batches differ, by rounding


def test_a_folder_may_move(index, tmp_path, shapes, capsys):
    (tmp_path / "shapes").rename(tmp_path / "moved")
    capsys.readouterr()
    build_index(tmp_path / "moved", index)
    assert "20 kept, 0 embedded" in capsys.readouterr().out
    assert Index.open(index).file(0).exists()


KILLED = """
import sys, os, signal
from pathlib import Path
from locotrans.training.search import build
build.SAVE_SECONDS = 0.0
real = build.Update.save
def save(self):
    if len(self.names) >= 25 and len(sys.argv) > 4:
        from locotrans.training.predict import arrays
        def die(*_): os.kill(os.getpid(), signal.SIGKILL)
        arrays.shutil.copyfileobj = die  # in the middle of writing
    real(self)
build.Update.save = save
build.build_index(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), batch_size=5)
"""


def test_a_build_that_fails_while_writing_leaves_a_whole_index(index, tmp_path, monkeypatch):
    old = index.read_bytes()
    write_shapes(tmp_path / "shapes", 25)  # the first 20 again, and 5 more

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("locotrans.training.predict.arrays.shutil.copyfileobj", stop)
        with pytest.raises(KeyboardInterrupt):
            build_index(tmp_path / "shapes", index)
    assert index.read_bytes() == old
    assert {path.name for path in tmp_path.iterdir()} == {"shapes", "shapes.index"}
    build_index(tmp_path / "shapes", index)
    assert len(Index.open(index)) == 25


@pytest.mark.slow
def test_a_killed_build_leaves_a_whole_index(index, weights, tmp_path):
    """Killed in the middle of writing, it holds the old rows and those saved before."""
    old = Index.open(index)
    write_shapes(tmp_path / "shapes", 40)  # the first 20 again, and 20 more
    script = [sys.executable, "-c", KILLED, str(tmp_path / "shapes"), str(index), str(weights)]
    ran = subprocess.run([*script, "die"], capture_output=True, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    left = Index.open(index)
    assert len(old) <= len(left) < 40
    assert len(left) == len(left.embeddings) == len(set(left.names))
    assert build_index(tmp_path / "shapes", index) == 0
    assert len(Index.open(index)) == 40


def test_files_that_cannot_be_read_are_named_and_tried_again(index, tmp_path, capsys):
    bad = tmp_path / "shapes/bad.ply"
    bad.write_bytes(b"ply\nnot so\n")
    capsys.readouterr()
    assert build_index(tmp_path / "shapes", index) == 1
    captured = capsys.readouterr()
    assert "bad.ply: error:" in captured.err
    assert "20 shapes; 20 kept, 0 embedded, 0 dropped, 1 failed" in captured.out
    np.savetxt(bad.with_suffix(".xyz"), np.random.default_rng(0).normal(size=(50, 3)))
    bad.unlink()
    assert build_index(tmp_path / "shapes", index) == 0
    assert len(Index.open(index)) == 21


def error_of(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_mistakes_are_named(index, shapes, weights, tmp_path, capsys):
    folder = tmp_path / "shapes"
    new = tmp_path / "new"
    with pytest.raises(ValueError, match="needs weights"):
        build_index(folder, new)
    assert "not a folder" in error_of(["index", shapes[0], "--out", new], capsys)
    assert "there is no folder" in error_of(["index", folder, "--out", tmp_path / "no/x"], capsys)
    assert "name of a shape" in error_of(["index", folder, "--out", folder / "x.npz"], capsys)
    other = write_network(tmp_path / "other.safetensors", seed=1)
    both = ["index", folder, "--out", index]
    said = error_of([*both, "--weights", other], capsys)
    assert "was built with other weights" in said
    assert "or another --out" in said
    assert "built with points 32, now it would be 16: " in error_of([*both, "--points", 16], capsys)
    message = "built with choice farthest, now it would be random: "
    assert message in error_of([*both, "--choice", "random"], capsys)
    stranger = tmp_path / "stranger"
    write_shapes(stranger / "deeper", 2)
    assert "none of its files" in error_of(["index", stranger, "--out", index], capsys)
    assert "damaged or no index" in error_of(["index", folder, "--out", weights], capsys)
    assert "no such index" in error_of(["search", new, shapes[0]], capsys)
    assert "no such file" in error_of(["search", index, tmp_path / "x.npy"], capsys)
    assert "name a file" in error_of(["search", index], capsys)
    assert "name a file" in error_of(["search", index, shapes[0], "--duplicates"], capsys)
    assert "k must be" in error_of(["search", index, shapes[0], "--k", 0], capsys)
    wrong = ["search", index, shapes[0], "--weights", other]
    assert "is not what" in error_of(wrong, capsys)
    whole = index.read_bytes()
    index.write_bytes(whole.replace(b'format\\\\\\": 4', b'format\\\\\\": 3'))
    assert "format 3, this version reads 4: remove it" in error_of(wrong[:3], capsys)
    index.write_bytes(whole[: len(whole) // 2])
    assert "damaged or no index" in error_of(["search", index, shapes[0]], capsys)


def test_weights_that_were_moved_are_named_anew(tmp_path, shapes):
    weights = write_network(tmp_path / "w.safetensors")
    build_index(tmp_path / "shapes", tmp_path / "index", weights)
    index = Index.open(tmp_path / "index")
    expected = embed_file(index, shapes[0])
    moved = weights.rename(tmp_path / "moved.safetensors")
    with pytest.raises(ValueError, match="which is gone"):
        embed_file(index, shapes[0])
    assert np.array_equal(embed_file(index, shapes[0], moved), expected)


def test_duplicates_are_grouped(index, shapes, tmp_path, capsys):
    copies = [turned(shapes[5], tmp_path / f"shapes/copy{i}.npy", seed=i) for i in range(2)]
    copies += [turned(shapes[6], tmp_path / "shapes/other.npy")]
    build_index(tmp_path / "shapes", index)
    capsys.readouterr()
    main(["search", str(index), "--duplicates", "--json", str(tmp_path / "same.json")])
    assert "2 groups; of 23 shapes, 3 repeat another" in capsys.readouterr().out
    assert writer_of(tmp_path / "same.json") == "search"
    groups = json.loads((tmp_path / "same.json").read_text())["groups"]
    paths = [{row["path"] for row in group} for group in groups]
    assert paths == [{*map(str, copies[:2]), str(shapes[5])}, {str(copies[2]), str(shapes[6])}]


@pytest.mark.parametrize("sameness", [0.0, 50.0])
def test_different_shapes_of_one_class_are_no_repeats(sameness, tmp_path, capsys):
    """By a fresh network, and by one whose embeddings are all within 0.01; but copies are."""
    weights = write_network(tmp_path / "w.safetensors", sameness=sameness)
    write_shapes(tmp_path / "all", 400, points=48)
    folder = (tmp_path / "all/chair").rename(tmp_path / "shapes")
    files = sorted(folder.iterdir())
    assert len(files) == 20
    build_index(folder, tmp_path / "index", weights)
    capsys.readouterr()
    search_duplicates(tmp_path / "index")
    assert "0 groups; of 20 shapes, 0 repeat another" in capsys.readouterr().out
    search_duplicates(tmp_path / "index", within=0.01)  # the twin: by embeddings alone
    assert f"{'1 group' if sameness else '0 groups'}; of 20 shapes" in capsys.readouterr().out
    rng = np.random.default_rng(0)
    for number, file in enumerate(files):
        copy = turned(file, file.with_name(f"copy_{file.name}"), number, scale=rng.uniform(0.1, 9))
        np.save(copy, rng.permutation(np.load(copy)).astype(np.float32))
    build_index(folder, tmp_path / "index")
    search_duplicates(tmp_path / "index", json=tmp_path / "same.json")
    groups = json.loads((tmp_path / "same.json").read_text())["groups"]
    names = sorted(sorted(Path(row["path"]).name for row in group) for group in groups)
    assert names == [[file.name, f"copy_{file.name}"] for file in files]


def test_a_cloud_too_small_is_compared_by_its_own_points(tmp_path, weights):
    """A grid, where rounding says which neighbours are nearest, and so how it is filled up."""
    (tmp_path / "grids").mkdir()
    axis = np.linspace(-1, 1, 3, dtype=np.float32)
    np.save(tmp_path / "grids/a.npy", np.stack(np.meshgrid(axis, axis, axis), -1).reshape(-1, 3))
    files = [tmp_path / "grids/a.npy", turned(tmp_path / "grids/a.npy", tmp_path / "grids/b.npy")]
    build_index(tmp_path / "grids", tmp_path / "index", weights)
    assert SamePoints(Index.open(tmp_path / "index"))(0, 1)
    filled = [load_sample(file, POINTS, choice="farthest").points for file in files]
    assert np.abs(np.subtract(*map(ranked_distances, filled))).max() > TOLERANCE  # the twin


def test_duplicates_of_a_file_that_is_gone_ask_for_an_update(index, shapes, tmp_path):
    copy = turned(shapes[3], tmp_path / "shapes/copy.npy")
    build_index(tmp_path / "shapes", index)
    copy.unlink()
    with pytest.raises(ValueError, match=r"copy\.npy: .*up to date by `locotrans index`, or"):
        search_duplicates(index)
    search_duplicates(index, within=0.01)


def test_nearest_is_exact_where_products_round(generator):
    """Near rows whose rounding makes them a little short are found, and told apart."""
    base = torch.randn(64, generator=generator, dtype=torch.float64)
    steps = torch.randn(300, 64, generator=generator, dtype=torch.float64)
    sizes = 8e-6 * (1 + torch.randperm(300, generator=generator))  # of a vector of length 8
    rows = base + sizes[:, None] * torch.nn.functional.normalize(steps, dim=-1)
    rows = torch.nn.functional.normalize(rows, dim=-1)
    rows = (rows * (1 + 2e-7 * (sizes > 8e-6 * 150).double()[:, None] - 1e-7)).float().numpy()
    query = torch.nn.functional.normalize(base, dim=-1).float().numpy()
    found = find_nearest(rows, query, k=20)
    true = np.linalg.norm(rows.astype(np.float64) - query.astype(np.float64), axis=1)
    assert [row for row, _ in found] == np.argsort(true)[:20].tolist()
    assert find_nearest(rows, query, k=1000)[-1][1] == pytest.approx(true.max())


def test_groups_do_not_depend_on_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    centers = np.eye(8, 16)
    rows = (centers[rng.integers(0, 8, 100)] + 1e-3 * rng.normal(size=(100, 16))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    whole = find_duplicates(rows, within=0.05)
    monkeypatch.setattr("locotrans.training.search.nearest.BLOCK", 7)
    assert find_duplicates(rows, within=0.05) == whole
    assert len(whole) == 8
    assert sum(map(len, whole)) == 100
    with pytest.raises(ValueError, match="from 0 to 1"):
        find_duplicates(rows, within=1.5)


def test_a_query_among_ten_thousand_takes_milliseconds():
    """The search itself, on 10,000 vectors of the light network's width."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(10_000, 1024)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    seconds = []
    for row in range(5):
        start = time.process_time()
        assert find_nearest(rows, rows[row], k=10)[0][0] == row
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.05


MEASURED = """
import resource, sys
from pathlib import Path
from locotrans.training.search import build_index
build_index(*map(Path, sys.argv[1:4]), workers=0)
print("KiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_ten_thousand_shapes_in_flat_memory(tmp_path, weights):
    """A folder of 10,000 takes hardly more memory than one of 500."""
    peaks = {}
    for count in (500, 10_000):
        write_shapes(tmp_path / str(count), count, split="train")
        place = [tmp_path / str(count), tmp_path / f"{count}.index", weights]
        script = [sys.executable, "-c", MEASURED, *map(str, place)]
        ran = subprocess.run(script, capture_output=True, text=True, check=True)
        peaks[count] = int(ran.stdout.split()[-1])
    print({count: f"{peak / 1024:.0f} MiB" for count, peak in peaks.items()})
    assert len(Index.open(tmp_path / "10000.index")) == 10_000
    assert peaks[10_000] - peaks[500] < 40 * 1024
    index = Index.open(tmp_path / "10000.index")
    start = time.process_time()
    find_nearest(index.embeddings, np.array(index.embeddings[77]), k=10)
    assert time.process_time() - start < 0.05


def test_the_help_texts(capsys):
    for command in ("index", "search"):
        with pytest.raises(SystemExit) as caught:
            main([command, "--help"])
        assert caught.value.code == 0
        assert re.search(r"any pose|way they lie", capsys.readouterr().out)


def test_a_file_whose_buffer_changes_is_embedded_again(tmp_path, weights, capsys):
    folder = tmp_path / "shapes"
    folder.mkdir()
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0]], np.float32)
    accessor = {"bufferView": 0, "componentType": 5126, "count": 3, "type": "VEC3"}
    scene = {
        "asset": {"version": "2.0"},
        "buffers": [{"uri": "a.bin", "byteLength": 36}],
        "bufferViews": [{"buffer": 0, "byteLength": 36}],
        "accessors": [accessor],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
        "nodes": [{"mesh": 0}],
        "scenes": [{"nodes": [0]}],
    }
    (folder / "a.gltf").write_text(json.dumps(scene))
    (folder / "a.bin").write_bytes(corners.tobytes())
    build_index(folder, tmp_path / "index", weights)
    before = Index.open(tmp_path / "index").embeddings.copy()
    (folder / "a.bin").write_bytes((corners * [1, 9, 1]).astype(np.float32).tobytes())
    os.utime(folder / "a.bin", ns=(1, time.time_ns() + 10**9))
    capsys.readouterr()
    build_index(folder, tmp_path / "index")
    assert "0 kept, 1 embedded" in capsys.readouterr().out
    assert not np.array_equal(Index.open(tmp_path / "index").embeddings, before)


def test_an_index_is_brought_up_to_date_with_its_own_seed(tmp_path, shapes, weights, capsys):
    out = tmp_path / "seeded.index"
    build_index(tmp_path / "shapes", out, weights, seed=3)
    capsys.readouterr()
    assert build_index(tmp_path / "shapes", out) == 0
    assert "20 kept" in capsys.readouterr().out
    assert Index.open(out).facts.seed == 3
    with pytest.raises(ValueError, match="was built with seed 3, now it would be 0"):
        build_index(tmp_path / "shapes", out, seed=0)
