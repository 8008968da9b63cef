import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from locotrans.geometry import neighbors, random_rotations
from locotrans.geometry.neighbors import farthest_points, gather, knn, knn_features
from locotrans.kernels import cpu_knn

SHAPES = st.lists(st.integers(1, 3), max_size=2).map(tuple)
SEEDS = st.integers(0, 2**32 - 1)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def sets(index):
    return index.sort(-1).values


def brute_force(points, k):
    """Sort all pairs, one at a time."""
    found = []
    for p in points:
        distances = sorted(((p - q).norm().item(), j) for j, q in enumerate(points))
        found.append(sorted(j for _, j in distances[:k]))
    return torch.tensor(found)


def grid(m, dtype=torch.float32):
    axis = torch.arange(m, dtype=dtype)
    x = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1).reshape(-1, 3)
    return x - x.mean(0)


def share_changed(points, k, search):
    """Return the share of neighbourhoods that random rotations change."""
    reference = sets(search(points, k))
    R = random_rotations(3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = [(points.double() @ r.mT).to(points.dtype) for r in R]
    changed = [(sets(search(x, k)) != reference).any(-1).float().mean().item() for x in turned]
    return max(changed)


@pytest.mark.parametrize("search", [knn, knn_features])
@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 25), d=st.integers(1, 5), seed=SEEDS, data=st.data())
def test_against_brute_force(search, n, d, seed, data):
    k = data.draw(st.integers(1, n))
    points = draw(n, d, seed=seed)
    assert torch.equal(sets(search(points, k)), brute_force(points, k))


@pytest.mark.parametrize("search", [knn, knn_features])
@settings(max_examples=10, deadline=None)
@given(shape=SHAPES, seed=SEEDS)
def test_any_batch_shape(search, shape, seed):
    points = draw(*shape, 10, 3, seed=seed)
    index = search(points, 4)
    assert index.shape == (*shape, 10, 4)
    flat = points.reshape(-1, 10, 3)
    each = torch.stack([search(cloud, 4) for cloud in flat])
    assert torch.equal(index.reshape(-1, 10, 4), each)
    assert (index == torch.arange(10)[:, None]).any(-1).all()  # the point itself


@pytest.mark.parametrize("search", [knn, knn_features])
def test_chunks_change_nothing(search, monkeypatch):
    points = draw(2, 50, 3)
    whole = search(points, 7)
    for entries in (1, 250, 1700):
        monkeypatch.setattr(neighbors, "CHUNK", entries)
        assert torch.equal(search(points, 7), whole)


def test_chunks_bound_the_distances_that_exist_at_a_time(monkeypatch):
    sizes = []
    cdist = torch.cdist

    def watched(a, b, **options):
        sizes.append(a.shape[0] * a.shape[1] * b.shape[1])
        return cdist(a, b, **options)

    monkeypatch.setattr(torch, "cdist", watched)
    monkeypatch.setattr(neighbors, "CHUNK", 500)
    knn(draw(2, 50, 3), 7)
    assert len(sizes) == 10
    assert max(sizes) <= 500


@pytest.mark.parametrize("search", [knn, knn_features])
@pytest.mark.parametrize("k", [0, 6, -1])
def test_impossible_k(search, k):
    with pytest.raises(ValueError, match=rf"k = {k} neighbours .* cloud of 5 points"):
        search(draw(5, 3), k)


def test_ties_go_to_the_lowest_index():
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]])
    for search in (knn, knn_features):
        assert search(points, 3)[0].tolist() == [0, 1, 2]
        assert search(points.flip(0), 3)[5].sort().values.tolist() == [0, 1, 5]


def test_equal_points():
    same = torch.ones(7, 3)
    for search in (knn, knn_features):
        assert torch.equal(sets(search(same, 3)), torch.tensor([0, 1, 2]).expand(7, 3))
        assert search(same[:1], 1).tolist() == [[0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [2, 8, 20])
def test_rotating_a_grid_changes_no_neighbourhood(k, dtype, monkeypatch):
    points = grid(7, dtype)
    assert share_changed(points, k, knn) == 0
    assert share_changed(points, k, knn_features) == 0
    monkeypatch.setattr(neighbors, "TIE", 0.0)  # the tie rule is what keeps them
    assert share_changed(points, k, knn) > 0.2
    assert share_changed(points, k, knn_features) > 0.2


def sphere(n, dtype):
    """Return n points on a sphere, and before them its centre, from which all are as far."""
    points = torch.nn.functional.normalize(draw(n, 3), dim=-1)
    return torch.cat([torch.zeros(1, 3, dtype=points.dtype), points]).to(dtype)


def rings(size, dtype, count=4):
    """Return rings about one axis, each with a point of the axis before it."""
    angle = 2 * torch.pi * torch.arange(size, dtype=torch.float64) / size
    ring = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=-1)
    ring = torch.cat([torch.zeros(1, 3, dtype=torch.float64), ring])
    up = torch.tensor([0.0, 0.0, 1.5], dtype=torch.float64)
    return torch.cat([ring + up * i for i in range(count)]).to(dtype)


SEARCHES = {
    "plain": (knn, knn_features),
    "loops": tuple(
        lambda x, k, search=search: search(x[None], k)[0]
        for search in (cpu_knn.knn, cpu_knn.knn_features)
    ),
}
MANY_TIES = {
    "sphere": lambda dtype: sphere(200, dtype),
    "large sphere": lambda dtype: sphere(1100, dtype),
    "rings": lambda dtype: rings(64, dtype),
    "large rings": lambda dtype: rings(256, dtype),
}


@pytest.mark.parametrize("shape", MANY_TIES)
@pytest.mark.parametrize(
    ("how", "dtype"), [("plain", torch.float64), ("plain", torch.float32), ("loops", torch.float32)]
)
def test_any_number_of_candidates_may_tie(shape, how, dtype, monkeypatch):
    points = MANY_TIES[shape](dtype)
    for search in SEARCHES[how]:
        nearest = search(points, 5)
        assert nearest[0].tolist() == [0, 1, 2, 3, 4]  # all others are as far from the centre
        assert share_changed(points, 5, search) == 0
        if how == "plain":
            monkeypatch.setattr(neighbors, "_looks", lambda flat: False)  # as on a GPU
            assert share_changed(points, 5, search) > 0
            monkeypatch.undo()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_searched_in_float32(dtype):
    for n in (30, 1100):
        points = draw(n, 3, dtype=torch.float32).to(dtype)
        for search in (knn, knn_features):
            assert torch.equal(search(points, 4), search(points.float(), 4))


def test_off_centre_cloud_by_differences():
    points = 0.3 * draw(1000, 3, dtype=torch.float32) + 50

    def gram(x, k):
        squares = x.square().sum(-1)
        return (squares[:, None] - 2 * x @ x.mT + squares).topk(k, largest=False).indices

    truth = sets(knn(points.double(), 20))

    def share_wrong(index):
        return (sets(index) != truth).any(-1).float().mean().item()

    assert share_wrong(knn(points, 20)) < 0.01  # near ties, by the tie rule
    assert share_wrong(gram(points, 20)) > 0.1
    assert share_wrong(knn_features(points, 20)) < 0.01  # centres first
    assert share_changed(points, 20, knn) < 0.01
    assert share_changed(points, 20, gram) > 0.1


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_permutation_takes_neighbours_along(seed):
    points = draw(20, 3, seed=seed)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
    rank = order.argsort()
    assert torch.equal(sets(rank[knn(points, 5)[order]]), sets(knn(points[order], 5)))


def test_neighbours_carry_no_gradient():
    assert not knn(draw(5, 3).requires_grad_(), 2).requires_grad


@settings(max_examples=20, deadline=None)
@given(shape=SHAPES, features=SHAPES, n=st.integers(1, 6), m=st.integers(1, 4), k=st.integers(1, 5))
def test_gather_against_a_loop(shape, features, n, m, k):
    x = draw(*shape, n, *features)
    generator = torch.Generator().manual_seed(n)
    index = torch.randint(n, (*shape, m, k), generator=generator)
    out = gather(x, index)
    assert out.shape == (*shape, m, k, *features)
    flat_x, flat_index = x.reshape(-1, n, *features), index.reshape(-1, m, k)
    expected = torch.stack([cloud[i] for cloud, i in zip(flat_x, flat_index, strict=True)])
    assert torch.equal(out, expected.reshape(out.shape))


def test_gather_adds_gradients_of_repeated_rows():
    x = draw(3, 2).requires_grad_()
    gather(x, torch.tensor([[0, 0, 2]])).sum().backward()
    assert x.grad.tolist() == [[2, 2], [0, 0], [1, 1]]


def test_farthest_points_by_hand():
    line = torch.tensor([0.0, 1, 2, 3, 10])
    points = torch.stack([line, torch.zeros(5), torch.zeros(5)], dim=-1)
    assert farthest_points(points, 4).tolist() == [4, 0, 3, 1]


@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, seed=SEEDS, m=st.integers(1, 12))
def test_farthest_points_spread_and_do_not_depend_on_pose_or_order(shape, seed, m):
    points = draw(*shape, 12, 3, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    R = random_rotations(generator=generator, dtype=torch.float64)
    order = torch.randperm(12, generator=generator)
    chosen = farthest_points(points, m)
    assert chosen.shape == (*shape, m)
    assert all(len(set(row)) == m for row in chosen.reshape(-1, m).tolist())
    moved = farthest_points((points @ R.mT + 5)[..., order, :], m)
    assert torch.equal(order[moved], chosen)


@pytest.mark.parametrize("m", [0, 4])
def test_impossible_number_of_farthest_points(m):
    with pytest.raises(ValueError, match=f"{m} farthest points"):
        farthest_points(draw(3, 3), m)


def test_one_far_point_does_not_blur_the_neighbourhoods_of_the_others():
    features = draw(400, 32, dtype=torch.float32)
    features[0] *= 200  # its squared length is 40,000 times that of the others
    truth = sets(knn_features(features.double(), 20))
    wrong = (sets(knn_features(features, 20)) != truth).any(-1).float().mean()
    assert wrong < 0.01
