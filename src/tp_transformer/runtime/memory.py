"""Memory: settings of the allocator and the collector, and checks against the available memory.

A training step frees tensors of tens of megabytes and allocates similar ones at once. By default
the C library returns such blocks to the system, which clears their pages again: this took a quarter
of the time of a step at the paper's size (8.6 samples/s, 11.5 without) and a tenth of that of the
small model. Only the command line calls `keep_freed_memory`, because it affects the whole process.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tp_transformer.errors import SettingsError

# Constants of malloc.h in glibc.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory; return whether it does (only with glibc)."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 64 * 2**20))
    taken = [mallopt(number, value) == 1 for number, value in settings]
    return all(taken)


@contextmanager
def without_collection() -> Iterator[None]:
    """Do not search for reference cycles during imports, nor later in the objects that exist then.

    The search takes a tenth of the time of `import torch`, which has few cycles. Without `freeze`,
    the first search after it would visit all objects that the imports have created. This affects
    the whole process, so it is for the command line only.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def memory_limit() -> int | None:
    """Return the maximum memory of this process in bytes, or None if unknown."""
    limits = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # not in a container, or one without a limit
        limits.append(int(CONTAINER_LIMIT.read_text()))
    return min(limits, default=None)


def refuse_beyond_memory(what: str, n_bytes: int) -> None:
    """Raise if `n_bytes` exceed the memory; Linux would allocate them and kill the process."""
    limit = memory_limit()
    if limit is not None and n_bytes > limit:
        raise SettingsError(
            f"{what} take at least {n_bytes / 2**30:,.1f} GiB of memory, and there are "
            f"{limit / 2**30:,.1f} GiB"
        )
