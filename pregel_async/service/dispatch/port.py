"""`Dispatcher`: brings queued threads to workers. The rows are the truth.

A dispatcher decides nothing: a thread that it brings twice, late, or after another worker has taken it, is refused by
the thread's row and lease. A thread that it never brings is found by the keeper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.rows import RunThreadRow

from ..._runtime.platform.environment import Environment


class Crew(Protocol):
    """The slots of a worker, as a dispatcher fills them.

    Attributes:
        runs: the run store.
        environment: the clock.
        routes: the routes of the threads that the worker can run. A dispatcher brings it no others.
        slots: the number of runs that it executes at the same time.
    """

    runs: RunStore
    environment: Environment
    routes: tuple[str, ...]
    slots: int

    @property
    def free(self) -> int:
        """The number of slots that are free now."""
        ...

    def fill(self, queued: Sequence[RunThreadRow]) -> None:
        """Start to work on queued threads, in this order, while there are free slots.

        If slots are left, this process uses them for runs that it accepts itself: it takes them at once, without the
        queue. A dispatcher that cannot list the queue must therefore call `work_on` instead of this method.

        Args:
            queued: all threads that are queued now, or more than there are free slots.
        """
        ...

    async def work_on(self, thread_id: str, activation_no: int) -> None:
        """Work on a thread, and return when that has ended. Does nothing if the thread is no longer queued like this.

        Args:
            thread_id: the thread.
            activation_no: the number with which it was queued.
        """
        ...


class Dispatcher(ABC):
    """Brings queued threads to workers."""

    async def setup(self, saver: BaseCheckpointSaver) -> None:
        """Make or upgrade what the dispatcher stores in the saver's database. The default stores nothing.

        Args:
            saver: the open saver of the service.
        """
        return

    def announcing(self, saver: BaseCheckpointSaver) -> AbstractAsyncContextManager[object]:
        """Open what announces the threads that this process queues, for a block. The default announces nothing.

        Args:
            saver: the open saver of the service.

        Returns:
            A context manager.
        """
        return nullcontext()

    @abstractmethod
    async def work(self, crew: Crew) -> None:
        """Start work on queued threads whenever a worker has a free slot, until this is cancelled.

        Args:
            crew: the worker's slots.
        """

    async def unannounced(self, queued: Sequence[RunThreadRow]) -> Sequence[RunThreadRow]:
        """Return those of these queued threads that no worker will be brought. The keeper queues them again.

        Args:
            queued: threads that have been queued for a while.

        Returns:
            The threads. By default none: a dispatcher that looks at the rows finds all.
        """
        return ()
