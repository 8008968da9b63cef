import numpy as np
import pytest
import torch

from locotrans.geometry import random_rotations
from locotrans.pictures import (
    Answer,
    draw_axes,
    draw_cloud,
    draw_up,
    frames_figure,
    label_colors,
    labels_figure,
    new_figure,
    poses_figure,
    save_figure,
    view_rotation,
)
from locotrans.pictures.drawing import cloud_png

UP = torch.tensor([0.0, 0.0, 1.0])


def pixels(figure):
    figure.canvas.draw()
    return torch.from_numpy(np.array(figure.canvas.buffer_rgba()))[..., :3].long()


def inked(image):
    """Share of pixels that are not white."""
    return (image.sum(-1) < 3 * 250).double().mean().item()


def reddish(image):
    return (image[..., 0] > image[..., 1] + 80).sum().item()


def greenish(image):
    red, green, blue = image.unbind(-1)
    return ((green > red + 60) & (green > blue + 60)).sum().item()


@pytest.fixture
def cloud(generator):
    return torch.randn(40, 3, generator=generator)


def panel():
    figure, (axes,) = new_figure(1, 1, 2.0, 2.0)
    return figure, axes


def test_view_is_a_rotation_that_keeps_z_upright():
    view = view_rotation()
    torch.testing.assert_close(view @ view.mT, torch.eye(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.linalg.det(view), torch.tensor(1.0))
    x, y, towards_viewer = (view @ UP).tolist()
    assert abs(x) < 1e-6
    assert y > 0.8
    assert towards_viewer > 0  # seen from above


def test_each_drawing_leaves_ink_and_an_empty_figure_none(cloud):
    figure, axes = panel()
    assert inked(pixels(figure)) == 0
    draw_cloud(axes, cloud)
    with_cloud = inked(pixels(figure))
    assert with_cloud > 0.01
    draw_up(axes, UP)
    assert inked(pixels(figure)) > with_cloud


def test_axes_are_drawn_in_their_color(cloud):
    directions = torch.nn.functional.normalize(cloud, dim=-1)
    for color, count, other in (("red", reddish, greenish), ("green", greenish, reddish)):
        figure, axes = panel()
        draw_cloud(axes, cloud, size=1.0)
        draw_axes(axes, cloud, directions, color, length=0.5)
        image = pixels(figure)
        assert count(image) > 200
        assert other(image) == 0


def test_a_cloud_of_one_point_can_be_drawn():
    figure, axes = panel()
    draw_cloud(axes, torch.zeros(1, 3))
    assert inked(pixels(figure)) > 0


def test_frames_figure_shows_both_axes_of_every_kind(cloud):
    frames = random_rotations(40)
    kinds = {"one": [frames, frames], "other": [frames, frames]}
    notes = {kind: ["first", "second"] for kind in kinds}
    figure = frames_figure([cloud, 2 * cloud], kinds, notes, "title")
    image = pixels(figure)
    assert len(figure.axes) == 8
    width = image.shape[1]
    for column in range(4):  # red, green, red, green
        part = image[:, column * width // 4 + 20 : (column + 1) * width // 4 - 20]
        mine, other = (reddish, greenish) if column % 2 == 0 else (greenish, reddish)
        assert mine(part) > 200
        assert other(part) < mine(part) / 10


def test_right_answers_are_green_and_wrong_ones_red(cloud):
    def figure(right):
        said = [[Answer("network", "chair", right)]] * 2
        return poses_figure([cloud, -cloud], [UP] * 2, said, ["a", "b"])

    right, wrong = pixels(figure(True)), pixels(figure(False))
    assert greenish(right) > 100
    assert reddish(right) == 0
    assert reddish(wrong) > 100
    assert greenish(wrong) == 0


def test_saved_picture_is_whole_and_leaves_no_temporary_file(tmp_path, cloud):
    figure, axes = panel()
    draw_cloud(axes, cloud)
    save_figure(figure, tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert content.rstrip().endswith(b"IEND\xaeB`\x82")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_a_failed_save_keeps_the_earlier_picture(tmp_path, monkeypatch, cloud):
    figure, axes = panel()
    draw_cloud(axes, cloud)
    path = tmp_path / "a.png"
    path.write_bytes(b"earlier")

    def full_disk(target, **_):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", full_disk)
    with pytest.raises(OSError, match=r"cannot write .*a\.png: No space left"):
        save_figure(figure, path)
    assert path.read_bytes() == b"earlier"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


def test_labelled_clouds_have_the_colours_of_their_labels(tmp_path):
    points = torch.rand(40, 3)
    labels = torch.arange(40) % 3
    labels[0] = -1  # unlabelled: grey
    names = ("seat", "back", "legs", "arm")
    figure = labels_figure([[points, points]], [[labels, labels]], names, ["truth", "answer"])
    assert [text.get_text() for text in figure.texts] == [f"\u25cf {n}" for n in names[:3]]
    shown = torch.from_numpy(figure.axes[0].collections[0].get_facecolors()[:, :3]).float()
    wanted = torch.cat([label_colors(4)[:3], torch.full((1, 3), 0.85)])
    torch.testing.assert_close(shown.unique(dim=0), wanted.unique(dim=0), atol=1e-3, rtol=0)
    save_figure(figure, tmp_path / "labels.png")
    assert (tmp_path / "labels.png").stat().st_size > 1000


def test_label_colours_differ():
    colors = label_colors(50)
    apart = torch.cdist(colors, colors) + 10 * torch.eye(50)
    assert apart.min() > 0.02
    assert apart[:13, :13].min() > 0.2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_numbers_of_any_type_are_drawn(cloud, dtype):
    expected = cloud_png(cloud.half().float())
    assert cloud_png(cloud.half().to(dtype).requires_grad_()) == expected
