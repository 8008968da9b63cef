"""The built-in set: reproducible, balanced, uniform by area, and with parts whose pose matters."""

import itertools
import math
import time

import numpy as np
import pytest
import torch

from locotrans.data import CloudSet, load_dataset
from locotrans.data.builtin import CHUNK, SPLITS
from locotrans.data.builtin_category import CATEGORIES, Draw
from locotrans.data.builtin_surfaces import (
    Layout,
    Surfaces,
    _on_box,
    box,
    cylinder,
    lathe,
    sample_surfaces,
    sphere,
    torus,
)
from locotrans.geometry import axis_rotation, random_rotations

FAMILIES = [
    ("table", "split_table", "stretcher"),
    ("mug", "bucket", "bell"),
    ("lamp_down", "lamp_up"),
    ("dumbbell", "skewer"),
    ("hourglass", "diamond"),
]
PAIRS = [("chaise_left", "chaise_right"), ("stairs_left", "stairs_right")]


@pytest.fixture(scope="module")
def clouds() -> CloudSet:
    return load_dataset("builtin", "train", shapes=200, points=1024)


def sample(surfaces: list[Surfaces], points: int, seed: int = 0):
    """Points, normals and primitive of each point, for the first shape of a list of groups."""
    layout = Layout(
        kind=torch.cat([torch.full(g.area.shape, g.kind) for g in surfaces], dim=1),
        part=torch.arange(sum(g.area.shape[1] for g in surfaces))[None],  # number of the primitive
        size=torch.cat([g.size for g in surfaces], dim=1),
        area=torch.cat([g.area for g in surfaces], dim=1),
        center=torch.cat([g.center for g in surfaces], dim=1),
        rotation=torch.cat([g.rotation for g in surfaces], dim=1),
    )
    first = Layout(*(column[:1] for column in layout))
    return [tensor[0] for tensor in sample_surfaces(first, points, np.random.default_rng(seed))]


def number(value: float) -> torch.Tensor:
    return torch.full((1, 1), value)


# ---- the set as a whole


def test_the_set_has_the_promised_size_and_form(clouds):
    assert 16 <= clouds.num_classes <= 20
    assert clouds.up == "z"
    assert clouds.points.shape == (200, 1024, 3)
    assert clouds.points.dtype == clouds.normals.dtype == torch.float32
    assert clouds.labels.bincount().tolist() == [10] * 20
    assert clouds.points.mean(1).abs().max() < 1e-6
    torch.testing.assert_close(clouds.points.norm(dim=-1).amax(1), torch.ones(200))
    torch.testing.assert_close(clouds.normals.norm(dim=-1), torch.ones(200, 1024))


def test_usual_sizes_are_four_thousand_and_one_thousand():
    assert SPLITS == {"train": 4000, "test": 1000}
    assert len(load_dataset("builtin", "test", points=8)) == 1000


def test_every_category_has_two_to_six_parts_and_all_occur_in_every_shape(clouds):
    for label, category in enumerate(CATEGORIES.values()):
        assert 2 <= len(category.parts) <= 6
        ids = {clouds.part_names.index(f"{category.name}/{part}") for part in category.parts}
        for parts in clouds.parts[clouds.labels == label]:
            assert set(parts.tolist()) == ids


def test_every_part_has_enough_points_to_be_seen_at_256_points(clouds):
    share = clouds.parts.flatten().bincount() / (clouds.parts.numel() / clouds.num_classes)
    assert share.min() > 0.02, clouds.part_names[int(share.argmin())]


def test_same_seed_same_shapes_other_seed_or_split_others():
    def load(split="train", seed=0):
        return load_dataset("builtin", split, shapes=40, points=64, seed=seed)

    train, other, test = load(), load(seed=1), load("test")
    assert train.checksum == load().checksum
    assert len({cloud.checksum for cloud in (train, other, test, load("test", seed=1))}) == 4
    assert (train.points - test.points).abs().amax((1, 2)).min() > 0.01  # shape by shape


def test_first_shapes_do_not_depend_on_how_many_are_asked_for():
    many = load_dataset("builtin", "train", shapes=700, points=32)
    for count in (1, CHUNK - 1, CHUNK + 1, 650):
        few = load_dataset("builtin", "train", shapes=count, points=32)
        for field in ("points", "normals", "parts", "labels"):
            assert torch.equal(getattr(few, field), getattr(many, field)[:count])


def test_no_shape_comes_twice():
    points = load_dataset("builtin", "train", shapes=1300, points=16).points
    assert len(points.flatten(1).unique(dim=0)) == 1300


def test_the_default_type_does_not_change_the_data():
    single = load_dataset("builtin", "train", shapes=20, points=64)
    torch.set_default_dtype(torch.float64)
    try:
        double = load_dataset("builtin", "train", shapes=20, points=64)
    finally:
        torch.set_default_dtype(torch.float32)
    assert single.checksum == double.checksum


def test_shapes_of_a_category_vary(clouds):
    for label in range(clouds.num_classes):
        extents = clouds.points[clouds.labels == label].abs().amax(1)
        assert extents.std(0).max() > 0.01, clouds.class_names[label]


def test_points_are_in_random_order(clouds):
    """The first half has each part's share up to chance (five deviations)."""
    for part in range(len(clouds.part_names)):
        whole = (clouds.parts == part).double().sum().item()
        half = (clouds.parts[:, :512] == part).double().sum().item()
        assert abs(half - whole / 2) < 5 * math.sqrt(whole / 4)


def test_generation_is_fast():
    rates = []
    for _ in range(2):  # the first one warms up
        start = time.process_time()
        load_dataset("builtin", "train", shapes=640)
        rates.append(640 / (time.process_time() - start))
    print(f"built-in set: {rates[-1]:.0f} shapes a second")
    assert max(rates) > 500  # with the checks of annotations, and whatever else the machine does


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "validation"}, "splits train, test"),
        ({"seed": -1}, "seed must be from 0"),
        ({"seed": 2**32}, "seed must be from 0"),
        ({"shapes": 0}, "shapes must be at least 1"),
        ({"points": 0}, "points must be at least 1"),
    ],
)
def test_bad_requests_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_dataset("builtin", **{"split": "train", **arguments})


# ---- categories


@pytest.mark.parametrize("family", FAMILIES)
def test_families_have_the_same_parts_in_other_places(family):
    """From the same random numbers, each part has equal area and the shapes differ."""
    built = [CATEGORIES[name].build(Draw(np.random.default_rng(3), 2)) for name in family]
    assert len({CATEGORIES[name].parts for name in family}) == 1
    if family != ("hourglass", "diamond"):  # the diamond's cones lose the base that they share
        first, *others = (
            torch.stack([sum(g.area.sum(1) for g in groups if g.part == part) for part in parts])
            for groups, parts in zip(built, (CATEGORIES[n].parts for n in family), strict=True)
        )
        for other in others:
            torch.testing.assert_close(first, other)
    # radii know nothing of the pose: two samples of one shape agree much better than samples of
    # two shapes, so no rotation turns one shape into the other
    first, second = ([radii(sample(groups, 50000, seed)[0]) for groups in built] for seed in (0, 1))
    chance = max((a - b).abs().max() for a, b in zip(first, second, strict=True))
    for a, b in itertools.combinations(first, 2):
        assert (a - b).abs().max() > 3 * chance


def radii(points: torch.Tensor) -> torch.Tensor:
    """Cumulative distribution of the distances from the mean."""
    return torch.histc((points - points.mean(0)).norm(dim=-1), 400, 0, 3).cumsum(0) / len(points)


def hausdorff(a: torch.Tensor, b: torch.Tensor) -> float:
    d = torch.cdist(a, b)
    return max(d.amin(0).max(), d.amin(1).max()).item()


def handed_pair(pair: tuple[str, str]) -> list[torch.Tensor]:
    """Both objects from the same proportions, with independent points."""
    return [
        sample(CATEGORIES[name].build(Draw(np.random.default_rng(3), 1)), 2000, seed)[0]
        for seed, name in enumerate(pair)
    ]


@pytest.mark.parametrize("pair", PAIRS)
def test_handed_pairs_are_mirror_images(pair):
    left, right = handed_pair(pair)
    mirrored = left * torch.tensor([-1.0, 1.0, 1.0])
    assert hausdorff(mirrored, right) < 0.15
    assert hausdorff(left, right) > 0.4


@pytest.mark.parametrize("pair", PAIRS)
def test_handed_pairs_are_not_rotations_of_each_other(pair):
    """A rotation between them would match their principal axes; only reflections do."""

    def principal(points: torch.Tensor) -> torch.Tensor:
        points = points - points.mean(0)
        axes = torch.linalg.eigh(points.mT @ points).eigenvectors
        return points @ (axes * torch.linalg.det(axes).sign())

    left, right = map(principal, handed_pair(pair))
    signs = [torch.tensor(s) for s in itertools.product([1.0, -1.0], repeat=3)]
    turned = min(hausdorff(left * s, right) for s in signs if s.prod() > 0)
    reflected = min(hausdorff(left * s, right) for s in signs if s.prod() < 0)
    assert reflected < 0.2
    assert turned > 0.35


# ---- surfaces


def test_samples_of_a_box_are_uniform_by_area():
    surface = [box("b", (number(1.0), number(2.0), number(3.0)), (0.5, -1.0, 2.0))]
    n = 60000
    points, normals, _ = sample(surface, n)
    faces = normals @ torch.tensor([1.0, 2.0, 4.0])
    areas = {1: 6, 2: 3, 4: 2}  # across x, y and z; of 22 in all
    chi = sum(
        ((faces == sign * code).sum().item() - n * area / 22) ** 2 / (n * area / 22)
        for code, area in areas.items()
        for sign in (-1, 1)
    )
    assert chi < 20.5  # 5 degrees of freedom, one in a thousand
    local = points - torch.tensor([0.5, -1.0, 2.0])
    assert (local.abs() <= torch.tensor([0.5, 1.0, 1.5]) + 1e-6).all()
    torch.testing.assert_close(
        (local * normals).sum(-1), (normals.abs() @ torch.tensor([0.5, 1, 1.5]))
    )
    top = local[normals[:, 2] == 1]
    cells = ((top[:, 0] > 0) * 2 + (top[:, 1] > 0)).bincount(minlength=4)
    assert ((cells - len(top) / 4) ** 2 / (len(top) / 4)).sum() < 16.3


def test_no_point_of_a_box_is_inside_even_where_a_coordinate_is_zero():
    class Half(np.random.Generator):  # all of its numbers map to the middle of the box
        def random(self, shape, dtype):
            return np.full(shape, 0.5, dtype=dtype)

    surface = box("b", (number(1.0), 1.0, 1.0), (0.0, 0.0, 0.0))
    point, normal = _on_box(surface.size[0].mT, Half(np.random.PCG64(0)))
    assert normal.norm(dim=0).tolist() == [1.0]
    assert point.abs().amax(0).tolist() == [0.5]


def test_samples_of_a_sphere_are_uniform_by_area():
    points, normals, _ = sample([sphere("b", number(2.0), (1.0, 0.0, 0.0))], 40000)
    offset = points - torch.tensor([1.0, 0.0, 0.0])
    torch.testing.assert_close(offset, 2 * normals)
    torch.testing.assert_close(offset.norm(dim=-1), torch.full((40000,), 2.0))
    torch.testing.assert_close(normals.mT @ normals / 40000, torch.eye(3) / 3, atol=0.01, rtol=0)
    for axis in range(3):
        slices = torch.histc(normals[:, axis], 10, -1, 1)
        assert ((slices - 4000) ** 2 / 4000).sum() < 27.9  # 9 degrees of freedom


def test_samples_of_a_torus_arc_are_uniform_by_area():
    surface = [torus("b", number(1.0), number(0.5), math.pi / 2, (0.0, 0.0, 0.0))]
    points, normals, _ = sample(surface, 40000)
    ring = points[:, :2].norm(dim=-1)
    torch.testing.assert_close(torch.hypot(ring - 1, points[:, 2]), torch.full((40000,), 0.5))
    assert points[:, 0].min() > -1e-5  # half a ring, about +x
    middle = points[:, :2] / ring[:, None]
    middle = torch.nn.functional.pad(middle, (0, 1))
    torch.testing.assert_close(points - middle, 0.5 * normals, atol=1e-5, rtol=0)
    outer = ((ring > 1).double().mean()).item()
    assert abs(outer - (0.5 + 0.5 / math.pi)) < 0.012  # (pi + 2 r / R) / (2 pi); 5 deviations


def test_samples_of_a_cone_and_its_base_are_uniform_by_area():
    """Radius 3, height 4, slant 5: the side has 5/8 of the area, and r^2 is uniform on both."""
    cone = [lathe("b", [(number(0.0), number(0.0)), (3.0, 0.0), (0.0, 4.0)], (0.0, 0.0, 0.0))]
    points, normals, which = sample(cone, 40000)
    assert abs((which == 1).double().mean() - 5 / 8) < 0.012
    torch.testing.assert_close(normals[which == 0].mean(0), torch.tensor([0.0, 0.0, -1.0]))
    radius = points[:, :2].norm(dim=-1)
    on_side = which == 1
    torch.testing.assert_close(points[on_side, 2], 4 * (1 - radius[on_side] / 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normals[on_side, 2], torch.full_like(radius[on_side], 0.6))
    for i in range(2):
        slices = torch.histc(radius[which == i] ** 2, 10, 0, 9)
        expected = (which == i).sum() / 10
        assert ((slices - expected) ** 2 / expected).sum() < 27.9


@pytest.mark.parametrize(
    "solid",
    [
        box("b", (number(1.0), 0.5, 2.0), (0.0, 0.0, 0.0), random_rotations(1, 1)),
        cylinder("b", number(0.5), number(2.0), (0.3, 0.2, 0.1), random_rotations(1, 1)),
        sphere("b", number(0.7), (0.0, 1.0, 0.0)),
    ],
)
def test_normals_of_convex_solids_point_outwards_wherever_they_are_turned(solid):
    points, normals, _ = sample([solid], 500)
    # all of a convex body lies behind the tangent plane of each of its points
    ahead = torch.einsum("nij,nj->ni", points[None] - points[:, None], normals)
    assert ahead.max() < 1e-5
    assert ahead.min() < -0.5


def test_normals_of_objects_are_orthogonal_to_the_surface(clouds):
    """Neighbours of the same part and normal lie across the normal, not along it."""
    for label in range(clouds.num_classes):
        points, normals, parts = (
            t[label, :512] for t in (clouds.points, clouds.normals, clouds.parts)
        )
        offset = points - points[:, None]
        length = offset.norm(dim=-1)
        along = (offset * normals[:, None]).sum(-1).abs()
        near = (length < 0.15) & (length > 0) & (parts == parts[:, None])
        near &= normals @ normals.mT > 0.98
        assert near.sum() > 100
        assert along[near].mean() < 0.2 * length[near].mean(), clouds.class_names[label]


def test_walls_of_a_vessel_face_out_of_the_material(clouds):
    """Outer walls face away from the axis and inner ones towards it, half a thickness apart."""
    groups = CATEGORIES["mug"].build(Draw(np.random.default_rng(0), 1))
    points, normals, _ = sample([g for g in groups if g.part == "wall"], 4000)
    radius = points[:, :2].norm(dim=-1)
    outwards = (points[:, :2] * normals[:, :2]).sum(-1) / radius
    side = normals[:, 2].abs() < 0.5
    assert radius[side & (outwards > 0.9)].min() > radius[side & (outwards < -0.9)].max()


def test_a_mirrored_primitive_is_the_mirror_image():
    turn = axis_rotation("z", number(0.4)) @ axis_rotation("x", number(0.7))
    arc = torus("b", number(1.0), number(0.2), 1.0, (0.3, 0.2, 0.1), turn)
    flip = torch.tensor([-1.0, 1.0, 1.0])
    torch.testing.assert_close(torch.linalg.det(arc.mirrored().rotation), torch.ones(1, 1))
    points, other = sample([arc], 3000)[0] * flip, sample([arc.mirrored()], 3000, seed=1)[0]
    assert hausdorff(points, other) < 0.15
    assert hausdorff(points * flip, other) > 0.3
