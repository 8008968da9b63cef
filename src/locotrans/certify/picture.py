"""A map of the error over SO(3): the sphere of axes, once for each of several angles."""

import math
from typing import Any

import torch

from locotrans.certify.result import Certificate
from locotrans.geometry import quaternion_to_matrix, rotation_angle, rotation_axis
from locotrans.pictures import INK

ANGLES = (30, 60, 90, 120, 150, 180)
"""Degrees of the panels."""
PIXELS = (180, 90)  # of a panel, longitude by latitude


def error_map(certificate: Certificate) -> Any:
    """Draw the error of every rotation: axes as a map of the sphere, one map an angle.

    A pixel has the colour of the nearest rotation that was tried; the grid makes that one lie
    within the guaranteed radius. A ring marks the worst, in the panel nearest to its angle.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from scipy.spatial import cKDTree

    search = certificate.search
    row = next(row for row in certificate.rows if row.check == "worst rotation found")
    tree = cKDTree(search.rotations.flatten(1).numpy())  # distances of matrices order angles
    errors = search.errors.clamp(1e-17, 1e17)
    low = 10 ** math.floor(math.log10(float(errors.quantile(0.02))))  # without the identity
    high = 10 ** math.ceil(math.log10(max(float(errors.max()), 10 * low)))
    norm = LogNorm(low, high)

    figure = Figure(figsize=(11, 6.2))
    FigureCanvasAgg(figure)
    edges = [torch.linspace(-1, 1, n + 1) * math.pi / (1, 2)[i] for i, n in enumerate(PIXELS)]
    middles = [(x[:-1] + x[1:]).double() / 2 for x in edges]
    latitude, longitude = torch.meshgrid(middles[1], middles[0], indexing="ij")
    flat = latitude.cos()
    axes_of = torch.stack([flat * longitude.cos(), flat * longitude.sin(), latitude.sin()], -1)
    R, error = search.worst
    worst_angle = math.degrees(rotation_angle(R))
    nearest = min(ANGLES, key=lambda angle: abs(angle - worst_angle))
    mesh: Any = None
    for i, angle in enumerate(ANGLES):
        panel = figure.add_subplot(2, 3, i + 1, projection="mollweide")
        half = math.radians(angle) / 2
        w = torch.full((*latitude.shape, 1), math.cos(half), dtype=torch.float64)
        turned = quaternion_to_matrix(torch.cat([w, math.sin(half) * axes_of], -1))
        _, index = tree.query(turned.reshape(-1, 9).numpy())
        colors = errors[torch.as_tensor(index)].reshape(latitude.shape).numpy()
        mesh = panel.pcolormesh(*(x.numpy() for x in edges), colors, norm=norm, cmap="magma")
        panel.set_title(f"{angle}°", fontsize=10, color=INK)
        panel.set_xticks([])
        panel.set_yticks([])
        if angle == nearest:
            x, y, z = rotation_axis(R).tolist()
            place = (math.atan2(y, x), math.asin(max(-1.0, min(1.0, z))))
            panel.plot(*place, "o", ms=11, mfc="none", mec="#2ca02c", mew=2)
    figure.subplots_adjust(0.02, 0.17, 0.98, 0.84, wspace=0.04, hspace=0.12)
    scale = figure.add_axes((0.25, 0.11, 0.5, 0.03))
    bar = figure.colorbar(mesh, cax=scale, orientation="horizontal")
    bar.set_label(f"error of {row.output} in units of its spread; allowed: {row.tolerance:g}")
    figure.suptitle(
        f"{certificate.target}: error by axis (longitude, latitude) and angle of the rotation\n"
        f"worst {error:.1e} at {worst_angle:.0f}°; every rotation is within "
        f"{search.radius:.0f}° of one that was tried",
        fontsize=12,
        color=INK,
    )
    return figure
