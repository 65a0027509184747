"""A node that a test has to cancel."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel


class EndlessNode:
    """A node that runs until it is cancelled, and is slow to end. It signals its start, and the end of its clean-up."""

    def __init__(self) -> None:
        self.began, self.ended = threading.Event(), threading.Event()

    async def __call__(self, state: object) -> None:
        self.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
            self.ended.set()
