"""Ctrl-C in training."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from locotrans.distributed import processes


@contextmanager
def finishing_steps() -> Iterator[threading.Event]:
    """Let the first Ctrl-C ask for an end after the step that is under way, a second one break off.

    Yields:
        Whether it did. Where Ctrl-C does something else than usual, or several processes train
        together, that stays as it is.
    """
    asked = threading.Event()
    here = threading.current_thread() is threading.main_thread() and processes() == 1
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield asked
        return

    def ask(*_: Any) -> None:
        asked.set()
        print("ending with a checkpoint; Ctrl-C again ends without", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
