"""Wait for the ResourceWarning of an object that a test has dropped."""

from __future__ import annotations

import gc
from collections.abc import Sized

import anyio
import anyio.lowlevel


async def warned(caught: Sized) -> None:
    """Wait until a warning arrives. The dropped object's own thread may still hold a reference to the object for a
    moment."""
    with anyio.fail_after(60):
        while not len(caught):
            gc.collect()
            await anyio.lowlevel.checkpoint()
