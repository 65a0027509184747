"""A saver that passes everything on, for tests that come between a run and its storage: the kit's, by a short name."""

from __future__ import annotations

from pregel_async.testing import WRITES
from pregel_async.testing import PassingSaver as Through

__all__ = ["WRITES", "Through"]
