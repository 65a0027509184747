"""The words that users and the runtime share: names, sends, configs, snapshots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Protocol, Self, TypeAlias, TypedDict

import msgspec

from checkpoint_savers.records import CheckpointId, CheckpointMetadata, TaskId

from .policies import (
    Budget,
    CachePolicy,
    Collect,
    OnFailure,
    RetryPolicy,
    TimeoutPolicy,
    default_retry_on,
    timeout_policy,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    NamesT_co = TypeVar("NamesT_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    NamesT_co = TypeVar("NamesT_co", covariant=True)

__all__ = [
    "END",
    "INPUT",
    "START",
    "All",
    "Budget",
    "CachePolicy",
    "ChangedQuestions",
    "CheckpointId",
    "CheckpointMetadata",
    "Collect",
    "Command",
    "Durability",
    "Interrupt",
    "OnChange",
    "OnConflict",
    "OnFailure",
    "OverflowPolicy",
    "Overwrite",
    "PregelTask",
    "RetryPolicy",
    "RunStatus",
    "RunnableConfig",
    "Send",
    "StateSnapshot",
    "StateUpdate",
    "StreamMode",
    "StreamWriter",
    "TaskId",
    "TimeoutPolicy",
    "default_retry_on",
]

START: Final = "__start__"
"""The virtual node before the first: edges from it say where a graph begins."""

END: Final = "__end__"
"""The virtual node after the last: an edge to it ends that path."""

INPUT: Final = "__input__"
"""As whom a state update is made that stands for a new input."""

COPY: Final = "__copy__"
"""As whom a state update is made that copies a checkpoint."""

INTERRUPT: Final = "__interrupt__"
"""The key of open questions in results and chunks."""

RESERVED: Final = frozenset((INPUT, COPY, INTERRUPT, "__parent__", "__previous__", "__return__"))
"""Names that mean something to the runtime, besides START, END and those that begin like its control channels: no node
and no channel has them."""

StreamMode: TypeAlias = Literal["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"]
"""What a stream shows: the state after each superstep, each task's update as it finishes, messages and chunks of them,
what the nodes themselves write to it, each task when it is planned and when it has ended, each checkpoint once it is
stored, or the last two with the time."""

OverflowPolicy: TypeAlias = Literal["block", "drop_oldest", "coalesce"]
"""What becomes of a chunk whose reader is slow: the run waits for the reader; the oldest unread chunk of that mode is
dropped; or only the newest of that mode is kept."""

Durability: TypeAlias = Literal["sync", "async", "exit"]
"""When a superstep is stored: "sync" before the next one starts, "async" while the next one runs, "exit" when the run
ends, all of them as one."""

ChangedQuestions: TypeAlias = Literal["error", "accept"]
"""What happens when a node runs again and asks something else than the question that was answered: it fails with
`QuestionChangedError`, or it gets the answer."""

OnChange: TypeAlias = Literal["error", "run"]
"""What happens when a node runs again and makes another call than is recorded: it fails with `CallsChangedError`, or
the new call runs."""

All: TypeAlias = Literal["*"]
"""Every node."""


RunStatus: TypeAlias = Literal["done", "interrupted", "stopped", "drained", "failed", "cancelled"]
"""How a run has ended: nothing is left to run; it asks; it stopped at a breakpoint; it was asked to stop; or it failed,
or was cancelled."""


class StreamWriter(Protocol):
    """Writes to the run's stream, from a node or from whatever it calls: its tasks, and the thread of a plain function.

    When the reader is behind, a plain function waits in the call. Async code waits in what the call returns, if that is
    awaited (`await writer(chunk)`); if not, the node goes on until it awaits something itself, and is held there.
    """

    def __call__(self, chunk: Any, /) -> Awaitable[None]:
        """Put a chunk on the `custom` stream.

        Raises:
            StreamFullError: code that never waits has written far more than the reader takes.
            OutsideRunError: the node has ended.
        """
        ...

    def message(self, message: Any, /, metadata: Mapping[str, Any] | None = None) -> Awaitable[None]:
        """Put a message, or a chunk of one, on the `messages` stream.

        Args:
            message: anything with an id, a role (or type) and a content. Chunks of one message have its id; when the
                node returns that message in the end, it is not shown again.
            metadata: what is told beside where it comes from. A tag "nostream" keeps it off the stream.

        Raises: as the call.
        """
        ...


OnConflict: TypeAlias = Literal["reject", "wait"]
"""What a run does when another owns its thread: raise `ThreadBusyError`, or wait until it is given up or lapses."""


def plain_name(name: Any) -> Any:
    """Return a name as a plain `str`: of a `StrEnum`'s member, say, its value. What is no `str` is returned as it is.

    Names of nodes are stored and go into the ids of tasks: a program that calls its nodes by constants is to have the
    same ones as one that writes the names out, and none of its classes has to be registered for that.
    """
    return str.__str__(name) if isinstance(name, str) else name


class Send(msgspec.Struct, frozen=True, order=False):
    """One extra run of a node in the next superstep, with an input of its own.

    Returned by a router (alone or in a list), as often as needed: each is a task. The argument is handed to the node as
    it is, isolated like any input; it is not merged with the state.

    Attributes:
        node: the node to run.
        arg: its input.
        timeout: how long one attempt may take, instead of the node's own: seconds, a timedelta, or a `TimeoutPolicy`.
    """

    node: str
    arg: Any
    timeout: TimeoutPolicy | float | timedelta | None = msgspec.field(default=None)

    def __post_init__(self) -> None:
        if type(self.node) is not str:
            msgspec.structs.force_setattr(self, "node", plain_name(self.node))
        if self.timeout is not None:
            timeout_policy(self.timeout)

    @property
    def limits(self) -> TimeoutPolicy | None:
        """The timeout as a policy."""
        return timeout_policy(self.timeout)


class Command(msgspec.Struct, Generic[NamesT_co], frozen=True, kw_only=True, order=False):
    """What a node returns to update the state and say where to go in one; what a call is given to answer a question.

    A node annotated `-> Command[Literal["a", "b"]]` says where its commands may go, which drawings show.

    Attributes:
        graph: whose command it is: None for the node's own graph; `Command.PARENT` for the graph that runs it as a
            node; or the name of an enclosing graph, or of the node that it is in one.
        update: an update, as a node may return it, or a list of (key, value) pairs, in which a key may come twice.
        resume: the answer to the one open question; or {id: answer} for some or all that are open. Any dict whose keys
            all are such ids counts as the latter. Only as a call's input.
        goto: nodes to run next, besides those that edges lead to: a name, a `Send`, or a list of them. END adds none.
    """

    PARENT: ClassVar[Literal["__parent__"]] = "__parent__"

    graph: str | None = None
    update: Any = None
    resume: Any = None
    goto: str | Send | Sequence[str | Send] = ()


class Interrupt(msgspec.Struct, frozen=True, order=False):
    """A question to whoever runs the graph, asked by `interrupt()`.

    Attributes:
        value: what was asked.
        id: 32 hex digits: this very question, on every attempt and resume. Answer it with `Command(resume={id: ...})`.
    """

    value: Any
    id: str


class StateUpdate(msgspec.Struct, frozen=True, order=False):
    """One update of `abulk_update_state`.

    Attributes:
        values: the update, as the node may return it.
        as_node: the node that is to have made it; END, `INPUT` and `"__copy__"` have a meaning of their own.
        task_id: which of the node's pending tasks; needed when it has several.
    """

    values: Any
    as_node: str | None = None
    task_id: str | None = None


class RunnableConfig(TypedDict, total=False):
    """Settings of one call. Wherever a config is taken, a thread id as a string is taken too.

    Keys:
        configurable: `thread_id`, `checkpoint_ns`, `checkpoint_id`, `checkpoint_map` (of a subgraph's state: the
            checkpoints of the graphs around it, by namespace), and keys of the user's own.
        recursion_limit: how many supersteps the run may take; 10 007 by default, the hidden start not counted.
        max_concurrency: how many tasks run at once; all of them by default.
        metadata: scalars that are stored with each checkpoint of the run. The thread's own metadata, by which
            `alist_threads` filters, get those keys that they lack: the first call that gives a key decides, and
            `saver.aupdate_thread` changes it. What is no str, int, float or bool is left out.
        tags: kept for tracing.
        run_id: the run's id; made up by default.
        run_name: kept for tracing.
    """

    configurable: dict[str, Any]
    recursion_limit: int
    max_concurrency: int | None
    metadata: dict[str, Any]
    tags: list[str]
    run_id: str
    run_name: str


class TaskFailure(msgspec.Struct, frozen=True):
    """A failed task as it is stored. The live exception reached the caller of the run.

    Attributes:
        type: the exception's class, qualified by its module unless it is a builtin.
        message: `str()` of it.
        time: when, in unix seconds.
    """

    type: str
    message: str
    time: float

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


class PregelTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of the superstep that follows a checkpoint.

    Attributes:
        id: structural; the same on every attempt, replay and fork. Fit as an idempotency key.
        name: the node.
        path: `("__pregel_pull", node)`, or `("__pregel_push", index, False)` for a send.
        error: its failure, if it failed and has not been resumed.
        interrupts: the questions that it has asked and nobody has answered.
        state: of a task that runs a subgraph: the config that addresses the subgraph's state, or its snapshot.
        result: its update, once it has finished; None before.
    """

    id: TaskId
    name: str
    path: tuple[Any, ...]
    error: TaskFailure | None = None
    interrupts: tuple[Interrupt, ...] = ()
    state: RunnableConfig | StateSnapshot | None = None
    result: Any = None


class StateView(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says once it is decoded, as the graph's code understands it; see `StateSnapshot`."""

    values: Any
    next: tuple[str, ...]
    created_at: str | None = None
    tasks: tuple[PregelTask, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    error: TaskFailure | None = None
    spent: Mapping[str, int | Decimal] = {}
    unknown: Mapping[str, Any] = {}


class StateSnapshot:
    """A thread's state at a superstep's boundary. It cannot be changed.

    One that a history lists holds what is stored, and decodes it when it is first asked for more than `config`,
    `metadata` and `parent_config`: a listing costs what is looked at of it, and a damaged checkpoint does not hide the
    others. What the thread has become meanwhile does not show in it.

    Raises:
        CorruptCheckpointError: (by any other attribute, of a listed snapshot) what is stored is damaged.
        StoredTypeChangedError: (likewise) it holds an object that its class, as it is now, does not take.
        UnknownTypeError: (likewise) it holds a value of a type that the graph and the saver's codec do not know.
        GraphChangedError: (likewise) the graph's code does not fit it any more.
    """

    __slots__ = ("_config", "_metadata", "_parent_config", "_view")

    def __init__(
        self,
        *,
        values: Any,
        next: tuple[str, ...],
        config: RunnableConfig,
        metadata: CheckpointMetadata | None = None,
        created_at: str | None = None,
        parent_config: RunnableConfig | None = None,
        tasks: tuple[PregelTask, ...] = (),
        interrupts: tuple[Interrupt, ...] = (),
        error: TaskFailure | None = None,
        spent: Mapping[str, int | Decimal] | None = None,
        unknown: Mapping[str, Any] | None = None,
    ) -> None:
        self._config, self._metadata, self._parent_config = config, metadata, parent_config
        self._view: StateView | Callable[[], StateView] = StateView(
            values=values,
            next=next,
            created_at=created_at,
            tasks=tasks,
            interrupts=interrupts,
            error=error,
            spent=spent or {},
            unknown=unknown or {},
        )

    @classmethod
    def of(
        cls,
        view: StateView | Callable[[], StateView],
        *,
        config: RunnableConfig,
        metadata: CheckpointMetadata,
        parent_config: RunnableConfig | None,
    ) -> Self:
        """The snapshot with this view.

        Args:
            view: or what makes it, once, from what is stored.
        """
        made = cls.__new__(cls)
        made._config, made._metadata, made._parent_config, made._view = config, metadata, parent_config, view
        return made

    def _decoded(self) -> StateView:
        view = self._view
        if not isinstance(view, StateView):
            view = self._view = view()
        return view

    @property
    def values(self) -> Any:
        """The state: all keys that hold something; of a `Pregel` its channels, of an entrypoint the last result."""
        return self._decoded().values

    @property
    def next(self) -> tuple[str, ...]:
        """Names of the tasks that have yet to run; empty when the thread has finished."""
        return self._decoded().next

    @property
    def config(self) -> RunnableConfig:
        """Addresses this checkpoint; pass it back to read or resume from here."""
        return self._config

    @property
    def metadata(self) -> CheckpointMetadata | None:
        """Source, step, parents, run_id and the caller's own; None for a thread with nothing stored."""
        return self._metadata

    @property
    def created_at(self) -> str | None:
        """ISO 8601, UTC; None for a thread with nothing stored."""
        return self._decoded().created_at

    @property
    def parent_config(self) -> RunnableConfig | None:
        """Addresses the checkpoint before; None for the first."""
        return self._parent_config

    @property
    def tasks(self) -> tuple[PregelTask, ...]:
        """Sends by index, then the triggered nodes by name."""
        return self._decoded().tasks

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """All open questions of the tasks."""
        return self._decoded().interrupts

    @property
    def error(self) -> TaskFailure | None:
        """Why the superstep after this checkpoint could not be folded, if it could not."""
        return self._decoded().error

    @property
    def spent(self) -> Mapping[str, int | Decimal]:
        """By budget, what the thread has spent until here, the failed attempts of pending tasks included."""
        return self._decoded().spent

    @property
    def unknown(self) -> Mapping[str, Any]:
        """Stored keys that the graph does not have, because its code has renamed or removed them; they stay stored.

        Objects that no class can be made of are `StoredObject`s."""
        return self._decoded().unknown

    def _fields(self) -> dict[str, Any]:
        given = {"config": self._config, "metadata": self._metadata, "parent_config": self._parent_config}
        return {**given, **msgspec.structs.asdict(self._decoded())}

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, StateSnapshot) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # what it holds has none

    def __replace__(self, **changes: Any) -> StateSnapshot:
        return StateSnapshot(**{**self._fields(), **changes})

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(StateSnapshot, **self._fields()), ()

    def __repr__(self) -> str:
        try:
            fields = self._fields()
        except Exception as error:  # what is printed is to be seen, and not to raise
            return f"<StateSnapshot of {self._config!r}, which cannot be decoded: {type(error).__name__}: {error}>"
        return f"StateSnapshot({', '.join([f'{name}={value!r}' for name, value in fields.items()])})"


Config: TypeAlias = RunnableConfig | Mapping[str, Any] | str
"""What is accepted as a config."""

Names: TypeAlias = str | Sequence[str]
"""One channel (bare values), or several (mappings)."""


class Overwrite(msgspec.Struct, frozen=True, order=False, tag_field="type", tag="__overwrite__"):
    """A write that takes the place of a channel's value instead of being folded into it.

    Whatever else is written to that channel in the same superstep is dropped, in whatever order it comes; two
    overwrites are an `InvalidUpdateError`. A key without a reducer takes the value as it takes any other, and so
    refuses a second write beside it.

    Where only JSON gets through, a channel with a reducer understands `{"__overwrite__": value}` and
    `{"value": value, "type": "__overwrite__"}` (which is how msgspec writes this class) as well. To any other key these
    are data.

    Attributes:
        value: what the channel holds afterwards.
    """

    value: Any
