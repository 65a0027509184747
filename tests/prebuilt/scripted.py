"""A model that answers from a script."""

from __future__ import annotations

from pregel_async.testing import ScriptedModel as Script

__all__ = ["Script"]
