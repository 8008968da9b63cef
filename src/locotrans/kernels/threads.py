"""Work in several threads, in each of which torch uses no other.

Threads that share every operation wait for each other at each of them, and wait long when other
programs need the cores too.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

ALONE = 256  # rows that one thread does sooner than a second one starts


@contextmanager
def single_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Run a pool of threads in each of which torch uses no other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that are started from now on inherit it
    try:
        with ThreadPoolExecutor(count) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def share_out(work: Callable[[int, int], None], rows: int) -> None:
    """Call ``work(start, stop)`` for parts of the rows, one in each of torch's threads."""
    threads = min(torch.get_num_threads(), rows // ALONE)
    if threads <= 1:
        work(0, rows)
        return
    bounds = [rows * i // threads for i in range(threads + 1)]
    with single_threads(threads) as pool:
        list(pool.map(work, bounds[:-1], bounds[1:]))
