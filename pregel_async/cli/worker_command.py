"""Execute runs of a service for the command `worker`, until a signal ends it."""

from __future__ import annotations

import logging
import math
import sys

import anyio

from ..service import RunService, Worker
from .formatting import escape, plural
from .stop_signals import StopSignals

DRAINING_NOTICE = (
    b"draining: runs stop at their next barrier, and other workers continue them; another signal cancels their tasks\n"
)
CANCELLING_NOTICE = b"cancelling tasks: other workers run them again; another signal ends this process at once\n"


def settings_of(service: RunService, slots: int | None, grace: float | None) -> Worker:
    """Return the settings of a worker: the options, and what is left out as the service has it.

    Args:
        service: the service.
        slots: the number of runs at a time; None as the service has it.
        grace: seconds for runs to reach a barrier at a shutdown; None as the service has it.

    Raises:
        ConfigError: a value is invalid.
    """
    own = service.worker or Worker()
    return Worker(
        slots=own.slots if slots is None else slots,
        grace=own.grace if grace is None else grace,
        tracebacks=own.tracebacks,
    )


def run_worker(service: RunService, settings: Worker, target: str) -> int:
    """Execute runs on asyncio until a signal ends the worker and its runs were given back.

    Args:
        service: the service, not open.
        settings: the worker's settings.
        target: MODULE:SERVICE, for messages.

    Returns:
        The exit code: 0 if the worker drained, 130 or 143 if a second signal cancelled its tasks.

    Raises:
        Exception: the service cannot be opened, or the worker has failed.
    """
    logging.basicConfig(format="%(message)s")  # does nothing if the service's module has set up logging
    log = logging.getLogger("pregel_async.service")
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)  # the level of failed runs
    return anyio.run(_work, service.with_work(settings), settings, target)


async def _work(service: RunService, settings: Worker, target: str) -> int:
    stop, signals = anyio.Event(), StopSignals()
    with anyio.CancelScope() as scope:
        first = (lambda: DRAINING_NOTICE), stop.set
        second = (lambda: CANCELLING_NOTICE), scope.cancel
        with signals.handle(first, second):
            async with service:
                grace = "no limit" if math.isinf(settings.grace) else f"{settings.grace:g} s"
                _print_status(f"worker of {target}: {plural(settings.slots, 'slot')}, grace {grace}")
                await stop.wait()
                service.drain("worker: " + ("" if signals.received is None else signals.received.name))
    if signals.count > 1 and signals.received is not None:
        _print_status("cancelled: the runs were given back")
        return 128 + signals.received
    _print_status("drained")
    return 0


def _print_status(line: str) -> None:
    print(escape(line), file=sys.stderr, flush=True)
