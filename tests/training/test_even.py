"""Networks that are trained on evened clouds are shown such clouds ever after."""

import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from locotrans.cli import main
from locotrans.data import load_dataset, normalize
from locotrans.data.evening import even_points, evened, with_points_between
from locotrans.data.filling import nearest_others
from locotrans.geometry.neighbors import knn
from locotrans.training import TrainConfig, train
from locotrans.training.augment import VERSIONS, even_versions, thin, thin_and_even
from locotrans.training.checkpoint import load_weights, read_tensors
from locotrans.training.loop import Stopped
from locotrans.training.pack import preprocessing
from locotrans.training.predict.samples import trained_choice
from locotrans.training.run import Run
from locotrans.training.search.index import Index

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
    drawn = run.clouds(batch, generator)
    which = (drawn[None] == run.versions[:, batch]).flatten(2).all(-1)
    assert which.any(0).all()
    assert which.float().mean(1).min() > 0.5 / VERSIONS
    test = load_dataset("builtin", "test", points=16, shapes=10)
    assert torch.equal(run.held_out.points, evened(test, 16).points)
    plain = Run(tiny)
    assert plain.versions is None
    assert torch.equal(plain.clouds(batch, generator), plain.points[batch])


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


def test_eval_perturb_and_samplings_even_out(even_run, even_answer, tmp_path):
    data = load_dataset("builtin", "test", points=16, shapes=10)
    model, _ = load_weights(even_run)
    with torch.inference_mode():
        right = (model(evened(data, 16).points).logits.argmax(-1) == data.labels).float().mean()
        raw = model(data.points).logits - model(evened(data, 16).points).logits
    assert raw.abs().max() > 1e-3  # the twin: it makes a difference
    figures = {}
    for command, options in (
        ("eval", ("--rotations", "1")),
        ("perturb", ("--noise", "0", "--dropped", "4", "--corruptions")),
        ("samplings", ("--counts", "12", "16", "--dense", "64")),
    ):
        out = tmp_path / f"{command}.json"
        main([command, str(even_run), "--rotation", "none", *options, "--json", str(out)])
        figures[command] = json.loads(out.read_text())
    assert figures["eval"]["overall_accuracy"] == pytest.approx(float(right))
    assert figures["eval"]["data_checksum"] == data.checksum
    none, dropped = (figures["perturb"]["rows"][i] for i in (0, -1))
    assert none["overall_accuracy"] == pytest.approx(float(right))
    assert dropped["points"] == 16  # fewer points, evened out, are as many again
    assert len(figures["samplings"]["rows"]) == 9


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


def test_settings_that_do_not_go_together():
    with pytest.raises(ValueError, match="leave draw_from out"):
        TrainConfig(even=True, points=64, draw_from=128)
