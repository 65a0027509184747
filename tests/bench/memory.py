"""Memory of this process. It imports next to nothing, as it is measured what other imports take."""

from __future__ import annotations

import sys


def resident(peak: bool = False) -> float:
    """Resident memory in MB: now, or the most there was. Where there is no /proc, the system only tells the most."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = file.readlines()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    name = "VmHWM:" if peak else "VmRSS:"
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024
