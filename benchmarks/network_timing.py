"""How whole networks are timed: training steps and inference, plain and fast."""

import argparse
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from edge_by_edge import EdgeByEdge
from timing import (
    clouds,
    inference,
    interleaved,
    logits_of,
    measure,
    peak_memory,
    ratio,
    seconds_of,
)
from torch import Tensor, nn

from locotrans import create_model
from locotrans.geometry.products import float32_products
from locotrans.kernels import set_kernels
from locotrans.training.config import TrainConfig
from locotrans.training.memory import keep_freed_memory
from locotrans.training.step import Step

MODELS = {"full": "locotrans_dgcnn", "light": "locotrans_dgcnn_light"}
SEGMENTERS = {
    "parts": "locotrans_dgcnn_partseg",
    "parts, light": "locotrans_dgcnn_partseg_light",
    "parts, DGCNN": "dgcnn_partseg",
    "parts, VN-DGCNN": "vn_dgcnn_partseg",
}
PARTS = 50  # labels of ShapeNetPart
MODES = (  # kernels, precision of float32 products, bfloat16, graph
    ("plain, float32", "off", "highest", False, False),
    ("fast, float32", "auto", "highest", False, False),
    ("fast, float32", "auto", "highest", False, True),
    ("fast, TF32", "auto", "high", False, False),
    ("fast, TF32", "auto", "high", False, True),
    ("fast, bfloat16", "auto", "high", True, False),
    ("fast, bfloat16", "auto", "high", True, True),
)

TF32_GRAPH = MODES[4]

Row = dict[str, Any]


@contextmanager
def kernels(setting: str) -> Iterator[None]:
    """Set the kernels for a while."""
    before = set_kernels(setting)
    try:
        yield
    finally:
        set_kernels(before)


def network(name: str, k: int, device: torch.device) -> nn.Module:
    """Return a network as it is initialised, the same each time."""
    torch.manual_seed(0)
    if name in SEGMENTERS:
        return OfOneCategory(create_model(SEGMENTERS[name], PARTS, k=k)).to(device)
    return create_model(MODELS[name], k=k).to(device)


@torch.no_grad()
def fitted(model: nn.Module, points: Tensor) -> nn.Module:
    """Give batch norms the statistics of some clouds, and return the network in eval mode.

    With those that it starts with, every cloud gets nearly the same logits, and an error in them
    would hardly show.
    """
    norms = [module for module in model.modules() if hasattr(module, "momentum")]
    usual = [module.momentum for module in norms]
    for module in norms:
        module.momentum = 1.0
    model.train()(points)
    for module, momentum in zip(norms, usual, strict=True):
        module.momentum = momentum
    return model.eval()


def from_float64(logits: Tensor, exact: Tensor) -> Row:
    """Compare logits with those of plain code in float64: the median, and answers that differ."""
    exact = exact.flatten(0, -2)
    logits = logits.to(exact).flatten(0, -2)
    errors = (logits - exact).norm(dim=-1) / exact.norm(dim=-1)
    changed = logits.argmax(-1) != exact.argmax(-1)
    return {
        "from float64": errors.median().item(),
        "other answers": changed.double().mean().item(),
    }


class OfOneCategory(nn.Module):
    """A network for parts that takes points alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, points: Tensor) -> Any:
        """Segment shapes of the first category."""
        category = torch.zeros(len(points), dtype=torch.long, device=points.device)
        return self.network(points, category)


def training_step(
    name: str,
    device: torch.device,
    batch: int,
    points: int,
    k: int,
    precision: str = "float32",
    graph: bool = True,
) -> Callable[[], Tensor]:
    """Return what takes a step as training does, on a GPU recorded or not, and gives its loss."""
    x = clouds(batch, points, device)
    labels = torch.arange(batch, device=device) % 40
    if name in SEGMENTERS:
        labels = (torch.arange(batch * points, device=device) % PARTS).view(batch, points)
    model = network(name, k, device).train()
    config = TrainConfig(precision=precision, lr=0.001)
    step = Step(model, config, device)

    def take() -> Tensor:
        if graph or device.type != "cuda":
            return step(x, labels, config.lr)["total"]
        return dict(zip(*step._take(x, labels, {}), strict=True))["total"]  # not recorded

    return take


def train_row(
    args: argparse.Namespace, name: str, mode: str, batch: int, points: int, k: int
) -> Row:
    """Time a training step in a mode such as "fast, mixed"."""
    device, fast = args.device, mode.startswith("fast")
    with kernels("auto" if fast else "off"), peak_memory(device) as peak:
        precision = "mixed" if mode.endswith("mixed") else "float32"
        take = training_step(name, device, batch, points, k, precision, graph=fast)
        first = seconds_of(take, device)
        timing = measure(take, device, args.seconds, args.rounds)
        _check_loss(take())
    return {
        **_describe(name, mode, batch, points, k, timing.median),
        "spread": _spread(timing.low, timing.high),
        "launch": "graph" if fast and device.type == "cuda" else "eager",
        **peak,
        "first step s": first,
    }


def cpu_train_row(args: argparse.Namespace, name: str, batch: int, points: int, k: int) -> Row:
    """Time training steps on the CPU, by the loops and by the plain code, in turns."""
    keep_freed_memory()  # as training does
    take = training_step(name, args.device, batch, points, k)

    def plain() -> Tensor:
        with kernels("off"):
            return take()

    for function in (take, plain):
        _check_loss(function())
    samples = interleaved({"ours": take, "plain": plain}, args.device, args.seconds, args.rounds)
    times = {key: value.summary() for key, value in samples.items()}
    speed_up = ratio(samples["plain"], samples["ours"])
    return {
        **_describe(name, "float32", batch, points, k, times["ours"].median),
        "plain ms": 1000 * times["plain"].median,
        "speed-up": speed_up.median,
        "from-to": f"{speed_up.low:.2f}-{speed_up.high:.2f}",
        "threads": torch.get_num_threads(),
    }


def _check_loss(total: Tensor) -> None:
    if float(total) != float(total):
        raise ArithmeticError("the loss is nan: the time of such a step means nothing")


def inference_rows(
    args: argparse.Namespace, name: str, batch: int, points: int, k: int, modes: Any = MODES
) -> Iterator[Row]:
    """Time a forward pass on a GPU, in every mode; the plain one comes first."""
    x = clouds(batch, points, args.device)
    with kernels("off"):
        model = fitted(network(name, k, args.device), x[:8])
        exact = logits_of(inference(copy.deepcopy(model).double(), x.double())()).clone()
    for mode, setting, precision, bf16, graph in modes:
        with (
            kernels(setting),
            float32_products(precision),
            peak_memory(args.device) as peak,
        ):
            call = inference(model, x, bf16=bf16, graph=graph)
            logits = logits_of(call())
            timing = measure(call, args.device, args.seconds, args.rounds)
        yield {
            **_describe(name, mode, batch, points, k, timing.median),
            "spread": _spread(timing.low, timing.high),
            "launch": "graph" if graph else "eager",
            **peak,
            **from_float64(logits, exact),
        }
        del call, logits


def cpu_inference_row(args: argparse.Namespace, name: str, batch: int) -> Row:
    """Time a forward pass on the CPU in turns with the same network edge by edge."""
    x = clouds(batch, args.points)
    model = fitted(network(name, args.k, args.device), x)
    ours, plain = inference(model, x), inference(EdgeByEdge(model).eval(), x)
    with kernels("off"):
        exact = logits_of(inference(copy.deepcopy(model).double(), x.double())())
    compared = from_float64(logits_of(ours()), exact)
    compared["edge by edge, from float64"] = from_float64(logits_of(plain()), exact)["from float64"]
    samples = interleaved({"ours": ours, "plain": plain}, args.device, args.seconds, args.rounds)
    times = {key: value.summary() for key, value in samples.items()}
    speed_up = ratio(samples["plain"], samples["ours"])
    return {
        **_describe(name, "float32", batch, args.points, args.k, times["ours"].median),
        "edge by edge ms": 1000 * times["plain"].median,
        "speed-up": speed_up.median,
        "from-to": f"{speed_up.low:.2f}-{speed_up.high:.2f}",
        "threads": torch.get_num_threads(),
        **compared,
    }


def _describe(name: str, mode: str, b: int, n: int, k: int, seconds: float | None) -> Row:
    row: Row = {"network": name, "mode": mode, "batch": b, "points": n, "k": k}
    return row if seconds is None else row | {"ms": 1000 * seconds, "shapes/s": b / seconds}


def _spread(low: float, high: float) -> str:
    return f"{1000 * low:.3g}-{1000 * high:.3g}"
