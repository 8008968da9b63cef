"""Work in several threads, in each of which torch uses no other.

Threads that share every operation wait for each other at each of them, and wait long when other
programs need the cores too.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Lock

import torch

ALONE = 256  # rows that one thread does sooner than a second one starts

_pools: dict[int, ThreadPoolExecutor] = {}  # by their number of threads; started once, then kept
_busy = Lock()


@contextmanager
def single_threads() -> Iterator[None]:
    """Let torch use one thread, and so in threads that first use torch meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share_out(work: Callable[[int, int], None], rows: int) -> None:
    """Call ``work(start, stop)`` for parts of the rows, one in each of torch's threads.

    Where another thread is doing so already, all is done in this one.
    """
    threads = min(torch.get_num_threads(), rows // ALONE)
    if threads <= 1 or not _busy.acquire(blocking=False):
        work(0, rows)
        return
    bounds = [rows * i // threads for i in range(threads + 1)]
    try:
        if threads not in _pools:
            _pools[threads] = _started(threads)
        list(_pools[threads].map(work, bounds[:-1], bounds[1:]))
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
    return pool


def _forget() -> None:
    """Start anew in a forked process, which has none of the threads."""
    global _busy
    _pools.clear()
    _busy = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
