r"""The relative pose of two clouds of one object, from vectors that turn along with it.

A network gives invariant features s_i of every point, the same in every pose. Weighted by them, the
points give vectors of the whole shape that turn along, ``V_c = mean_i s_ic p_i``, towards where the
shape has feature c: ``V(R p) = R V(p)``. So the rotation from one cloud to another is the
one that brings their vectors together, ``min_R |R V(a) - V(b)|``, in closed form (Kabsch): no
initial guess, no correspondence of points. Iterated closest points then refine it, also from the
half-turns about the principal axes, which are what a nearly symmetric shape is mistaken for.

Degenerate: an object with a rotational symmetry has several right answers, and one is returned.
"""

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from locotrans.geometry import rotation_angle
from locotrans.training.predict.samples import Choice, choose_points
from locotrans.training.record import check_writable, write_atomically
from locotrans.training.tasks import is_segmenter

STEPS = 60  # of the refinement, at most
POINTS = 4096  # that the refinement looks at, at most
SCALE = 1.2  # of one cloud to the other, from which on they are hardly of one object in one unit
KEPT = 0.9  # share of the pairs that count, the nearest ones

Points = Float[np.ndarray, "_ 3"]


class Alignment(NamedTuple):
    """The motion ``x -> R x + t`` that lays the first cloud on the second."""

    rotation: Float[np.ndarray, "3 3"]
    translation: Float[np.ndarray, "3"]
    residual: float
    """Root mean square of the distances to the nearest point of the other cloud, both ways."""
    first_rotation: Float[np.ndarray, "3 3"]
    """The network's answer, before it was refined."""
    spacing: float
    """Root mean square of the distances to the nearest point of the same cloud, the larger one."""
    scale: float
    """Size of the second cloud over that of the first: root mean square distances to the center."""

    @property
    def same_size(self) -> bool:
        """Whether they may be of one object in one unit; if not, the rotation may be wrong."""
        return 1 / SCALE <= self.scale <= SCALE

    @property
    def degrees(self) -> float:
        """The angle of the rotation."""
        return angle_of(self.rotation)

    def apply(self, points: Points) -> Points:
        """Lay points of the first cloud on the second."""
        return points @ self.rotation.T + self.translation


def align(
    network: nn.Module,
    a: Points,
    b: Points,
    *,
    points: int = 1024,
    refine: bool = True,
    seed: int = 0,
    choice: Choice = "random",
) -> Alignment:
    """Find the motion that lays cloud ``a`` on cloud ``b``, another pose of the same object.

    Args:
        network: a LocoTrans or a VN-DGCNN, trained.
        a: one cloud, in the same unit as the other,
        b: which may have other points, in another order.
        points: how many of each the network sees.
        refine: improve the network's answer by iterated closest points.
        seed: of the choice of points.
        choice: how these are chosen, which should be as in training.
    """
    if is_segmenter(network):
        raise ValueError("alignment needs a network that classifies, and this one labels points")
    for name, cloud in (("first", a), ("second", b)):
        if cloud.ndim != 2 or cloud.shape[1] != 3 or len(cloud) < 3:
            raise ValueError(
                f"the {name} cloud must have at least three points, (n, 3), got {cloud.shape}"
            )
    a, b = a.astype(np.float64), b.astype(np.float64)
    points = min(points, max(1024, len(a), len(b)))  # filling up adds nothing to see
    seen = [choose_points(x, points, seed, choice) for x in (a, b)]
    centers = [x.mean(0) for x in seen]
    seen = [x - center for x, center in zip(seen, centers, strict=True)]
    sizes = [float(np.sqrt(np.square(x).sum(1).mean())) for x in seen]
    for name, size in zip(("first", "second"), sizes, strict=True):
        if not size > 0:
            raise ValueError(f"all points of the {name} cloud are the same")
    radius = max(float(np.linalg.norm(x, axis=1).max()) for x in seen)
    va, vb = shape_vectors(network, np.stack(seen) / radius)
    first = kabsch(va.T, vb.T)
    a, b = (choose_points(x, POINTS, seed) if len(x) > POINTS else x for x in (a, b))

    spacing = max(_spacing(x) for x in (a, b))

    def measured(R: Float[np.ndarray, "3 3"], t: Float[np.ndarray, "3"]) -> Alignment:
        return Alignment(R, t, _residual(a, b, R, t), first, spacing, sizes[1] / sizes[0])

    answer = measured(first, centers[1] - first @ centers[0])
    if not refine:
        return answer
    starts = [turn @ first for turn in (np.eye(3), *half_turns(seen[1]))]
    refined = [
        measured(*iterate_closest_points(a, b, R, centers[1] - R @ centers[0])) for R in starts
    ]
    return min([answer, *refined], key=lambda found: found.residual)


@torch.no_grad()
def shape_vectors(
    network: nn.Module, clouds: Float[np.ndarray, "b n 3"]
) -> Float[np.ndarray, "b 3 c"]:
    """Return vectors of whole shapes: the mean of the points, weighted by each of their features.

    Features are those of both branches; their means count nothing and their deviations the same.

    Symmetry: SO(3)-equivariant, and invariant under permutation.
    """
    branch: Any = getattr(network, "equivariant_branch", network)
    if not hasattr(branch, "invariants"):
        kind = type(network).__name__
        raise ValueError(f"{kind} has no equivariant branch; take a LocoTrans or a VN-DGCNN")
    points = torch.as_tensor(clouds).to(next(network.parameters()))
    known = branch.backbone(points)
    features = [branch.invariants.of_points(known.vectors, known.mean)]
    of_points = None if branch is network else network(points).point_features
    if of_points is not None:  # few points are left in some backbones
        features.append(of_points)
    s = torch.cat(features, dim=-1).double()
    s = s - s.mean(1, keepdim=True)
    s = s / s.square().mean((0, 1)).sqrt().clamp_min(1e-12)
    vectors = torch.einsum("bni,bnc->bic", points.double(), s) / points.shape[1]
    return vectors.cpu().numpy()


def half_turns(points: Points) -> list[Float[np.ndarray, "3 3"]]:
    """Return the rotations by 180 degrees about the principal axes of a cloud at the origin."""
    _, axes = np.linalg.eigh(points.T @ points)
    return [2 * np.outer(axis, axis) - np.eye(3) for axis in axes.T]


def kabsch(x: Points, y: Points) -> Float[np.ndarray, "3 3"]:
    """Return the rotation R of least ``|R x_i - y_i|^2``, never a reflection.

    Degenerate: vectors along one line leave the angle about it free; some rotation is returned.
    """
    u, _, vt = np.linalg.svd(y.T @ x)
    sign = np.sign(np.linalg.det(u @ vt))
    return u @ np.diag([1.0, 1.0, sign]) @ vt


def iterate_closest_points(
    a: Points, b: Points, R: Float[np.ndarray, "3 3"], t: Float[np.ndarray, "3"]
) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
    """Refine a motion of ``a`` onto ``b``: pair nearest points, both ways, and fit; repeat.

    The farthest pairs are left out, since the clouds need not show quite the same.
    """
    from scipy.spatial import cKDTree

    tree_a, tree_b = cKDTree(a), cKDTree(b)
    for _ in range(STEPS):
        to_b, pair_b = tree_b.query(a @ R.T + t)
        to_a, pair_a = tree_a.query((b - t) @ R)
        x, y = np.concatenate([a, a[pair_a]]), np.concatenate([b[pair_b], b])
        distance = np.concatenate([to_b, to_a])
        near = distance <= np.quantile(distance, KEPT)
        x, y = x[near], y[near]
        center_x, center_y = x.mean(0), y.mean(0)
        new = kabsch(x - center_x, y - center_y)
        step = angle_of(new @ R.T)
        R, t = new, center_y - new @ center_x
        if step < 1e-4:
            break
    return R, t


def angle_of(R: Float[np.ndarray, "3 3"]) -> float:
    """Return the angle of a rotation in degrees."""
    return float(torch.rad2deg(rotation_angle(torch.as_tensor(R))))


def read_points(path: Path) -> Points:
    """Read the points of a file, in its own coordinates; a mesh gives points of its surface."""
    from locotrans.data.readers import read_cloud

    cloud = read_cloud(path, samples=POINTS)
    return cloud.points.double().numpy() + np.array(cloud.offset)


def check_cloud_file(path: Path) -> None:
    """Raise the error that `write_cloud` would, before the work."""
    if path.suffix not in (".ply", ".npy"):
        raise ValueError(f"{path} must end in .ply or .npy")
    check_writable(path)


def write_cloud(path: Path, points: Points) -> None:
    """Write points as .ply or .npy, in double precision."""
    check_cloud_file(path)
    if path.suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, points)
        write_atomically(path, buffer.getvalue())
        return
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(points)}"]
    lines += [f"property double {axis}" for axis in "xyz"]
    header = "\n".join([*lines, "end_header", ""]).encode()
    write_atomically(path, header + points.astype("<f8").tobytes())


def _spacing(points: Points) -> float:
    from scipy.spatial import cKDTree

    return float(np.sqrt(np.square(cKDTree(points).query(points, 2)[0][:, 1]).mean()))


def _residual(
    a: Points, b: Points, R: Float[np.ndarray, "3 3"], t: Float[np.ndarray, "3"]
) -> float:
    from scipy.spatial import cKDTree

    to_b, _ = cKDTree(b).query(a @ R.T + t)
    to_a, _ = cKDTree(a).query((b - t) @ R)
    return float(np.sqrt(np.mean(np.concatenate([to_b, to_a]) ** 2)))
