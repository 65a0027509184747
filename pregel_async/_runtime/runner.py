"""One superstep's execution: all its tasks at once, joined at the barrier.

Several tasks run in a task group. A single one is awaited in place, which is a task group of one, written out:
    1. it has a context of its own, so what it sets in context variables stays there (`attempt.in_own_context`);
    2. the event loop gets its turn, and a cancellation is noticed, at every barrier;
    3. outcome, error and cancellation are what one task in a group would give.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

import anyio

from .._core.board import Board
from .._core.program import Program, Write
from .._core.task import Cancelled, Failed, Finished, Outcome, Task
from ..errors import UnstorableValueError
from .attempt import Recorder, attempt
from .loops import native_cancellations, turn


class Ledger(Protocol):
    """What the runner needs of a thread's storage."""

    def result_of(self, task: Task) -> Finished | None:
        """The recorded result of a task that need not run."""
        ...

    def writes_of(self, task: Task) -> list[Write] | None:
        """The recorded writes of a task of which only the routers are left to run."""
        ...

    async def record(self, task: Task, writes: list[Write], *, routed: bool) -> None:
        """Store what a task wrote; return when it is durable."""
        ...


class Runner:
    """Executes supersteps.

    Args:
        storage: None when the run has no thread.
        finished: told of each task as it finishes, once its result is as durable as promised; None when nobody listens.
        max_concurrency: how many tasks run at once; None for all.
        debug: warn when a node changes its input in place.
    """

    def __init__(
        self,
        program: Program,
        storage: Ledger | None,
        finished: Callable[[Task, Finished], Awaitable[None]] | None,
        max_concurrency: int | None,
        *,
        debug: bool,
    ) -> None:
        self._program = program
        self.storage = storage
        self.finished = finished
        self.max_concurrency = max_concurrency
        self._debug = debug
        self._turn = turn()
        self._cancellations = native_cancellations()
        self._cancelled_before = self._cancellations()
        self._record: Recorder | None = None if storage is None else self._record_unrouted

    async def execute(self, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        """Run the tasks on the board as it is. See `superstep.Port.execute`."""
        await self._turn()
        if len(tasks) == 1:
            outcome = await self.attempt(board, tasks[0], in_place=True)
            if self._cancellations() > self._cancelled_before:
                # The node has swallowed its caller's cancellation. A group would end here with it, whatever the task
                # did.
                raise anyio.get_cancelled_exc_class()
            if self.finished is not None and isinstance(outcome, Finished):
                await self.finished(tasks[0], outcome)
            return (outcome,)
        return await _Group(self, board, tasks).execute()

    async def attempt(self, board: Board, task: Task, *, in_place: bool) -> Finished | Failed:
        storage = self.storage
        if storage is None:
            return await attempt(self._program, board, task, None, None, in_place=in_place, debug=self._debug)
        recorded = storage.result_of(task)
        if recorded is not None:
            return recorded
        return await attempt(
            self._program, board, task, storage.writes_of(task), self._record, in_place=in_place, debug=self._debug
        )

    async def _record_unrouted(self, task: Task, writes: list[Write]) -> None:
        assert self.storage is not None
        await self.storage.record(task, writes, routed=False)


class _Group:
    """The tasks of one superstep, when there are several."""

    def __init__(self, runner: Runner, board: Board, tasks: Sequence[Task]) -> None:
        self._runner = runner
        self._board = board
        self._tasks = tasks
        self._outcomes: list[Outcome | None] = [None] * len(tasks)
        self._open = len(tasks)
        self._broken: BaseException | None = None
        self._scope: anyio.CancelScope | None = None

    async def execute(self) -> Sequence[Outcome]:
        width = self._runner.max_concurrency
        places = iter(range(len(self._tasks)))
        async with anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            if width is None or width >= len(self._tasks):
                for place in places:
                    group.start_soon(self._one, place)
            else:
                for _ in range(width):
                    group.start_soon(self._several, places)
        if self._broken is not None:
            raise self._broken
        return [Cancelled() if outcome is None else outcome for outcome in self._outcomes]

    async def _several(self, places: Iterator[int]) -> None:
        for place in places:
            await self._one(place)

    async def _one(self, place: int) -> None:
        """Run one task, and keep what became of it. Nothing but a cancellation leaves here."""
        runner, task = self._runner, self._tasks[place]
        try:
            outcome = await runner.attempt(self._board, task, in_place=False)
            self._outcomes[place] = outcome
            self._open -= 1
            if isinstance(outcome, Failed):
                self._stop()
                return
            if runner.storage is not None and self._open and not outcome.replayed:
                # The last to finish needs no record: the superstep's commit holds its writes.
                await runner.storage.record(task, outcome.writes, routed=True)
            if runner.finished is not None:
                await runner.finished(task, outcome)
        except anyio.get_cancelled_exc_class():
            raise
        except UnstorableValueError as error:
            self._outcomes[place] = Failed(error)
            self._stop()
        except Exception as error:
            # Storage failed: the superstep ends with that error, and with it alone.
            self._broken = error
            self._stop()

    def _stop(self) -> None:
        assert self._scope is not None
        self._scope.cancel()
