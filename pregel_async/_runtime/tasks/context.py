"""What a running node reaches: the run around it, what it was called with, and what it may ask.

`CURRENT` names the node that the running code belongs to, in its tasks and worker threads too, as a context variable
does. What follows from it: who asks a question, whose subgraph a graph's run is, and whose call a task is.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Never, TypeVar, cast

import msgspec

from checkpoint_savers import ports
from checkpoint_savers.records import CheckpointId, TaskId

from ..._core.board import Board
from ..._core.ids import interrupt_id
from ..._core.isolation import isolate, own, own_as_it_is
from ..._core.program import Node, Program
from ..._core.stop import AT_BREAKPOINT, Stop, drained
from ..._core.task import Finished, Outcome, Task
from ..._message_ids import TASK, derive_message_id, fingerprint
from ...errors import (
    CallsChangedError,
    EmptyChannelError,
    GraphInterrupt,
    InvalidUpdateError,
    NoCheckpointerError,
    NodeError,
    OutsideRunError,
    QuestionChangedError,
    QuestionChangedWarning,
)
from ...types import Command, Interrupt, RunnableConfig, StreamWriter
from ..observing.observation import NOT_OBSERVED, UNOBSERVED_ATTEMPT, AttemptObservation, Observation
from ..persistence.digests import NOTHING_ASKED, RUNS_GRAPH, Digests, is_changed
from ..persistence.lease import ThreadLease
from ..persistence.spending import Amount, Spending
from ..persistence.unstored import NoLease, Persistence
from ..platform.environment import Environment
from ..platform.event_loops import loop
from ..streaming.publisher import EventPublisher
from ..streaming.run_events import NO_READER, RunEvents
from ..streaming.subscription import Subscription
from .control import RunControl
from .kept_results import Results
from .retries import SINGLE_ATTEMPT, Attempts
from .run_options import RunOptions
from .slots import UNLIMITED, ConcurrencyLimiter, Slot
from .stream_writer import Writer
from .timeouts import AttemptWatch
from .worker_threads import NO_FENCE, AbandonFence

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultedTypeVar

    ContextT = DefaultedTypeVar("ContextT", default=Any)
else:
    ContextT = TypeVar("ContextT")

Refusal = CallsChangedError | QuestionChangedError | NoCheckpointerError
RefusalT = TypeVar("RefusalT", bound=Refusal)

PREVIOUS: Final = "__previous__"
"""The channel of what an entrypoint saved for its next run."""

ROUTER_BASE: Final = 1 << 20
"""From where what a node's routers ask, call and run is counted: a resume may run them without the node."""

CONCURRENT_BASE: Final = 1 << 32
"""From where the numbers are that are made of what is asked, called or run, and not counted."""

NAMED: Final = 1 << 49
"""From where the numbers of calls are that are identified by a name. (Those from `CONCURRENT_BASE` end below.)"""

INSTEAD: Final = 1 << 50
"""From where the numbers are of calls that run in the place of another, whose record is kept."""


_NO_NAMES: set[str] = set()
"""In place of the names that were given to calls, before the first: most runs have none."""


def _beat_nothing() -> None:
    """The heartbeat of what has no timeout."""


class ExecutionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node runs.

    Attributes:
        task_id: structural: the same on every attempt, replay, resume and fork. Fit as an idempotency key.
        thread_id: None when the run has no thread.
        run_id: of the call.
        checkpoint_id: the checkpoint on which the superstep was planned; None when nothing is stored.
        checkpoint_ns: the task's namespace: what the state of a subgraph that it runs is stored under.
        node_attempt: which attempt at the task this is, from 1.
        node_first_attempt_time: when the first attempt began, in unix seconds; None where there is to be one.
    """

    task_id: TaskId
    thread_id: str | None
    run_id: str
    checkpoint_id: CheckpointId | None
    checkpoint_ns: str
    _names_the_run: ClassVar[bool] = True  # see NAMES_THE_RUN

    node_attempt: int = 1
    node_first_attempt_time: float | None = None


class Runtime(msgspec.Struct, Generic[ContextT], frozen=True, kw_only=True):
    """What a node gets besides its input; ask for it with a parameter annotated `Runtime[Context]`, or named `runtime`.

    Attributes:
        context: what the call was given as `context=`; None without.
        store: what the graph, or one around it, was compiled with as `store=`; None without.
        stream_writer: writes to the `custom` and `messages` streams; does nothing when nobody reads them.
        previous: what an entrypoint saved in the thread's last run; None elsewhere.
        execution_info: where the node runs.
        control: what the call, or one around it, was given as `control=`; None without.
        heartbeat: call it to say that the node is at work, where its idle timeout would not see that. Any thread may.
    """

    context: ContextT
    store: ports.BaseStore | None
    _names_the_run: ClassVar[bool] = True  # see NAMES_THE_RUN

    stream_writer: StreamWriter
    previous: Any
    execution_info: ExecutionInfo
    control: RunControl | None = None
    heartbeat: Callable[[], None] = _beat_nothing


class Calls:
    """The tasks that a node has called: none. `calls.CalledTasks` overrides all of this.

    Attributes:
        any: the node has called some.
    """

    any = False

    async def join(self) -> None:
        """Wait until all have ended. Raises what one of them raised and nobody was told."""

    async def pause(self) -> None:
        """Wait until all have ended, as their caller stops to ask."""

    def failures(self) -> list[BaseException]:
        """What tasks raised that have ended and nobody was told, in the order of the calls. Now somebody is."""
        return []

    def stop(self) -> None:
        """Cancel those that go on."""

    async def end(self) -> None:
        """Cancel those that go on, and wait until they have ended."""


NO_CALLS = Calls()


class RunContext:
    """What a call of a graph, and the graphs that its nodes run, share.

    Attributes:
        run_id: the call's.
        scope: the thread's id; the run's when it has no thread. Task ids are made in it.
        hold: the thread's lease; `NoLease` when nothing is stored.
        is_stored: the called graph is stored.
        answers: question id -> answer: all that were given in the open superstep of the root graph.
        given: those among them that this call brought.
        asked: the questions that they answer.
        travels: namespace -> checkpoint: where graphs that nodes run are to go on from. Each is used once.
        stop: why a graph of the run has stopped with work left.
        spending: what the run spends.
        loop_thread: the thread that the run's event loop is in.
        loop: the event loop's ways.
        watch: see `WATCH`.
        warned: the nodes that got an answer to a changed question, and of which a warning was issued.
    """

    __slots__ = (
        "answers",
        "asked",
        "environment",
        "given",
        "is_stored",
        "lease",
        "loop",
        "loop_thread",
        "run_id",
        "scope",
        "spending",
        "stop",
        "travels",
        "warned",
        "watch",
    )

    def __init__(
        self, environment: Environment, run_id: str, scope: str, lease: ThreadLease | NoLease, spending: Spending
    ) -> None:
        self.stop: Stop = AT_BREAKPOINT
        self.spending = spending
        self.environment = environment
        self.run_id = run_id
        self.scope = scope
        self.lease = lease
        self.is_stored = not isinstance(lease, NoLease)
        self.answers: dict[str, Any] = {}
        self.given: Mapping[str, Any] = {}
        self.asked = NOTHING_ASKED
        self.travels: dict[str, CheckpointId] = {}
        self.loop_thread = threading.get_ident()
        self.loop = loop()
        self.watch = WATCH.get()
        self.warned: dict[str, None] = {}

    def answered(self, task: TaskId) -> bool:
        """Return True if a question was answered that the task has asked, or something that it called.

        Answers to its caller's own questions, and to those of its siblings, do not count.
        """
        askers = self.lease.askers
        return any(question not in askers or task in askers[question] for question in self.answers)


class GraphContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes of one graph's run share.

    Attributes:
        run: of the call.
        program: the graph.
        ns: its namespace.
        persistence: where it is stored, or that it is not.
        events: what it shows, and stores of that.
        observation: the run, as it is observed.
        config: the call's settings, merged with those of the graphs graph.
        options: what `compile` and the call say of the run.
        outer: the node that runs this graph, then the node that runs that one's graph, and so on; none for the graph
            that was called.
        limiter: for as many tasks as may run at once; None for all.
        control: stops the run from outside; None when nobody can.
        call: runs a task that a node calls: gives its recorded result, or what becomes of it.
        results: of its nodes, kept from run to run; None when none are.
        is_timed: a superstep may run out of time. Then, as long as it runs,
        open_attempts: the attempts that are under way.
        unrecorded: what storing the result of a called task has failed with. Whatever the node makes of it, the
            superstep ends with that error alone.
        overhears: makes models that a node calls show what they say, given the node's writer; None when nobody reads
            it.
    """

    run: RunContext
    program: Program
    ns: str
    persistence: Persistence
    events: RunEvents = NO_READER
    observation: Observation = NOT_OBSERVED
    config: RunnableConfig
    options: RunOptions
    outer: tuple[AttemptContext, ...] = ()
    limiter: ConcurrencyLimiter | None = None
    control: RunControl | None = None
    call: Callable[[AttemptContext, Task], Awaitable[Outcome]]
    results: Results | None = None
    is_timed: bool = False
    open_attempts: set[AttemptContext] = msgspec.field(default_factory=set)
    unrecorded: list[BaseException] = msgspec.field(default_factory=list)
    overhears: Callable[[StreamWriter], AbstractContextManager[None]] | None = None

    def stops(self) -> bool:
        """Return True if the run is asked to stop, and let its call end with that."""
        reason = None if self.control is None else self.control.drain_reason
        if reason is None:
            return False
        if not self.run.stop.errors:
            self.run.stop = drained(reason)
        return True

    def enclosing(self, name: str) -> bool:
        """Whether a graph around this one, or the node that it is in one, has this name."""
        return any(name in (node.graph.program.name, node.task.node.name) for node in self.outer)


class AttemptContext:
    """One attempt at one task: what the node's code reaches.

    Attributes:
        graph: the graph's run.
        board: as the superstep reads it.
        task: what runs.
        open: the questions that it, or what it called, has asked in vain, by their place in its code.
        positions: how many questions, calls and graph runs it has counted: the position of the next one.
        calls: the tasks that it has called.
        host: the event loop's task that its code runs in.
        slot: its slot among the tasks that may run at once.
        worker: the thread that its plain function runs in; 0 for none.
        owed:  subscriptions that it has shown more than their readers take.
        held_back: the run was asked to stop while its plain function waited for a worker thread or process: the
            function was not called.
        fence: around that thread, when a cancellation may leave it behind.
        callers: the node that called this one, or runs its graph; then the caller of that, and so on.
        attempts: the attempts at the task so far.
        failures: what it handles, if it is an error handler; else none.
        watches: that of its timeout; none when it may take as long as it likes.
        observed: the attempt, as it is observed.
        refusals: the node, or one that it calls or runs, has asked for something else than is recorded, or asks
            a question that cannot be stored. The attempt fails with the last, also when the node's code catches it.
    """

    __slots__ = (
        "_added",
        "_concurrent",
        "_counts",
        "_ended",
        "_names",
        "attempts",
        "board",
        "callers",
        "calls",
        "failures",
        "fence",
        "graph",
        "held_back",
        "host",
        "observed",
        "open",
        "owed",
        "positions",
        "refusals",
        "slot",
        "task",
        "watches",
        "worker",
    )

    def __init__(
        self,
        graph: GraphContext,
        board: Board,
        task: Task,
        attempts: Attempts = SINGLE_ATTEMPT,
        failures: tuple[NodeError, ...] = (),
    ) -> None:
        self.graph = graph
        self.board = board
        self.task = task
        self.open: dict[int, tuple[Interrupt, ...]] = {}
        self.positions = 0
        self.calls: Calls = NO_CALLS
        self.host = graph.run.loop.current_task()
        self.slot = UNLIMITED if graph.limiter is None else Slot(graph.limiter)
        self._ended = False
        caller = CURRENT.get()
        self.callers: tuple[AttemptContext, ...] = () if caller is None else (caller, *caller.callers)
        self.attempts = attempts
        self.failures = failures
        self.watches: tuple[AttemptWatch, ...] = ()
        self.observed: AttemptObservation = UNOBSERVED_ATTEMPT
        self._counts: dict[str, int] = {}
        self._concurrent: dict[bytes, tuple[object, int]] = {}
        self._added: dict[str, itertools.count[int]] = {}
        self._names: set[str] = _NO_NAMES
        self.refusals: tuple[Refusal, ...] = ()
        self.worker = 0
        self.held_back = False
        self.owed: list[Subscription] = []
        node = task.node
        self.fence = NO_FENCE
        if node.abandons:
            self.fence = AbandonFence(f"node {node.name!r}, superstep {task.step}, task {task.id}")

    def chain(self) -> Iterator[AttemptContext]:
        """This node, and those in which it runs, from the inside out."""
        yield self
        yield from self.callers

    def chain_in_graph(self) -> Iterator[AttemptContext]:
        """Those of them that are of the same run of the same graph: the node, and the tasks that called it."""
        return itertools.takewhile(lambda each: each.graph is self.graph, self.chain())

    def chain_in_run(self) -> Iterator[AttemptContext]:
        """Those of them that are of the same run."""
        return itertools.takewhile(lambda each: each.graph.run is self.graph.run, self.chain())

    @property
    def publisher(self) -> EventPublisher:
        """Of its graph's run."""
        return self.graph.events.publisher

    @property
    def loop_thread(self) -> int:
        """The thread that the run's event loop is in."""
        return self.graph.run.loop_thread

    @property
    def ended(self) -> bool:
        """Whether it has ended, or a node in which it runs."""
        return any(each._ended for each in self.chain())

    @property
    def is_handler(self) -> bool:
        """True in an error handler, and in what it calls. It gets the exception itself at first, and its record when it
        runs again: what it makes of their texts differs, and is not compared."""
        return any(each.failures for each in self.chain())

    def check(self, what: str) -> None:
        """Refuse what code of it does late.

        Raises:
            OutsideRunError: it has ended, or has left behind the thread that it ran in.
        """
        self.fence.check(what)
        if self.ended:
            raise OutsideRunError(
                f"{what} was called for node {self.task.node.name!r}, which has ended: wait in the node for whatever "
                "it starts"
            )

    def end(self) -> None:
        """Code of it that goes on all the same reaches nothing any more."""
        self._ended = True

    async def settle(self) -> None:
        """Wait until the readers have caught up with what it has shown."""
        owed, self.owed = self.owed, []
        with self.waiting():
            for subscription in owed:
                await subscription.wait_until_drained()

    @property
    def ns(self) -> str:
        """What the state of graphs that it runs is stored under."""
        own_part = f"{self.task.node.name}:{self.task.id}"
        return f"{self.graph.ns}|{own_part}" if self.graph.ns else own_part

    def in_worker(self, call: Callable[[Any], Any], stops: bool, value: Any) -> Any:
        """Call the node's plain function, in its worker thread.

        Args:
            stops: not if the run was asked to stop meanwhile; see `hold_back`.
        """
        if stops:
            self.hold_back()
        self.worker = threading.get_ident()
        return call(value)

    def is_held_back(self, *, queued: bool) -> bool:
        """Return True if the task is not to begin, as the run is asked to stop.

        What has begun is to end: so retries and error handlers begin, and tasks that a node calls, unless they had to
        wait.

        Args:
            queued: the task had to wait before it could begin.
        """
        return (
            (queued or self.task.is_planned)
            and not self.failures
            and self.attempts.number == 1
            and not self.task.node.hidden
            and self.graph.stops()
        )

    def hold_back(self) -> None:
        """Stop before the node's plain function is called, if the run was asked to stop while that waited for a worker.

        Raises:
            GraphInterrupt: the run was asked to stop. The outcome is `NotStarted`.
        """
        if self.is_held_back(queued=True):
            self.held_back = True
            raise GraphInterrupt(())

    @property
    def retried(self) -> Attempts:
        """Of the outermost, of the node and the tasks whose code this is, that is tried again when it fails."""
        found = SINGLE_ATTEMPT
        for each in self.chain_in_graph():
            found = each.attempts if each.attempts.keeps else found
        return found

    def recorded_instead(self, task: Task) -> str | None:
        """Return the name of the task that is recorded in the place of a call if it was another call; else None."""
        if self.is_handler:
            return None
        digest, _ = self.retried.done.get(task.id, (b"", ()))
        if is_changed(digest, task.digest):
            return task.node.name
        return self.graph.persistence.recorded_instead(task)

    def done_before(self, task: Task) -> tuple[Finished, ...]:
        """What a task gave that an earlier attempt has called too, if it has; where nothing is stored."""
        done = self.retried.done
        return (done[task.id][1],) if task.id in done else ()

    def keep_done(self, task: Task, outcome: Finished) -> None:
        """Keep what a task gave for the next attempt; where nothing is stored."""
        attempts = self.retried
        if attempts.keeps and not self.graph.persistence.is_stored:
            attempts.done[task.id] = task.digest, outcome

    def observe(self, *, routes: bool) -> None:
        """Its code is about to run, in the running context, and somebody observes that."""
        called = not self.task.is_planned and self.callers and self.callers[0].graph is self.graph
        self.observed = self.graph.observation.attempt(
            self.task,
            number=self.attempts.number,
            caller=self.callers[0].observed.started if called else None,
            handles=bool(self.failures),
            routes=routes,
        )

    def stop(self) -> None:
        """It is cancelled: end what it has called, and let it call nothing more. For a thread that waits for a task."""
        self.end()
        self.calls.stop()

    def _watches(self) -> Iterator[AttemptWatch]:
        """Of this node, and of those in which it runs."""
        return (watch for each in self.chain() for watch in each.watches)

    @property
    def is_timed(self) -> bool:
        """Whether this node, or one in which it runs, has a timeout."""
        return any(each.watches for each in self.chain())

    def sign(self) -> None:
        """It has shown, called or run something: a sign of life, of the nodes that it runs in too."""
        for watch in self._watches():
            watch.show()

    def heartbeat(self) -> None:
        """It says that it is at work."""
        for watch in self._watches():
            watch.sign()

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """It waits for a reader: that is not its time."""
        with contextlib.ExitStack() as stack:
            for watch in self._watches():
                stack.enter_context(watch.paused())
            yield

    @contextlib.contextmanager
    def waiting_for_slot(self) -> Generator[None]:
        """It waits until it may begin. That is not its caller's time either, if that has lent its place and waits."""
        with contextlib.ExitStack() as stack:
            for caller in self.callers[:1]:
                if caller.graph is self.graph and not caller.slot.is_held:
                    stack.enter_context(caller.waiting())
            yield

    def ask(self, value: Any) -> Any:
        """The answer, if there is one.

        Raises:
            GraphInterrupt: there is none; with the question.
            QuestionChangedError: the answer is to another question.
            NoCheckpointerError: the run stores nothing, so that no answer could ever come.
            OutsideRunError: the node has ended, so that nobody would be asked.
        """
        self.check("interrupt()")
        self.check_refusal()
        run_context = self.graph.run
        if isinstance(run_context.lease, NoLease):
            *_, root = self.chain_in_run()
            raise self.refuse(NoCheckpointerError(self.task.node.name, root.graph.program.name))
        index = self.number("ask", lambda digests: digests.fingerprint((value,)))
        place = self.next_position(index)
        key = interrupt_id(self.task.id, index)
        answers = run_context.answers
        if key in answers:
            self._compare_question(key, own(value))  # as it was stored
            return isolate(answers[key])
        question = Interrupt(own(value), key)
        self.open[place] = (question,)
        run_context.lease.askers[key] = self._askers()
        raise GraphInterrupt((Interrupt(isolate(question.value), key),))

    def _askers(self) -> tuple[TaskId, ...]:
        """The tasks whose result depends on what this one is answered: itself, and those that called it."""
        return tuple([each.task.id for each in self.chain_in_run()])

    def _compare_question(self, key: str, value: Any) -> None:
        run_context = self.graph.run
        if self.is_handler or not run_context.asked.is_changed(key, value):
            return
        error = QuestionChangedError(key, isolate(run_context.asked.values[key]), value)
        if self.graph.options.changed_questions == "error":
            raise self.refuse(error)
        node = self.task.node.name
        if node not in run_context.warned:
            run_context.warned[node] = None
            warnings.warn(
                QuestionChangedWarning(
                    f"node {node!r} of graph {self.graph.program.name!r} got the answer to a question that it asks "
                    "with another value now; changed_questions='accept' allows that"
                ),
                stacklevel=2,
            )

    def refuse(self, error: RefusalT) -> RefusalT:
        """Note that this attempt, and those in which it runs, fail with an error; return it, to be raised.

        The node's code may catch it, with `except Exception` around a call that may fail, and return a wrong result.
        """
        for each in self.chain():
            each.refusals = (*each.refusals, error)
        return error

    def check_refusal(self) -> None:
        """Raise what this attempt was refused before: code that has caught that must not do more.

        The call that comes next has a record, perhaps, in the place of the one that was refused, and would run again.
        """
        if self.refusals:
            raise self.refusals[-1]

    def questions(self) -> tuple[Interrupt, ...]:
        """All open questions, in the order of their places in the node's code."""
        return tuple(question for place in sorted(self.open) for question in self.open[place])

    def route(self) -> None:
        """The node has spoken. What its routers ask, call and run has numbers of its own: they are the same when only
        the routers run."""
        self._counts = dict.fromkeys(("ask", "call", "run"), ROUTER_BASE)

    @property
    def is_compared(self) -> bool:
        """Whether something of what it asks, calls and runs is recorded, or kept for a retry."""
        return self.graph.persistence.is_stored or self.retried.keeps

    def number_of_call(self, node: Node, hints: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the number of a call of a task; see `number`, and `Digests.of_call` for the arguments."""

        def fingerprint(digests: Digests) -> bytes:
            return digests.fingerprint_of_call(node, hints, args, kwargs)

        return self.number("call", fingerprint, name=node.name, who=node)

    def number(
        self,
        what: Literal["ask", "call", "run"],
        fingerprint: Callable[[Digests], bytes],
        *,
        name: str = "",
        who: object = None,
        ordered: bool = False,
    ) -> int:
        """Which of its questions, calls or runs this is: the same number when the node runs again.

        What the node's own task does comes in the order of its code, and is counted. Tasks and threads that it starts
        run in an order that is not the code's: what they do is known by what is given, and only equal ones by their
        order.

        Args:
            fingerprint: of the question, of the task's name and arguments, or of the graph's name and input.
            name: the task's, or the graph's.
            who: the task's function, or the graph.
            ordered: count in any case.

        Raises:
            InvalidUpdateError: two that differ cannot be told apart.
        """
        run_context, thread = self.graph.run, threading.get_ident()
        if thread == run_context.loop_thread:
            concurrent = run_context.loop.current_task() is not self.host and _BY_THREAD.get() is not self
        else:
            concurrent = thread != self.worker
        if ordered or not concurrent or not self.is_compared:
            number = self._counts.get(what, 0)
            self._counts[what] = number + 1
            return number
        function_fingerprint = fingerprint(self.graph.persistence.digests)
        key = f"{what} {self._counts.get(what, 0) >= ROUTER_BASE} ".encode() + function_fingerprint
        first, again = self._concurrent.get(key, (who, -1))
        if first is not who:
            raise InvalidUpdateError(
                f"node {self.task.node.name!r} runs two different {'tasks' if what == 'call' else 'graphs'} named "
                f"{name!r} with equal input, in concurrent tasks that it started (asyncio.gather, a task group): "
                "when it runs again, their results could not be distinguished. Call one object twice, or give each a "
                "name of its own: task(name=...), compile(name=...)",
                node=self.task.node.name,
            )
        again += 1
        self._concurrent[key] = who, again
        return CONCURRENT_BASE + int.from_bytes(blake2b(key + b" %d" % again, digest_size=6).digest())

    def digest_of_input(self, given: Any) -> bytes:
        """Return the digest of the input of a graph that the node's code runs; empty where it is not compared: None and
        commands are none, and the state that a graph gets as a node is the same for each attempt."""
        persistence = self.graph.persistence
        if not persistence.is_stored or self.is_handler or given is None or isinstance(given, Command):
            return b""
        return b"" if getattr(self.task.node.call, RUNS_GRAPH, False) else persistence.digests.of_input(given)

    def message_id(self, message: Any) -> str:
        """The id of a message without one that the node's own code adds to a list.

        Equal messages are counted, and no others: so it does not depend on the order in which tasks of the node's own
        run.
        """
        content = fingerprint(message)
        number = next(self._added.setdefault(content, itertools.count()))
        return derive_message_id(self.task.id, "add_messages", number, 0, content)

    def number_of_name(self, task: str, key: str) -> int:
        """Return the number of a call that is identified by a name.

        Raises:
            InvalidUpdateError: the attempt has made a call of this name before.
        """
        name = f"{task}\0{key}"
        if self._names is _NO_NAMES:
            self._names = set()
        if name in self._names:
            raise InvalidUpdateError(
                f"node {self.task.node.name!r} makes two calls of task {task!r} with the name {key!r}: give each call "
                "of a node a name of its own",
                node=self.task.node.name,
            )
        self._names.add(name)
        return NAMED + int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).digest())

    def number_instead(self, number: int, digest: bytes) -> int:
        """Return the number of a call that runs although another is recorded in its place: by its arguments, so that it
        is found again."""
        return INSTEAD + int.from_bytes(blake2b(b"%d " % number + digest, digest_size=6).digest())

    def next_position(self, number: int = 0) -> int:
        """The place in the node's code of what it is about to ask, call or run."""
        if number >= CONCURRENT_BASE:
            return number
        place, self.positions = self.positions, self.positions + 1
        return place

    def pass_on(self, questions: tuple[Interrupt, ...]) -> Never:
        """Ask what a run of its own has asked that this node has started."""
        self.open[self.next_position()] = questions
        raise GraphInterrupt(questions)

    def spend(self, name: str, amount: Amount) -> None:
        """Count an amount for the task. See `runtime.spend`."""
        self.check("spend()")
        into = self.graph.persistence.spent_by(self.task.id)
        self.graph.run.spending.spend(into, name, amount, self.graph.options.limits.budgets)

    def inject(self, wanted: tuple[tuple[str, str], ...]) -> dict[str, Any]:
        """The keyword arguments that a node's signature asks for."""
        return {parameter: getattr(self, what) for parameter, what in wanted}

    @property
    def config(self) -> RunnableConfig:
        """The call's settings, and where the node stands. A new one each time."""
        info = self.info
        config: dict[str, Any] = own_as_it_is(self.graph.config)
        config["configurable"] = {**config.get("configurable", {}), "checkpoint_ns": info.checkpoint_ns}
        if info.thread_id is not None:
            config["configurable"]["thread_id"] = info.thread_id
        if info.checkpoint_id is not None:
            config["configurable"]["checkpoint_id"] = info.checkpoint_id
        config["metadata"] = {**config.get("metadata", {})}
        config["run_id"] = info.run_id
        return config  # type: ignore[return-value]  # a RunnableConfig, made key by key

    def configs(self) -> Iterator[RunnableConfig]:
        """The configs of this node and of those around it in the same run: where its own run stands."""
        for each in self.chain_in_run():
            yield each.config

    @property
    def store(self) -> Any:
        return self.graph.options.store

    @property
    def context(self) -> Any:
        return self.graph.options.context

    @property
    def writer(self) -> StreamWriter:
        return Writer(self)

    @property
    def previous(self) -> Any:
        try:
            return self.board.read(PREVIOUS)
        except EmptyChannelError:
            return None

    @property
    def info(self) -> ExecutionInfo:
        run_context = self.graph.run
        return ExecutionInfo(
            task_id=self.task.id,
            thread_id=run_context.lease.thread_id,
            run_id=run_context.run_id,
            checkpoint_id=self.graph.persistence.tip,
            checkpoint_ns=self.ns,
            node_attempt=self.attempts.number,
            node_first_attempt_time=self.attempts.began,
        )

    @property
    def error(self) -> NodeError | None:
        """What an error handler handles."""
        return next(iter(self.failures), None)

    @property
    def runtime(self) -> Runtime[Any]:
        return Runtime(
            context=self.context,
            store=self.store,
            stream_writer=self.writer,
            previous=self.previous,
            execution_info=self.info,
            control=self.graph.control,
            heartbeat=self.heartbeat,
        )


CURRENT: Final = cast("ContextVar[AttemptContext | None]", TASK)
"""The node that the running code belongs to. The variable is made in `_message_ids`, for `add_messages` to read."""


WATCH: ContextVar[Callable[[AttemptContext], object] | None] = ContextVar("pregel_async.watch", default=None)
"""Called before the code of a node or of a task runs. An exception that it raises is that code's failure. It is looked
up once, when the run begins. Simulations use it to see what runs."""


_BY_THREAD: ContextVar[AttemptContext | None] = ContextVar("pregel_async.by_thread", default=None)
"""The node whose plain function, in its worker thread, waits for what the running code does on the event loop."""


@contextlib.contextmanager
def in_order_of(attempt: AttemptContext | None) -> Generator[None]:
    """Hop to the event loop from a node's worker thread: what is done there is as ordered as the thread's own code."""
    mine = attempt is not None and attempt.worker == threading.get_ident()
    token = _BY_THREAD.set(attempt if mine else None)
    try:
        yield
    finally:
        _BY_THREAD.reset(token)


def current(what: str) -> AttemptContext:
    """The running node.

    Raises:
        OutsideRunError: there is none.
    """
    attempt = CURRENT.get()
    if attempt is None:
        raise OutsideRunError(
            f"{what} was called outside of a run: call it in a node, in a task, or in what these call. "
            "A thread of your own does not know its node; start it with contextvars.copy_context().run"
        )
    return attempt
