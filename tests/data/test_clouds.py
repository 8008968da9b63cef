"""A `CloudSet` refuses what is broken, and the registry knows its names."""

from dataclasses import replace

import pytest
import torch

from locotrans.data import CloudSet, list_datasets, load_dataset, register_dataset


@pytest.fixture
def clouds(generator) -> CloudSet:
    return CloudSet(
        name="toy",
        split="train",
        up="y",
        points=torch.randn(4, 5, 3, generator=generator),
        labels=torch.tensor([0, 1, 1, 0]),
        class_names=("a", "b"),
        normals=torch.randn(4, 5, 3, generator=generator),
        parts=torch.tensor([[0, 1, 2, 0, 1]] * 4),
        part_names=("a/x", "a/y", "b/x"),
    )


NAN, INF = torch.zeros(4, 5, 3), torch.zeros(4, 5, 3)
NAN[2, 1, 0] = float("nan")
INF[3, 1, 0] = -float("inf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"up": "up"}, "up must be one of x, y, z"),
        ({"points": torch.zeros(4, 3, 5)}, r"points must be \(shapes, points, 3\)"),
        ({"points": torch.zeros(5, 3)}, r"points must be \(shapes, points, 3\)"),
        ({"points": torch.zeros(4, 0, 3)}, "empty"),
        ({"points": torch.zeros(4, 5, 3, dtype=torch.long)}, "floating point"),
        ({"points": NAN}, "nan or infinity in 1 shape, the first is 2"),
        ({"normals": INF}, "normals hold nan or infinity in 1 shape, the first is 3"),
        ({"normals": torch.zeros(4, 6, 3)}, r"normals are \(4, 6, 3\)"),
        ({"labels": torch.tensor([0, 1, 2, 0])}, "labels span 0 to 2, but class_names has 2"),
        ({"labels": torch.tensor([0, -1, 1, 0])}, "labels span -1 to 1"),
        ({"labels": torch.tensor([0, 1, 1])}, r"labels must be \(4,\)"),
        ({"labels": torch.zeros(4)}, "labels must be integers"),
        ({"parts": torch.zeros(4, 4, dtype=torch.long)}, r"parts must be \(4, 5\)"),
        ({"part_names": ("a/x", "a/y")}, "parts span 0 to 2, but part_names has 2"),
        ({"class_names": ("a", "a")}, "repeats a name"),
    ],
)
def test_broken_fields_are_refused(clouds, change, message):
    """As users meet it: the tests' own check of annotations would speak first otherwise."""
    broken = object.__new__(CloudSet)
    vars(broken).update(vars(clouds) | change)
    with pytest.raises(ValueError, match=message):
        broken.__post_init__()


def test_half_precision_is_not_mistaken_for_infinity(clouds):
    replace(clouds, points=torch.full((4, 5, 3), 6e4, dtype=torch.half))


def test_sizes(clouds):
    assert len(clouds) == 4
    assert clouds.num_classes == 2


def test_checksum_sees_every_field_but_not_the_split(clouds):
    assert replace(clouds).checksum == clouds.checksum
    assert replace(clouds, split="test").checksum == clouds.checksum
    changes = [
        {"points": clouds.points + 1e-6},
        {"labels": 1 - clouds.labels},
        {"normals": -clouds.normals},
        {"parts": clouds.parts.flip(1)},
        {"normals": None},
        {"class_names": ("b", "a")},
        {"up": "z"},
    ]
    sums = {replace(clouds, **change).checksum for change in changes}
    assert len(sums | {clouds.checksum}) == len(changes) + 1


def test_subset_takes_every_field_along(clouds):
    some = clouds.subset([2, 0, 2])
    assert torch.equal(some.points, clouds.points[[2, 0, 2]])
    assert torch.equal(some.normals, clouds.normals[[2, 0, 2]])
    assert torch.equal(some.parts, clouds.parts[[2, 0, 2]])
    assert some.labels.tolist() == [1, 0, 1]
    assert some.checksum == clouds.subset(torch.tensor([2, 0, 2])).checksum
    bare = replace(clouds, normals=None, parts=None).subset(range(2))
    assert bare.normals is None
    assert bare.parts is None


@pytest.mark.parametrize("indices", [[4], [0, -5]])
def test_subset_refuses_indices_out_of_range(clouds, indices):
    with pytest.raises(IndexError, match=r"toy \(train\) has 4 shapes"):
        clouds.subset(indices)


def test_subset_refuses_an_empty_list(clouds):
    with pytest.raises(ValueError, match="non-empty"):
        clouds.subset([])


def test_unknown_name_lists_the_known_ones_with_a_hint():
    assert "builtin" in list_datasets()
    with pytest.raises(ValueError, match=r"'builtln': did you mean 'builtin'\? known: .*builtin"):
        load_dataset("builtln", "train")
    with pytest.raises(ValueError, match="unknown data set 'zzz': known: "):
        load_dataset("zzz", "train")


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        register_dataset("builtin")(lambda split, **options: None)
