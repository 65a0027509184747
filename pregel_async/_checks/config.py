"""Configs: what a caller says about one call, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast, get_args
from uuid import UUID

from checkpoint_savers.metadata import plain_scalar
from checkpoint_savers.records import RUN, CheckpointId
from checkpoint_savers.upkeep.retention import Retention

from .._core.program import Program
from .._core.superstep import Breakpoints
from .._runtime.engine.settings import Settings
from .._runtime.observing.observer import Observer
from .._runtime.tasks.control import RunControl
from .._runtime.tasks.kept_results import Results
from ..channels import AnyValue, EphemeralValue, LastValue
from ..errors import ConfigError
from ..policies import Budget, Collect, OnFailure
from ..types import ChangedQuestions, Config, Durability, OnConflict, RunnableConfig, plain_name

DEFAULT_RECURSION_LIMIT = 10_007

_TOP = frozenset(RunnableConfig.__annotations__)
_ADDRESS = frozenset(("thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map"))


def merge_configs(*configs: Config | None) -> RunnableConfig:
    """One config of several: later ones win; `configurable` and `metadata` are merged by key, `tags` are joined.

    Raises:
        ConfigError: a key that is not known, a known key in the wrong place, or a value of the wrong type.
    """
    merged: dict[str, Any] = {}
    for config in configs:
        if config is None:
            continue
        checked = _checked(config)
        for key, value in checked.items():
            if key in ("configurable", "metadata"):
                merged[key] = {**merged.get(key, {}), **cast("Mapping[str, Any]", value)}
            elif key == "tags":
                merged[key] = [*merged.get(key, []), *cast("list[str]", value)]
            else:
                merged[key] = value
    return cast("RunnableConfig", merged)


def _checked(given: Config) -> Mapping[str, Any]:
    if isinstance(given, str):
        given = {"configurable": {"thread_id": given}}
    if not isinstance(given, Mapping):
        raise ConfigError(f"a config is a mapping, or a thread's id as a string, and this is {given!r}")
    config = cast("Mapping[str, Any]", given)
    for key in config:
        if key in _ADDRESS:
            raise ConfigError(f"{key!r} belongs under 'configurable': {{'configurable': {{{key!r}: ...}}}}")
        if key not in _TOP:
            raise ConfigError(
                f"unknown config key {key!r}; known are {', '.join(sorted(_TOP))}. "
                "Keys of your own go under 'configurable'."
            )
    configurable = config.get("configurable") or {}
    if not isinstance(configurable, Mapping):
        raise ConfigError("config['configurable'] is a mapping")
    for key in configurable:
        if key in _TOP:
            raise ConfigError(f"{key!r} belongs at the top of the config, not under 'configurable'")
    for key, kind in (("metadata", Mapping), ("tags", list), ("run_id", str), ("run_name", str)):
        if config.get(key) is not None and not isinstance(config[key], kind):
            raise ConfigError(f"config[{key!r}] is a {kind.__name__}, not a {type(config[key]).__name__}")
    return {key: value for key, value in config.items() if value is not None or key == "max_concurrency"}


def _count(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"config[{key!r}] is a whole number of at least 1, not {value!r}")
    return value


def _text(value: str, what: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{what} {value!r} is no text that can be stored: it holds half of a surrogate pair"
        ) from None


def check_thread_id(given: object) -> str:
    """Return a thread's id as text.

    `str()` makes text of everything: a dict would be a thread of the name `"{'user': 1}"`, and every flag one of two
    threads that all callers share.

    Args:
        given: text, a whole number or a UUID.

    Raises:
        ConfigError: it is something else, or empty, or text that cannot be stored.
    """
    if isinstance(given, bool) or not isinstance(given, (str, int, UUID)):
        raise ConfigError(f"thread_id is text, a whole number or a UUID, and not a {type(given).__name__}")
    thread_id = str(given)
    if not thread_id:
        raise ConfigError("thread_id is empty")
    _text(thread_id, "thread_id")
    return thread_id


def address_of(config: Mapping[str, Any]) -> tuple[str | None, str, CheckpointId | None]:
    """Thread, namespace and checkpoint that a merged config names."""
    configurable = config.get("configurable", {})
    thread_id = configurable.get("thread_id")
    if thread_id is not None:
        thread_id = check_thread_id(thread_id)
    ns, checkpoint_id = configurable.get("checkpoint_ns", ""), configurable.get("checkpoint_id")
    if not isinstance(ns, str) or not (checkpoint_id is None or isinstance(checkpoint_id, str)):
        raise ConfigError("checkpoint_ns and checkpoint_id are strings")
    _text(ns, "checkpoint_ns")
    _text(checkpoint_id or "", "checkpoint_id")
    return thread_id, ns, None if checkpoint_id is None else CheckpointId(checkpoint_id)


def without_address(config: RunnableConfig) -> RunnableConfig:
    """A config that names no thread and no checkpoint."""
    kept = {key: value for key, value in config.get("configurable", {}).items() if key not in _ADDRESS}
    return cast("RunnableConfig", {**config, "configurable": kept})


def is_elsewhere(config: RunnableConfig, here: RunnableConfig) -> bool:
    """Whether a config addresses something that is not where the node stands whose config is `here`."""
    at, where = config.get("configurable", {}), here.get("configurable", {})
    return any(key in at and at[key] != where.get(key) for key in _ADDRESS) or (
        "thread_id" in at and "checkpoint_ns" not in at
    )


def check_on_failure(program: Program, policy: object, error: type[Exception] = ConfigError) -> OnFailure:
    """The failure policy, if the graph can follow it. Raises `error`."""
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
    """Budgets by name, those of a call over those of the graph. Raises `error` for what is none, or not known."""
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
    return {**before, **{name: _over(before.get(name), budget) for name, budget in given.items()}}


def _over(before: Budget | None, budget: Budget) -> Budget:
    """A call's budget, with the limits that it leaves open as the graph has them."""
    if before is None:
        return budget
    return Budget(
        run=before.run if budget.run is None else budget.run,
        thread=before.thread if budget.thread is None else budget.thread,
    )


def check_durability(durability: str | None, *, stored: bool, around: Durability | None) -> Durability:
    """How durable a run is.

    Args:
        durability: what was asked for; None for the default.
        around: how durable the run is that the call is a part of; None when it is none.

    Raises:
        ConfigError: a durability that is not known, that nothing could have, or that the run around has not.
    """
    if durability is None:
        return "sync" if around is None else around
    if durability not in get_args(Durability):
        raise ConfigError(f"durability {durability!r} is not known; known are {', '.join(get_args(Durability))}")
    if not stored:
        raise ConfigError(
            f"durability={durability!r} was asked for, and the graph has no checkpointer: compile it with one"
        )
    if around is not None and durability != around:
        raise ConfigError(
            f"durability={durability!r} was asked for, and the graph runs as part of a run with durability={around!r}, "
            "which it shares: leave it out, or name a thread of its own in config"
        )
    return cast("Durability", durability)


def _journey(
    config: Mapping[str, Any], ns: str, at: CheckpointId | None
) -> tuple[CheckpointId, dict[str, CheckpointId]]:
    """The root's checkpoint, and those of the graphs inside, that the config of a subgraph's state addresses."""
    places = config.get("configurable", {}).get("checkpoint_map")
    if at is None or not isinstance(places, Mapping) or "" not in places:
        raise ConfigError(
            f"checkpoint_ns {ns!r} addresses a subgraph's state: to go on from there, pass the whole config of a "
            "snapshot of it, which has a checkpoint_id and a checkpoint_map"
        )
    if not all(isinstance(each, str) for place in places.items() for each in place):
        raise ConfigError("checkpoint_map maps namespaces to ids of checkpoints, which are strings")
    inside = {str(key): CheckpointId(value) for key, value in places.items() if key}
    return CheckpointId(places[""]), {**inside, ns: at}


def _metadata(config: RunnableConfig) -> dict[str, Any]:
    """What is stored with each checkpoint: the scalars of the metadata, and of the user's own settings; and apart from
    them what a service knows of the run."""
    own = {key: value for key, value in config.get("configurable", {}).items() if key not in _ADDRESS}
    shown: dict[str, Any] = {**own, **config.get("metadata", {}), "run_id": config.get("run_id") or ""}
    for key, value in shown.items():
        _text(f"{key}: {value}" if isinstance(value, str) else str(key), "metadata or a configurable")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"metadata {key!r} is {value}, which cannot be stored")
    stored = _stored_part(shown)
    known = shown.get(RUN)
    if isinstance(known, dict):
        stored[RUN] = known
    return stored


def _stored_part(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        plain_name(key): plain
        for key, value in given.items()
        if (plain := plain_scalar(value)) is not None and not str(key).startswith("__")
    }


def settings_of(
    config: RunnableConfig,
    *,
    stored: bool,
    nested: bool,
    on_conflict: OnConflict,
    durability: Durability = "sync",
    context: Any,
    store: Any,
    breakpoints: Breakpoints | None,
    debug: bool,
    control: RunControl | None = None,
    on_failure: OnFailure = "fail_fast",
    budgets: Mapping[str, Budget] | None = None,
    time_limit: float | None = None,
    retention: Retention | None = None,
    results: Results | None = None,
    observers: tuple[Observer, ...] = (),
    changed_questions: ChangedQuestions = "error",
) -> Settings:
    """A call's settings.

    Args:
        stored: the graph has a checkpointer, so that a thread is needed.
        nested: a node runs the graph: its thread is that of the graph around it.
        durability: as `check_durability` gives it.
        context, store, breakpoints, debug, control, on_failure, budgets, time_limit, retention, results, observers,
            changed_questions: as in `Settings`.
    """
    if not (control is None or isinstance(cast("object", control), RunControl)):
        raise ConfigError(f"control is a RunControl, not {control!r}")
    if on_conflict not in ("reject", "wait"):
        raise ConfigError(f"on_conflict is 'reject' or 'wait', not {on_conflict!r}")
    thread_id, ns, checkpoint_id = address_of(config)
    if stored and thread_id is None:
        raise ConfigError(
            "the graph has a checkpointer, so a run needs a thread: pass {'configurable': {'thread_id': ...}}, "
            "or the thread's id as config"
        )
    travels: dict[str, CheckpointId] = {}
    if ns and not nested:
        checkpoint_id, travels = _journey(config, ns, checkpoint_id)
    metadata = _metadata(config) if config else {}
    given = config.get("metadata")
    return Settings(
        thread_id=thread_id,
        at=checkpoint_id,
        travels=travels,
        run_id=config.get("run_id"),
        limit=_count(config, "recursion_limit") or DEFAULT_RECURSION_LIMIT,
        max_concurrency=_count(config, "max_concurrency"),
        on_conflict=on_conflict,
        durability=durability,
        metadata=metadata,
        config=config,
        context=context,
        store=store,
        breakpoints=breakpoints,
        debug=debug,
        control=control,
        on_failure=on_failure,
        budgets=budgets or {},
        time_limit=time_limit,
        retention=retention,
        results=results,
        observers=observers,
        changed_questions=changed_questions,
        thread_metadata=_stored_part(given) if given else None,
    )
