"""One run: put the input on the board, let the algorithm run, and be the port that it asks of the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec
from checkpoint_savers.records import CheckpointId

from .._core import superstep
from .._core.board import Board
from .._core.isolation import own
from .._core.program import Program, Write
from .._core.task import Cancelled, Outcome, Task
from ..errors import CheckpointNotFoundError, EmptyInputError
from ..types import OnConflict
from .log import Log
from .loops import alone
from .runner import Runner
from .thread import Thread
from .world import World


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One call's settings, validated.

    Attributes:
        thread_id: None runs without a thread: nothing is stored.
        ns: the namespace, "" for the root graph.
        at: the checkpoint to go on from; None for the head.
        run_id: None to make one up.
        limit: how many supersteps the run may take.
        max_concurrency: how many tasks run at once; None for all.
        on_conflict: what to do when another run owns the thread.
        metadata: stored with each checkpoint.
        debug: warn when a node changes its input in place.
    """

    thread_id: str | None
    ns: str
    at: CheckpointId | None
    run_id: str | None
    limit: int
    max_concurrency: int | None
    on_conflict: OnConflict
    metadata: dict[str, Any]
    debug: bool


async def run(
    program: Program,
    given: Any,
    settings: Settings,
    world: World,
    saver: BaseCheckpointSaver | None,
    codec: Codec | None,
    log: Log | None,
) -> Board:
    """Run a graph to its end.

    Args:
        given: the input; None goes on from what is stored.

    Returns:
        The last board.
    """
    writes = None if given is None else [(name, own(value)) for name, value in program.read_input(given)]
    run_id = settings.run_id or world.new_id()
    if saver is None or codec is None or settings.thread_id is None:
        if writes is None:
            raise EmptyInputError(f"no input for graph {program.name!r}, and no thread to go on with: pass an input")
        this = _Run(program, settings, log, None, (settings.thread_id or run_id, settings.ns))
        return await this.go(await this.begin(None, writes))
    if writes is None and await saver.read(settings.thread_id, settings.ns, settings.at) is None:
        if settings.at is not None:
            raise CheckpointNotFoundError(settings.thread_id, settings.at)
        raise EmptyInputError(
            f"no input for graph {program.name!r}, and nothing is stored of thread {settings.thread_id!r}: "
            "pass an input"
        )
    thread = await Thread.claim(
        saver,
        codec,
        world,
        program,
        thread_id=settings.thread_id,
        ns=settings.ns,
        at=settings.at,
        metadata={**settings.metadata, "run_id": run_id},
        on_conflict=settings.on_conflict,
    )
    async with thread:
        this = _Run(program, settings, log, thread, (settings.thread_id, settings.ns))
        return await _beside(thread, this, writes)


async def _beside(thread: Thread, this: _Run, writes: list[Write] | None) -> Board:
    """Run while the claim is kept alive beside it. The run's own error leaves as it is, in no group."""
    board: Board | None = None
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(thread.keep)
            try:
                board = await this.go(await this.begin(thread.board, writes))
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                failure = error
            finally:
                group.cancel_scope.cancel()
    except BaseExceptionGroup as several:
        raise alone(several) from None
    if failure is not None:
        raise failure
    assert board is not None
    return board


class _Run:
    """The port of one run."""

    def __init__(
        self, program: Program, settings: Settings, log: Log | None, thread: Thread | None, scope: superstep.Scope
    ) -> None:
        self._program = program
        self._limit = settings.limit
        self._scope = scope
        self._thread = thread
        self._log = log
        self._runner = Runner(
            program,
            thread,
            None if log is None else log.on_finished,
            settings.max_concurrency,
            debug=settings.debug,
        )
        self._outcomes: Sequence[Outcome] = ()

    async def begin(self, stored: Board | None, writes: list[Write] | None) -> Board:
        """The board to run from: the stored one, with the input written on it if there is one.

        A new input discards what was pending: those tasks count as run, with nothing written.
        """
        if writes is None:
            assert stored is not None
            if self._thread is not None:
                self._thread.branch_off(stored)
            if self._log is not None and self._log.on_resumed is not None:
                await self._log.on_resumed(stored)
            return stored
        board = Board(self._program) if stored is None else stored
        discarded = superstep.plan(self._program, board, self._scope)
        superstep.update(self._program, board, discarded, [writes])
        board.ran = ()
        if self._thread is not None:
            upcoming = superstep.plan(self._program, board, self._scope)
            await self._thread.commit(board, discarded, [Cancelled()] * len(discarded), upcoming, source="input")
        return board

    async def go(self, board: Board) -> Board:
        return await superstep.run(self._program, board, self, scope=self._scope, limit=self._limit)

    # ---- superstep.Port ----------------------------------------------------------------------------------------------

    async def execute(self, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        if self._log is not None and self._log.on_planned is not None:
            await self._log.on_planned(board, tasks)
        self._outcomes = outcomes = await self._runner.execute(board, tasks)
        return outcomes

    async def checkpoint(self, board: Board, ran: Sequence[Task], upcoming: Sequence[Task]) -> None:
        if self._thread is not None:
            await self._thread.commit(board, ran, self._outcomes, upcoming)
            await self._runner.tell_rest()
        if self._log is not None and self._log.on_updated is not None:
            await self._log.on_updated(board)

    async def give_up(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> None:
        if self._thread is not None and await self._thread.give_up(tasks, outcomes, error):
            await self._runner.tell_rest()
        if self._log is not None and self._log.on_failed is not None:
            await self._log.on_failed(tasks, outcomes)
