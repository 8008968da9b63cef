"""Networks that are trained on evened clouds are shown such clouds ever after."""

import dataclasses
import importlib
import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from locotrans.align import align
from locotrans.cli import main
from locotrans.data import load_dataset, normalize
from locotrans.data.filling import nearest_others
from locotrans.geometry.neighbors import knn
from locotrans.training import TrainConfig, train
from locotrans.training.augment import VERSIONS, augment, even_versions, thin, thin_and_even
from locotrans.training.checkpoint import load_weights, read_tensors
from locotrans.training.evening import even_points, evened, with_points_between
from locotrans.training.loop import Stopped
from locotrans.training.pack import preprocessing
from locotrans.training.predict.samples import choose_points, trained_choice
from locotrans.training.run import Run
from locotrans.training.search.index import Index
from locotrans.training.search.query import search_file
from locotrans.training.view.networks import load_viewed

QUIET = Console(file=io.StringIO())


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def even_run(tiny_config, tmp_path_factory):
    out = tmp_path_factory.mktemp("even") / "run"
    train(dataclasses.replace(tiny_config, even=True, resample=8, out=out), QUIET)
    return out


@pytest.fixture(scope="module")
def even_answer(even_run):
    """The network, and what it says of a test shape that is evened out."""
    model, _ = load_weights(even_run)
    cloud = load_dataset("builtin", "test", points=16, shapes=10).points[3]
    with torch.inference_mode():
        seen = normalize(even_points(cloud[None], 16))
        return cloud, model(seen).logits.softmax(-1)[0]


def test_thinned_clouds_are_evened_out_by_points_that_are_kept():
    pool = torch.rand(50, 40, 3, generator=seeded(1), dtype=torch.float64)
    points, source, removed = thin(pool, 20, generator=seeded())
    result = thin_and_even(pool, 20, generator=seeded())
    sizes = set()
    for cloud, some, i, gone in zip(result, points, source, removed[..., 0], strict=True):
        kept = some[~gone]
        sizes.add(len(kept))
        assert torch.equal(some[:20], kept[:20])  # they come first
        assert i.tolist() == [place % len(kept) for place in range(40)]
        near = nearest_others(knn(kept, 7)[None])
        candidates = with_points_between(kept[None], near).flatten(1, 2)[0]
        gaps = torch.cdist(cloud, candidates, compute_mode="donot_use_mm_for_euclid_dist")
        assert gaps.amin(-1).max() < 1e-12
        assert len(gaps.argmin(-1).unique()) == 40
        # farthest points: none is left that is farther from them than they are from each other
        between = torch.cdist(cloud, cloud).fill_diagonal_(torch.inf).min()
        assert gaps.amin(0).max() <= between + 1e-6
    assert len(sizes) > 10
    assert not torch.equal(thin_and_even(pool, 20, generator=seeded(2)), result)


def test_versions(generator):
    clouds = torch.rand(5, 30, 3, generator=generator)
    (fixed,) = even_versions(clouds, None, generator=generator)
    assert torch.equal(fixed, normalize(even_points(clouds, 30)))
    several = even_versions(clouds, 15, generator=generator)
    assert several.shape == (VERSIONS, 5, 30, 3)
    assert len({version.numpy().tobytes() for version in several}) == VERSIONS
    assert several.norm(dim=-1).amax(-1).sub(1).abs().max() < 1e-5


def test_a_run_draws_versions_and_measures_evened_clouds(tiny, generator):
    config = dataclasses.replace(tiny, even=True, resample=8)
    run = Run(config)
    batch = torch.arange(26).repeat(20)
    drawn = run._clouds(batch, generator)
    which = (drawn[None] == run.versions[:, batch]).flatten(2).all(-1)
    assert which.any(0).all()
    assert which.float().mean(1).min() > 0.5 / VERSIONS
    test = load_dataset("builtin", "test", points=16, shapes=10)
    assert torch.equal(run.held_out.points, evened(test, 16).points)
    plain = Run(tiny)
    assert plain.versions is None
    assert torch.equal(plain._clouds(batch, generator), plain.points[batch])


def test_a_run_that_was_cut_goes_on_with_the_same_bits(tiny, even_run):
    config = dataclasses.replace(tiny, even=True, resample=8)
    with pytest.raises(Stopped):
        train(config, QUIET, stop_after=0.0)
    train(config, QUIET)
    digests = [
        read_tensors(folder / "weights.safetensors")[1]["sha256"] for folder in (tiny.out, even_run)
    ]
    assert digests[0] == digests[1]


def test_weights_say_so_and_predict_does_so(even_run, even_answer, whole_run, tmp_path):
    _, header = load_weights(even_run)
    assert trained_choice(header) == "even"
    assert "evened out" in preprocessing(header)
    assert trained_choice(load_weights(whole_run.folder)[1]) == "random"
    cloud, shares = even_answer
    np.save(tmp_path / "shape.npy", 3 * cloud.numpy() + 7)
    confidence = {}
    for choice in ((), ("--choice", "even"), ("--choice", "random")):
        out = tmp_path / "out.json"
        main(
            [
                *("predict", str(tmp_path / "shape.npy"), "--weights", str(even_run)),
                *("--json", str(out), *choice),
            ]
        )
        (row,) = json.loads(out.read_text())
        confidence[choice[1:]] = row["confidence"]
    assert confidence[()] == confidence["even",] == pytest.approx(float(shares.max()), abs=1e-5)
    assert abs(confidence["random",] - confidence[()]) > 1e-5


@pytest.mark.parametrize(
    ("command", "where", "options"),
    [
        ("eval", "locotrans.training.evaluate", ()),
        ("perturb", "locotrans.training.perturb.evaluate", ("--corruptions", "--dropped", "0")),
        ("samplings", "locotrans.training.samplings.evaluate", ("--dense", "64", "--counts")),
    ],
)
def test_what_is_measured_is_evened_out(
    command, where, options, even_run, whole_run, tmp_path, monkeypatch
):
    """The first clouds are those of the test split, or random points of denser ones."""
    module, _, name = where.rpartition(".")
    measure, seen = getattr(importlib.import_module(module), name), []

    def look(model, data, *arguments, **more):
        seen.append(data)
        return measure(model, data, *arguments, **more)

    monkeypatch.setattr(where, look)
    firsts = []
    for run in (even_run, whole_run.folder):
        seen.clear()
        out = tmp_path / "out.json"
        main([command, str(run), "--rotation", "none", *options, "--json", str(out)])
        firsts.append(seen[0].points)
    even, plain = firsts
    torch.testing.assert_close(even, normalize(even_points(plain, 16)), atol=1e-6, rtol=0)
    assert (even - plain).abs().max() > 0.1
    if command == "eval":
        test = load_dataset("builtin", "test", points=16, shapes=10)
        assert json.loads(out.read_text())["data_checksum"] == test.checksum


def test_few_points_are_measured_as_many(even_run, tmp_path):
    out = tmp_path / "out.json"
    few = ("--dropped", "14", "--noise", "0", "--corruptions")  # two are left, and k is 4
    main(["perturb", str(even_run), *few, "--json", str(out)])
    assert json.loads(out.read_text())["rows"][-1]["points"] == 16


def test_clouds_are_thinned_once():
    off = {"rotation": "none", "scale": 1.0, "shift": 0.0, "shuffle": False}
    points = torch.rand(4, 40, 3, generator=seeded())
    for even in (True, False):
        config = TrainConfig(points=40, resample=20, even=even, **off)
        assert torch.equal(augment(points, config, "z", seeded()), points) == even


def test_view_and_align_choose_as_in_training(even_run, even_answer, whole_run, monkeypatch):
    runs = {"even": even_run, "random": whole_run.folder}
    for choice, run in runs.items():
        assert load_viewed(run, torch.device("cpu")).choice == choice
    chosen = []

    def look(points, count, seed=0, choice="random"):
        chosen.append(choice)
        return choose_points(points, count, seed, choice)

    monkeypatch.setattr("locotrans.align.choose_points", look)
    cloud = even_answer[0].numpy().astype(np.float64)
    align(load_weights(even_run)[0], cloud, cloud, points=16, refine=False, choice="even")
    assert chosen == ["even", "even"]


def test_an_index_of_such_a_network_is_even(even_run, whole_run, tmp_path):
    (tmp_path / "shapes").mkdir()
    for number, cloud in enumerate(load_dataset("builtin", "test", points=40, shapes=4).points):
        np.save(tmp_path / f"shapes/{number}.npy", cloud.numpy())
    for name, run, choice in (
        ("even", even_run, "even"),
        ("plain", whole_run.folder, "farthest"),
    ):
        index = tmp_path / name
        main(["index", str(tmp_path / "shapes"), "--out", str(index), "--weights", str(run)])
        assert Index.open(index).facts.choice == choice
        np.save(tmp_path / "query.npy", np.load(tmp_path / "shapes/2.npy")[::-1])
        search_file(index, tmp_path / "query.npy", k=1, json=tmp_path / "out.json")
        (first,) = json.loads((tmp_path / "out.json").read_text())["nearest"]
        assert first["path"].endswith("2.npy")
        assert first["distance"] < 1e-3


def test_settings_that_do_not_go_together():
    with pytest.raises(ValueError, match="leave draw_from out"):
        TrainConfig(even=True, points=64, draw_from=128)
    with pytest.raises(ValueError, match="resample must be 7 to 9"):
        TrainConfig(even=True, points=10, resample=6)
