"""Work in several threads, in each of which torch uses no other.

Threads that share every operation wait for each other at each of them, and wait long when other
programs need the cores too. And those of torch wait for the next operation at full speed, for some
milliseconds, on cores that others need.
"""

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Lock, current_thread, local, main_thread
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from locotrans.kernels import use_loops

ALONE = 256  # rows that one thread does sooner than a second one starts

_pools: dict[int, ThreadPoolExecutor] = {}  # by their number of threads; started once, then kept
_busy = Lock()
_here = local()  # ``threads`` to share work out among, in a thread in which torch uses no other
_other = ThreadPoolExecutor(1)  # a thread in which torch may use all
Forward = TypeVar("Forward", bound=Callable[..., Any])


@contextmanager
def single_threads() -> Iterator[None]:
    """Let torch use one thread, and so in threads that first use torch meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def undivided(forward: Forward) -> Forward:
    """Let torch use one thread in the forward pass of a model where the loops of the CPU are used.

    So `share_out` has all cores to itself: a fifth less time on two, for networks that spend nearly
    all of their time there. Only in the main thread: torch gives its number to threads that use it
    for the first time, also in the moment in which it is lowered, and servers start many at once.
    """

    @functools.wraps(forward)
    def call(self: nn.Module, points: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(points, Tensor) or not use_loops(points, training=_learns(self)):
            return forward(self, points, *arguments, **options)
        threads = torch.get_num_threads()
        if threads == 1 or current_thread() is not main_thread():
            return forward(self, points, *arguments, **options)
        _here.threads = threads
        try:
            torch.set_num_threads(1)
            _raise_elsewhere(threads)
            return forward(self, points, *arguments, **options)
        finally:
            torch.set_num_threads(threads)
            del _here.threads

    return call  # type: ignore[return-value]


def _learns(model: nn.Module) -> bool:
    return any(module.training for module in model.modules())


def _raise_elsewhere(threads: int) -> None:
    """Let torch use so many threads in those that first use it from now on, but not in this one."""
    _other.submit(torch.set_num_threads, threads).result()


def share_out(work: Callable[[int, int], None], rows: int, unit: int = 1) -> None:
    """Call ``work(start, stop)`` for parts of the rows, one in each of torch's threads.

    There are no gradients in them, and it is inference mode where it is here. Where another thread
    is sharing out already, all is done in this one.

    Args:
        work: what is done.
        rows: how many there are.
        unit: how many stay together.
    """
    units = rows // unit
    threads = min(getattr(_here, "threads", torch.get_num_threads()), rows // ALONE, units)
    if threads <= 1 or not _busy.acquire(blocking=False):
        work(0, rows)
        return
    bounds = [unit * (units * i // threads) for i in range(threads)] + [rows]
    inference = torch.is_inference_mode_enabled()

    def part(start: int, stop: int) -> None:
        with torch.inference_mode(inference), torch.no_grad():
            work(start, stop)

    try:
        if threads not in _pools:
            _pools[threads] = _started(threads)
        list(_pools[threads].map(part, bounds[:-1], bounds[1:]))
    finally:
        _busy.release()


def _started(threads: int) -> ThreadPoolExecutor:
    """Return threads in each of which torch uses no other, now and later.

    Torch gives a thread its number when it is first used there. It is lowered for that moment only:
    threads of other people that begin meanwhile would keep it, too.
    """
    pool, all_here = ThreadPoolExecutor(threads), Barrier(threads)

    def begin(_: int) -> None:
        torch.get_num_threads()
        all_here.wait()

    with single_threads():
        list(pool.map(begin, range(threads)))
    if hasattr(_here, "threads"):
        _raise_elsewhere(_here.threads)
    return pool


def _forget() -> None:
    """Start anew in a forked process, which has none of the threads."""
    global _busy, _other
    _pools.clear()
    _busy, _other = Lock(), ThreadPoolExecutor(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
