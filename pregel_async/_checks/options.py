"""The options of calls and of `compile`: their types for type checkers, and their checks.

To add an option, add an entry to the `TypedDict`s of the methods that take it, and a field of `RunOptions` if runs
depend on it. The sync and async methods of a graph, `compile`, `Pregel` and `@entrypoint` all pass their options on as
one mapping, so that no method in between has to name the option.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    ForwardRef,
    Generic,
    Literal,
    Required,
    TypeAlias,
    TypedDict,
    cast,
    get_args,
)

import msgspec
from msgspec import structs

from checkpoint_savers import ports
from checkpoint_savers.upkeep.retention import Retention

from .._core.program import Program
from .._runtime.observing.observer import Observer
from .._runtime.persistence.spending import SpendingLimits
from .._runtime.platform.environment import Environment
from .._runtime.streaming.buffer import CAPACITY
from .._runtime.streaming.modes import MODES
from .._runtime.tasks.context import AttemptContext
from .._runtime.tasks.control import RunControl
from .._runtime.tasks.run_options import RunOptions
from ..channels import AnyValue, EphemeralValue, LastValue
from ..errors import ConfigError, GraphValidationError
from ..policies import Budget, CachePolicy, Collect, OnFailure, OnTimeout
from ..types import (
    All,
    ChangedQuestions,
    Config,
    Durability,
    Migration,
    Names,
    OnConflict,
    OverflowPolicy,
    StreamMode,
    UnknownStored,
)
from .node_policies import NodePolicies, RetryPolicies, TimeoutOption, node_policies, seconds_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # whose variables have defaults: see `_api/sync_verbs.py`

    ContextT = TypeVar("ContextT", default=Any)
else:
    from typing import TypeVar

    ContextT = TypeVar("ContextT")

T = TypeVar("T")
CallT = TypeVar("CallT", bound=Callable[..., Any])

Configs: TypeAlias = Config | Sequence[Config]
"""One config for several runs, or one for each."""

Modes: TypeAlias = StreamMode | Sequence[StreamMode]
"""One mode, or several."""

ChunkModes: TypeAlias = (
    Literal["updates", "messages", "custom", "tasks", "checkpoints", "debug"]
    | list[StreamMode]
    | tuple[StreamMode, ...]
)
"""The stream modes with which `ainvoke` returns a list of chunks instead of the output."""

Overflow: TypeAlias = OverflowPolicy | Mapping[StreamMode, OverflowPolicy]
"""One policy for all modes, or a policy by mode; modes that are not named block."""

UnknownKeys: TypeAlias = Literal["error", "ignore"]


# Options of calls: `Graph.ainvoke`, `Graph.astream` and `Graph.abatch` document them.


class UpdateOptions(TypedDict, total=False):
    """Options of every method that writes to a thread: `aupdate_state`, `abulk_update_state`, and runs."""

    on_conflict: OnConflict


class CheckOptions(TypedDict, total=False):
    """Options of `acheck_threads`."""

    open: bool
    of_version: int | None
    sample: int | None
    branches: bool
    filter: Mapping[str, Any] | None
    thread_ids: Collection[str] | None


class MigrateOptions(TypedDict, total=False):
    """Options of `amigrate_threads`."""

    dry_run: bool
    open: bool
    of_version: int | None
    filter: Mapping[str, Any] | None
    thread_ids: Collection[str] | None


class CallOptions(UpdateOptions, Generic[ContextT], total=False):
    """Options of every method that runs a graph once."""

    context: ContextT | None
    output_keys: Names | None
    interrupt_before: All | Sequence[str] | None
    interrupt_after: All | Sequence[str] | None
    durability: Durability | None
    on_failure: OnFailure | None
    budgets: Mapping[str, Budget] | None
    time_limit: float | timedelta | None
    control: RunControl | None
    observer: Observer | Sequence[Observer] | None
    subgraphs: bool
    print_mode: Modes
    debug: bool | None


class InvokeOptions(CallOptions[ContextT], Generic[ContextT], total=False):
    """Options of `ainvoke`. The next three classes are the overloads, as two options decide what is returned."""

    stream_mode: Modes
    version: Literal["v1", "v2"]


class PlainOutput(CallOptions[ContextT], Generic[ContextT], total=False):
    """Options of an `ainvoke` that returns the output, or a list of chunks."""

    stream_mode: Modes
    version: Literal["v1"]


class OutputRecord(CallOptions[ContextT], Generic[ContextT], total=False):
    """Options of an `ainvoke` that returns a `GraphOutput`."""

    stream_mode: Literal["values"]
    version: Required[Literal["v2"]]


class OutputParts(CallOptions[ContextT], Generic[ContextT], total=False):
    """Options of an `ainvoke` that returns a list of parts."""

    stream_mode: Required[ChunkModes]
    version: Required[Literal["v2"]]


class _ViewOptions(CallOptions[ContextT], Generic[ContextT], total=False):
    stream_mode: Modes | None
    capacity: int
    overflow: Overflow
    keep_events: bool
    after: str | None


class StreamOptions(_ViewOptions[ContextT], Generic[ContextT], total=False):
    """Options of `astream`."""

    version: Literal["v1", "v2"]


class EventOptions(CallOptions[ContextT], Generic[ContextT], total=False):
    """Options of `astream_events` and `stream_events`."""

    version: Literal["v2"]
    stream_mode: Modes | None
    include_names: Sequence[str] | None
    include_types: Sequence[str] | None
    include_tags: Sequence[str] | None
    exclude_names: Sequence[str] | None
    exclude_types: Sequence[str] | None
    exclude_tags: Sequence[str] | None
    transformers: None


class StreamedParts(_ViewOptions[ContextT], Generic[ContextT], total=False):
    """Options of an `astream` that yields parts."""

    version: Required[Literal["v2"]]


class BatchOptions(InvokeOptions[ContextT], Generic[ContextT], total=False):
    """Options of `abatch` and `abatch_as_completed`."""

    return_exceptions: bool
    max_concurrency: int | None


BY_REFERENCE = frozenset(("context", "control", "observer", "budgets", "after"))
"""The options of a call whose values are objects of the caller, or differ in each call. No cache may keep them."""


# Options of graphs and nodes: `StateGraph.compile` and `StateGraph.add_node` document them.


class GraphOptions(TypedDict, total=False):
    """Options of every graph, however it is built."""

    store: ports.BaseStore | None
    cache: ports.BaseCache | None
    name: str | None
    blocking: bool
    debug: bool
    environment: Environment | None
    budgets: Mapping[str, Budget] | None
    time_limit: float | timedelta | None
    retention: Retention | None
    observer: Observer | Sequence[Observer] | None
    changed_questions: ChangedQuestions | None
    version: int | None


class StepOptions(GraphOptions, total=False):
    """Options of graphs with several nodes."""

    interrupt_before: All | Sequence[str] | None
    interrupt_after: All | Sequence[str] | None
    unknown_keys: UnknownKeys | None
    step_timeout: float | timedelta | None
    on_failure: OnFailure


class CompileOptions(StepOptions, total=False):
    """Options of `StateGraph.compile`."""

    validate_input: bool | None
    removed: Sequence[str] | None
    retired: Mapping[str, str] | None
    migrations: Mapping[int, Migration] | None
    unknown: UnknownStored


class PolicyOptions(TypedDict, total=False):
    """Options of a node, and defaults for all nodes of a graph."""

    retry_policy: RetryPolicies | None
    timeout: TimeoutOption | None
    on_timeout: OnTimeout | None
    cache_policy: CachePolicy | None


class PregelOptions(StepOptions, PolicyOptions, total=False):
    """Options of `Pregel`."""


class EntrypointOptions(GraphOptions, PolicyOptions, Generic[ContextT], total=False):
    """Options of `@entrypoint`."""

    context_schema: type[ContextT] | None
    validate_input: bool | None


def takes(options: type[Any]) -> Callable[[CallT], CallT]:
    """Decorate a method to show its options in its signature, for `help()` and notebooks. Type checkers ignore this."""

    def mark(call: CallT) -> CallT:
        signature = inspect.signature(call)
        *first, _ = signature.parameters.values()
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if "None" in text.split(" | ") else _DEFAULT_OF[name],
                annotation=text,
            )
            for name, text in ((name, _source_text(kind)) for name, kind in options.__annotations__.items())
        ]
        cast("Any", call).__signature__ = signature.replace(parameters=[*first, *more])
        return call

    return mark


def _source_text(kind: Any) -> str:
    """Return an annotation as it is written in the source, like other annotations of the signature."""
    return str(kind.__forward_arg__ if isinstance(kind, ForwardRef) else kind)


_DEFAULT_OF: Mapping[str, object] = {
    "blocking": True,
    "branches": False,
    "capacity": CAPACITY,
    "debug": False,
    "dry_run": False,
    "keep_events": False,
    "open": False,
    "on_conflict": "reject",
    "on_failure": "fail_fast",
    "overflow": "block",
    "print_mode": (),
    "return_exceptions": False,
    "stream_mode": "values",
    "subgraphs": False,
    "unknown": "warn",
    "version": "v1",
}
"""The defaults of options that do not accept None, for signatures. A test checks that passing them changes nothing."""


def checked_options(verb: str, options: type[T], given: Any) -> T:
    """Return a method's options. Raise `TypeError` for an unknown option, as Python does for a keyword.

    Options that LangGraph has renamed are returned under their new names, with a `DeprecationWarning`.
    """
    for name in given:
        if name not in options.__annotations__:
            if _RENAMED.get(name) in options.__annotations__:
                return checked_options(verb, options, _renamed(given, name, depth=3))
            close = difflib.get_close_matches(name, options.__annotations__, n=1)
            hint = f". Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{verb}() got an unexpected keyword argument {name!r}{hint}")
    checked: T = given
    return checked


_RENAMED = {
    "retry": "retry_policy",
    "input": "input_schema",
    "output": "output_schema",
    "config_schema": "context_schema",
    "checkpoint_during": "durability",
}
"""Deprecated spellings of LangGraph's options."""


def _renamed(given: Mapping[str, Any], name: str, *, depth: int) -> dict[str, Any]:
    """Return options with one of them under its new name, and warn the code `depth` calls up.

    Raises:
        TypeError: both names are given.
    """
    new, value = _RENAMED[name], given[name]
    if given.get(new) is not None:
        raise TypeError(f"{name}= is the deprecated spelling of {new}=: pass {new}= alone")
    warnings.warn(f"{name}= is deprecated: use {new}=", DeprecationWarning, stacklevel=depth + 1)
    if name == "checkpoint_during" and value is not None:
        value = "async" if value else "exit"
    return {**{key: each for key, each in given.items() if key != name}, new: value}


def takes_deprecated(*names: str) -> Callable[[CallT], CallT]:
    """Decorate a function to accept deprecated spellings of its keywords. Type checkers and `help()` ignore them."""

    def mark(call: CallT) -> CallT:
        @functools.wraps(call)
        def accepting(*args: Any, **kwargs: Any) -> Any:
            for name in names:
                if name in kwargs:
                    kwargs = _renamed(kwargs, name, depth=2)
            return call(*args, **kwargs)

        return cast("CallT", accepting)

    return mark


def given_policies(what: str, given: PolicyOptions) -> NodePolicies:
    """Check the policies among options. `what` names their owner in errors. Raises `GraphValidationError`."""
    return node_policies(
        what,
        retry_policy=given.get("retry_policy"),
        timeout=given.get("timeout"),
        on_timeout=given.get("on_timeout"),
        cache_policy=given.get("cache_policy"),
    )


def options_of_graph(program: Program, given: StepOptions) -> RunOptions:
    """Check the options of `compile`, and return them as defaults of the graph's runs.

    Raises:
        GraphValidationError, ConfigError: an option is invalid.
    """
    error = GraphValidationError
    return RunOptions(
        interrupt_before=node_names(program, given.get("interrupt_before"), "interrupt_before"),
        interrupt_after=node_names(program, given.get("interrupt_after"), "interrupt_after"),
        debug=check_debug(given.get("debug", False)),
        on_failure=check_on_failure(program, given.get("on_failure", "fail_fast"), error),
        limits=SpendingLimits(
            budgets=check_budgets(given.get("budgets"), error=error),
            time_limit=seconds_of("time_limit", given.get("time_limit")),
        ),
        retention=_check_retention(given.get("retention")),
        observers=check_observer(given.get("observer"), error),
        changed_questions=changed_questions_of(given.get("changed_questions")),
        store=check_store(given.get("store")),
    )


def name_of(given: GraphOptions, otherwise: str) -> str:
    """Return the name that a graph was given, or `otherwise`."""
    return given.get("name") or otherwise


def with_program_options(program: Program, given: StepOptions) -> Program:
    """Return the program with the given step timeout and version. Raises `GraphValidationError`."""
    version: object = given.get("version")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool) or version < 1):
        raise GraphValidationError(f"version is a whole number from 1 on, or None, not {version!r}")
    step_timeout = seconds_of("step_timeout", given.get("step_timeout"))
    return structs.replace(program, step_timeout=step_timeout, version=version or 0)


def options_of_call(
    program: Program,
    graph: RunOptions,
    given: CallOptions,
    *,
    stored: bool,
    outer: AttemptContext | None,
    inherits_from: AttemptContext | None,
    read_context: Callable[[Any], Any] | None,
) -> RunOptions:
    """Return the options of one run: those of the call, over those that the graph was compiled with.

    Args:
        program: the graph's program.
        graph: the options that the graph was compiled with.
        given: the options of the call.
        stored: True if the graph stores threads of its own.
        outer: the attempt at the node of whose run the call is a part; None if the call is a run of its own.
        inherits_from: the attempt from which the run inherits context, store and observers; None for none.
        read_context: converts a call's context to the context that nodes get; None passes it as it is.

    Raises:
        ConfigError: an option is invalid.
    """
    before, after = given.get("interrupt_before"), given.get("interrupt_after")
    on_failure = given.get("on_failure")
    limit = seconds_of("time_limit", given.get("time_limit"), ConfigError)
    control = given.get("control")
    if not (control is None or isinstance(cast("object", control), RunControl)):
        raise ConfigError(f"control is a RunControl, not {control!r}")
    durability = check_durability(
        given.get("durability"),
        stored=stored or (outer is not None and outer.graph.persistence.is_stored),
        enclosing=None if outer is None else outer.graph.run.lease.durability,
    )
    context = given_context = given.get("context")
    if context is None and inherits_from is not None:
        context = inherits_from.context  # already converted by the enclosing graph's schema
    if read_context is not None and (given_context is not None or context is None):
        context = read_context(context)
    inherited = () if inherits_from is None else inherits_from.graph.observation.registered
    observers = (*inherited, *graph.observers, *check_observer(given.get("observer")))
    return structs.replace(
        graph,
        on_conflict=check_on_conflict(given),
        debug=_debug_of_call(graph, given),
        durability=durability,
        interrupt_before=graph.interrupt_before if before is None else node_names(program, before, "interrupt_before"),
        interrupt_after=graph.interrupt_after if after is None else node_names(program, after, "interrupt_after"),
        control=control,
        on_failure=graph.on_failure if on_failure is None else check_on_failure(program, on_failure),
        limits=SpendingLimits(
            budgets=check_budgets(given.get("budgets"), graph.limits.budgets),
            time_limit=graph.limits.time_limit if limit is None else limit,
        ),
        # By identity: an observer that graph and call share is notified once.
        observers=tuple({id(each): each for each in observers}.values()),
        context=context,
        store=inherits_from.store if inherits_from is not None and graph.store is None else graph.store,
    )


def node_names(program: Program, names: All | Sequence[str] | None, what: str) -> frozenset[str]:
    """Check names of nodes and error handlers, and return them as a set; the empty set for None.

    Raises:
        ConfigError: there is no such node or handler.
    """
    shown = frozenset(name for name, node in program.nodes.items() if not node.hidden)
    if names is None:
        return frozenset()
    if names == "*":
        return shown
    if isinstance(names, str) or not isinstance(cast("object", names), Iterable):
        raise ConfigError(f'{what} is a list of nodes, or "*" for all, not {names!r}')
    handlers = {node.handler.name for node in program.nodes.values() if node.handler is not None}
    for name in names:
        if not isinstance(cast("object", name), str) or not (name in shown or name in handlers):
            raise ConfigError(f"{what} names {name!r}, and graph {program.name!r} has no such node")
    return frozenset(names)


def check_on_conflict(given: UpdateOptions) -> OnConflict:
    """Return the checked `on_conflict`. Raises `ConfigError`."""
    on_conflict = given.get("on_conflict", "reject")
    if on_conflict not in ("reject", "wait"):
        raise ConfigError(f"on_conflict is 'reject' or 'wait', not {on_conflict!r}")
    return on_conflict


def check_debug(debug: bool, error: type[Exception] = GraphValidationError) -> bool:
    """Return the checked `debug`. Raises `error`."""
    if not isinstance(cast("object", debug), bool):
        raise error(f"debug is True or False, not {debug!r}")
    return debug


def check_store(store: ports.BaseStore | None) -> ports.BaseStore | None:
    """Return a store unchanged. Raises `GraphValidationError` for a class."""
    # No isinstance check: a test double need not derive from BaseStore.
    given: object = store
    if isinstance(given, type):
        raise GraphValidationError(f"a store is a BaseStore, not a class: make one, {given.__name__}()")
    return store


def ignores_unknown(given: StepOptions) -> bool:
    """Return True if unknown keys are dropped instead of refused. Raises `GraphValidationError`."""
    return unknown_keys_of(given.get("unknown_keys")) == "ignore"


def unknown_keys_of(given: object) -> UnknownKeys:
    """Return the checked `unknown_keys=` of a graph; for None, the default. Raises `GraphValidationError`."""
    if given is None:
        return _DEFAULTS.unknown_keys
    if given not in get_args(UnknownKeys):
        raise GraphValidationError(f"unknown_keys is 'error' or 'ignore', not {given!r}")
    return cast("UnknownKeys", given)


def _check_retention(retention: object) -> Retention | None:
    if retention is None or isinstance(retention, Retention):
        return retention
    raise GraphValidationError(f"retention is a Retention(keep=..., max_age=..., max_bytes=...), not {retention!r}")


def check_on_failure(program: Program, policy: object, error: type[Exception] = ConfigError) -> OnFailure:
    """Return the failure policy, if the graph can apply it. Raises `error`."""
    if isinstance(policy, Collect):
        channel = program.channels.get(policy.channel)
        if channel is None or policy.channel not in program.keys:
            raise error(f"on_failure collects in {policy.channel!r}, and graph {program.name!r} has no such key")
        if isinstance(channel, (LastValue, EphemeralValue, AnyValue)):
            raise error(
                f"on_failure collects in {policy.channel!r}, which holds one value only: several tasks may fail in one "
                "superstep, so make it a list with a reducer, Annotated[list[NodeError], operator.add]"
            )
        return policy
    if policy in ("fail_fast", "finish"):
        return cast("OnFailure", policy)
    raise error(f"on_failure is 'fail_fast', 'finish' or Collect(channel), not {policy!r}")


def check_budgets(
    budgets: Mapping[str, Budget] | None,
    known: Mapping[str, Budget] | None = None,
    error: type[Exception] = ConfigError,
) -> dict[str, Budget]:
    """Check budgets, and merge those of a call over those of the graph (`known`). Raises `error`.

    Args:
        budgets: the budgets by name; None for none.
        known: the graph's budgets, which a call may change; None if `budgets` are the graph's own.
        error: the class of the exception.
    """
    given: Any = {} if budgets is None else budgets
    if not isinstance(given, Mapping):
        raise error(f"budgets are a mapping of names to Budgets, not {budgets!r}")
    for name, budget in given.items():
        if not isinstance(name, str) or not name:
            raise error(f"a budget's name is text, not {name!r}")
        if not isinstance(budget, Budget):
            raise error(f"budget {name!r} is a Budget(run=..., thread=...), not {budget!r}")
        if known is not None and name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise error(f"there is no budget {name!r} to change: the graph was compiled with {there}")
    before = known or {}
    return {**before, **{name: _merge_budget(before.get(name), budget) for name, budget in given.items()}}


def _merge_budget(before: Budget | None, budget: Budget) -> Budget:
    """Return a call's budget, with the graph's limits where the call's are None."""
    if before is None:
        return budget
    return Budget(
        run=before.run if budget.run is None else budget.run,
        thread=before.thread if budget.thread is None else budget.thread,
    )


def check_durability(durability: str | None, *, stored: bool, enclosing: Durability | None) -> Durability:
    """Return the durability of a run.

    Args:
        durability: the durability that the call asks for; None for the default.
        stored: True if the run stores anything.
        enclosing: the durability of the run that the call is a part of; None if the call is a run of its own.

    Raises:
        ConfigError: the durability is unknown, the run stores nothing, or the enclosing run has another durability.
    """
    if durability is None:
        return "sync" if enclosing is None else enclosing
    if durability not in get_args(Durability):
        raise ConfigError(f"durability {durability!r} is not known; known are {', '.join(get_args(Durability))}")
    if not stored:
        raise ConfigError(
            f"durability={durability!r} was asked for, and the graph has no checkpointer: compile it with one"
        )
    if enclosing is not None and durability != enclosing:
        raise ConfigError(
            f"durability={durability!r} was asked for, and the graph runs as part of a run with "
            f"durability={enclosing!r}, which it shares: leave it out, or name a thread of its own in config"
        )
    return cast("Durability", durability)


def names_of_modes(modes: Modes, option: str = "stream_mode") -> tuple[str, ...]:
    """Check stream modes, and return their names. Raises `ConfigError`, which names the option."""
    given: object = modes
    names: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    for name in names:
        if not isinstance(name, str) or name not in MODES:
            raise ConfigError(f"{option} {name!r} is not known; known are {', '.join(sorted(MODES))}")
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{option} names each mode once, and at least one")
    return names


def _debug_of_call(graph: RunOptions, given: CallOptions) -> bool:
    debug = given.get("debug")
    return graph.debug if debug is None else check_debug(debug, ConfigError)


def printed_modes(graph: RunOptions, given: CallOptions) -> tuple[str, ...]:
    """Return the modes whose parts a call prints: those of `print_mode`, and two more with `debug`.

    Args:
        graph: the options that the graph was compiled with.
        given: the options of the call.

    Raises:
        ConfigError: a mode is not known, or `debug` is no bool.
    """
    asked = given.get("print_mode", ())
    names = () if asked == () or asked == [] else names_of_modes(asked, "print_mode")
    return tuple(dict.fromkeys((*names, *(("updates", "values") if _debug_of_call(graph, given) else ()))))


def policies_of(overflow: Overflow, modes: Sequence[str]) -> dict[str, OverflowPolicy]:
    """Return the overflow policy of each mode that does not block. Raises `ConfigError`."""
    if overflow == "block":
        return {}
    known = get_args(OverflowPolicy)
    if isinstance(overflow, str):
        by_mode: Mapping[Any, Any] = dict.fromkeys(modes, overflow)
    elif isinstance(cast("object", overflow), Mapping):
        by_mode = overflow
    else:
        raise ConfigError(f"overflow is a policy, or a policy by mode, not {overflow!r}")
    for mode, policy in by_mode.items():
        if policy not in known:
            raise ConfigError(f"overflow {policy!r} is not known; known are {', '.join(known)}")
        if mode not in modes:
            raise ConfigError(f"overflow names mode {mode!r}, and stream_mode asks for {', '.join(modes)}")
    return {mode: policy for mode, policy in by_mode.items() if policy != "block"}


def check_observer(observer: object, error: type[Exception] = ConfigError) -> tuple[Observer, ...]:
    """Return an observer, a list of observers, or None as a tuple. Raises `error` for other values."""
    if observer is None:
        return ()
    if isinstance(observer, Observer):
        return (observer,)
    if isinstance(observer, (list, tuple)):
        return tuple(each for one in cast("Sequence[object]", observer) for each in check_observer(one, error))
    what = f"the class {observer.__name__}: make one" if isinstance(observer, type) else f"a {type(observer).__name__}"
    raise error(f"an observer is a subclass's instance of pregel_async.observing.Observer, not {what}")


def check_capacity(capacity: int) -> int:
    """Return the checked capacity, a number of chunks. Raises `ConfigError`."""
    if not isinstance(cast("object", capacity), int) or isinstance(capacity, bool) or capacity < 1:
        raise ConfigError(f"capacity is how many chunks may wait for the reader, at least 1, not {capacity!r}")
    return capacity


def check_version(version: Literal["v1", "v2"]) -> Literal["v1", "v2"]:
    """Return the checked version. Raises `ConfigError`."""
    if version not in ("v1", "v2"):
        raise ConfigError(f"version is 'v1' or 'v2', not {version!r}")
    return version


class _Defaults(msgspec.Struct):
    validate_input: bool = True
    changed_questions: ChangedQuestions = "error"
    unknown_keys: UnknownKeys = "error"


# A process-wide mutable object, on purpose: a service switches a check off for all of its graphs in one place, until
# its callers are fixed. A context variable would not reach graphs that another thread compiles.
_DEFAULTS = _Defaults()


def set_defaults(
    *,
    validate_input: bool | None = None,
    changed_questions: ChangedQuestions | None = None,
    unknown_keys: UnknownKeys | None = None,
) -> None:
    """Set the defaults of `compile` options, for graphs that this process compiles from now on.

    Args:
        validate_input: the default of `StateGraph.compile(validate_input=)`, initially True; None leaves it unchanged.
        changed_questions: the default of `StateGraph.compile(changed_questions=)`, initially "error"; None leaves it
            unchanged.
        unknown_keys: the default of `StateGraph.compile(unknown_keys=)` and of `Pregel(unknown_keys=)`, initially
            "error"; None leaves it unchanged.

    Raises:
        GraphValidationError: a value is unknown or has the wrong type. Nothing is set then.
    """
    validates, changed = validates_input(validate_input), changed_questions_of(changed_questions)
    unknown = unknown_keys_of(unknown_keys)
    _DEFAULTS.validate_input, _DEFAULTS.changed_questions, _DEFAULTS.unknown_keys = validates, changed, unknown


def validates_input(given: object) -> bool:
    """Return the checked `validate_input=` of a graph; for None, the default. Raises `GraphValidationError`."""
    if given is None:
        return _DEFAULTS.validate_input
    if not isinstance(given, bool):
        raise GraphValidationError(f"validate_input is True or False, not {given!r}")
    return given


def changed_questions_of(given: object) -> ChangedQuestions:
    """Return the checked `changed_questions=` of a graph; for None, the default. Raises `GraphValidationError`."""
    if given is None:
        return _DEFAULTS.changed_questions
    if given not in get_args(ChangedQuestions):
        raise GraphValidationError(f"changed_questions is 'error' or 'accept', not {given!r}")
    return cast("ChangedQuestions", given)
