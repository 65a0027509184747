"""The context of running code, in three layers: `RunContext`, `GraphContext` and `AttemptContext`.

`CURRENT` is the attempt that the running code belongs to. It is a context variable, so the node's child tasks and
worker threads inherit it. It attributes questions, subgraph runs and called tasks to the attempt that makes them.
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
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Never, TypeAlias, TypeVar, cast

import msgspec

from checkpoint_savers import ports
from checkpoint_savers.records import CheckpointId, TaskId

from ..._core.board import Board
from ..._core.ids import interrupt_id
from ..._core.isolation import isolate
from ..._core.ownership import own, own_as_it_is
from ..._core.program import Node, Program, Write
from ..._core.stop import AT_BREAKPOINT, Stop, drained
from ..._core.task import PUSH, ROUTER_BASE, Finished, Outcome, Task
from ..._message_ids import TASK, derive_message_id, fingerprint
from ...errors import (
    CallsChangedError,
    EmptyChannelError,
    GraphInterrupt,
    InvalidAnswerError,
    InvalidUpdateError,
    NoCheckpointerError,
    NodeError,
    OutsideRunError,
    QuestionChangedError,
    QuestionChangedWarning,
)
from ...policies import with_dataclass_fields
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
from .node_record import NodeRecord
from .result_cache import NodeResultCache
from .retries import SINGLE_ATTEMPT, AttemptHistory
from .run_options import RunOptions
from .slots import UNLIMITED, ConcurrencyLimiter, Slot
from .stream_writer import SILENT, Writer
from .timeouts import AttemptTimeout
from .worker_threads import NO_FENCE, AbandonFence

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultedTypeVar

    from .tracing import Tracer  # loaded by programs with langchain-core only

    AttemptTracer: TypeAlias = Tracer["AttemptContext"]
    ContextT = DefaultedTypeVar("ContextT", default=Any)
else:
    AttemptTracer = Any
    ContextT = TypeVar("ContextT")

ReplayRefusal = CallsChangedError | QuestionChangedError | NoCheckpointerError | InvalidAnswerError
RefusalT = TypeVar("RefusalT", bound=ReplayRefusal)

PREVIOUS: Final = "__previous__"
"""The channel with the value that an entrypoint saved for its next run."""

CONCURRENT_BASE: Final = 1 << 32
"""First number that is a digest of the content, and not a count; see `AttemptContext.number`."""

NAMED_BASE: Final = 1 << 49
"""First number of calls that are identified by a name. Digests of 6 bytes from `CONCURRENT_BASE` end below it."""

REPLACEMENT_BASE: Final = 1 << 50
"""First number of calls that run instead of the recorded one, whose record stays."""


_NO_SCHEMA: Final[tuple[dict[str, Any] | None, Callable[[Any], Any]]] = (None, isolate)
"""The schema of a question that takes any answer."""

NODE_METADATA: Final = (
    "langgraph_step",
    "langgraph_node",
    "langgraph_triggers",
    "langgraph_path",
    "langgraph_checkpoint_ns",
)
"""The entries of `config["metadata"]` that describe where a node runs. `AttemptContext.metadata` makes them."""


_NO_NAMES: set[str] = set()
"""The empty set that all attempts share until they make a named call. Most never do, so a set each would be wasted."""


def _no_heartbeat() -> None:
    """The heartbeat of code that has no timeout."""


@with_dataclass_fields
class ExecutionInfo(msgspec.Struct, frozen=True):
    """Where a node runs.

    A unit test may make one: `ExecutionInfo(checkpoint_id="c", checkpoint_ns="", task_id="t")`.

    Attributes:
        checkpoint_id: the checkpoint on which the superstep was planned; None if nothing is stored.
        checkpoint_ns: the task's namespace: subgraphs that it runs store their state under this name.
        task_id: the task's id. It is structural: the same on every attempt, replay, resume and fork, so it may serve as
            an idempotency key.
        thread_id: the thread's id; None if the run has no thread.
        run_id: the id of the call of the root graph; None if a unit test gave none.
        node_attempt: the number of this attempt at the task, from 1.
        node_first_attempt_time: when the first attempt began, in unix seconds; of a node that has neither a retry
            policy nor a parameter for its runtime, when its code first asked for it. None if a unit test gave none.
    """

    checkpoint_id: CheckpointId | None
    checkpoint_ns: str
    task_id: TaskId
    _names_the_run: ClassVar[bool] = True  # see NAMES_THE_RUN

    thread_id: str | None = None
    run_id: str | None = None
    node_attempt: int = 1
    node_first_attempt_time: float | None = None

    def patch(self, **changes: Any) -> ExecutionInfo:
        """Return a copy with other values of some fields."""
        return msgspec.structs.replace(self, **changes)


@with_dataclass_fields
class Runtime(msgspec.Struct, Generic[ContextT], frozen=True, kw_only=True):
    """What a node gets besides its input. A parameter annotated `Runtime[Context]`, or named `runtime`, receives it.

    A unit test may make one, with the fields that the node uses: `node(state, Runtime(context=Context(user="ada")))`.

    Attributes:
        context: the `context=` of the call; None if it had none.
        store: the `store=` with which the graph or an outer graph was compiled; None if there is none.
        stream_writer: writes to the `custom` and `messages` streams; does nothing if no reader has subscribed to them.
        heartbeat: resets the idle timeout, for work that the runtime cannot see. May be called in any thread.
        previous: the value that an entrypoint saved in the thread's last run; None in other nodes.
        execution_info: where the node runs; None only in a runtime that was made without one.
        server_info: None: the field exists for programs that also run on LangGraph's server.
        control: the `control=` of the call or of an outer call; None if there is none.
    """

    context: ContextT = cast("Any", None)
    store: ports.BaseStore | None = None
    _names_the_run: ClassVar[bool] = True  # see NAMES_THE_RUN

    stream_writer: StreamWriter = SILENT
    heartbeat: Callable[[], None] = _no_heartbeat
    previous: Any = None
    # Not declared as optional: in nodes it is never None, and each use would need a check.
    execution_info: ExecutionInfo = cast("Any", None)
    server_info: None = None
    control: RunControl | None = None

    @property
    def drain_requested(self) -> bool:
        """True if the run was asked to stop; see `RunControl`."""
        return self.control is not None and self.control.drain_requested

    @property
    def drain_reason(self) -> str | None:
        """Why the run was asked to stop; None if it was not."""
        return None if self.control is None else self.control.drain_reason

    def merge(self, other: Runtime[ContextT]) -> Runtime[ContextT]:
        """Return a copy with the values of the other runtime's fields that differ from their defaults.

        Args:
            other: the runtime whose values win.

        Returns:
            The copy.
        """
        names, defaults = self.__struct_fields__, self.__struct_defaults__
        given = [(name, getattr(other, name), default) for name, default in zip(names, defaults, strict=True)]
        return self.override(**{name: value for name, value, default in given if value is not default})

    def override(self, **changes: Any) -> Runtime[ContextT]:
        """Return a copy with other values of some fields.

        Args:
            **changes: the values by field.

        Returns:
            The copy.

        Raises:
            TypeError: there is no such field.
        """
        return msgspec.structs.replace(self, **changes)

    def patch_execution_info(self, **changes: Any) -> Runtime[ContextT]:
        """Return a copy with other values of some fields of its `execution_info`.

        Args:
            **changes: the values by field.

        Returns:
            The copy.

        Raises:
            RuntimeError: the runtime has no `execution_info`.
            TypeError: there is no such field.
        """
        if cast("object", self.execution_info) is None:
            raise RuntimeError("this runtime has no execution_info to patch: make it with Runtime(execution_info=...)")
        return self.override(execution_info=self.execution_info.patch(**changes))


class Calls:
    """The tasks that an attempt has called: none. `calls.CalledTasks` overrides all of this.

    Attributes:
        any: True if the attempt has called tasks.
    """

    any = False

    async def join(self) -> None:
        """Wait until all tasks have ended, and raise their unretrieved errors."""

    async def wait_all(self) -> None:
        """Wait until all tasks have ended, because the caller stops at a question."""

    def take_failures(self) -> list[BaseException]:
        """Return unretrieved failures of ended tasks, in call order, and mark them as retrieved."""
        return []

    def cancel_all(self) -> None:
        """Cancel the tasks that still run."""

    async def end(self) -> None:
        """Cancel the tasks that still run, and wait until they have ended."""


NO_CALLS = Calls()


class RunContext:
    """State of one call of a graph, shared with all subgraphs that its nodes run.

    Attributes:
        run_id: the call's id.
        scope: the thread's id, or the run's id if it has no thread. Task ids are derived from it.
        environment: the clock, ids and randomness.
        lease: the thread's lease; `NoLease` if nothing is stored.
        is_stored: True if the called graph is stored.
        answers: question id -> answer: all answers given in the open superstep of the root graph.
        new_answers: the answers among them that this call brought.
        answered_questions: the questions that they answer.
        start_checkpoints: namespace -> checkpoint from which a subgraph starts. Each is used once.
        stop: why a graph of the run has stopped with work left.
        spending: the amounts that the run has spent.
        loop_thread: the id of the thread that runs the event loop.
        loop: the operations of the event loop.
        on_code_start: see `ON_CODE_START`.
        warned: nodes for which a `QuestionChangedWarning` was issued; a dict for its order.
    """

    __slots__ = (
        "answered_questions",
        "answers",
        "environment",
        "is_stored",
        "lease",
        "loop",
        "loop_thread",
        "new_answers",
        "on_code_start",
        "run_id",
        "scope",
        "spending",
        "start_checkpoints",
        "stop",
        "warned",
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
        self.is_stored, self.loop = (False, loop()) if isinstance(lease, NoLease) else (True, lease.loop)
        self.answers: dict[str, Any] = {}
        self.new_answers: Mapping[str, Any] = {}
        self.answered_questions = NOTHING_ASKED
        self.start_checkpoints: dict[str, CheckpointId] = {}
        self.loop_thread = threading.get_ident()
        self.on_code_start = ON_CODE_START.get()
        self.warned: dict[str, None] = {}

    def depends_on_answer(self, task: TaskId) -> bool:
        """Return True if the task, or code that it called, asked a question that was answered.

        Answers to its caller's own questions, and to those of its siblings, do not count.
        """
        askers = self.lease.askers
        return any(question not in askers or task in askers[question] for question in self.answers)


class GraphContext(msgspec.Struct, frozen=True, kw_only=True):
    """State of one graph's run, shared by its nodes.

    Attributes:
        run: the context of the whole call.
        program: the compiled graph.
        ns: the graph's checkpoint namespace.
        persistence: stores the graph's checkpoints and task records, or does nothing.
        events: publishes the graph's events, and stores them with `keep_events=True`.
        observation: notifies the observers of the run.
        config: the call's config, merged with the configs of outer graphs.
        options: the options of `compile` and of the call.
        outer: the attempt that runs this graph, then the attempt that runs that attempt's graph, and so on; empty for
            the root graph.
        limiter: limits how many tasks run at once; None for no limit.
        control: drains the run on request; None if the call has none.
        call: runs a task that a node calls, or returns its recorded outcome.
        results: the cache of the nodes' results; None if the graph has no cache.
        is_timed: True if supersteps have a time limit.
        open_attempts: the running attempts; only filled if `is_timed`.
        unrecorded: errors of storing the results of called tasks. Even if the node catches such an error, the superstep
            ends with it.
        token_listener: returns a context manager for the node's writer, within which chat models stream their tokens
            to that writer; None if no reader has subscribed to them.
        tracer: shows the graph's run to the callbacks of langchain-core; None if langchain-core is not in use.
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
    results: NodeResultCache | None = None
    is_timed: bool = False
    open_attempts: set[AttemptContext] = msgspec.field(default_factory=set)
    unrecorded: list[BaseException] = msgspec.field(default_factory=list)
    token_listener: Callable[[StreamWriter], AbstractContextManager[None]] | None = None
    tracer: AttemptTracer | None = None

    def should_stop(self) -> bool:
        """Return True if a drain is requested, and note it as the reason why the call ends."""
        reason = None if self.control is None else self.control.drain_reason
        if reason is None:
            return False
        if not self.run.stop.errors:
            self.run.stop = drained(reason)
        return True

    def has_enclosing(self, name: str) -> bool:
        """Return True if an outer graph, or the node of an outer graph that runs this one, has this name."""
        return any(name in (node.graph.program.name, node.task.node.name) for node in self.outer)


NO_ATTEMPTS: set[AttemptContext] = set()
"""The open attempts of all graphs whose supersteps have no time limit: none are noted."""


class AttemptContext:
    """One attempt at one task, and the operations that the node's code can reach.

    Attributes:
        graph: the context of the graph's run.
        board: the state that the superstep reads.
        task: the task.
        open_questions: unanswered questions of the attempt, its called tasks and its subgraphs, by position in the
            node's code.
        positions: the position of the next question, call or graph run.
        calls: the tasks that the attempt has called.
        node_record: the record of the node's writes, from its first async router on; None if it is stored already, or
            nothing is stored.
        host: the event loop's task that runs the node's code.
        slot: the attempt's slot of `max_concurrency`.
        worker: the id of the thread that runs the node's plain function; 0 if none does.
        owed: subscriptions whose readers have not yet taken everything that the attempt wrote.
        held_back: True if a drain was requested while the plain function waited for a worker thread or process, and the
            function was not called.
        fence: separates the worker thread from the run after an abandoning cancellation.
        callers: the attempt that called this task or runs its graph, then the caller of that one, and so on.
        attempts: the history of attempts at the task.
        failures: the failure that the task handles, if it is an error handler; else empty.
        timeouts: the attempt's timeout; empty if it has none.
        observed: notifies observers of the attempt.
        pushed: writes that the node's code has made besides its result.
        refusals: errors raised because a question, call or graph run differs from the recorded one, a question cannot
            be stored, or an answer does not fit. The attempt fails with the last one, even if its code catches it.
    """

    __slots__ = (
        "_added",
        "_began",
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
        "node_record",
        "observed",
        "open_questions",
        "owed",
        "positions",
        "pushed",
        "refusals",
        "slot",
        "task",
        "timeouts",
        "worker",
    )

    def __init__(
        self,
        graph: GraphContext,
        board: Board,
        task: Task,
        attempts: AttemptHistory = SINGLE_ATTEMPT,
        failures: tuple[NodeError, ...] = (),
        host: object = None,
    ) -> None:
        self.graph = graph
        self.board = board
        self.task = task
        self.open_questions: dict[int, tuple[Interrupt, ...]] = {}
        self.positions = 0
        self.calls: Calls = NO_CALLS
        self.node_record: NodeRecord | None = None
        self.host = graph.run.loop.current_task() if host is None else host
        self.slot = UNLIMITED if graph.limiter is None else Slot(graph.limiter)
        self._ended = False
        self._began = 0.0
        caller = CURRENT.get()
        self.callers: tuple[AttemptContext, ...] = () if caller is None else (caller, *caller.callers)
        self.attempts = attempts
        self.failures = failures
        self.timeouts: tuple[AttemptTimeout, ...] = ()
        self.observed: AttemptObservation = UNOBSERVED_ATTEMPT
        self._counts: dict[str, int] = {}  # the next number of each kind of operation; see `number`
        # Operations identified by content: the target of the first one, and the index of the last equal one.
        self._concurrent: dict[bytes, tuple[object, int]] = {}
        self._added: dict[str, itertools.count[int]] = {}  # counts equal messages without an id, by content
        self._names: set[str] = _NO_NAMES  # the names of named calls
        self.refusals: tuple[ReplayRefusal, ...] = ()
        self.pushed: tuple[Write, ...] = ()
        self.worker = 0
        self.held_back = False
        self.owed: tuple[Subscription, ...] = ()
        node = task.node
        self.fence = NO_FENCE
        if node.abandons:
            self.fence = AbandonFence(f"node {node.name!r}, superstep {task.step}, task {task.id}")

    def chain(self) -> Iterator[AttemptContext]:
        """Yield this attempt and its callers, innermost first."""
        yield self
        yield from self.callers

    def chain_in_graph(self) -> Iterator[AttemptContext]:
        """Yield the part of `chain` within this graph's run: this attempt, and the tasks that called it."""
        return itertools.takewhile(lambda each: each.graph is self.graph, self.chain())

    def chain_in_run(self) -> Iterator[AttemptContext]:
        """Yield the part of `chain` within this call of a root graph."""
        return itertools.takewhile(lambda each: each.graph.run is self.graph.run, self.chain())

    @property
    def publisher(self) -> EventPublisher:
        """The publisher of the graph's run."""
        return self.graph.events.publisher

    @property
    def loop_thread(self) -> int:
        """The id of the thread that runs the event loop."""
        return self.graph.run.loop_thread

    @property
    def ended(self) -> bool:
        """True if this attempt or one of its callers has ended."""
        return any(each._ended for each in self.chain())

    @property
    def is_handler(self) -> bool:
        """True in an error handler and in code that it calls."""
        # Handlers are exempt from the comparison with records: the first run of a handler gets the exception itself,
        # and a later run the recorded text of it, so their questions and calls may differ without a change of the code.
        return any(each.failures for each in self.chain())

    def check(self, what: str) -> None:
        """Refuse an operation of code that outlives the attempt.

        Args:
            what: names the operation in the message.

        Raises:
            OutsideRunError: the attempt or a caller has ended, or the thread was abandoned.
        """
        self.fence.check(what)
        if self.ended:
            raise OutsideRunError(
                f"{what} was called for node {self.task.node.name!r}, which has ended: wait in the node for whatever "
                "it starts"
            )

    def end(self) -> None:
        """Detach the attempt: later operations of leaked tasks and threads raise `OutsideRunError`."""
        self._ended = True

    async def wait_for_readers(self) -> None:
        """Wait until the readers have caught up with the parts that this attempt wrote."""
        # Swapped before the wait: a write of another task of the node, meanwhile, adds to an empty tuple.
        owed, self.owed = self.owed, ()
        with self.waiting():
            for subscription in owed:
                await subscription.wait_until_drained()

    @property
    def ns(self) -> str:
        """The namespace in which subgraphs of this attempt store their state."""
        return f"{self.graph.ns}|{self.task.namespace}" if self.graph.ns else self.task.namespace

    def in_worker(self, call: Callable[[Any], Any], stops: bool, value: Any) -> Any:
        """Call the node's plain function, in its worker thread.

        Args:
            stops: check for a drain first; see `hold_back`.
            value: the node's input.
        """
        # In the worker, and not before the thread is requested: a drain may come during the wait for the thread.
        if stops:
            self.hold_back()
        self.worker = threading.get_ident()
        return call(value)

    def is_held_back(self, *, queued: bool) -> bool:
        """Return True if the task must not begin, because a drain was requested.

        Tasks that have begun are to finish. Therefore retries and error handlers begin, and so do called tasks that did
        not have to wait.

        Args:
            queued: the task had to wait before it could begin.
        """
        return (
            (queued or self.task.is_planned)
            and not self.failures
            and self.attempts.number == 1
            and not self.task.node.hidden
            and self.graph.should_stop()
        )

    def hold_back(self) -> None:
        """Stop before the node's plain function is called, if a drain was requested while it waited for a worker.

        Raises:
            GraphInterrupt: a drain was requested. The outcome is `NotStarted`.
        """
        if self.is_held_back(queued=True):
            self.held_back = True  # distinguishes this interrupt from a question, for the outcome
            raise GraphInterrupt(())

    @property
    def retry_history(self) -> AttemptHistory:
        """The history of the outermost attempt of this graph's run, in `chain`, that is retried when it fails."""
        # The outermost: its retry runs all inner tasks again, so their results must survive with its history.
        found = SINGLE_ATTEMPT
        for each in self.chain_in_graph():
            found = each.attempts if each.attempts.keeps_results else found
        return found

    def recorded_instead(self, task: Task) -> str | None:
        """Return the name of the recorded task if another call is recorded under this task's id; else None."""
        if self.is_handler:
            return None
        digest, _ = self.retry_history.call_results.get(task.id, (b"", ()))
        if is_changed(digest, task.digest):
            return task.node.name
        return self.graph.persistence.recorded_instead(task)

    def result_of_earlier_attempt(self, task: Task) -> tuple[Finished, ...]:
        """Return the outcome of a task that an earlier attempt called, if nothing is stored; else an empty tuple."""
        done = self.retry_history.call_results
        return (done[task.id][1],) if task.id in done else ()

    def keep_result(self, task: Task, outcome: Finished) -> None:
        """Keep the outcome of a called task for the next attempt, if nothing is stored."""
        # Only without a saver: with one, the task's record serves the next attempt.
        attempts = self.retry_history
        if attempts.keeps_results and not self.graph.persistence.is_stored:
            attempts.call_results[task.id] = task.digest, outcome

    def observe(self, *, routes: bool) -> None:
        """Notify observers that the attempt's code is about to run. Call it in the context of that code."""
        called = not self.task.is_planned and self.callers and self.callers[0].graph is self.graph
        self.observed = self.graph.observation.attempt(
            self.task,
            number=self.attempts.number,
            caller=self.callers[0].observed.started if called else None,
            handles=bool(self.failures),
            routes=routes,
        )

    def stop(self) -> None:
        """Detach the attempt, and cancel the tasks that it has called."""
        # A worker thread may be waiting for such a task, and the run waits for the thread: without the cancellation of
        # the task, neither would end.
        self.end()
        self.calls.cancel_all()

    def _timeouts(self) -> Iterator[AttemptTimeout]:
        """The timeouts of this attempt and its callers."""
        return (timeout for each in self.chain() for timeout in each.timeouts)

    @property
    def is_timed(self) -> bool:
        """True if this attempt or one of its callers has a timeout."""
        return any(each.timeouts for each in self.chain())

    def record_activity(self) -> None:
        """Reset the idle timeouts of this attempt and its callers, because the code wrote, called or ran something."""
        for timeout in self._timeouts():
            timeout.record_activity()

    def heartbeat(self) -> None:
        """Reset the idle timeouts at the code's explicit request, also those that ignore `record_activity`."""
        for timeout in self._timeouts():
            timeout.reset_idle()

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Pause the timeouts while the attempt waits for a reader or a slot: the node does not cause that delay."""
        with contextlib.ExitStack() as stack:
            for timeout in self._timeouts():
                stack.enter_context(timeout.paused())
            yield

    @contextlib.contextmanager
    def waiting_for_slot(self) -> Generator[None]:
        """Pause the caller's timeouts while this task waits for a slot and the caller has lent its own."""
        with contextlib.ExitStack() as stack:
            # Only a caller without its slot waits for this task. One that holds its slot is at work, on its own time.
            for caller in self.callers[:1]:
                if caller.graph is self.graph and not caller.slot.is_held:
                    stack.enter_context(caller.waiting())
            yield

    def ask(self, value: Any, response_schema: Any = None) -> Any:
        """Return the answer to a question, or raise the question.

        Args:
            value: the question.
            response_schema: a JSON schema, or the type of the answer; None for any answer.

        Raises:
            GraphInterrupt: the question has no answer yet.
            InvalidAnswerError: the answer does not fit the type.
            ConfigError: `response_schema` is neither a JSON schema nor a type that can be checked.
            QuestionChangedError: the answer was given to another question.
            NoCheckpointerError: the run stores nothing, so the question could never be answered.
            OutsideRunError: the node has ended.
        """
        self.check("interrupt()")
        self.check_refusal()
        run_context = self.graph.run
        # Refused here, and not when the run stops: the node would look paused, and no call could resume it.
        if isinstance(run_context.lease, NoLease):
            *_, root = self.chain_in_run()
            raise self.refuse(NoCheckpointerError(self.task.node.name, root.graph.program.name))
        described, convert = _NO_SCHEMA if response_schema is None else self._read_schema(response_schema)
        index = self.number("ask", lambda digests: digests.fingerprint((value,)))
        # Advanced before the lookup: an answered question takes a position, too, or the later ones would shift.
        position = self.next_position(index)
        key = interrupt_id(self.task.id, index)
        answers = run_context.answers
        if key in answers:
            self._compare_question(key, own(value))  # as it was stored
            answer = isolate(answers[key])
            return answer if described is None else self._fitted(key, answer, convert)
        question = Interrupt(own(value), key, described)
        self.open_questions[position] = (question,)
        run_context.lease.askers[key] = self._askers()
        # Isolated: the code may catch the exception and change the value, which is not stored yet.
        raise GraphInterrupt((Interrupt(isolate(question.value), key, described),))

    def _read_schema(self, schema: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
        from .answer_schemas import read_schema  # few questions have a schema

        return read_schema(schema)

    def _fitted(self, key: str, answer: Any, convert: Callable[[Any], Any]) -> Any:
        """Return an answer as the type of its question has it, or refuse the answer."""
        from .answer_schemas import MismatchError

        lease = self.graph.run.lease
        assert isinstance(lease, ThreadLease), "a run without a thread has no answers"
        try:
            return convert(answer)
        except MismatchError as mismatch:
            # Noted at the lease, for the records of this task and of its callers in outer graphs.
            lease.refused |= {key}
            error = InvalidAnswerError(self.task.node.name, key, str(mismatch))
            raise self.refuse(error) from mismatch.__cause__

    def _askers(self) -> tuple[TaskId, ...]:
        """Return the tasks whose result depends on an answer to this one: itself, and its callers in the run."""
        return tuple([each.task.id for each in self.chain_in_run()])

    def _compare_question(self, key: str, value: Any) -> None:
        run_context = self.graph.run
        if self.is_handler or not run_context.answered_questions.is_changed(key, value):
            return
        error = QuestionChangedError(key, isolate(run_context.answered_questions.values[key]), value)
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
        """Make this attempt and its callers fail with an error, and return the error for raising."""
        # Raising alone is not enough: the node's code may catch the error, with `except Exception` around a call that
        # may fail, and return a wrong result.
        for each in self.chain():
            each.refusals = (*each.refusals, error)
        return error

    def check_refusal(self) -> None:
        """Raise the last refusal again, if the attempt has had one."""
        # Code that has caught a refusal must not do more: the record of its next call may be stored under the number
        # of the refused one, so that call would run again.
        if self.refusals:
            raise self.refusals[-1]

    def questions(self) -> tuple[Interrupt, ...]:
        """Return all open questions, in the order of their positions in the node's code."""
        return tuple(question for at in sorted(self.open_questions) for question in self.open_questions[at])

    def start_routing(self) -> None:
        """Switch to the numbers of routers, after the node's own code has ended. See `ROUTER_BASE`."""
        self._counts = dict.fromkeys(("ask", "call", "run"), ROUTER_BASE)

    @property
    def is_compared(self) -> bool:
        """True if questions, calls and graph runs are recorded or kept for a retry, and so must be recognised."""
        return self.graph.persistence.is_stored or self.retry_history.keeps_results

    def number_of_call(self, node: Node, hints: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the number of a call of a task; see `number`, and `Digests.of_call` for the arguments."""

        def fingerprint(digests: Digests) -> bytes:
            return digests.fingerprint_of_call(node, hints, args, kwargs)

        return self.number("call", fingerprint, name=node.name, target=node)

    def number(
        self,
        what: Literal["ask", "call", "run"],
        fingerprint: Callable[[Digests], bytes],
        *,
        name: str = "",
        target: object = None,
        ordered: bool = False,
    ) -> int:
        """Return the number of a question, call or graph run: the same number when the node runs again.

        Args:
            what: the kind, each of which is counted separately.
            fingerprint: returns the digest of the question, of the task's name and arguments, or of the graph's name
                and input.
            name: the name of the task or graph.
            target: the task's function, or the graph.
            ordered: count in any case.

        Raises:
            InvalidUpdateError: two different targets have equal names and inputs.
        """
        # Operations of the node's own task come in the order of its code: counting them is stable. Tasks and threads
        # that the node starts run in an order that differs from run to run, so there the content identifies the
        # operation. Only equal operations are counted: exchanging those changes nothing.
        run_context, thread = self.graph.run, threading.get_ident()
        if thread == run_context.loop_thread:
            concurrent = run_context.loop.current_task() is not self.host and _THREAD_CALLER.get() is not self
        else:
            concurrent = thread != self.worker
        if ordered or not concurrent or not self.is_compared:
            number = self._counts.get(what, 0)
            self._counts[what] = number + 1
            return number
        digest = fingerprint(self.graph.persistence.digests)
        key = f"{what} {self._counts.get(what, 0) >= ROUTER_BASE} ".encode() + digest
        first, again = self._concurrent.get(key, (target, -1))
        if first is not target:
            raise InvalidUpdateError(
                f"node {self.task.node.name!r} runs two different {'tasks' if what == 'call' else 'graphs'} named "
                f"{name!r} with equal input, in concurrent tasks that it started (asyncio.gather, a task group): "
                "when it runs again, their results could not be distinguished. Call one object twice, or give each a "
                "name of its own: task(name=...), compile(name=...)",
                node=self.task.node.name,
            )
        again += 1
        self._concurrent[key] = target, again
        return CONCURRENT_BASE + int.from_bytes(blake2b(key + b" %d" % again, digest_size=6).digest())

    def digest_of_input(self, value: Any) -> bytes:
        """Return the digest of the input of a graph that the node's code runs, or b"" if the input is not compared."""
        # None and commands are no inputs, and a graph that is itself a node gets the same state in each attempt.
        persistence = self.graph.persistence
        if not persistence.is_stored or self.is_handler or value is None or isinstance(value, Command):
            return b""
        return b"" if getattr(self.task.node.call, RUNS_GRAPH, False) else persistence.digests.of_input(value)

    def message_id(self, message: Any) -> str:
        """Return an id for a message without one that the node's own code adds to a list."""
        # Only equal messages are counted, so the id does not depend on the order in which the node's child tasks run.
        content = fingerprint(message)
        number = next(self._added.setdefault(content, itertools.count()))
        return derive_message_id(self.task.id, "add_messages", number, 0, content)

    def number_of_name(self, task: str, key: str) -> int:
        """Return the number of a call that is identified by a name.

        Args:
            task: the name of the task.
            key: the name of the call.

        Raises:
            InvalidUpdateError: the attempt has already made a call with this name.
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
        return NAMED_BASE + int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).digest())

    def number_of_replacement(self, number: int, digest: bytes) -> int:
        """Return the number of a call that runs although another is recorded under its own number."""
        # Derived from the arguments, so that the next attempt finds the result of this call.
        return REPLACEMENT_BASE + int.from_bytes(blake2b(b"%d " % number + digest, digest_size=6).digest())

    def next_position(self, number: int = 0) -> int:
        """Return the position in the node's code of the next question, call or graph run."""
        # A digest is its own position: counting concurrent operations would shift those of the node's own task.
        if number >= CONCURRENT_BASE:
            return number
        position, self.positions = self.positions, self.positions + 1
        return position

    def ask_for_subgraph(self, questions: tuple[Interrupt, ...]) -> Never:
        """Raise the questions of a separate run, which this node started, as the node's own."""
        self.open_questions[self.next_position()] = questions
        raise GraphInterrupt(questions)

    def spend(self, name: str, amount: Amount) -> None:
        """Add an amount to what the task has spent. See `runtime.spend`."""
        self.check("spend()")
        into = self.graph.persistence.spent_by(self.task.id)
        self.graph.run.spending.spend(into, name, amount, self.graph.options.limits.budgets)

    def inject(self, wanted: tuple[tuple[str, str], ...]) -> dict[str, Any]:
        """Return the keyword arguments for a node, given (parameter, attribute of this class) pairs."""
        return {parameter: getattr(self, what) for parameter, what in wanted}

    @property
    def config(self) -> RunnableConfig:
        """The call's config, completed with the node's namespace and checkpoint."""
        # A new one for each access: nodes may change it in place. Callbacks are the caller's objects, and not copied.
        info, tracer = self.info, self.graph.tracer
        given: dict[str, Any] = {**self.graph.config}
        callbacks = given.pop("callbacks", None)
        config: dict[str, Any] = own_as_it_is(given)
        config["configurable"] = {**config.get("configurable", {}), "checkpoint_ns": info.checkpoint_ns}
        if info.thread_id is not None:
            config["configurable"]["thread_id"] = info.thread_id
        if info.checkpoint_id is not None:
            config["configurable"]["checkpoint_id"] = info.checkpoint_id
        config["metadata"] = {**config.get("metadata", {}), **self.metadata}
        if tracer is None:
            config["run_id"] = info.run_id
            if callbacks is not None:
                config["callbacks"] = callbacks
        else:
            # A model that is called with this config would take the run's id and name for its own.
            config.pop("run_id", None)
            config.pop("run_name", None)
            config["callbacks"] = tracer.callbacks()
        return config  # type: ignore[return-value]  # a RunnableConfig, made key by key

    @property
    def metadata(self) -> dict[str, Any]:
        """Where the node runs, and the node's own metadata, for the config of the node and for tracers."""
        task, thread_id = self.task, self.graph.run.lease.thread_id
        place = (task.step, task.node.name, task.triggers or (PUSH,), task.path, self.ns)
        thread = {} if thread_id is None else {"thread_id": thread_id}
        return {**thread, **dict(zip(NODE_METADATA, place, strict=True)), **isolate(dict(task.node.metadata))}

    def configs(self) -> Iterator[RunnableConfig]:
        """Yield the configs of this attempt and its callers in the same call, innermost first."""
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
            checkpoint_id=self.graph.persistence.tip,
            checkpoint_ns=self.ns,
            task_id=self.task.id,
            thread_id=run_context.lease.thread_id,
            run_id=run_context.run_id,
            node_attempt=self.attempts.number,
            node_first_attempt_time=self._first_attempt_time,
        )

    @property
    def _first_attempt_time(self) -> float:
        """When the first attempt began: with a retry policy exactly, else when this was first read."""
        # The injection of the runtime reads this before the node's code runs. Reading the clock for each attempt would
        # cost every node something that few of them use.
        first = self.attempts.first_attempt_time
        if first is not None:
            return first
        self._began = self._began or self.graph.run.environment.now()
        return self._began

    @property
    def error(self) -> NodeError | None:
        """The failure that an error handler handles; None in other nodes."""
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
"""The attempt that the running code belongs to. `_message_ids` creates the variable: `add_messages` reads it."""


ON_CODE_START: ContextVar[Callable[[AttemptContext], object] | None] = ContextVar("pregel_async.watch", default=None)
"""Called before the code of a node or of a task runs; an exception from it becomes the failure of that code. It is read
once, when the run begins. Simulations and the watch over blocked loops use it."""


_THREAD_CALLER: ContextVar[AttemptContext | None] = ContextVar("pregel_async.by_thread", default=None)
"""The attempt whose worker thread waits while the running code works for it on the event loop."""


@contextlib.contextmanager
def counting_in_code_order(attempt: AttemptContext | None) -> Generator[None]:
    """Count operations on the event loop in code order while a node's worker thread waits for them.

    Args:
        attempt: the attempt of the calling thread, if any.
    """
    # The thread waits, so its operations come one at a time, as they do in the node's own task. Without this mark the
    # event loop's task, which is not the node's, would have them identified by their content.
    mine = attempt is not None and attempt.worker == threading.get_ident()
    token = _THREAD_CALLER.set(attempt if mine else None)
    try:
        yield
    finally:
        _THREAD_CALLER.reset(token)


def current(what: str) -> AttemptContext:
    """Return the attempt that the running code belongs to.

    Args:
        what: names the operation in the message.

    Raises:
        OutsideRunError: the code does not belong to a node.
    """
    attempt = CURRENT.get()
    if attempt is None:
        raise OutsideRunError(
            f"{what} was called outside of a run: call it in a node, in a task, or in what these call. "
            "A thread of your own does not know its node; start it with contextvars.copy_context().run"
        )
    return attempt
