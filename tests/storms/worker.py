"""A worker process of a storm: `python -m tests.storms.worker SAVER EFFECTS`. It works until SIGTERM."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

import anyio

from pregel_async.service import RunService, Worker

from .graphs import attempt_of, graphs, opened_effects
from .savers import dispatcher_of, opened_saver


async def work(source: str, effects: Path) -> None:
    """Execute runs until SIGTERM, and then give them back."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals, opened_effects(effects) as file:
        async with opened_saver(source) as saver:
            worker = Worker(slots=8, grace=5.0)
            dispatcher = dispatcher_of(source)
            async with RunService(graphs(file), saver, work=worker, context=attempt_of, dispatcher=dispatcher):
                async for _ in signals:
                    break


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(process)d %(asctime)s %(levelname)s %(name)s %(message)s")
    anyio.run(work, sys.argv[1], Path(sys.argv[2]))
