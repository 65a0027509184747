"""Waiting until something that a test has dropped is gone."""

from __future__ import annotations

import gc
from collections.abc import Sized

import anyio
import anyio.lowlevel


async def warned(caught: Sized) -> None:
    """Wait until what was dropped has warned: its own thread may still have in hand what it did last."""
    with anyio.fail_after(60):
        while not len(caught):
            gc.collect()
            await anyio.lowlevel.checkpoint()
