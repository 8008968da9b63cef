"""Each kernel alone: its inputs, its plain specification, its floor, and what its passes move.

The formulas are those at the top of the kernels' own files. Widths are those of the networks.
Operations of a floor are counted by these formulas, a sum, a product or a comparison each; those
that are few beside others are left out.
"""

from collections.abc import Iterator

import torch
from kernel_timing import (
    INSTRUCTIONS,
    PRODUCTS,
    REACHED_PRODUCTS,
    Case,
    Pass,
    Problem,
    Size,
    Work,
)
from launch_cases import launch_cases
from timing import clouds
from torch import Tensor
from torch.nn import functional as F

from locotrans.geometry import random_rotations, symmetric_frame
from locotrans.geometry.neighbors import farthest_points, global_index, knn, knn_features
from locotrans.kernels import set_kernels
from locotrans.losses import consistency_loss, orthogonality_loss
from locotrans.models import model_config
from locotrans.nn.edge import leaky_max, max_mean_pool
from locotrans.nn.norm import BatchNorm
from locotrans.nn.poses import equivariant_pose
from locotrans.nn.rpr import RelativePoseConv
from locotrans.nn.vn import VNBatchNorm, vn_leaky_relu


def knn_case(size: Size, channels: int) -> Case:
    b, n, k, pairs = size.b, size.n, size.k, size.b * size.n**2
    coordinates = channels == 3
    selection = (32 + 8 * coordinates) * pairs  # 1,000 instructions of a warp a row of 1,024
    out = 4 * b * n * k
    if coordinates:
        work = Work(12 * b * n + out, 9 * pairs)  # a distance, and whether it is small enough
        passes = [Pass(12 * b * n + out, 0, selection, INSTRUCTIONS)]
    else:
        products = 3 * 2 * channels * pairs  # three for float32 accuracy
        work = Work(4 * b * n * channels + out, products, PRODUCTS)
        passes = [
            Pass(4 * b * n * channels + 4 * pairs, 0, products),
            Pass(4 * pairs + out, 0, selection, INSTRUCTIONS),
        ]

    def make(size: Size) -> Problem:
        from locotrans.kernels.knn import nearest

        if coordinates:
            x = clouds(size.b, size.n, size.device)
        else:
            x = torch.randn(size.b, size.n, channels, device=size.device)
            x = x - x.mean(-2, keepdim=True)
        search = knn if coordinates else knn_features

        def fused() -> Tensor:
            return nearest(x, size.k, coordinates=coordinates)

        return Problem(fused, lambda: search(x, size.k))

    name = "knn of coordinates" if coordinates else f"knn of {channels} features"
    unit = 0 if coordinates else 1e-3  # of the neighbourhoods, that rounding decides on
    return Case(name, make, {"forward": work}, {"forward": passes}, unit)


def farthest_case(size: Size) -> Case:
    b, m = size.b, size.n
    n = 7 * m  # as many points as `--even` chooses among
    memory, pairs = 12 * b * n + 8 * b * m, b * n * m

    def make(size: Size) -> Problem:
        from locotrans.kernels.farthest import farthest

        x = clouds(b, n, size.device)
        return Problem(lambda: farthest(x, m), lambda: farthest_points(x, m))

    work = {"forward": Work(memory, 10 * pairs)}  # a distance, the least and the greatest of them
    return Case(
        "farthest_points", make, work, {"forward": [Pass(memory, 0, 20 * pairs, INSTRUCTIONS)]}
    )


def vn_edge_case(size: Size, d: int) -> Case:
    N, k = size.b * size.n, size.k
    V, du, index = 12 * d * N, 24 * d * N, 4 * k * N
    gathers = 24 * d * k * N

    def make(size: Size) -> Problem:
        from locotrans.kernels.vn_edges import vn_edge_conv
        from locotrans.kernels.vn_weights import aligned

        width, neighbors, norm = (
            aligned(d),
            knn(clouds(size.b, size.n, size.device), size.k),
            VNBatchNorm(d).to(size.device),
        )
        uw = _padded(size.draw(3, 4, width), d)
        index = global_index(neighbors)

        def plain() -> Tensor:
            u, w = uw[..., :d].chunk(2, dim=-2)
            p, q = (_rows(u, index) + w[:, None]).unbind(-2)  # (b n, k, 3, d) each
            return vn_leaky_relu(norm(p), q).mean(1)

        def fused() -> Tensor:
            return vn_edge_conv(uw.flatten(2), index, norm.norm.statistics())

        return Problem(fused, plain, [uw, *norm.parameters()])

    work = {
        "forward": Work(5 * V + index, 40 * d * k * N),
        "backward": Work(9 * V + index, 80 * d * k * N),
    }
    passes = {
        "forward": [Pass(2 * V + index, gathers / 2), Pass(5 * V + index, gathers)],
        "backward": [Pass(5 * V + index, gathers), Pass(7 * V + 3 * du + index, 2 * gathers)],
    }
    return Case(f"vn_edge_conv {d}", make, work, passes)


def vn_point_case(size: Size, d: int, *, shared: bool, mean: bool = False) -> Case:
    V = 12 * d * size.b * size.n

    def make(size: Size) -> Problem:
        from locotrans.kernels.vn_points import vn_norm_act, vn_norm_act_mean
        from locotrans.kernels.vn_weights import aligned

        width, norm = aligned(d), VNBatchNorm(d).to(size.device)
        if shared:
            pq = size.draw(3, width + 8).detach()
            pq[..., d:width], pq[..., width + 1 :] = 0, 0
            pq.requires_grad_()
        else:
            pq = _padded(size.draw(3, 2, width), d)

        def plain() -> Tensor | tuple[Tensor, Tensor]:
            if shared:
                out = vn_leaky_relu(norm(pq[..., :d]), pq[..., width : width + 1])
            else:
                p, q = pq[..., :d].unbind(-2)
                out = vn_leaky_relu(norm(p), q)
            return (out, out.unflatten(0, (size.b, -1)).mean(1, keepdim=True)) if mean else out

        def fused() -> Tensor | tuple[Tensor, Tensor]:
            rows, statistics = pq if shared else pq.flatten(2), norm.norm.statistics()
            if not mean:
                return vn_norm_act(rows, statistics, shared=shared)
            out, means = vn_norm_act_mean(
                rows.unflatten(0, (size.b, -1)), statistics, shared=shared
            )
            return out.flatten(0, 1), means

        return Problem(fused, plain, [pq, *norm.parameters()])

    first, output, sums, gradients = (1, 2, 2, 3) if shared else (1, 3, 3, 5)
    passes = {
        "forward": [Pass(x * V) for x in (first, output, *([1] if mean else []))],
        "backward": [Pass(x * V) for x in (sums, gradients)],
    }
    work = {"forward": Work(output * V), "backward": Work(gradients * V)}
    kernel = f"vn_norm_act{'_mean' if mean else ''}"
    return Case(f"{kernel} {d}{', one direction' if shared else ''}", make, work, passes)


def rpr_case(
    size: Size,
    cv: int,
    c: int,
    d: int,
    *,
    refine: bool,
    precision: str,
    training: bool = True,
) -> Case:
    """Make a case of training, or of evaluation, with products as the networks take them."""
    N = size.b * size.n
    E, h = N * size.k, c // 2
    store = torch.bfloat16 if precision == "bf16" else torch.float32
    half = precision == "tf32" and not training  # which has edges and most products so
    s = 2 if half else store.itemsize
    times = {"bf16": 1, "tf32": 2, "tf32x3": 6}[precision]  # that of bfloat16
    rate = REACHED_PRODUCTS / times

    def stage(memory: float, cache: float, products: float, rate: float = rate) -> Pass:
        return Pass(E * s * memory, E * cache, 2 * E * products, rate)

    forward = [stage(h, 12 * cv, 3 * cv * h)]
    if half:
        rate *= 2
        if refine:
            forward += [stage(h + c, 4 * c, h * c, rate), stage(c, 0, c * c + c * d, rate)]
        else:
            forward.append(stage(h, 4 * c, h * c + c * d, rate))
    else:
        forward += [stage(h + c, 4 * c, h * c), stage(c, 0, c * d)]
        if refine:
            forward.append(stage(2 * c, 0, c * c))
    backward = [
        stage(2 * c, 0, 2 * c * (c + d)),
        stage(2 * c + 2 * h, 4 * c, 3 * h * c),
        stage(2 * h, 24 * cv, 6 * cv * h),
    ]
    if refine:
        backward.append(stage(4 * c, 0, 2 * c * c))

    def make(size: Size) -> Problem:
        from locotrans.kernels.rpr import rpr_conv
        from locotrans.kernels.rpr_plan import RPRLayers, layers_of
        from locotrans.kernels.vn_weights import aligned

        conv = RelativePoseConv(3 * cv, c, d, refine=refine).to(size.device)
        conv.train(training).requires_grad_(training)
        neighbors, frames = (
            knn(clouds(size.b, size.n, size.device), size.k),
            random_rotations(size.b, size.n, device=size.device),
        )
        index = global_index(neighbors)
        x, z, v = size.draw(c), size.draw(d), _padded(size.draw(3, aligned(cv)), cv)
        weight = conv.linear.weight[:, :c].detach().contiguous().requires_grad_()
        parts, layers = [getattr(conv, name) for name in RPRLayers._fields], layers_of(conv)
        options = {"store": store, "precision": precision}

        def fused() -> Tensor:
            with torch.set_grad_enabled(training):
                return rpr_conv(x, z, v, frames.flatten(0, 1), index, weight, layers, **options)

        def plain() -> Tensor:
            vectors = v[..., :cv].unflatten(0, (size.b, -1))
            pose = equivariant_pose(vectors, neighbors, frames).flatten(0, 1)
            kernel = conv.kernel2(F.relu(conv.kernel_norm(conv.kernel1(pose))))
            y = F.relu(conv.pose_norm(kernel * _rows(x, index)))
            if conv.refine is not None and conv.refine_norm is not None:
                y = F.relu(conv.refine_norm(conv.refine(y)))
            return leaky_max(conv.norm(F.linear(y, weight) + z[:, None])[None])[0]

        if not training:
            return Problem(fused, torch.no_grad()(plain))
        used = [m for m in parts if m is not None]
        return Problem(fused, plain, [x, z, v, weight, *(p for m in used for p in m.parameters())])

    products = 2 * E * (3 * cv * h + h * c + (c * c if refine else 0) + c * d)
    rate = PRODUCTS if half else PRODUCTS / times
    given = N * (4 * c + 4 * d + 12 * cv + 36 + 4 * size.k)
    work = {"forward": Work(given + 4 * d * N, products, rate)}
    passes = {"forward": forward, "backward": backward}
    if training:
        gradients = N * (4 * c + 8 * d + 12 * cv)
        work["backward"] = Work(given + gradients, 2 * products, rate)
    kind = precision if training else f"{precision}, evaluation"
    name = f"rpr_conv {cv}, {c} to {d}, {kind}{'' if refine else ', light'}"
    unit = {"bf16": 2.0**-8, "tf32": 2.0**-10, "tf32x3": 2.0**-23}[precision]
    chosen = 0.3 if precision == "bf16" else 1e-2
    return Case(name, make, work, passes, unit, chosen)


def pool_case(size: Size, c: int) -> Case:
    V, z = 12 * c * size.b * size.n, 36 * size.b * size.n

    def make(size: Size) -> Problem:
        from locotrans.kernels.pool import pool_projections

        v, z = (size.draw(3, x).detach().unflatten(0, (size.b, -1)) for x in (c, 3))
        v.requires_grad_(), z.requires_grad_()

        def plain() -> Tensor:
            return max_mean_pool((z.mT @ v).flatten(-2)).unflatten(1, (2, 3, -1))

        return Problem(lambda: pool_projections(v, z), plain, [v, z])

    work = {"forward": Work(V + z), "backward": Work(2 * V + 2 * z)}
    passes = {"forward": [Pass(V + z)], "backward": [Pass(2 * V + 2 * z)]}
    return Case(f"pool_projections {c}", make, work, passes)


def embed_case(size: Size, c: int) -> Case:
    V = 2 * c * size.b * size.n

    def make(size: Size) -> Problem:
        from locotrans.kernels.embed import embed_pool

        norm = BatchNorm(c).to(size.device)
        y = size.draw(c).detach().bfloat16().unflatten(0, (size.b, -1)).requires_grad_()

        def plain() -> Tensor:
            return max_mean_pool(F.leaky_relu(norm(y.float()), 0.2)).bfloat16()

        return Problem(lambda: embed_pool(y, norm.statistics())[1], plain, [y, *norm.parameters()])

    work = dict.fromkeys(("forward", "backward"), Work(2 * V))
    passes = {key: [Pass(V), Pass(2 * V)] for key in work}
    return Case(f"embed_pool {c} bfloat16", make, work, passes, unit=2.0**-8)


def frames_case(size: Size) -> Case:
    N = size.b * size.n

    def make(size: Size) -> Problem:
        from locotrans.kernels.frames import symmetric_frames

        v = size.draw(3, 2)
        return Problem(lambda: symmetric_frames(v), lambda: symmetric_frame(*v.unbind(-1)), [v])

    work = {"forward": Work(60 * N), "backward": Work(84 * N)}
    passes = {"forward": [Pass(60 * N)], "backward": [Pass(84 * N)]}
    return Case("symmetric_frames", make, work, passes)


def point_products_case(size: Size, c: int, d: int) -> Case:
    N = size.b * size.n

    def make(size: Size) -> Problem:
        from locotrans.kernels.rpr_points import point_products

        conv = RelativePoseConv(3, c, d).to(size.device)
        weights = [conv.basis.weight, conv.linear.weight]
        x = size.draw(c).detach().bfloat16().requires_grad_()

        def plain() -> Tensor:
            w1, w2 = conv.linear.weight.chunk(2, dim=-1)
            products = [F.linear(x, w.bfloat16()) for w in (conv.basis.weight, w2 - w1)]
            return torch.cat(products, dim=-1)

        def fused() -> Tensor:
            return torch.cat(point_products(x, *weights)[:2], dim=-1)

        return Problem(fused, plain, [x, *weights])

    bytes_, products = 2 * (2 * c + d) * N, 2 * c * (c + d) * N
    back = bytes_ + 2 * c * N
    work = {
        "forward": Work(bytes_, products, PRODUCTS),
        "backward": Work(back, 2 * products, PRODUCTS),
    }
    passes = {
        "forward": [Pass(bytes_, 0, products)],
        "backward": [Pass(back, 0, 2 * products)],
    }
    return Case(f"point_products {c} to {d} bfloat16", make, work, passes, unit=2.0**-8)


def edge_max_case(size: Size, d: int, *, frame: bool = False) -> Case:
    N, k = size.b * size.n, size.k
    index, column, gathers = 4 * k * N, 4 * d * N, (12 if frame else 4 * d) * k * N
    first, last = (4.25, 8.25) if frame else (3.25, 8.25)  # columns; a slot takes a byte

    def make(size: Size) -> Problem:
        from locotrans.kernels import edge_max as kernels

        neighbors, norm = (
            knn(clouds(size.b, size.n, size.device), size.k),
            BatchNorm(d).to(size.device),
        )
        index, points = global_index(neighbors), clouds(size.b, size.n, size.device).flatten(0, 1)
        if frame:
            m = size.draw(3, d)
            return Problem(
                lambda: kernels.frame_conv(points, index, m, norm.statistics()),
                lambda: leaky_max(norm((_rows(points, index) - points[:, None]) @ m)[None])[0],
                [m, *norm.parameters()],
            )
        u, w = size.draw(d), size.draw(d)
        return Problem(
            lambda: kernels.edge_max(u, w, index, norm.statistics()),
            lambda: leaky_max(norm(_rows(u, index) + w[:, None])[None])[0],
            [u, w, *norm.parameters()],
        )

    given, operations = (3 * column, 12) if frame else (2 * column, 7)  # of a channel of an edge
    work = {
        "forward": Work(given + column + index, operations * d * k * N),
        "backward": Work(2 * given + column + index, operations * d * k * N),
    }
    passes = {
        "forward": [Pass(first * column + index, gathers), Pass(2 * column)],
        "backward": [
            Pass(2 * column),
            Pass(last * column + index, gathers * (1 if frame else 2)),
        ],
    }
    return Case(f"{'frame_conv' if frame else 'edge_max'} {d}", make, work, passes)


def vector_losses_case(size: Size) -> Case:
    N, k = size.b * size.n, size.k
    bytes_, gathers = 24 * N + 4 * k * N, 24 * k * N

    def make(size: Size) -> Problem:
        from locotrans.kernels.consistency import vector_losses

        neighbors = knn(clouds(size.b, size.n, size.device), size.k)
        index, v = global_index(neighbors), size.draw(3, 2)

        def plain() -> Tensor:
            before = set_kernels("off")
            try:
                vectors = v.unflatten(0, (size.b, -1))
                terms = orthogonality_loss(vectors), consistency_loss(vectors, neighbors)
                return torch.stack(terms)
            finally:
                set_kernels(before)

        return Problem(lambda: torch.stack(vector_losses(v, index)), plain, [v])

    work = {
        "forward": Work(bytes_, 200 * k * N),
        "backward": Work(bytes_ + 24 * N, 400 * k * N),
    }
    passes = {
        "forward": [Pass(bytes_, gathers, 300 * k * N, INSTRUCTIONS)],
        "backward": [Pass(bytes_ + 72 * N, 2 * gathers, 900 * k * N, INSTRUCTIONS)],
    }
    return Case("vector_losses", make, work, passes)


def cases(size: Size) -> Iterator[Case]:
    """Yield every kernel at the widths that the networks use it at, each width once."""
    full, light = model_config("locotrans_dgcnn"), model_config("locotrans_dgcnn_light")
    channels = {3} | {3 * c for x in (full, light) for c in x.vector_widths[:-1]}
    yield from (knn_case(size, c) for c in sorted(channels | set(light.widths[:-1])))
    yield farthest_case(size)
    yield from (vn_edge_case(size, d) for d in sorted({*full.vector_widths, *light.vector_widths}))
    for d in (full.vector_embedding, light.vector_embedding):
        yield vn_point_case(size, d, shared=True)
    yield vn_point_case(size, full.vector_embedding, shared=True, mean=True)
    for d in (full.vector_embedding, full.vector_embedding // 2, light.vector_embedding // 2):
        yield vn_point_case(size, d, shared=False)
    for config, precision, training in (
        (full, "bf16", True), (full, "tf32x3", True),
        (light, "bf16", True), (light, "tf32x3", True),
        (full, "tf32", False), (full, "tf32x3", False),
        (light, "tf32", False), (light, "tf32x3", False),
    ):  # fmt: skip
        widths = zip(config.vector_widths, config.widths[:-1], config.widths[1:], strict=False)
        for cv, c, d in dict.fromkeys(widths):
            options = {"refine": config.refine, "precision": precision, "training": training}
            yield rpr_case(size, cv, c, d, **options)
    yield from (pool_case(size, x.vector_embedding) for x in (full, light))
    yield embed_case(size, full.embedding)
    yield vector_losses_case(size)
    yield frames_case(size)
    for c, d in dict.fromkeys(zip(full.widths[:-1], full.widths[1:], strict=True)):
        yield point_products_case(size, c, d)
    yield edge_max_case(size, full.widths[0], frame=True)
    yield from (edge_max_case(size, d) for d in dict.fromkeys(full.widths))
    yield from launch_cases(size)


def _padded(x: Tensor, channels: int) -> Tensor:
    """Return x with zeros behind the channels that a batch norm has."""
    x = x.detach()
    x[..., channels:] = 0
    return x.requires_grad_()


def _rows(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index.flatten()).unflatten(0, index.shape)
