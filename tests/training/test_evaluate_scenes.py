"""Whole scenes: every point counts once, whatever the blocks."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from locotrans.cli import main
from locotrans.data import export, load_dataset
from locotrans.data.s3dis import CLASSES, read_room
from locotrans.metrics import confusion_matrix, scene_figures
from locotrans.models import SegmenterOutput, create_model
from locotrans.training import evaluate
from locotrans.training.evaluate_scenes import evaluate_scenes
from locotrans.training.segment import segment_blocks

CUTS = ["s3dis:area5", "s3dis:area5,stride=0.5", "s3dis:area5,sphere=0.8"]


@pytest.fixture
def rooms(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCOTRANS_CACHE", str(tmp_path / "cache"))
    export("s3dis", tmp_path / "data", train=6, test=12, points=64)
    for path in (tmp_path / "data").rglob("*.npy"):
        room = np.load(path)
        room[::9, 6] = -1
        np.save(path, room)
    return tmp_path / "data"


class ByColour(nn.Module):
    """Says "floor" where a point is grey and "chair" elsewhere: known without any neighbours."""

    def __init__(self):
        super().__init__()
        self.config = create_model("dgcnn_semseg", 13, k=4, colors=True).config
        self.weight = nn.Parameter(torch.zeros(1))
        self.shown = []

    def forward(self, points, colors):
        self.shown.append(points)
        said = torch.where((colors[..., 0] - colors[..., 1]).abs() < 1e-3, 1, 8)
        return SegmenterOutput(100 * F.one_hot(said, 13).float() + self.weight)


@pytest.mark.parametrize("name", CUTS)
def test_every_point_of_every_room_counts_once(rooms, name):
    data = load_dataset(name, "test", root=rooms, points=128)
    result = evaluate_scenes(ByColour(), data, "so3", rotations_per_shape=2)
    confusion = torch.zeros(13, 13, dtype=torch.long)
    for path in sorted(rooms.rglob("Area_5*.npy")):
        room = read_room(path)
        said = np.where(np.abs(room[:, 3] - room[:, 4]) < 0.2, 1, 8)
        confusion += confusion_matrix(
            torch.from_numpy(said), torch.from_numpy(room[:, 6]).long(), 13
        )
    expected = scene_figures(2 * confusion, CLASSES)
    for key in ("miou", "overall_accuracy", "class_accuracy", "classes"):
        assert result[key] == expected[key]
    assert (result["samples"], result["items"]) == (2, "scenes")
    assert result["turns"] == (2 if "sphere" in name else None)
    cut = evaluate(ByColour(), data, "none")  # so it can fail: blocks are no count of points
    assert cut["classes"]["floor"]["points"] != expected["classes"]["floor"]["points"] / 2


class ByPlace(ByColour):
    """Says something by the distance from the middle, or by the height above it."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def forward(self, points, colors):
        return SegmenterOutput(F.one_hot((self.place(points) > 0.1).long(), 13).float())


@pytest.mark.parametrize("name", CUTS)
def test_rooms_are_turned_as_the_protocol_says(rooms, name):
    data = load_dataset(name, "test", root=rooms, points=64)
    by_distance, by_height = ByPlace(lambda x: x.norm(dim=-1)), ByPlace(lambda x: x[..., 2])
    assert evaluate_scenes(by_distance, data, "so3")["rotation_agreement"] > 0.99
    assert evaluate_scenes(by_height, data, "z")["rotation_agreement"] > 0.99
    assert evaluate_scenes(by_height, data, "so3")["rotation_agreement"] < 0.9
    assert by_height.training  # as it came


def test_blocks_stand_on_the_floor_as_in_training(rooms):
    data = load_dataset("s3dis:area5", "test", root=rooms, points=128)
    model = ByColour()
    evaluate_scenes(model, data, "none")
    shown = torch.cat(model.shown)
    assert shown[..., :2].abs().max() <= 0.5 + 1e-5
    assert shown[..., 2].min() == 0
    with pytest.raises(ValueError, match="was not cut from scenes"):
        evaluate_scenes(model, load_dataset("builtin", "test", points=16, shapes=4), "none")


def test_a_block_of_many_points_is_dealt_out():
    points = np.random.default_rng(0).uniform(0, 1, (950, 3))
    asked = []

    def ask(blocks, tints):
        asked.append(blocks.shape[0] * blocks.shape[1])
        high = (blocks[..., 2] > 0.5).float()
        return torch.stack([high, 1 - high], dim=-1)

    seen = []
    shares = segment_blocks(
        ask, points, block=2.0, ratio=1, size=100, report=lambda *x: seen.append(x)
    )
    assert sum(asked) == 1000
    assert seen[-1] == (950, 950)
    high = points[:, 2] - points[:, 2].min() > 0.5
    assert ((shares[:, 0] > 0.5) == high).all()


def test_whole_scenes_on_the_command_line(rooms, tmp_path, capsys):
    run = tmp_path / "run"
    options = ["k=4", "widths=8,8", "embedding=16", "head_widths=16,8"]
    common = ["train", "--preset", "s3dis_area5", "--root", str(rooms), "--out", str(run)]
    common += ["--model", "dgcnn_semseg", "--points", "64", "--epochs", "1", "--batch-size", "4"]
    main([*common, "--shapes", "6", "--test-shapes", "2", "--options", *options, "--device", "cpu"])
    capsys.readouterr()
    main(["eval", str(run), "--whole", "--rotations", "1", "--device", "cpu"])
    shown = capsys.readouterr().out
    assert "S3DIS Area 5 (1/2 of 204/68 rooms) test, 2 scenes (every point once)" in shown
    assert "rotation so3, 1 per scene" in shown
    assert "ceiling" in shown or "floor" in shown
    with pytest.raises(SystemExit):
        main(["eval", str(run), "--whole", "--shapes", "3"])
    assert "leave out --shapes and --exclude" in capsys.readouterr().err
