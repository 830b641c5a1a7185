"""How much memory this process holds."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Final

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

MIB: Final = 1024 * 1024
_STATM: Final = "/proc/self/statm"


def resident_mib() -> float:
    """The resident set of this process in MiB: what it is now on Linux, the highest it has been elsewhere.

    Takes some microseconds. Raises `ValueError` on Windows.
    """
    if _has_statm():
        with open(_STATM, "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    if resource is None:
        raise ValueError("The memory of a process cannot be measured on this platform")
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, others KiB.
    return highest / MIB if sys.platform == "darwin" else highest / 1024


@cache
def _has_statm() -> bool:
    return os.path.exists(_STATM)
