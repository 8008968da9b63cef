r"""Batch norm of the length and leaky ReLU of a vector: what vector-neuron kernels compute.

Forward, for a vector p with the direction q::

    l = |p| + eps                               length
    x = (l - mean) / sqrt(var + bn_eps)         normalised length
    f = (gamma x + beta) / l                    p' = f p has the length that batch norm gave
    z = |q|^2 + eps,  a = f <p, q>
    t = (1 - slope) min(0, a) / z
    o = f p - t q

Backward, with g = dL/do, h = <g, q> / z and n = [a <= 0], which is torch's subgradient of clamp at
0; `count` is the number of vectors a channel::

    alpha = (1 - slope) n h                     dL/dp' = g - alpha q
    dy = <g - alpha q, p> / l                   of the output of batch norm, y = gamma x + beta
    dbeta = sum dy,  dgamma = sum dy x          over all vectors
    dl = gamma rstd (dy - [training] (dbeta + x dgamma) / count) - f dy
    dp = f (g - alpha q) + dl p / |p|           the last term is 0 at p = 0
    dq = -t g - alpha f p + 2 t h q             from q itself, from <p', q>, from z

`vn_edges` and `vn_points` say which vectors, and what becomes of o.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def vector_length(x, y, z, EPS: tl.constexpr):
    """Return |p| + eps."""
    return tl.sqrt(x * x + y * y + z * z) + EPS


@triton.jit
@no_type_check
def activate(
    px, py, pz, qx, qy, qz, mean, rstd, gamma, beta, EPS: tl.constexpr, SLOPE: tl.constexpr
):  # fmt: skip
    """Return f and t, for the output f p - t q."""
    length = vector_length(px, py, pz, EPS)
    f = ((length - mean) * rstd * gamma + beta) / length
    along = tl.minimum(f * (px * qx + py * qy + pz * qz), 0.0)
    t = (1 - SLOPE) * along / (qx * qx + qy * qy + qz * qz + EPS)
    return f, t


@triton.jit
@no_type_check
def adjoint(
    px, py, pz, qx, qy, qz, gx, gy, gz, mean, rstd, gamma, beta,
    EPS: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Return |p|, x, f, t, alpha, h and dy of the formulas above."""
    norm = vector_length(px, py, pz, 0.0)
    length = norm + EPS
    x = (length - mean) * rstd
    f = (x * gamma + beta) / length
    pq = px * qx + py * qy + pz * qz
    z = qx * qx + qy * qy + qz * qz + EPS
    h = (gx * qx + gy * qy + gz * qz) / z
    t = (1 - SLOPE) * tl.minimum(f * pq, 0.0) / z
    alpha = tl.where(f * pq <= 0, (1 - SLOPE) * h, 0.0)
    dy = (gx * px + gy * py + gz * pz - alpha * pq) / length
    return norm, x, f, t, alpha, h, dy


@triton.jit
@no_type_check
def gradient(
    px, py, pz, qx, qy, qz, gx, gy, gz, mean, rstd, gamma, beta, mean_dy, mean_dyx,
    EPS: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Return dp and dq."""
    norm, x, f, t, alpha, h, dy = adjoint(
        px, py, pz, qx, qy, qz, gx, gy, gz, mean, rstd, gamma, beta, EPS, SLOPE
    )
    dl = gamma * rstd * (dy - mean_dy - x * mean_dyx) - f * dy
    s = dl / tl.where(norm > 0, norm, 1.0)  # at p = 0 anything finite will do: it multiplies p
    dpx = f * (gx - alpha * qx) + s * px
    dpy = f * (gy - alpha * qy) + s * py
    dpz = f * (gz - alpha * qz) + s * pz
    dqx = 2 * t * h * qx - t * gx - alpha * f * px
    dqy = 2 * t * h * qy - t * gy - alpha * f * py
    dqz = 2 * t * h * qz - t * gz - alpha * f * pz
    return dpx, dpy, dpz, dqx, dqy, dqz
