"""A saver that delegates every call, for tests that intercept a run's storage: the test kit's, under a short name."""

from __future__ import annotations

from pregel_async.testing import WRITES
from pregel_async.testing import PassingSaver as Through

__all__ = ["WRITES", "Through"]
