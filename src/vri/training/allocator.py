"""Memory of training on CPUs: keep blocks that are freed, since the next step needs them again.

By default glibc returns every large block to the system as soon as it is freed, and the system clears it again page by
page when the next step asks for it. That took 8 to 31 % of the time of a step of the backbone `fast`, docs/speed.md.
"""

import ctypes
import os
import platform

# of malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_NEVER, _NONE, _GROW = -1, 0, 2**26  # grow by so many bytes at least


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, instead of giving it back; whether that was possible.

    It then holds what it had at its peak, about a tenth more than before. For processes that do nothing but train: the
    commands call it, the library doesn't. Only glibc has it; if the user has set `MALLOC_...` or `GLIBC_TUNABLES`,
    nothing changes.
    """
    told = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if told or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((_MMAP_MAX, _NONE), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _GROW))
    return all([mallopt(name, value) == 1 for name, value in settings])
