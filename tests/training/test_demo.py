import io
import json

import pytest
from rich.console import Console

from locotrans.training.demo import NETWORKS, DemoSize, run_demo
from locotrans.training.report import writer_of

TINY = DemoSize(points=24, shapes=40, test_shapes=20, epochs=1, batch_size=20)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    text = io.StringIO()
    record = run_demo(out, seed=3, size=TINY, console=Console(file=text, width=120))
    return out, record, text.getvalue()


def test_demo_writes_pictures_and_record(demo):
    out, record, _ = demo
    for name in ("frames.png", "frames_perturbed.png", "poses.png"):
        content = (out / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 20_000
    assert json.loads((out / "demo.json").read_text()) == record
    assert writer_of(out / "demo.json") == "demo"
    assert not list(out.rglob("*.tmp"))


def test_demo_prints_a_row_for_every_network_and_what_comes_next(demo):
    out, _, text = demo
    for name in NETWORKS:
        assert f"│ {name}" in text
    for column in ("parameters", "seconds", "z/z", "z/SO(3)", "agreement"):
        assert column in text
    for picture in ("frames.png", "frames_perturbed.png", "poses.png"):
        assert str(out / picture) in text
    assert "locotrans train" in text


def test_the_networks_have_the_same_budget(demo):
    _, record, _ = demo
    networks = record["networks"].values()
    counts = [network["parameters"] for network in networks]
    assert max(counts) < 1.05 * min(counts)
    configs = [network["record"]["config"] for network in networks]
    for key in ("epochs", "shapes", "batch_size", "points", "rotation", "lr", "seed"):
        assert len({config[key] for config in configs}) == 1, key
    assert configs[0]["rotation"] == "z"


def test_rotations_do_not_change_what_locotrans_says(demo):
    _, record, _ = demo
    for name in ("LocoTrans", "LocoTrans, Gram-Schmidt"):
        assert record["networks"][name]["rotation_agreement"] > 0.95
    assert len({pose["LocoTrans"] for pose in record["poses"]}) == 1


def test_frames_are_measured_with_noise_and_with_points_dropped(demo):
    _, record, _ = demo
    clean, perturbed = record["frame_consistency"], record["frame_consistency_perturbed"]
    assert list(perturbed) == ["noise of 0.03", "30% of its points dropped"]
    for measured in perturbed.values():
        assert measured.keys() == clean.keys()
        assert measured != clean
        assert all(-1 <= x <= 1 for axes in measured.values() for x in axes.values())


def test_a_repeated_demo_takes_up_the_finished_runs(demo):
    out, record, _ = demo
    text = io.StringIO()
    again = run_demo(out, seed=3, size=TINY, console=Console(file=text, width=120))
    assert text.getvalue().count("is finished") == len(NETWORKS)
    assert again == record
