"""Operations on whole batches of clouds ``(b, n, 3)``, on any device.

Each random one takes its generator explicitly and never touches the global one. Numbers are drawn
on the generator's own device, in single precision, and moved: a generator on the CPU gives the
same augmentation wherever the points lie.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from locotrans.geometry import (
    AXES,
    Axis,
    center,
    random_axis_rotations,
    random_rotations,
    safe_length,
)

RotationProtocol = Literal["z", "so3", "none"]
ROTATION_PROTOCOLS: tuple[RotationProtocol, ...] = get_args(RotationProtocol)


def normalize(points: Float[Tensor, "*batch n 3"]) -> Float[Tensor, "*batch n 3"]:
    """Move the mean of each cloud to the origin and its farthest point to distance 1.

    Symmetry: invariant under translation and scaling, equivariant under O(3).
    Degenerate: a cloud of equal points becomes all zeros.
    """
    # in units of a power of two, which changes no bit of the result: squares stay within range
    extent = points.detach().abs().amax(dim=(-2, -1), keepdim=True)
    exponent = torch.frexp(extent).exponent.clamp(-125, 125)
    points = center(points / torch.ldexp(torch.ones_like(extent), exponent))
    radius = safe_length(points).amax(dim=-2, keepdim=True)
    return points / torch.where(radius > 0, radius, 1.0)


def rotate(
    vectors: Float[Tensor, "*batch n 3"], rotations: Float[Tensor, "*batch 3 3"]
) -> Float[Tensor, "*batch n 3"]:
    """Turn every point (or normal) of each cloud by the rotation of that cloud.

    It is no product of matrices, which under TF32 or autocast would round the coordinates.
    """
    return (vectors.unsqueeze(-2) * rotations.to(vectors).unsqueeze(-3)).sum(-1)


def protocol_rotations(
    protocol: RotationProtocol,
    up: Axis,
    *shape: int,
    generator: torch.Generator,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*shape 3 3"]:
    """Draw the rotations of a named protocol, on the generator's device.

    Args:
        protocol: "z" turns about the data set's up axis, whichever letter that has; "so3" turns
            freely (Haar measure); "none" gives identities and draws nothing.
        up: The up axis of the data set.
        *shape: Batch shape of the matrices.
        generator: Source of the random numbers.
        dtype: Type of the matrices.
    """
    if protocol not in ROTATION_PROTOCOLS:
        known = ", ".join(ROTATION_PROTOCOLS)
        raise ValueError(f"rotation protocol must be one of {known}, got {protocol!r}")
    source = generator.device
    if protocol == "z":
        return random_axis_rotations(
            *shape, axis=up, generator=generator, dtype=dtype, device=source
        )
    if protocol == "so3":
        return random_rotations(*shape, generator=generator, dtype=dtype, device=source)
    return torch.eye(3, dtype=dtype, device=source).repeat(*shape, 1, 1)


def random_scale(
    points: Float[Tensor, "b n 3"],
    low: float = 2 / 3,
    high: float = 3 / 2,
    *,
    generator: torch.Generator,
) -> Float[Tensor, "b n 3"]:
    """Stretch each cloud by an independent factor along each axis, uniform in [low, high].

    Symmetry: does not commute with rotations, so it goes before them.
    """
    if not 0 < low <= high:
        raise ValueError(f"scale needs 0 < low <= high, got low {low} and high {high}")
    factors = low + (high - low) * uniform(points.shape[0], 1, 3, generator=generator)
    return points * factors.to(points)


def random_shift(
    points: Float[Tensor, "b n 3"], size: float = 0.2, *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    """Move each cloud by an independent offset along each axis, uniform in [-size, size]."""
    if size < 0:
        raise ValueError(f"the size of the shift must not be negative, got {size}")
    offsets = size * (2 * uniform(points.shape[0], 1, 3, generator=generator) - 1)
    return points + offsets.to(points)


def random_mirror(
    points: Float[Tensor, "b n 3"], up: Axis, *, generator: torch.Generator
) -> Float[Tensor, "b n 3"]:
    """Mirror every other cloud, at random, in a plane that holds the up axis.

    Symmetry: with a random rotation about the up axis behind it, all such planes are alike.
    """
    across = (AXES.index(up) + 1) % 3
    chosen = uniform(points.shape[0], 1, generator=generator) < 0.5
    signs = torch.ones(points.shape[0], 1, 3, device=generator.device)
    signs[..., across] = torch.where(chosen, -1.0, 1.0)
    return points * signs.to(points)


def jitter(
    points: Float[Tensor, "b n 3"],
    sigma: float = 0.01,
    clip: float = 0.05,
    *,
    generator: torch.Generator,
) -> Float[Tensor, "b n 3"]:
    """Add normal noise of deviation ``sigma`` to every coordinate, cut off at ``clip``."""
    if sigma < 0 or clip < 0:
        raise ValueError(f"sigma and clip must not be negative, got {sigma} and {clip}")
    noise = torch.randn(*points.shape, generator=generator, device=generator.device)
    return points + (sigma * noise).clamp(-clip, clip).to(points)


def random_order(b: int, n: int, *, generator: torch.Generator) -> Int[Tensor, "b n"]:
    """Draw an independent uniform permutation of ``n`` points for each of ``b`` clouds."""
    return uniform(b, n, generator=generator).argsort(dim=-1)


def shuffle_points(
    points: Float[Tensor, "b n c"], *, generator: torch.Generator
) -> Float[Tensor, "b n c"]:
    """Put the points of each cloud into a random order of its own.

    What belongs to the points (normals, say) can be joined along the last axis to stay with them.
    """
    return drop_points(points, 0, generator=generator)


def drop_points(
    points: Float[Tensor, "b n c"], count: int, *, generator: torch.Generator
) -> Float[Tensor, "b kept c"]:
    """Remove ``count`` random points from each cloud; those that stay are in random order."""
    b, n, c = points.shape
    if not 0 <= count < n:
        raise ValueError(f"can drop 0 to {n - 1} of {n} points, got {count}")
    kept = random_order(b, n, generator=generator)[:, count:].to(points.device)
    return points.gather(1, kept[..., None].expand(-1, -1, c))


def uniform(*shape: int, generator: torch.Generator) -> Float[Tensor, "..."]:
    """Draw numbers of [0, 1), on the generator's device."""
    return torch.rand(*shape, generator=generator, device=generator.device)
