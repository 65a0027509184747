"""`simulate`: run a graph where time, schedule, faults and crashes come from a seed, and check the promises.

First the graph runs undisturbed. Then it runs once more, with what the seed has planned: the process dies, calls are
cancelled, the database fails or stalls, another process wants the thread. After each the graph is called again, as a
service would. In the end, what is stored has to be what the undisturbed run has stored, to the byte.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import anyio
import anyio.lowlevel
from msgspec import structs

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.children import start_soon
from checkpoint_savers.codec import Codec
from checkpoint_savers.errors import StorageError, ThreadBusyError
from checkpoint_savers.memory import InMemorySaver

from .._api.compiled import Graph
from .._runtime.persistence.lease import Hold
from .._runtime.tasks.context import WATCH, Running
from ..errors import GraphRecursionError, InvalidResumeError
from ..policies import leaves_of
from ..types import Command, Durability, Interrupt, StateSnapshot
from .clock import VirtualClock
from .faults import Faults, Plan, Planned, SimulatedFailure, Size, plan
from .loop import SimulatedLoop, StuckError
from .saver import Crash, FaultySaver
from .seen import THREAD, Seen, Stored, chain_of, checkpoint_in, difference, short, stored_in

AnyGraph: TypeAlias = "Graph[Any, Any]"
Answers: TypeAlias = "Callable[[Interrupt], Any] | Mapping[Any, Any] | None"

CALLS = 300
"""Calls after which a conversation counts as one that does not end."""

PAUSE = 11.0
"""Seconds until a service tries again where another run has the thread."""

TURN = "simulated_turn"
"""The key of a checkpoint's metadata that says for which input it was made."""


class SimulationError(AssertionError):
    """A promise was broken.

    Attributes:
        simulation: as far as it had come.
        promise: what was broken, in words.
    """

    def __init__(self, simulation: Simulation, promise: str) -> None:
        self.simulation = simulation
        self.promise = promise
        super().__init__(f"seed {simulation.seed}: {promise}\n\n{simulation}")


class Simulation:
    """How a simulation went. `str()` of it tells it all.

    Attributes:
        seed: makes all of it again.
        values: the graph's state at the end.
        failure: type and message of the failure that the graph ends with, disturbed or not; None when it has finished.
        faults: what was planned to go wrong.
        trace: what happened, in order: the event loop's step, the time, and what.
        ran: how often the code of each node and task began, by name.
        calls: how often the graph was called.
        seconds: how long it took by the virtual clock.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.values: Any = None
        self.failure: tuple[str, str] | None = None
        self.faults: list[str] = []
        self.trace: list[str] = []
        self.ran: Counter[str] = Counter()
        self.calls = 0
        self.seconds = 0.0

    def __str__(self) -> str:
        planned = [f"    {fault}" for fault in self.faults] or ["    nothing"]
        return "\n".join(
            [
                "what was planned to go wrong:",
                *planned,
                "what happened (step of the event loop, seconds, what):",
                *(f"  {line}" for line in self.trace),
                f"repeat it: simulate(..., seed={self.seed}); in a test with the fixture simulation_seed: "
                f"pytest --simulation-seed={self.seed}",
            ]
        )


def simulate(
    graph: AnyGraph | Callable[[], AnyGraph],
    *inputs: Any,
    seed: int,
    answers: Answers = None,
    faults: Faults | None = None,
    config: Mapping[str, Any] | None = None,
    context: Any = None,
    durability: Durability | None = None,
    deterministic: bool = True,
) -> Simulation:
    """Run a graph twice, undisturbed and disturbed, and check what this project promises.

    Both runs are on an event loop of their own, whose schedule and time come from the seed, with a database in memory.
    So sleeping takes no time, whatever sleeps, and there is no network. Plain functions run in threads, one at a time.

    What is checked:
        - the disturbed run comes to the same end, with the same checkpoints, to the byte (P2, P3);
        - what was stored is never taken back, and its steps have no gaps (P4, P6);
        - a node or task whose result was recorded never runs again (P5);
        - what a stream has shown as finished is recorded, and what it has shown as stored is stored (P4);
        - when a call returns, raises or was cancelled, nothing of it goes on (P7);
        - a question that was answered is not asked again (P8);
        - nothing is raised that neither the graph nor the plan has raised (P9).

    Args:
        graph: compiled, with or without a checkpointer: its own is not used, but for its codec. Or what makes one: it
            is called for each process, so that what a crash loses in memory is lost.
        inputs: the graph's input. Of several, the next is given when nothing is left to do for the one before.
        seed: of everything.
        answers: what people say: a function of the question, or a dict by the question's value.
        faults: how much goes wrong; `Faults()` by default.
        config, context, durability: as for `ainvoke`. The thread's id is given.
        deterministic: the graph does the same on the same input and answers. If not, the two ends are not compared.

    Returns:
        What happened, when all was kept.

    Raises:
        SimulationError: a promise was broken. It tells the seed, the plan and the trace.
        ValueError: the graph asks, and there are no answers.
        GraphRecursionError: the undisturbed run does not end.
    """
    simulation = Simulation(seed)
    options: dict[str, Any] = {"context": context}
    if durability is not None:
        options["durability"] = durability
    call = _Call(graph, inputs or (None,), answers, dict(config or {}), options)
    first = _Play(call, Simulation(seed), random.Random(0), Plan(), durability)
    first.run()
    size = Size(first.loop.steps, first.operations, sum(first.simulation.ran.values()), first.simulation.calls)
    luck = random.Random(seed)
    planned = plan(Faults() if faults is None else faults, size, luck)
    simulation.faults = [str(each) for each in (*planned.planned, *planned.storage)]
    second = _Play(call, simulation, luck, planned, durability)
    second.known |= first.known
    second.run()
    if deterministic:
        second.compare(first)
    return simulation


class _Call:
    """What is called, and with what."""

    def __init__(
        self,
        graph: AnyGraph | Callable[[], AnyGraph],
        inputs: Sequence[Any],
        answers: Answers,
        config: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        self.inputs = inputs
        self.config = config
        self.options = options
        self._graph = graph
        self._answers = answers
        made = self.make()
        self.codec = made.checkpointer.codec if isinstance(made.checkpointer, BaseCheckpointSaver) else Codec()
        self._last: tuple[AnyGraph, AnyGraph] | None = None

    def make(self) -> AnyGraph:
        """The graph, in a process that has just started."""
        return self._graph if isinstance(self._graph, Graph) else self._graph()

    def bound(self, graph: AnyGraph, saver: BaseCheckpointSaver, world: VirtualClock) -> AnyGraph:
        """The same graph, stored there, in that world."""
        if self._last is None or self._last[0] is not graph:
            stores = isinstance(graph.checkpointer, BaseCheckpointSaver)
            self._last = graph, graph if stores else graph.with_checkpointer(saver)
            # Computed once and copied with the graph: finding the subgraphs takes longer than a short run.
            _ = graph._definition.subgraph_index.by_node
        bound = copy.copy(self._last[1])
        bound._definition = structs.replace(bound._definition.with_checkpointer(saver), world=world)
        return bound

    def answer(self, question: Interrupt) -> Any:
        if self._answers is None:
            raise ValueError(f"the graph asks {question.value!r}: tell simulate(..., answers=...) what people say")
        return self._answers[question.value] if isinstance(self._answers, Mapping) else self._answers(question)


class _Process(FaultySaver):
    """The storage as one process sees it: an operation takes some turns of the event loop."""

    luck: random.Random

    async def around(self, verb: Any, call: Callable[[], Any]) -> Any:
        for _ in range(self.luck.choice((0, 0, 1, 2))):
            await asyncio.sleep(0)
        result = await super().around(verb, call)
        for _ in range(self.luck.choice((0, 0, 0, 1))):
            await asyncio.sleep(0)
        return result


class _Told(list[str]):
    """Lines of a trace, each with the step and the time at which it was told."""

    loop: SimulatedLoop

    def append(self, line: str) -> None:
        super().append(f"{self.loop.steps:6} {self.loop.time():8.1f}  {line}")


class _Play:
    """One run of a conversation with a graph, to its end."""

    def __init__(
        self, call: _Call, simulation: Simulation, luck: random.Random, planned: Plan, durability: Durability | None
    ) -> None:
        self.simulation = simulation
        self.known: set[tuple[str, str]] = set()  # failures that are the graph's own
        self.clock = VirtualClock(seed=luck.getrandbits(32))
        self.loop = SimulatedLoop(self.clock, random.Random(luck.getrandbits(32)))
        self.told = simulation.trace = _Told()
        self.told.loop = self.loop
        self.stored: Stored = {}
        self._call = call
        self._luck = luck
        self._quiet = not planned.planned and not planned.storage
        self._at_once = durability in (None, "sync")
        self._steps = {each.at: each for each in planned.planned if each.kind in ("crash", "cancel", "cancel natively")}
        self._bodies = {each.at for each in planned.planned if each.kind == "fail"}
        self._rivals = {each.at: each for each in planned.planned if each.kind == "rival"}
        self._begun = 0
        self._made = call.make()
        self._inner = InMemorySaver(codec=call.codec, clock=self.clock.now)
        self.seen = Seen(self._inner, self.told)
        self._saver = _Process(self.seen, *planned.storage, clock=self.clock)
        self._saver.luck = luck
        self._graph = self._bound(self._made, self._saver)
        self._scope: anyio.CancelScope | None = None
        self._host: asyncio.Task[Any] | None = None
        self._cancelled = False  # by the plan, in this call
        self._natively = False  # and that by asyncio's own means
        self._left = False  # an earlier call could not give the thread up
        self._beside = False  # another process resumes the thread during this call
        self._happened = 0  # how many things have gone wrong by now
        self._before = 0  # and by the beginning of this call, with the storage
        self.seen.taken = self._taken
        self._found: list[str] = []  # promises that were broken where an exception might get lost

    @property
    def operations(self) -> int:
        return len(self._saver.operations)

    def run(self) -> None:
        """Have the conversation, and look at what is left."""
        self.loop.before_step = self._strike if self._steps else None
        token = WATCH.set(self._watch)
        try:
            try:
                self.loop.run(self._converse())
            finally:
                self.simulation.seconds = self.clock.monotonic()
                self.loop.close()
        except StuckError as error:
            raise self._broken(f"P7: {error}") from error
        finally:
            WATCH.reset(token)
        if self.loop.errors:
            raise self._broken(f"P9: nobody was told of {self.loop.errors[0]}")

    def compare(self, other: _Play) -> None:
        """P2: with what the undisturbed run has come to."""
        mine, theirs = self.simulation, other.simulation
        if (mine.failure, theirs.failure) != (None, None) and mine.failure != theirs.failure:
            raise self._broken(f"P2: the undisturbed run ends with {theirs.failure}, and this one with {mine.failure}")
        here, there = self.stored, other.stored
        if self._call.options.get("durability") == "exit":  # what is stored meanwhile depends on where runs ended
            here, there = _last(here), _last(there)
        if mine.failure is None and here != there:
            told = difference(there, here, self._codec)
            raise self._broken(f"P2: what is stored differs from the undisturbed run: {told}")

    @property
    def _codec(self) -> Codec:
        return self._graph._definition.codec or self._inner.codec

    def _bound(self, graph: AnyGraph, saver: BaseCheckpointSaver) -> AnyGraph:
        return self._call.bound(graph, saver, self.clock)

    def _broken(self, promise: str) -> SimulationError:
        self.told.append(f"BROKEN: {promise}")
        return SimulationError(self.simulation, promise)

    def _strike(self, step: int) -> None:
        fault = self._steps.pop(step, None)
        if fault is None:
            return
        self._happened += 1
        self.told.append(f"FAULT: {fault}")
        if fault.kind == "crash":
            self._saver.crash()
            if self._scope is not None:
                self._scope.cancel()
        elif self._scope is not None and self._host is not None:
            self._cancelled, self._natively = True, fault.kind == "cancel natively"
            if fault.kind == "cancel":
                self._scope.cancel()
            else:
                self._host.cancel()

    def _watch(self, running: Running) -> None:
        """The code of a node or task is about to run."""
        task, hold = running.task, running.around.session.hold
        name = task.node.name
        self._begun += 1
        self.simulation.ran[name] += 1
        inside = f" in {short(running.around.ns)}" if running.around.ns else ""
        self.told.append(f"runs: {name} ({task.id[:8]}){inside}")
        holds = isinstance(hold, Hold) and hold.claim.epoch == self.seen.epoch  # else it has lost the thread
        if holds and task.id in self.seen.recorded:
            self._found.append(f"P5: {name!r} runs although its result is recorded (task {task.id})")
        if self._begun in self._bodies:
            self._happened += 1
            self.told.append(f"FAULT: the code of {name} fails")
            raise SimulatedFailure(f"as planned, the {self._begun}. that begins")

    async def _converse(self) -> None:
        try:
            await self._talk()
        except _Broken as error:
            raise self._broken(str(error)) from error
        self.stored = await stored_in(self._inner)
        wrong = chain_of(self.stored, gaps=self._call.options.get("durability") == "exit")
        if wrong is not None:
            raise self._broken(f"P6: {wrong}")
        count = sum(map(len, self.stored.values()))
        if count != len(self.seen.committed):
            raise self._broken(f"P4: {len(self.seen.committed)} checkpoints were stored, and {count} are there")

    async def _talk(self) -> None:
        turn, inputs = 0, self._call.inputs
        given: Any = inputs[0]
        before: tuple[object, ...] | None = None
        for _ in range(CALLS):
            happened = self._happened + len(self._saver.happened)
            error = await self._once(given, turn)
            state = await self._look()
            self.simulation.values = state.values
            if dict(state.metadata or {}).get(TURN) != turn:
                if error is None and given is not None:
                    raise _Broken("P4: a call has returned, and nothing of it is stored")
                given = inputs[turn]
            elif state.interrupts and (error is None or self._luck.random() < 0.5):
                given = self._answers(state.interrupts)
            elif state.tasks:  # perhaps all have their results, and only their superstep is not closed
                given = None
            else:
                turn += 1
                if turn == len(inputs):
                    return
                given = inputs[turn]
            if isinstance(error, ThreadBusyError):
                await asyncio.sleep(PAUSE)  # a claim that could not be given up lapses
                continue
            if error is None or happened != self._happened + len(self._saver.happened):
                before = None
                continue
            # A graph that fails twice in the same place, with nothing gone wrong meanwhile, fails for good.
            now = (_told(error), dict(state.config.get("configurable", {})).get("checkpoint_id"))
            if now == before:
                self.simulation.failure = _told(error)
                return
            before = now
        raise _Broken(f"after {CALLS} calls, there is no end")

    def _answers(self, asked: Sequence[Interrupt]) -> Command:
        """Answer all that is open, or, where things go wrong, some of it."""
        chosen = list(asked)
        if not self._quiet and len(chosen) > 1:
            chosen = self._luck.sample(chosen, self._luck.randint(1, len(chosen)))
        return Command(resume={each.id: self._call.answer(each) for each in chosen})

    def _taken(self) -> None:
        """P6: somebody has taken the thread over. Whoever had it had stopped to say that it lives: nothing else may."""
        undone = self._saver.crashed or self._natively or self._before != len(self._saver.happened)
        if not self._left and not undone:
            self._found.append("P6: the claim of a run that goes on has lapsed")

    async def _look(self) -> StateSnapshot:
        """The thread's state, as whoever calls next sees it."""
        state = await self._bound(self._made, self._inner).aget_state(THREAD)
        asked = {question.id for question in state.interrupts}
        again = sorted(asked & self.seen.answered)
        if again:
            raise _Broken(f"P8: the answer to a question is stored, and it is open: {', '.join(again)}")
        return state

    async def _once(self, given: Any, turn: int) -> BaseException | None:
        """Call the graph once. Returns what it raised."""
        self.simulation.calls += 1
        number = self.simulation.calls
        if self._saver.crashed:
            await self._restart()
        self._left = self.seen.held
        if not self._left:
            self._before = len(self._saver.happened)
        what = "answers" if isinstance(given, Command) else "goes on" if given is None else "a new input"
        self.told.append(f"call {number}: {what}")
        config = {
            **self._call.config,
            "configurable": {**self._call.config.get("configurable", {}), "thread_id": THREAD},
            "metadata": {**self._call.config.get("metadata", {}), TURN: turn},
        }
        errors: list[BaseException] = []
        watched = asyncio.current_task()
        rival = self._rivals.pop(number, None)
        self._beside = beside = rival is not None and number > 1

        async def call() -> None:
            self._host = asyncio.current_task()
            self._cancelled = self._natively = False
            try:
                with anyio.CancelScope() as scope:
                    self._scope = scope
                    try:
                        await self._called(given, config)
                    finally:
                        self._scope = None
                        left = asyncio.all_tasks() - {watched, self._host}
                        if left and not beside:
                            names = ", ".join(sorted(task.get_name() for task in left))
                            errors.append(_Broken(f"P7: control has returned, and there still run: {names}"))
                        if self.loop.turns and not beside:
                            errors.append(_Broken("P7: control has returned, and a plain function still runs"))
                if scope.cancelled_caught:
                    errors.append(asyncio.CancelledError())
            except BaseException as error:
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    raise
                errors.append(error)
                if isinstance(error, asyncio.CancelledError) and self._host is not None:
                    while self._host.cancelling():
                        self._host.uncancel()
            self._host = None

        async with anyio.create_task_group() as group:
            start_soon(group, call)
            if rival is not None and beside:
                start_soon(group, self._rival, rival, config)
        # A saver's operation may be undone by asyncio's own `Task.cancel()`, which no scope holds off: then the claim
        # lapses by itself.
        undone = self._saver.crashed or self._natively or self._before != len(self._saver.happened)
        if self.seen.held and not self._left and not undone:
            self._found.append("P6: the call has ended, and the thread was not given up")
        if self._found:
            raise _Broken(self._found[0])
        for error in errors:
            self.told.append(f"raised: {type(error).__name__}: {error}")
            self._check(error)
        if not errors:
            self.told.append("returned")
        if self._saver.crashed:
            await self._restart()
        return errors[0] if errors else None

    async def _restart(self) -> None:
        self.told.append("a new process starts")
        await self._saver.restart()
        self._made = self._call.make()
        self._graph = self._bound(self._made, self._saver)

    async def _called(self, given: Any, config: dict[str, Any]) -> None:
        options = self._call.options
        if self._luck.random() < 0.5:
            await self._graph.ainvoke(given, config, **options)
            return
        async with self._graph.astream(given, config, stream_mode=["tasks", "checkpoints"], **options) as chunks:
            async for labelled in chunks:
                mode, chunk = cast("tuple[str, Mapping[str, Any]]", labelled)
                if self._at_once and not self._saver.crashed:
                    self._shown(mode, chunk)
                for _ in range(self._luck.choice((0, 0, 0, 2))):
                    await anyio.lowlevel.checkpoint()

    def _shown(self, mode: str, chunk: Mapping[str, Any]) -> None:
        if mode == "checkpoints":
            at = checkpoint_in(chunk)
            if at is not None and at not in self.seen.committed:
                raise _Broken(f"P4: a stream shows checkpoint {at} as stored, and it is not")
        elif (
            chunk.get("error", "planned") is None and not chunk["interrupts"] and chunk["id"] not in self.seen.recorded
        ):
            raise _Broken(f"P4: a stream shows {chunk['name']!r} as finished, and its result is not stored")

    async def _rival(self, rival: Planned, config: dict[str, Any]) -> None:
        """Another process, with a healthy database, resumes the thread."""
        for _ in range(rival.delay):
            await anyio.lowlevel.checkpoint()
        saver = _Process(self.seen)
        saver.luck = self._luck
        graph = self._bound(self._call.make(), saver)
        if not (await graph.aget_state(THREAD)).tasks:
            return
        self._happened += 1
        self.told.append("FAULT: another process resumes the thread")
        try:
            await graph.ainvoke(None, config, **self._call.options)
        except ThreadBusyError as error:
            self.told.append(f"the other process: {error}")
        except Exception as error:
            self.told.append(f"the other process raised: {type(error).__name__}: {error}")
            try:
                self._check(error)
            except _Broken as broken:
                self._found.append(str(broken))
        else:
            self.told.append("the other process returned")

    def _check(self, error: BaseException) -> None:
        """P9: whether somebody has raised it: the plan, or the graph's own code."""
        for leaf in leaves_of(error):
            if isinstance(leaf, _Broken) or (isinstance(leaf, GraphRecursionError) and self._quiet):
                raise leaf
            planned = (
                isinstance(leaf, (Crash, SimulatedFailure, ThreadBusyError))
                or (isinstance(leaf, asyncio.CancelledError) and (self._cancelled or self._saver.crashed))
                or (isinstance(leaf, StorageError) and bool(self._saver.happened))
                or (isinstance(leaf, InvalidResumeError) and self._beside)  # another process was faster
            )
            if planned or _told(leaf) in self.known:
                continue
            if not _placed(leaf):
                raise _Broken(f"P9: nobody has planned this: {type(leaf).__name__}: {leaf}") from leaf
            self.known.add(_told(leaf))


class _Broken(BaseException):
    """A promise is broken: leaves through all that deals with exceptions."""


def _placed(error: BaseException) -> bool:
    """Whether it says where in the graph it was raised."""
    notes: Sequence[str] = getattr(error, "__notes__", ())
    return any(note.startswith(("in node ", "raised by ")) for note in notes)


def _last(stored: Stored) -> Stored:
    """The root graph's state in the end."""
    return {"": [{"values": row["values"]} for row in stored.get("", [])[-1:]]}


def _told(error: BaseException) -> tuple[str, str]:
    return type(error).__name__, str(error)
