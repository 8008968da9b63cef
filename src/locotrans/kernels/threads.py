"""Work in several threads, in each of which torch uses no other.

Threads that share every operation wait for each other at each of them, and wait long when other
programs need the cores too. And those of torch wait for the next operation at full speed, on the
cores that others need.
"""

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Lock, Thread, local
from typing import Any, TypeVar

import torch
from torch import Tensor

from locotrans.kernels import use_loops

ALONE = 256  # rows that one thread does sooner than a second one starts

_pools: dict[int, ThreadPoolExecutor] = {}  # by their number of threads; started once, then kept
_busy = Lock()
_here = local()  # ``threads`` to share work out among, in a thread in which torch uses no other
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

    So `share_out` has all cores to itself, a fifth less time on two. Threads that begin meanwhile
    get the number of threads that torch had.
    """

    @functools.wraps(forward)
    def call(self: Any, points: Any, *arguments: Any, **options: Any) -> Any:
        threads = torch.get_num_threads()
        if threads == 1 or not isinstance(points, Tensor) or not use_loops(points):
            return forward(self, points, *arguments, **options)
        _here.threads = threads
        torch.set_num_threads(1)
        _give_later_threads(threads)
        try:
            return forward(self, points, *arguments, **options)
        finally:
            torch.set_num_threads(threads)
            del _here.threads

    return call  # type: ignore[return-value]


def share_out(work: Callable[[int, int], None], rows: int) -> None:
    """Call ``work(start, stop)`` for parts of the rows, as many as torch has threads, one in each.

    There are no gradients in them, and it is inference mode where it is here. Where another thread
    is sharing out already, all is done in this one.
    """
    threads = min(getattr(_here, "threads", torch.get_num_threads()), rows // ALONE)
    if threads <= 1 or not _busy.acquire(blocking=False):
        work(0, rows)
        return
    bounds = [rows * i // threads for i in range(threads + 1)]
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

    usual = getattr(_here, "threads", torch.get_num_threads())
    with single_threads():
        list(pool.map(begin, range(threads)))
    _give_later_threads(usual)
    return pool


def _give_later_threads(number: int) -> None:
    """Let torch use so many threads in those that first use it from now on, but not in this one."""
    other = Thread(target=torch.set_num_threads, args=[number])
    other.start()
    other.join()


def _forget() -> None:
    """Start anew in a forked process, which has none of the threads."""
    global _busy
    _pools.clear()
    _busy = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
