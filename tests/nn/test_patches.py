"""Patches, seen as they stand and through frames, point by point."""

import pytest
import torch

from drawing import draw
from locotrans.geometry import random_rotations
from locotrans.nn.patches import (
    PLAIN,
    Cloud,
    PatchFeatures,
    Sight,
    Stem,
    make_patches,
    offsets,
    rows,
)

B, N, K = 2, 12, 4
WIDTHS = (2, 3)


@pytest.fixture
def cloud():
    generator = torch.Generator().manual_seed(2)
    frames = random_rotations(B, N, generator=generator, dtype=torch.float64)
    vectors = tuple(draw(B, N, 3, c, seed=c) for c in WIDTHS)
    return Cloud(draw(B, N, 3), frames, vectors, torch.arange(N).expand(B, N, N))


def turned(cloud, R):
    return cloud._replace(
        points=cloud.points @ R.mT,
        frames=R @ cloud.frames,
        vectors=tuple(R @ v for v in cloud.vectors),
    )


def test_patches_hold_the_nearest_points_of_their_centres(cloud):
    patches = make_patches(cloud, 3, K)
    assert patches.centers.shape == (B, N // 3)
    assert patches.neighbors.shape == (B, N // 3, K)
    for b in range(B):
        assert len(set(patches.centers[b].tolist())) == N // 3
        for place, r in enumerate(patches.centers[b]):
            distances = (cloud.points[b] - cloud.points[b, r]).norm(dim=-1)
            nearest = distances.argsort()[:K].tolist()
            assert sorted(patches.neighbors[b, place].tolist()) == sorted(nearest)
            assert torch.equal(patches.cloud.points[b, place], cloud.points[b, r])
            assert torch.equal(patches.cloud.frames[b, place], cloud.frames[b, r])
            for v, chosen in zip(cloud.vectors, patches.cloud.vectors, strict=True):
                assert torch.equal(chosen[b, place], v[b, r])


def test_small_clouds_give_what_they_have(cloud):
    patches = make_patches(cloud, 100, 100)
    assert patches.centers.shape == (B, 1)
    assert sorted(patches.neighbors[0, 0].tolist()) == list(range(N))


def test_coordinates_as_they_stand_and_through_frames(cloud):
    patches = make_patches(cloud, 3, K)
    plain = Cloud(cloud.points)
    for b, m, k in ((0, 0, 1), (1, 3, 2)):
        r, j = patches.centers[b, m], patches.neighbors[b, m, k]
        d = cloud.points[b, j] - cloud.points[b, r]
        U = cloud.frames[b, r]
        assert torch.allclose(offsets(cloud, patches)[b, m, k], U.mT @ d)
        assert torch.equal(offsets(plain, make_patches(plain, 3, K))[b, m, k], d)
        assert torch.allclose(cloud.seen_from_itself[b, r], U.mT @ cloud.points[b, r])
    assert plain.seen_from_itself is plain.points


@pytest.mark.parametrize("layer", [0, 1, 5])
def test_neighbours_are_turned_by_the_vectors_of_their_layer(cloud, layer):
    torch.manual_seed(0)
    features = PatchFeatures(6, Sight(True, WIDTHS), layer).double().eval()
    patches, x = make_patches(cloud, 3, K), draw(B, N, 6, seed=7)
    recovery, v = features.recovery, cloud.vectors[min(layer, 1)]
    out = features(x, cloud, patches)
    for b, m, k in ((0, 0, 1), (1, 3, 2)):
        r, j = patches.centers[b, m], patches.neighbors[b, m, k]
        pose = (cloud.frames[b, r].mT @ (v[b, j] - v[b, r])).flatten()  # Eq. 17
        hidden = recovery.kernel_norm(recovery.kernel1(pose)[None]).relu()
        kernel = recovery.kernel2(hidden)
        x_hat = recovery.pose_norm(kernel * recovery.basis(x[b, j])).relu()  # Eq. 15
        expected = recovery.refine_norm(recovery.refine(x_hat)).relu()[0]
        assert torch.allclose(out[b, m, k], expected)


def test_without_vectors_features_are_gathered(cloud):
    features, x = PatchFeatures(6, Sight(True), 0), draw(B, N, 6)
    assert not list(features.parameters())
    patches = make_patches(cloud, 3, K)
    for b, m, k in ((0, 0, 1), (1, 3, 2)):
        j = patches.neighbors[b, m, k]
        assert torch.equal(features(x, cloud, patches)[b, m, k], x[b, j])


def test_what_is_seen_does_not_change_when_all_turns_along(cloud):
    torch.manual_seed(0)
    features = PatchFeatures(6, Sight(True, WIDTHS), 1).double()
    stem = Stem(5, Sight(True, WIDTHS)).double()
    R = random_rotations(generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x, other = draw(B, N, 6), turned(cloud, R)
    one, two = make_patches(cloud, 3, K), make_patches(other, 3, K)
    assert torch.equal(one.centers, two.centers)
    assert torch.equal(one.neighbors, two.neighbors)
    assert torch.allclose(offsets(cloud, one), offsets(other, two))
    assert torch.allclose(cloud.seen_from_itself, other.seen_from_itself)
    assert torch.allclose(features(x, cloud, one), features(x, other, two))
    assert torch.allclose(stem(cloud), stem(other))
    plain = Stem(5, PLAIN).double()
    assert not torch.allclose(plain(Cloud(cloud.points)), plain(Cloud(other.points)))


def test_frames_get_their_gradient_where_coordinates_are_seen(cloud):
    frames = cloud.frames.requires_grad_()
    features = PatchFeatures(6, Sight(True, WIDTHS), 0).double()
    patches = make_patches(cloud, 3, K)
    out = features(draw(B, N, 6), cloud, patches)
    assert torch.autograd.grad(out.sum(), frames, allow_unused=True, retain_graph=True)[0] is None
    seen = (offsets(cloud, patches) * draw(B, N // 3, K, 3, seed=8)).sum()
    assert torch.autograd.grad(seen, frames)[0].abs().max() > 0
    stem = Stem(5, Sight(True)).double()
    assert torch.autograd.grad(stem(cloud).sum(), frames)[0].abs().max() > 0
    assert not cloud.detached().frames.requires_grad
    assert Cloud(cloud.points).detached().frames is None


def test_rows():
    x, index = draw(B, N, 3, 2), torch.tensor([[0, 3], [11, 3]])
    assert torch.equal(rows(x, index), torch.stack([x[0, [0, 3]], x[1, [11, 3]]]))
