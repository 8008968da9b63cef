"""Evaluation as CUDA graphs: a network launches hundreds of small kernels, a graph all at once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

WARM_UP = 3  # calls that CUDA wants to see before it records one
RECORDING = threading.Lock()
"""Held while something runs on the stream for recording, of which a device has one."""

T = TypeVar("T")


class Recorded:
    """A network in evaluation that is recorded on a GPU, and from then on replayed.

        >>> network = Recorded(create_model("locotrans_dgcnn_light").cuda().eval())
        >>> logits = network(points).logits

    The first call with clouds of a new size takes as long as a few; later ones with that size, type
    and precision are several times as fast for small batches. Each size keeps memory of its own, so
    give batches of one size. Weights that change in place (training, `load_state_dict`) count in
    later calls; a network that was moved, or kernels that were switched off, need a new one.
    On a CPU the network is called.

    Differs: replayed calls do not look whether values are finite, which would wait for the GPU.

    Args:
        model: any network of clouds, in eval mode.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._calls: dict[Any, Call] = {}

    @torch.inference_mode()
    def __call__(self, points: Float[Tensor, "b n 3"], **given: Tensor) -> Any:
        """Return what the network returns, in memory of its own."""
        if self.model.training:
            raise ValueError("a network is recorded in evaluation: call its eval() first")
        if not points.is_cuda:
            return self.model(points, **given)
        key = (
            *((name, tuple(x.shape), x.dtype) for name, x in {"": points, **given}.items()),
            points.device,
            torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None,
            torch.get_float32_matmul_precision(),
        )
        if key not in self._calls:
            self._calls[key] = self._record(
                points.clone(), {k: x.clone() for k, x in given.items()}
            )
        call = self._calls[key]
        call.points.copy_(points)
        for name, x in given.items():
            call.given[name].copy_(x)
        call.graph.replay()
        return tree_map_only(Tensor, torch.clone, call.result)

    def _record(self, points: Float[Tensor, "b n 3"], given: dict[str, Tensor]) -> "Call":
        with torch.cuda.device(points.device), casts_forgotten():
            warm_up(lambda: self.model(points, **given))
            return Call(points, given, *capture(lambda: self.model(points, **given)))


class Call(NamedTuple):
    """A recorded call: what is copied into its input stands in its result after a replay."""

    points: Float[Tensor, "b n 3"]
    given: dict[str, Tensor]
    graph: torch.cuda.CUDAGraph
    result: Any


@contextmanager
def casts_forgotten() -> Iterator[None]:
    """Let autocast keep no casts of weights: a graph would read them when they are gone."""
    kept = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)


@cache
def side_stream(device: int) -> torch.cuda.Stream:
    """Return the stream of a device that is recorded on, always the same.

    cuBLAS keeps a workspace for every stream that it was used on. Torch's own stream for recording
    belongs to the device that was the first.
    """
    return torch.cuda.Stream(device)


def warm_up(call: Callable[[], object]) -> None:
    """Call a few times on another stream, as CUDA wants before it records."""
    stream = side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with RECORDING, torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(stream)


def capture(call: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """Record a call as a CUDA graph; return it, and the result that each replay writes anew."""
    graph = torch.cuda.CUDAGraph()
    with RECORDING, torch.cuda.graph(graph, stream=side_stream(torch.cuda.current_device())):
        result = call()
    return graph, result
