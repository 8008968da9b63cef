"""Memory of training on a CPU."""

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT = 2**30


def keep_freed_memory() -> bool:
    """Let a freed tensor's memory stay with this process, for the next step, up to a gibibyte each.

    The C library would return that of large tensors at once, and every page of it has to be cleared
    and mapped anew when the next step asks for it. Only for glibc, where it allows so much;
    elsewhere nothing is done.

    Returns:
        Whether it is done.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(M_MMAP_THRESHOLD, KEPT)) and bool(
        library.mallopt(M_TRIM_THRESHOLD, 2 * KEPT - 1)
    )
