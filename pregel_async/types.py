"""The types that users and the runtime share: reserved names, sends, commands, configs, snapshots."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Protocol, Self, TypeAlias, TypedDict

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
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
    with_dataclass_fields,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    NamesT_co = TypeVar("NamesT_co", covariant=True, default=Any)
    StateT_co = TypeVar("StateT_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    NamesT_co = TypeVar("NamesT_co", covariant=True)
    StateT_co = TypeVar("StateT_co", covariant=True)

__all__ = [
    "END",
    "INPUT",
    "REMOVED",
    "START",
    "TAG_NOSTREAM",
    "Added",
    "All",
    "Budget",
    "CachePolicy",
    "ChangedQuestions",
    "CheckpointId",
    "CheckpointMetadata",
    "Checkpointer",
    "Collect",
    "Command",
    "Durability",
    "Interrupt",
    "Migration",
    "Mismatch",
    "OnChange",
    "OnConflict",
    "OnFailure",
    "OverflowPolicy",
    "Overwrite",
    "PregelTask",
    "Renamed",
    "RetryPolicy",
    "Retyped",
    "RunStatus",
    "RunnableConfig",
    "Send",
    "StateSnapshot",
    "StateUpdate",
    "StoredState",
    "StreamMode",
    "StreamWriter",
    "TaskId",
    "ThreadCheck",
    "ThreadMigration",
    "TimeoutPolicy",
    "UnknownStored",
    "default_retry_on",
]

START: Final = "__start__"
"""The virtual node before the first: an edge from it leads to a node where the graph begins."""

END: Final = "__end__"
"""The virtual node after the last: an edge to it ends this path."""

INPUT: Final = "__input__"
"""The `as_node` of a state update that is a new input."""

COPY: Final = "__copy__"
"""The `as_node` of a state update that copies a checkpoint."""

TAG_NOSTREAM: Final = "nostream"
"""The tag of a node, a model or a message that keeps it out of the `messages` stream."""

INTERRUPT: Final = "__interrupt__"
"""The key of open questions in results and chunks."""

RESERVED: Final = frozenset((INPUT, COPY, INTERRUPT, "__parent__", "__previous__", "__return__"))
"""Names that no node and no channel may have, besides START, END and the names that begin like control channels."""

Checkpointer: TypeAlias = BaseCheckpointSaver | bool | None
"""A saver; or, for a subgraph, True to keep its state from call to call, False to store nothing, None for the saver of
the enclosing graph."""

StreamMode: TypeAlias = Literal["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"]
"""The events that a stream shows.

"values": the state after each superstep; "updates": each task's update as the task finishes; "messages": messages and
chunks of messages; "custom": values that nodes write to the stream; "tasks": each task when it is planned and when it
has ended; "checkpoints": each checkpoint once it is stored; "debug": the last two, with superstep and time.
`Graph.astream` has a table of the chunks."""

OverflowPolicy: TypeAlias = Literal["block", "drop_oldest", "coalesce"]
"""What happens when a reader is slow: "block" makes the run wait for the reader; "drop_oldest" drops the oldest unread
chunk of the mode; "coalesce" keeps only the newest unread chunk of the mode and graph."""

Durability: TypeAlias = Literal["sync", "async", "exit"]
"""When a superstep is stored: "sync" before the next superstep starts, "async" while the next one runs, "exit" when the
run ends, in one transaction with all others."""

ChangedQuestions: TypeAlias = Literal["error", "accept"]
"""What happens when a node runs again and asks another question than the answered one: "error" fails the node with
`QuestionChangedError`, "accept" returns the answer to it."""

OnChange: TypeAlias = Literal["error", "run"]
"""What happens when a node runs again and makes another call than the recorded one: "error" fails the node with
`CallsChangedError`, "run" runs the new call."""

All: TypeAlias = Literal["*"]
"""Every node."""


RunStatus: TypeAlias = Literal["done", "interrupted", "stopped", "drained", "failed", "cancelled"]
"""How a run has ended: "done" with nothing left to run, "interrupted" by a question of a node, "stopped" at a
breakpoint, "drained" by a `RunControl`, "failed" with an exception, or "cancelled"."""


class StreamWriter(Protocol):
    """Writes to the run's stream, from a node, from tasks that the node starts, and from worker threads.

    While the buffer of a slow reader is full, a plain function blocks in the call. Async code waits if it awaits the
    result of the call (`await writer(chunk)`); otherwise the runtime suspends the node the next time that the node
    awaits anything.
    """

    def __call__(self, chunk: Any, /) -> Awaitable[None]:
        """Write a chunk to the `custom` stream.

        Args:
            chunk: any value. Readers get an isolated copy.

        Returns:
            An awaitable that returns once the reader has capacity. Awaiting it is optional.

        Raises:
            StreamFullError: code that never waits has written far more than the reader takes.
            OutsideRunError: the node has ended.
        """
        ...

    def message(self, message: Any, /, metadata: Mapping[str, Any] | None = None) -> Awaitable[None]:
        """Write a message, or a chunk of a message, to the `messages` stream.

        Args:
            message: an object or dict with an id, a role (or type) and a content. Chunks of a message have the id of
                the message; a message of this id that the node returns later is not shown again.
            metadata: entries to add to the metadata that the stream shows with the message. A message with the tag
                "nostream" (under "tags") is not shown.

        Returns:
            An awaitable that returns once the reader has capacity. Awaiting it is optional.

        Raises:
            StreamFullError: code that never waits has written far more than the reader takes.
            OutsideRunError: the node has ended.
        """
        ...


OnConflict: TypeAlias = Literal["reject", "wait"]
"""What a run does when another run owns its thread: "reject" raises `ThreadBusyError`, "wait" waits until the other run
releases the thread or its lease expires."""


def plain_name(name: Any) -> Any:
    """Return a name as a plain `str`: for a member of a `StrEnum`, its value.

    Names of nodes are stored, and task ids are derived from them. A program that uses enum members must get the same
    ids as one that uses literals, and must not have to register the enum with the codec.

    Args:
        name: a name.

    Returns:
        The plain string; `name` itself if it is no `str`.
    """
    return str.__str__(name) if isinstance(name, str) else name


class TupleMethods:
    """Methods of a named tuple, for the fields that LangGraph's named tuple of the same name has.

    Attributes:
        _fields: the names of these fields. Any other field is an attribute only.
    """

    # No real tuple: it would have to hold the decoded values, which a snapshot of a history decodes at the first need.
    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]]

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __getitem__(self, index: int | slice) -> Any:
        return getattr(self, self._fields[index]) if isinstance(index, int) else tuple(self)[index]

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))


@with_dataclass_fields
class Send(TupleMethods, msgspec.Struct, frozen=True, order=False, repr_omit_defaults=True):
    """One extra run of a node in the next superstep, with an input of its own.

    A router returns sends, alone or in a list; each becomes a task. The node gets the argument as its input, isolated
    like any input and not merged with the state. `node, arg = send` unpacks it.

    Attributes:
        node: the name of the node to run.
        arg: the node's input.
        timeout: the time limit of one attempt, instead of the node's own: seconds, a timedelta, or a `TimeoutPolicy`.

    Raises:
        ValueError, TypeError: the timeout is not positive and finite, or no time.
    """

    _fields: ClassVar[tuple[str, ...]] = ("node", "arg")

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
        """The timeout as a policy; None if the node's own applies."""
        return timeout_policy(self.timeout)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return a schema for pydantic, which would otherwise read the class as the dataclass that it is not."""
        from pydantic_core import core_schema as made  # imported here: it is installed, since pydantic calls this

        fields = {
            "node": made.typed_dict_field(made.str_schema()),
            "arg": made.typed_dict_field(made.any_schema()),
            "timeout": made.typed_dict_field(made.any_schema(), required=False),
        }

        def read(value: Any, validate: Callable[[Any], dict[str, Any]]) -> Send:
            try:
                return value if isinstance(value, Send) else msgspec.convert(validate(value), Send)
            except msgspec.ValidationError as error:
                raise ValueError(str(error)) from None

        return made.no_info_wrap_validator_function(
            read,
            made.typed_dict_schema(fields, cls_name="Send"),
            serialization=made.plain_serializer_function_ser_schema(msgspec.structs.asdict),
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Command(Generic[NamesT_co]):
    """A state update together with the nodes to run next, returned by a node; or the input of a call that resumes.

    A return annotation `-> Command[Literal["a", "b"]]` declares where a node's commands may go. Drawings show it.

    Attributes:
        graph: the graph that the command is for: None for the node's own graph; `Command.PARENT` for the enclosing
            graph; or the name of an enclosing graph, or of the node that runs the node's graph in the enclosing one.
        update: an update, as a node may return it, or a list of (key, value) pairs, in which a key may come twice.
        resume: the answer to the only open question; or {id: answer} for some or all open questions. A dict whose
            keys are all ids of questions counts as the latter. Only in the input of a call.
        goto: nodes to run next, besides those that edges lead to: a name, a `Send`, or a list of them. END adds none.
    """

    PARENT: ClassVar[Literal["__parent__"]] = "__parent__"

    graph: str | None = None
    update: Any = None
    resume: Any = None
    goto: str | Send | Sequence[str | Send] = ()

    def __repr__(self) -> str:
        given = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        shown = [f"{field.name}={value!r}" for field, value in given if value is not field.default]
        return f"Command({', '.join(shown)})"


@dataclass(frozen=True)
class Interrupt:
    """A question to the caller of the graph, asked by `interrupt()`.

    Attributes:
        value: the value that the node passed to `interrupt()`.
        id: 32 hex digits, the same on every attempt and resume. Answer with `Command(resume={id: answer})`. The default
            is for tests: no question of a run has it.
        response_schema: the JSON schema of the answer; None if the node named none.
    """

    value: Any
    id: str = "placeholder-id"
    response_schema: dict[str, Any] | None = dataclasses.field(
        default=None,
        hash=False,  # a dict has no hash
        metadata={"checkpoint_savers.omit_default": True},
    )

    @property
    def when(self) -> Literal["during"]:
        """When the node asks: always "during" its run. A breakpoint (`interrupt_before`) stops without a question."""
        return "during"


class StateUpdate(TupleMethods, msgspec.Struct, frozen=True, order=False):
    """One update of `abulk_update_state`. `values, as_node, task_id = update` unpacks it.

    Attributes:
        values: the update, as the node may return it.
        as_node: the node as which the update is made; END, `INPUT` and `"__copy__"` have the meanings that
            `Graph.aupdate_state` describes. None infers the node.
        task_id: the id of one of the node's pending tasks. Required if the node has several, unless the superstep has
            one update for each of them: these become their results in order.
    """

    _fields: ClassVar[tuple[str, ...]] = ("values", "as_node", "task_id")

    values: Any
    as_node: str | None = None
    task_id: str | None = None


class RunnableConfig(TypedDict, total=False):
    """Settings of one call. Every parameter that takes a config also takes a thread id as a string.

    Keys:
        configurable: `thread_id`, `checkpoint_ns`, `checkpoint_id`, `checkpoint_map` (for a subgraph's state: the
            checkpoint ids of the enclosing graphs, by namespace), and keys of your own.
        recursion_limit: the greatest number of supersteps of the run, without the hidden start; 10 007 by default.
        max_concurrency: the greatest number of tasks that run at the same time; None, the default, for no limit.
        metadata: values that are stored with each checkpoint of the run. Values other than str, int, float and bool are
            left out. Keys that the thread's own metadata lack are added there: the first call with a key sets the
            value, `saver.aupdate_thread` changes it, and `alist_threads` filters by it.
        tags: kept for tracing.
        run_id: the run's id, text or a UUID; generated by default.
        run_name: the name of the run for tracers; by default the graph's name.
        callbacks: handlers of langchain-core, as a list or a callback manager. They see the runs of the graph and of
            its nodes, and the models, tools and chains that the nodes call.
    """

    configurable: dict[str, Any]
    recursion_limit: int
    max_concurrency: int | None
    metadata: dict[str, Any]
    tags: list[str]
    run_id: Any  # text, or a UUID: annotated so that no `uuid` is imported here
    run_name: str
    callbacks: Any  # a type of langchain-core, which need not be installed


@with_dataclass_fields
class TaskFailure(msgspec.Struct, frozen=True):
    """The stored failure of a task. The exception itself was raised to the caller of the run.

    Attributes:
        type: the exception's class, qualified by its module unless it is a builtin.
        message: `str()` of the exception.
        time: when the task failed, in unix seconds.
    """

    type: str
    message: str
    time: float

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@with_dataclass_fields
class PregelTask(TupleMethods, msgspec.Struct, frozen=True):
    """A task of the superstep that follows a checkpoint.

    It has the methods of a named tuple: its fields can be unpacked, and `_replace` and `_asdict` work.

    Attributes:
        id: derived from the task's place in the run, so the same on every attempt, replay and fork. Usable as an
            idempotency key.
        name: the node's name.
        path: `("__pregel_pull", node)`, or `("__pregel_push", index, False)` for a send.
        error: the task's failure, if it failed and has not been resumed.
        interrupts: the task's unanswered questions; of a superstep that is closed, all questions that the task asked.
        state: of a task that runs a subgraph: the config that addresses the subgraph's state, or its snapshot.
        result: the task's update once it has finished; None before.
    """

    _fields: ClassVar[tuple[str, ...]] = ("id", "name", "path", "error", "interrupts", "state", "result")

    id: TaskId
    name: str
    path: tuple[Any, ...]
    error: TaskFailure | None = None
    interrupts: tuple[Interrupt, ...] = ()
    state: RunnableConfig | StateSnapshot | None = None
    result: Any = None

    def _replace(self, **changes: Any) -> PregelTask:
        return msgspec.structs.replace(self, **changes)


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stored thread that does not fit the graph's code.

    Attributes:
        kind: "key" for a state key, "node" for a pending task's node, "type" for a stored class, "calls" for the calls
            of a task, "version" for the graph's version, "state" for the state of a subgraph.
        name: the name of the key, the node or the class.
        namespace: the checkpoint namespace of the graph; empty for the root graph.
        reason: what is stored, and what the code has.
        advice: the declaration or the action that makes the thread fit.
        blocks: what the graph refuses: "nothing", "resume" (a new input is accepted, and discards what does not fit),
            or "all".
    """

    kind: Literal["key", "node", "type", "calls", "version", "state"]
    name: str
    namespace: str = ""
    reason: str
    advice: str
    blocks: Literal["nothing", "resume", "all"]


class ThreadCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How a stored thread fits the graph's code.

    Attributes:
        thread_id: the thread's id.
        version: the version of the graph that stored the thread's head; 1 if it was compiled without `version=`.
        mismatches: what does not fit, each once. Those that block nothing are only reported. A declared rule that
            raises, or that makes another value at each call, is among them, and blocks "all".
        migrated: declared rules change what is stored when the thread is loaded.
        damage: the message of the error with which reading failed, if stored bytes are damaged, or are in the format of
            a later version of this package; empty if all could be read.
    """

    thread_id: str
    version: int
    mismatches: tuple[Mismatch, ...] = ()
    migrated: bool = False
    damage: str = ""

    @property
    def loads(self) -> bool:
        """True if the graph continues the thread from where it is."""
        return not self.damage and all(each.blocks == "nothing" for each in self.mismatches)


class ThreadMigration(msgspec.Struct, frozen=True, kw_only=True):
    """What `amigrate_threads` has done with a thread.

    Attributes:
        check: how the thread fitted the graph's code before.
        status: "migrated": what the declared rules make is stored, or would be without `dry_run`. "unchanged": there
            is nothing to store. "refused": the graph does not load the thread. "busy": another run owns the thread.
    """

    check: ThreadCheck
    status: Literal["migrated", "unchanged", "refused", "busy"]

    @property
    def thread_id(self) -> str:
        """The thread's id."""
        return self.check.thread_id


class StateView(msgspec.Struct, frozen=True, kw_only=True):
    """The decoded content of a checkpoint; `StateSnapshot` describes the fields."""

    values: Any
    next: tuple[str, ...]
    created_at: str | None = None
    tasks: tuple[PregelTask, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    error: TaskFailure | None = None
    spent: Mapping[str, int | Decimal] = {}
    unknown: Mapping[str, Any] = {}
    changed: tuple[Mismatch, ...] = ()


class StateSnapshot(TupleMethods, Generic[StateT_co]):
    """An immutable snapshot of a thread's state at a checkpoint.

    It has the methods of a named tuple for its first eight fields, from `values` to `interrupts`.

    A snapshot from a history is decoded when an attribute other than `config`, `metadata` and `parent_config` is first
    read. So a listing decodes only the snapshots that are read, and a damaged checkpoint does not hide the others.
    Later changes of the thread do not show in a snapshot.

    Raises:
        CorruptCheckpointError: (by the decoding attributes of a snapshot from a history) the stored rows are damaged.
        StoredTypeChangedError: (likewise) a stored object does not fit the current version of its class.
        UnknownTypeError: (likewise) a value has a type that neither the graph nor the saver's codec knows.
    """

    __slots__ = ("_config", "_metadata", "_parent_config", "_parent_values", "_view")
    _fields: ClassVar[tuple[str, ...]] = (
        *("values", "next", "config", "metadata"),
        *("created_at", "parent_config", "tasks", "interrupts"),
    )

    def __init__(
        self,
        values: Any,
        next: tuple[str, ...],
        config: RunnableConfig,
        metadata: CheckpointMetadata | None = None,
        created_at: str | None = None,
        parent_config: RunnableConfig | None = None,
        tasks: tuple[PregelTask, ...] = (),
        interrupts: tuple[Interrupt, ...] = (),
        *,
        error: TaskFailure | None = None,
        spent: Mapping[str, int | Decimal] | None = None,
        unknown: Mapping[str, Any] | None = None,
        changed: tuple[Mismatch, ...] = (),
    ) -> None:
        self._config, self._metadata, self._parent_config = config, metadata, parent_config
        self._parent_values: Callable[[], Any] | None = None
        self._view: StateView | Callable[[], StateView] = StateView(
            values=values,
            next=next,
            created_at=created_at,
            tasks=tasks,
            interrupts=interrupts,
            error=error,
            spent=spent or {},
            unknown=unknown or {},
            changed=changed,
        )

    @classmethod
    def of(
        cls,
        view: StateView | Callable[[], StateView],
        *,
        config: RunnableConfig,
        metadata: CheckpointMetadata,
        parent_config: RunnableConfig | None,
        parent_values: Callable[[], Any] | None = None,
    ) -> Self:
        """Make the snapshot of a view.

        Args:
            view: the decoded content, or a function that decodes it, which is called once at the first need.
            config: the config that addresses the checkpoint.
            metadata: the checkpoint's metadata.
            parent_config: the config that addresses the parent checkpoint; None for the first.
            parent_values: returns the `values` of the parent, or None if they are not at hand; called by notebooks.

        Returns:
            The snapshot.
        """
        made = cls.__new__(cls)
        made._config, made._metadata, made._parent_config, made._view = config, metadata, parent_config, view
        made._parent_values = parent_values
        return made

    def _decoded(self) -> StateView:
        view = self._view
        if not isinstance(view, StateView):
            view = self._view = view()
        return view

    @property
    def values(self) -> StateT_co:
        """The state: all keys that hold a value; of a `Pregel` its channels; of an entrypoint the last result."""
        return self._decoded().values  # type: ignore[no-any-return]  # who makes the snapshot decides the type

    @property
    def next(self) -> tuple[str, ...]:
        """The node names of the tasks that have yet to run; empty if the thread has finished."""
        return self._decoded().next

    @property
    def config(self) -> RunnableConfig:
        """The config that addresses this checkpoint. Pass it to read or resume from here."""
        return self._config

    @property
    def metadata(self) -> CheckpointMetadata | None:
        """Source, step, parents, run_id and the caller's own keys; None if nothing is stored of the thread."""
        return self._metadata

    @property
    def created_at(self) -> str | None:
        """When the checkpoint was made, in ISO 8601, UTC; None if nothing is stored of the thread."""
        return self._decoded().created_at

    @property
    def parent_config(self) -> RunnableConfig | None:
        """The config that addresses the parent checkpoint; None for the first."""
        return self._parent_config

    @property
    def tasks(self) -> tuple[PregelTask, ...]:
        """The tasks of the superstep after this checkpoint: sends by index, then triggered nodes by name."""
        return self._decoded().tasks

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """All unanswered questions of the tasks; once the superstep is closed, all questions that they asked."""
        return self._decoded().interrupts

    @property
    def error(self) -> TaskFailure | None:
        """The error that prevented the fold of the superstep after this checkpoint; None if there was none."""
        return self._decoded().error

    @property
    def spent(self) -> Mapping[str, int | Decimal]:
        """The amount that the thread has spent until here, by budget; includes failed attempts of pending tasks."""
        return self._decoded().spent

    @property
    def unknown(self) -> Mapping[str, Any]:
        """Stored keys that the graph's code has renamed or removed, with their values, which stay stored.

        An object that cannot be rebuilt from its class is a `StoredObject`.
        """
        return self._decoded().unknown

    @property
    def changed(self) -> tuple[Mismatch, ...]:
        """What of the thread does not fit the graph's code, and prevents it from running; empty if all fits."""
        return self._decoded().changed

    def _all_fields(self) -> dict[str, Any]:
        given = {"config": self._config, "metadata": self._metadata, "parent_config": self._parent_config}
        return {**given, **msgspec.structs.asdict(self._decoded())}

    def __eq__(self, other: object) -> bool:
        return self._all_fields() == other._all_fields() if isinstance(other, StateSnapshot) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # its values are dicts and lists, which have no hash

    def __replace__(self, **changes: Any) -> StateSnapshot:
        return StateSnapshot(**{**self._all_fields(), **changes})

    _replace = __replace__

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(StateSnapshot, **self._all_fields()), ()

    def _repr_html_(self) -> str:
        """Return the snapshot for a notebook: the state, with the parent's values of the keys that have changed."""
        from checkpoint_savers.notebook import details_table, state_table

        names, stored = self._config.get("configurable", {}), self._metadata or {}
        title = f"Thread {names.get('thread_id')}, checkpoint {names.get('checkpoint_id')}"
        try:
            values, before = self.values, None if self._parent_values is None else self._parent_values()
            failed = {task.name: str(task.error) for task in self.tasks if task.error is not None}
        except Exception as error:  # as `__repr__`
            return details_table(title, [("cannot be decoded", f"{type(error).__name__}: {error}")])
        details = [
            ("step", stored.get("step")),
            ("source", stored.get("source")),
            ("created", self.created_at),
            ("next", self.next or None),
            ("interrupts", self.interrupts or None),
            ("failed", failed or None),
            ("error", self.error),
            ("parent", "not loaded" if before is None and self._parent_config is not None else None),
        ]
        return details_table(title, details) + state_table(values, before)

    def __repr__(self) -> str:
        try:
            fields = self._all_fields()
        except Exception as error:  # debuggers and logs call repr(): it must not raise
            return f"<StateSnapshot of {self._config!r}, which cannot be decoded: {type(error).__name__}: {error}>"
        return f"StateSnapshot({', '.join([f'{name}={value!r}' for name, value in fields.items()])})"


Config: TypeAlias = RunnableConfig | Mapping[str, Any] | str
"""A config, as parameters take it: a mapping with the keys of `RunnableConfig`, or a thread id."""

Names: TypeAlias = str | Sequence[str]
"""One channel (bare values), or several (mappings)."""


class Renamed:
    """Declare former names of a state key: `customer: Annotated[str, Renamed("name")]`.

    A stored thread has the value of a former name under the present one. If it holds several, the one written last
    counts. The next superstep of the thread stores the present name, and removes the former ones.

    Args:
        names: the former names, newest first.

    Attributes:
        names: the former names, newest first.
    """

    def __init__(self, *names: str) -> None:
        self.names = names

    def __repr__(self) -> str:
        return f"Renamed({', '.join(map(repr, self.names))})"


class Retyped(msgspec.Struct, frozen=True):
    """Declare how stored values of another type become values of a key: `price: Annotated[str, Retyped(to_price)]`.

    The function applies to stored values under a name of `was`, and to values that do not fit the key's annotation. It
    must be pure, because it is called for each read. The next superstep of the thread stores its result.

    Attributes:
        convert: makes the value of the stored value. A stored object whose class is gone is a `StoredObject`.
        update: the same for recorded updates of tasks whose superstep is open; None for `convert`. Keys with a reducer
            need it if their updates have another type than the value.
        was: the former name of the key, or several, newest first.
    """

    convert: Callable[[Any], Any]
    update: Callable[[Any], Any] | None = None
    was: str | Sequence[str] = ()


class Removed(Enum):
    """The type of `REMOVED`."""

    REMOVED = "REMOVED"

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Final = Removed.REMOVED
"""What a migration returns for a key that it takes away."""


class StoredState(Mapping[str, Any]):
    """A stored state, as a migration gets it: the values by key, decoded when they are looked at.

    It contains the keys that the graph does not have any more. Changing a value in place has no effect: a migration
    returns the keys that change.

    Attributes:
        version: the version of the graph that the state has: that of the checkpoint, or of the migration before.
        thread_id: the thread's id.
    """

    def __init__(
        self,
        values: Mapping[str, Callable[[], Any]],
        *,
        version: int,
        thread_id: str,
        next: Callable[[], tuple[str, ...]],
        plain: Callable[[str], Any],
    ) -> None:
        self.version = version
        self.thread_id = thread_id
        self._values = values
        self._next = next
        self._plain = plain

    @property
    def next(self) -> tuple[str, ...]:
        """The node names of the pending tasks; empty if the thread has finished."""
        return self._next()

    def plain(self, key: str) -> Any:
        """Return a stored value without its classes: with a `StoredObject` for each object of a registered class.

        Args:
            key: the key.

        Raises:
            KeyError: the state has no such key.
        """
        return self._plain(key)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]()

    def __contains__(self, key: object) -> bool:
        # That of Mapping would decode the value.
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<StoredState of thread {self.thread_id!r}, version {self.version}: {', '.join(self._values)}>"


Migration: TypeAlias = Callable[[StoredState], Mapping[str, Any]]
"""A function that makes a state of one version of a state of the version before: it returns the keys that change."""

UnknownStored: TypeAlias = Literal["warn", "error", "ignore"]
"""What happens if a thread holds keys, or kept states, that the graph does not know."""


class Added(msgspec.Struct, frozen=True):
    """Declare the value of a key in threads in which it was never written: `vat: Annotated[int, Added(19)]`.

    Attributes:
        value: the value. Each thread gets a copy.
    """

    value: Any


class Overwrite(msgspec.Struct, frozen=True, order=False, tag_field="type", tag="__overwrite__"):
    """A write that replaces a channel's value instead of being folded into it.

    Other writes to the channel in the same superstep are dropped, whatever their order; a second overwrite raises
    `InvalidUpdateError`. A key without a reducer treats an overwrite like any other write, and so refuses another write
    in the same superstep.

    For callers that can send JSON only, a channel with a reducer also accepts `{"__overwrite__": value}` and
    `{"value": value, "type": "__overwrite__"}` (as msgspec encodes this class). For other keys these are plain data.

    Attributes:
        value: the channel's new value.
    """

    value: Any
