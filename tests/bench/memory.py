"""Memory of this process.

This module imports next to nothing, as the memory of other imports is measured.
"""

from __future__ import annotations

import sys


def resident(peak: bool = False) -> float:
    """Return the resident memory in MB, now or at its peak. Without /proc, the system gives only the peak."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = file.readlines()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    name = "VmHWM:" if peak else "VmRSS:"
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024
