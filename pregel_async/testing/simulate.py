"""`simulate`: run a graph with time, schedule, faults and crashes that derive from a seed, and check the promises.

The graph runs twice: first undisturbed, then with the faults that the seed has planned. The process dies, calls are
cancelled, the database fails or stalls, another process resumes the thread. After each fault the graph is called again,
as a service does. In the end both runs must have stored the same checkpoints, to the byte.
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
from .._runtime.persistence.lease import ThreadLease
from .._runtime.tasks.context import ON_CODE_START, AttemptContext
from ..errors import GraphRecursionError, InvalidResumeError
from ..policies import leaves_of
from ..types import Command, Durability, Interrupt, StateSnapshot
from .clock import VirtualClock
from .faults import FaultPlan, Faults, PlannedFault, RunSize, SimulatedFailure, draw_plan
from .loop import SimulatedLoop, StuckError
from .recording_saver import (
    THREAD_ID,
    RecordingSaver,
    StoredCheckpoints,
    checkpoint_of_chunk,
    describe_difference,
    find_chain_error,
    read_checkpoints,
    short_namespace,
)
from .saver import Crash, FaultySaver

GraphUnderTest: TypeAlias = "Graph[Any, Any]"
Answers: TypeAlias = "Callable[[Interrupt], Any] | Mapping[Any, Any] | None"

MAX_CALLS = 300
"""Calls of the graph after which a conversation counts as one that never ends."""

BUSY_RETRY_SECONDS = 11.0
"""Virtual seconds between two calls while another run holds the thread; three outlast a lease."""

TURN_KEY = "simulated_turn"
"""The metadata key under which checkpoints have the index of the input for which they were made."""


class SimulationError(AssertionError):
    """A promise was broken in a simulation. The message has the seed, the planned faults and the trace.

    Attributes:
        simulation: the simulation up to that point.
        promise: the broken promise, with its number, and how it was broken.
    """

    def __init__(self, simulation: Simulation, promise: str) -> None:
        self.simulation = simulation
        self.promise = promise
        super().__init__(f"seed {simulation.seed}: {promise}\n\n{simulation}")


class Simulation:
    """The record of a simulation. `str()` renders it for people.

    Attributes:
        seed: repeats the simulation.
        values: the graph's state at the end.
        failure: type and message of the exception with which the graph ends, disturbed or not; None if it finishes.
        faults: descriptions of the planned faults.
        trace: one line for each event, with the step of the event loop and the virtual seconds.
        ran: the number of executions of each node and task, by name.
        calls: the number of calls of the graph.
        seconds: the duration of the simulation, in virtual seconds.
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
    graph: GraphUnderTest | Callable[[], GraphUnderTest],
    *inputs: Any,
    seed: int,
    answers: Answers = None,
    faults: Faults | None = None,
    config: Mapping[str, Any] | None = None,
    context: Any = None,
    durability: Durability | None = None,
    deterministic: bool = True,
) -> Simulation:
    """Run a graph twice, undisturbed and with faults, and check the promises of this project.

    Each run has an event loop of its own, whose schedule and time derive from the seed, and a database in memory. Every
    kind of sleep takes no real time, and there is no network. Plain functions run in threads, one at a time.

    The checks:
        - the disturbed run ends as the undisturbed one, with the same checkpoints, to the byte (P2, P3);
        - stored checkpoints stay stored, and their steps have no gaps (P4, P6);
        - a node or task whose result is recorded does not run again (P5);
        - results that a stream shows are recorded, and checkpoints that it shows are stored (P4);
        - after a call has returned, raised or been cancelled, none of its tasks and threads still runs (P7);
        - an answered question is not asked again (P8);
        - every exception was raised by the graph or by the plan (P9).

    Args:
        graph: a compiled graph, or a function that makes one and is called for each simulated process, so that a crash
            loses the state that nodes hold in memory. Of the graph's own checkpointer only the codec is used.
        inputs: the inputs of the graph, one after the other: each is passed when the graph has finished the one before.
        seed: determines the schedule, the faults, ids and random numbers.
        answers: answers to the graph's questions: a function of the question, or a dict by the question's value.
        faults: the maximum number of faults of each kind; `Faults()` by default.
        config: as for `ainvoke`. The thread's id is set by the simulation.
        context: as for `ainvoke`.
        durability: as for `ainvoke`.
        deterministic: False for a graph that may do something else on the same input and answers: the ends of the two
            runs are not compared then.

    Returns:
        The record of the disturbed run.

    Raises:
        SimulationError: a promise was broken.
        ValueError: the graph asks a question, and there are no answers.
        GraphRecursionError: the undisturbed run does not end.
    """
    simulation = Simulation(seed)
    options: dict[str, Any] = {"context": context}
    if durability is not None:
        options["durability"] = durability
    scenario = _Scenario(graph, inputs or (None,), answers, dict(config or {}), options)
    first = _SimulatedRun(scenario, Simulation(seed), random.Random(0), FaultPlan(), durability)
    first.run()
    size = RunSize(first.loop.steps, first.operations, sum(first.simulation.ran.values()), first.simulation.calls)
    rng = random.Random(seed)
    plan = draw_plan(Faults() if faults is None else faults, size, rng)
    simulation.faults = [str(each) for each in (*plan.runtime, *plan.storage)]
    second = _SimulatedRun(scenario, simulation, rng, plan, durability)
    second.known_failures |= first.known_failures
    second.run()
    if deterministic:
        second.compare(first)
    return simulation


class _Scenario:
    """The graph, inputs, answers and options of both runs."""

    def __init__(
        self,
        graph: GraphUnderTest | Callable[[], GraphUnderTest],
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
        self._last: tuple[GraphUnderTest, GraphUnderTest] | None = None

    def make(self) -> GraphUnderTest:
        """Return the graph of a process that has just started."""
        return self._graph if isinstance(self._graph, Graph) else self._graph()

    def bind(self, graph: GraphUnderTest, saver: BaseCheckpointSaver, environment: VirtualClock) -> GraphUnderTest:
        """Return a copy of the graph that uses the given saver and clock."""
        if self._last is None or self._last[0] is not graph:
            stores = isinstance(graph.checkpointer, BaseCheckpointSaver)
            self._last = graph, graph if stores else graph.with_checkpointer(saver)
            # Computed lazily from the nodes' code, which costs more than a short run: copies inherit the result.
            _ = graph._definition.subgraph_index.by_node
        bound = copy.copy(self._last[1])
        bound._definition = structs.replace(bound._definition.with_checkpointer(saver), environment=environment)
        return bound

    def answer(self, question: Interrupt) -> Any:
        if self._answers is None:
            raise ValueError(f"the graph asks {question.value!r}: pass the answer, simulate(..., answers=...)")
        return self._answers[question.value] if isinstance(self._answers, Mapping) else self._answers(question)


class _ProcessSaver(FaultySaver):
    """The saver of one simulated process.

    Operations take a random number of event-loop turns before and after they take effect, so that the schedule can
    place other tasks and cancellations there, as with a real database.
    """

    rng: random.Random

    async def around(self, verb: Any, call: Callable[[], Any]) -> Any:
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            await asyncio.sleep(0)
        result = await super().around(verb, call)
        for _ in range(self.rng.choice((0, 0, 0, 1))):
            await asyncio.sleep(0)
        return result


class _Trace(list[str]):
    """Lines of a trace, each with the step and the time at which it was appended."""

    loop: SimulatedLoop

    def append(self, line: str) -> None:
        super().append(f"{self.loop.steps:6} {self.loop.time():8.1f}  {line}")


class _SimulatedRun:
    """One run of a conversation with a graph, to its end, with the faults of a plan."""

    def __init__(
        self,
        scenario: _Scenario,
        simulation: Simulation,
        rng: random.Random,
        plan: FaultPlan,
        durability: Durability | None,
    ) -> None:
        self.simulation = simulation
        self.known_failures: set[tuple[str, str]] = set()  # failures that are the graph's own
        self.clock = VirtualClock(seed=rng.getrandbits(32))
        self.loop = SimulatedLoop(self.clock, random.Random(rng.getrandbits(32)))
        self.trace = simulation.trace = _Trace()
        self.trace.loop = self.loop
        self.stored: StoredCheckpoints = {}
        self._scenario = scenario
        self._rng = rng
        self._undisturbed = not plan.runtime and not plan.storage
        self._stores_synchronously = durability in (None, "sync")
        self._steps = {each.at: each for each in plan.runtime if each.kind in ("crash", "cancel", "cancel natively")}
        self._failing_starts = {each.at for each in plan.runtime if each.kind == "fail"}
        self._rivals = {each.at: each for each in plan.runtime if each.kind == "rival"}
        self._started = 0
        self._unbound = scenario.make()
        self._inner = InMemorySaver(codec=scenario.codec, clock=self.clock.now)
        self._recorder = RecordingSaver(self._inner, self.trace)
        self._saver = _ProcessSaver(self._recorder, *plan.storage, clock=self.clock)
        self._saver.rng = rng
        self._graph = self._bind(self._unbound, self._saver)
        self._cancel_scope: anyio.CancelScope | None = None
        self._host: asyncio.Task[Any] | None = None
        self._cancelled = False  # the plan has cancelled this call
        self._cancelled_natively = False  # it did so with `Task.cancel()`, not with a scope
        self._held_before = False  # an earlier call could not release the thread
        self._has_rival = False  # another process resumes the thread during this call
        self._fault_count = 0  # faults outside of the saver so far
        self._storage_faults_before = 0  # faults of the saver before the last call that began with a free thread
        self._recorder.on_takeover = self._on_takeover
        # Broken promises found in code whose exceptions the graph or another task would handle: raised after the call.
        self._violations: list[str] = []

    @property
    def operations(self) -> int:
        return len(self._saver.operations)

    def run(self) -> None:
        """Hold the conversation and check the promises."""
        self.loop.before_step = self._inject_fault if self._steps else None
        token = ON_CODE_START.set(self._on_code_start)
        try:
            try:
                self.loop.run(self._run_and_check())
            finally:
                self.simulation.seconds = self.clock.monotonic()
                self.loop.close()
        except StuckError as error:
            raise self._broken(f"P7: {error}") from error
        finally:
            ON_CODE_START.reset(token)
        if self.loop.errors:
            raise self._broken(f"P9: an error was not reported: {self.loop.errors[0]}")

    def compare(self, other: _SimulatedRun) -> None:
        """Check that this run ends as the undisturbed one does (P2)."""
        mine, theirs = self.simulation, other.simulation
        if (mine.failure, theirs.failure) != (None, None) and mine.failure != theirs.failure:
            raise self._broken(f"P2: the undisturbed run ends with {theirs.failure}, and this one with {mine.failure}")
        here, there = self.stored, other.stored
        if self._scenario.options.get("durability") == "exit":
            # One checkpoint per call: how many there are depends on the faults, so only the last ones are comparable.
            here, there = _final_values(here), _final_values(there)
        if mine.failure is None and here != there:
            differing = describe_difference(there, here, self._codec)
            raise self._broken(f"P2: what is stored differs from the undisturbed run: {differing}")

    @property
    def _codec(self) -> Codec:
        return self._graph._definition.codec or self._inner.codec

    def _bind(self, graph: GraphUnderTest, saver: BaseCheckpointSaver) -> GraphUnderTest:
        return self._scenario.bind(graph, saver, self.clock)

    def _broken(self, promise: str) -> SimulationError:
        self.trace.append(f"BROKEN: {promise}")
        return SimulationError(self.simulation, promise)

    def _inject_fault(self, step: int) -> None:
        fault = self._steps.pop(step, None)
        if fault is None:
            return
        self._fault_count += 1
        self.trace.append(f"FAULT: {fault}")
        if fault.kind == "crash":
            self._saver.crash()
            if self._cancel_scope is not None:
                self._cancel_scope.cancel()
        elif self._cancel_scope is not None and self._host is not None:
            self._cancelled, self._cancelled_natively = True, fault.kind == "cancel natively"
            if fault.kind == "cancel":
                self._cancel_scope.cancel()
            else:
                self._host.cancel()

    def _on_code_start(self, running: AttemptContext) -> None:
        """Record that the code of a node or task starts, check P5, and raise a planned failure."""
        task, lease = running.task, running.graph.run.lease
        name = task.node.name
        self._started += 1
        self.simulation.ran[name] += 1
        inside = f" in {short_namespace(running.graph.ns)}" if running.graph.ns else ""
        self.trace.append(f"runs: {name} ({task.id[:8]}){inside}")
        # A run that has lost its lease may not know of results that the new holder of the thread has recorded.
        holds = isinstance(lease, ThreadLease) and lease.token.epoch == self._recorder.epoch
        if holds and task.id in self._recorder.recorded:
            self._violations.append(f"P5: {name!r} runs although its result is recorded (task {task.id})")
        if self._started in self._failing_starts:
            self._fault_count += 1
            self.trace.append(f"FAULT: the code of {name} fails")
            raise SimulatedFailure(f"planned for node execution {self._started}")

    async def _run_and_check(self) -> None:
        """Hold the conversation, then check the chain and number of the stored checkpoints."""
        try:
            await self._converse()
        except _BrokenPromise as error:
            raise self._broken(str(error)) from error
        self.stored = await read_checkpoints(self._inner)
        wrong = find_chain_error(self.stored, gaps=self._scenario.options.get("durability") == "exit")
        if wrong is not None:
            raise self._broken(f"P6: {wrong}")
        count = sum(map(len, self.stored.values()))
        if count != len(self._recorder.committed):
            raise self._broken(f"P4: {len(self._recorder.committed)} checkpoints were stored, and {count} are there")

    async def _converse(self) -> None:
        """Call the graph with inputs, answers or None, as its state requires, until nothing is left to do."""
        turn, inputs = 0, self._scenario.inputs
        given: Any = inputs[0]
        before: tuple[object, ...] | None = None
        for _ in range(MAX_CALLS):
            happened = self._fault_count + len(self._saver.happened)
            error = await self._call_once(given, turn)
            state = await self._read_state()
            self.simulation.values = state.values
            if dict(state.metadata or {}).get(TURN_KEY) != turn:
                if error is None and given is not None:
                    raise _BrokenPromise("P4: a call has returned, and nothing of it is stored")
                given = inputs[turn]  # the last call failed before it had stored its input
            elif state.interrupts and (error is None or self._rng.random() < 0.5):
                given = self._answers(state.interrupts)
            elif state.tasks:  # also if all have results, and the superstep was not committed
                given = None
            else:
                turn += 1
                if turn == len(inputs):
                    return
                given = inputs[turn]
            if isinstance(error, ThreadBusyError):
                await asyncio.sleep(BUSY_RETRY_SECONDS)  # after enough pauses, a lease that was not released expires
                continue
            if error is None or happened != self._fault_count + len(self._saver.happened):
                before = None
                continue
            # The same failure twice at one checkpoint, without a fault in between, is the graph's own and permanent.
            now = (_error_key(error), dict(state.config.get("configurable", {})).get("checkpoint_id"))
            if now == before:
                self.simulation.failure = _error_key(error)
                return
            before = now
        raise _BrokenPromise(f"the conversation has not ended after {MAX_CALLS} calls")

    def _answers(self, asked: Sequence[Interrupt]) -> Command:
        """Answer the open questions: all of them, or in a disturbed run a random choice."""
        chosen = list(asked)
        if not self._undisturbed and len(chosen) > 1:
            chosen = self._rng.sample(chosen, self._rng.randint(1, len(chosen)))
        return Command(resume={each.id: self._scenario.answer(each) for each in chosen})

    def _on_takeover(self) -> None:
        """Check P6 when a process acquires a thread that was not released: its lease must have expired for a reason."""
        release_may_have_failed = (
            self._saver.crashed or self._cancelled_natively or self._storage_faults_before != len(self._saver.happened)
        )
        if not self._held_before and not release_may_have_failed:
            self._violations.append("P6: the lease of a run has expired although the run continues")

    async def _read_state(self) -> StateSnapshot:
        """Return the state of the thread as the next caller sees it, and check P8."""
        state = await self._bind(self._unbound, self._inner).aget_state(THREAD_ID)
        asked = {question.id for question in state.interrupts}
        again = sorted(asked & self._recorder.answered)
        if again:
            raise _BrokenPromise(f"P8: questions are open although their answers are stored: {', '.join(again)}")
        return state

    async def _call_once(self, given: Any, turn: int) -> BaseException | None:
        """Call the graph once, with its planned faults. Return the exception that it raised, or None."""
        self.simulation.calls += 1
        number = self.simulation.calls
        if self._saver.crashed:
            await self._restart()
        self._held_before = self._recorder.held
        if not self._held_before:
            self._storage_faults_before = len(self._saver.happened)
        what = "answers" if isinstance(given, Command) else "resume" if given is None else "a new input"
        self.trace.append(f"call {number}: {what}")
        config = {
            **self._scenario.config,
            "configurable": {**self._scenario.config.get("configurable", {}), "thread_id": THREAD_ID},
            "metadata": {**self._scenario.config.get("metadata", {}), TURN_KEY: turn},
        }
        errors: list[BaseException] = []
        watched = asyncio.current_task()
        rival = self._rivals.pop(number, None)
        self._has_rival = has_rival = rival is not None and number > 1  # before the first call nothing can be resumed

        async def call() -> None:
            self._host = asyncio.current_task()
            self._cancelled = self._cancelled_natively = False
            try:
                with anyio.CancelScope() as scope:
                    self._cancel_scope = scope
                    try:
                        await self._invoke_or_stream(given, config)
                    finally:
                        self._cancel_scope = None
                        left = asyncio.all_tasks() - {watched, self._host}
                        if left and not has_rival:
                            names = ", ".join(sorted(task.get_name() for task in left))
                            errors.append(_BrokenPromise(f"P7: the call has returned, and tasks still run: {names}"))
                        if self.loop.turns and not has_rival:
                            errors.append(_BrokenPromise("P7: the call has returned, and a plain function still runs"))
                if scope.cancelled_caught:
                    errors.append(asyncio.CancelledError())
            except BaseException as error:
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    raise
                errors.append(error)
                if isinstance(error, asyncio.CancelledError) and self._host is not None:
                    # The cancellation is handled here: asyncio requires code that does so to withdraw the requests.
                    while self._host.cancelling():
                        self._host.uncancel()
            self._host = None

        async with anyio.create_task_group() as group:
            start_soon(group, call)
            if rival is not None and has_rival:
                start_soon(group, self._rival, rival, config)
        # No scope shields from `Task.cancel()`: it may cut the release off in the saver, as a fault of the saver may.
        # The lease expires by itself then.
        release_may_have_failed = (
            self._saver.crashed or self._cancelled_natively or self._storage_faults_before != len(self._saver.happened)
        )
        if self._recorder.held and not self._held_before and not release_may_have_failed:
            self._violations.append("P6: the call has ended, and the thread was not released")
        if self._violations:
            raise _BrokenPromise(self._violations[0])
        for error in errors:
            self.trace.append(f"raised: {type(error).__name__}: {error}")
            self._check(error)
        if not errors:
            self.trace.append("returned")
        if self._saver.crashed:
            await self._restart()
        return errors[0] if errors else None

    async def _restart(self) -> None:
        self.trace.append("a new process starts")
        await self._saver.restart()
        self._unbound = self._scenario.make()
        self._graph = self._bind(self._unbound, self._saver)

    async def _invoke_or_stream(self, given: Any, config: dict[str, Any]) -> None:
        """Run the graph by `ainvoke` or by a stream whose reader is sometimes slow, at random."""
        options = self._scenario.options
        if self._rng.random() < 0.5:
            await self._graph.ainvoke(given, config, **options)
            return
        async with self._graph.astream(given, config, stream_mode=["tasks", "checkpoints"], **options) as chunks:
            async for labelled in chunks:
                mode, chunk = cast("tuple[str, Mapping[str, Any]]", labelled)
                if self._stores_synchronously and not self._saver.crashed:
                    self._check_chunk(mode, chunk)
                for _ in range(self._rng.choice((0, 0, 0, 2))):
                    await anyio.lowlevel.checkpoint()

    def _check_chunk(self, mode: str, chunk: Mapping[str, Any]) -> None:
        """Check that a stream shows only what is stored (P4)."""
        if mode == "checkpoints":
            at = checkpoint_of_chunk(chunk)
            if at is not None and at not in self._recorder.committed:
                raise _BrokenPromise(f"P4: a stream shows checkpoint {at} as stored, and it is not")
        elif (
            chunk.get("error", "planned") is None
            and not chunk["interrupts"]
            and chunk["id"] not in self._recorder.recorded
        ):
            raise _BrokenPromise(f"P4: a stream shows {chunk['name']!r} as finished, and its result is not stored")

    async def _rival(self, rival: PlannedFault, config: dict[str, Any]) -> None:
        """Resume the thread as another process, whose saver has no faults."""
        for _ in range(rival.delay):
            await anyio.lowlevel.checkpoint()
        saver = _ProcessSaver(self._recorder)
        saver.rng = self._rng
        graph = self._bind(self._scenario.make(), saver)
        if not (await graph.aget_state(THREAD_ID)).tasks:
            return
        self._fault_count += 1
        self.trace.append("FAULT: another process resumes the thread")
        try:
            await graph.ainvoke(None, config, **self._scenario.options)
        except ThreadBusyError as error:
            self.trace.append(f"the other process: {error}")
        except Exception as error:
            self.trace.append(f"the other process raised: {type(error).__name__}: {error}")
            try:
                self._check(error)
            except _BrokenPromise as broken:
                self._violations.append(str(broken))
        else:
            self.trace.append("the other process returned")

    def _check(self, error: BaseException) -> None:
        """Check that an exception was raised by the plan or by the graph's code (P9)."""
        for leaf in leaves_of(error):
            if isinstance(leaf, _BrokenPromise) or (isinstance(leaf, GraphRecursionError) and self._undisturbed):
                raise leaf
            planned = (
                isinstance(leaf, (Crash, SimulatedFailure, ThreadBusyError))
                or (isinstance(leaf, asyncio.CancelledError) and (self._cancelled or self._saver.crashed))
                or (isinstance(leaf, StorageError) and bool(self._saver.happened))
                or (isinstance(leaf, InvalidResumeError) and self._has_rival)  # another process was faster
            )
            if planned or _error_key(leaf) in self.known_failures:
                continue
            if not _has_location_note(leaf):
                raise _BrokenPromise(
                    f"P9: neither the plan nor the graph has raised this: {type(leaf).__name__}: {leaf}"
                ) from leaf
            self.known_failures.add(_error_key(leaf))


class _BrokenPromise(BaseException):
    """A broken promise. A `BaseException`, so that no code that handles failures catches it."""


def _has_location_note(error: BaseException) -> bool:
    """Return True if a note on the exception names its node or task: the graph's code has raised it."""
    notes: Sequence[str] = getattr(error, "__notes__", ())
    return any(note.startswith(("in node ", "raised by ")) for note in notes)


def _final_values(stored: StoredCheckpoints) -> StoredCheckpoints:
    """Reduce the checkpoints to the values of the root graph's last one."""
    return {"": [{"values": row["values"]} for row in stored.get("", [])[-1:]]}


def _error_key(error: BaseException) -> tuple[str, str]:
    return type(error).__name__, str(error)
