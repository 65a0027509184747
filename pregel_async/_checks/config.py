"""Check and merge configs, the settings of one call, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from msgspec import structs

from checkpoint_savers.metadata import id_text, plain_scalar
from checkpoint_savers.records import RUN, CheckpointId

from .._runtime.engine.settings import Settings
from .._runtime.tasks.context import NODE_METADATA
from .._runtime.tasks.result_cache import NodeResultCache
from .._runtime.tasks.run_options import RunOptions
from ..errors import ConfigError
from ..types import Config, RunnableConfig, plain_name

DEFAULT_RECURSION_LIMIT = 10_007

_TOP = frozenset(RunnableConfig.__annotations__)
_KINDS: tuple[tuple[str, type, *tuple[type, ...]], ...] = (
    ("metadata", Mapping),
    ("tags", list),
    ("run_id", str, UUID),
    ("run_name", str),
)
_ADDRESS = frozenset(("thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map"))
_OF_A_NODE = _ADDRESS | set(NODE_METADATA)
"""Metadata that describes a node's place in a run, or repeats the address. A node that passes on its config passes it
on too, and it is not stored with the checkpoints of the graph that is called."""


def merge_configs(*configs: Config | None) -> RunnableConfig:
    """Merge configs: later ones override earlier ones.

    `configurable` and `metadata` are merged by key; `tags` and `callbacks` are joined.

    Raises:
        ConfigError: a key is unknown or in the wrong place, or a value has the wrong type.
    """
    # This module uses no `cast` and few `get`s: each is a call, made in each run whose config names a thread.
    merged: Any = {}
    for config in configs:
        if config is None or config == {}:
            continue
        checked = _checked(config)
        for key, value in checked.items():
            if key in ("configurable", "metadata"):
                merged[key] = {**merged[key], **value} if key in merged else {**value}
            elif key == "tags":
                tags = merged.get(key, [])
                merged[key] = [*tags, *(tag for tag in value if tag not in tags)]
            elif key == "callbacks" and key in merged:
                merged[key] = _joined_callbacks(merged[key], value)
            else:
                merged[key] = value
    result: RunnableConfig = merged
    return result


def _joined_callbacks(first: Any, second: Any) -> Any:
    """Return the handlers of two `callbacks`, each a list or a callback manager of langchain-core."""
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *(handler for handler in second if not any(handler is one for one in first))]
    if not isinstance(first, list) and not isinstance(second, list):
        return first.merge(second)
    # The manager knows the run in which the handlers' runs are nested. A copy: the caller's own is not changed.
    manager: Any = second.copy() if isinstance(first, list) else first.copy()
    handlers: Any = first if isinstance(first, list) else second
    for handler in handlers:
        manager.add_handler(handler, True)
    return manager


def _check_callbacks(given: Any) -> None:
    if not isinstance(given, list) and not hasattr(given, "add_handler"):
        raise ConfigError(
            "config['callbacks'] is a list of langchain-core's callback handlers, or a callback manager, not a "
            f"{type(given).__name__}"
        )


def _checked(given: Config) -> Mapping[str, Any]:
    config: Any = {"configurable": {"thread_id": given}} if isinstance(given, str) else given
    if type(config) is not dict and not isinstance(config, Mapping):
        raise ConfigError(f"a config is a mapping, or a thread's id as a string, and this is {given!r}")
    for key in config:
        if key in _ADDRESS:
            raise ConfigError(f"{key!r} belongs under 'configurable': {{'configurable': {{{key!r}: ...}}}}")
        if key not in _TOP:
            raise ConfigError(
                f"unknown config key {key!r}; known are {', '.join(sorted(_TOP))}. "
                "Keys of your own go under 'configurable'."
            )
    configurable = config.get("configurable") or {}
    if type(configurable) is not dict and not isinstance(configurable, Mapping):  # checking an ABC costs three calls
        raise ConfigError("config['configurable'] is a mapping")
    for key in configurable:
        if key in _TOP:
            raise ConfigError(f"{key!r} belongs at the top of the config, not under 'configurable'")
    for key, *kinds in _KINDS:
        if key in config and config[key] is not None and not isinstance(config[key], tuple(kinds)):
            names = " or a ".join(kind.__name__ for kind in kinds)
            raise ConfigError(f"config[{key!r}] is a {names}, not a {type(config[key]).__name__}")
    if "callbacks" in config and config["callbacks"] is not None:
        _check_callbacks(config["callbacks"])
    return {key: value for key, value in config.items() if value is not None or key == "max_concurrency"}


def _positive_int(config: Any, key: str) -> int | None:
    if key not in config or config[key] is None:
        return None
    value = config[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"config[{key!r}] is a whole number of at least 1, not {value!r}")
    return value


def check_text(value: str, what: str) -> None:
    """Check that a string can be stored.

    Args:
        value: the string.
        what: the string's name in the error message.

    Raises:
        ConfigError: the string has half of a surrogate pair, so it cannot be encoded as UTF-8.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{what} {value!r} is no text that can be stored: it holds half of a surrogate pair"
        ) from None


def check_thread_id(given: object) -> str:
    """Return a thread's id as text.

    Args:
        given: a string, an int or a UUID.

    Raises:
        ConfigError: the id has another type, is empty, or is text that cannot be stored.
    """
    # `str()` would accept anything: a dict would become the thread "{'user': 1}", and booleans the two threads "True"
    # and "False", which all callers would share.
    if isinstance(given, bool) or not isinstance(given, (str, int, UUID)):
        raise ConfigError(f"thread_id is text, a whole number or a UUID, and not a {type(given).__name__}")
    thread_id = id_text(given)
    if not thread_id:
        raise ConfigError("thread_id is empty")
    check_text(thread_id, "thread_id")
    return thread_id


def address_of(config: Mapping[str, Any]) -> tuple[str | None, str, CheckpointId | None]:
    """Return the thread id, namespace and checkpoint id that a merged config names."""
    configurable = config.get("configurable", {})
    thread_id = configurable.get("thread_id")
    if thread_id is not None:
        thread_id = check_thread_id(thread_id)
    ns, checkpoint_id = configurable.get("checkpoint_ns", ""), configurable.get("checkpoint_id")
    if not isinstance(ns, str) or not (checkpoint_id is None or isinstance(checkpoint_id, str)):
        raise ConfigError("checkpoint_ns and checkpoint_id are strings")
    if ns:
        check_text(ns, "checkpoint_ns")
    if checkpoint_id:
        check_text(checkpoint_id, "checkpoint_id")
    return thread_id, ns, None if checkpoint_id is None else CheckpointId(checkpoint_id)


def without_address(config: RunnableConfig) -> RunnableConfig:
    """Return a config without the keys that name thread, namespace and checkpoint."""
    kept = {key: value for key, value in config.get("configurable", {}).items() if key not in _ADDRESS}
    return cast("RunnableConfig", {**config, "configurable": kept})


def is_elsewhere(config: RunnableConfig, here: RunnableConfig) -> bool:
    """Return True if a config addresses another thread or checkpoint than `here`, the config of a running node."""
    at, where = config.get("configurable", {}), here.get("configurable", {})
    return any(key in at and at[key] != where.get(key) for key in _ADDRESS) or (
        "thread_id" in at and "checkpoint_ns" not in at
    )


def _read_checkpoint_map(
    config: Mapping[str, Any], ns: str, at: CheckpointId | None
) -> tuple[CheckpointId, dict[str, CheckpointId]]:
    """Return the checkpoint of the root, and those of subgraphs by namespace, that a subgraph's config addresses."""
    checkpoint_map = config.get("configurable", {}).get("checkpoint_map")
    if at is None or not isinstance(checkpoint_map, Mapping) or "" not in checkpoint_map:
        raise ConfigError(
            f"checkpoint_ns {ns!r} addresses a subgraph's state: to go on from there, pass the whole config of a "
            "snapshot of it, which has a checkpoint_id and a checkpoint_map"
        )
    if not all(isinstance(each, str) for place in checkpoint_map.items() for each in place):
        raise ConfigError("checkpoint_map maps namespaces to ids of checkpoints, which are strings")
    inside = {str(key): CheckpointId(value) for key, value in checkpoint_map.items() if key}
    return CheckpointId(checkpoint_map[""]), {**inside, ns: at}


def _metadata(config: RunnableConfig) -> dict[str, Any]:
    """Return the metadata that is stored with each checkpoint.

    These are the scalars of the config's metadata and of the user's own keys under `configurable`; and under `RUN`, a
    dict with which a service describes the run.
    """
    own = {key: value for key, value in config.get("configurable", {}).items() if key not in _ADDRESS}
    shown: dict[str, Any] = {**own, **config.get("metadata", {})}
    run_id = _run_id(config)
    if run_id is not None:
        check_text(run_id, "config['run_id']")
    for key, value in shown.items():
        check_text(f"{key}: {value}" if isinstance(value, str) else str(key), "metadata or a configurable")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"metadata {key!r} is {value}, which cannot be stored")
    stored = _storable_metadata(shown)
    stored["run_id"] = run_id or ""
    if RUN in shown and isinstance(shown[RUN], dict):
        stored[RUN] = shown[RUN]
    return stored


def metadata_in_streams(config: RunnableConfig) -> dict[str, Any]:
    """Return the metadata that streams show with each task and message, with the tags of the config under "tags"."""
    metadata = {key: value for key, value in config.get("metadata", {}).items() if key not in _OF_A_NODE and key != RUN}
    tags = config.get("tags", ())
    return {**metadata, "tags": list(tags)} if tags else metadata


def _run_id(config: RunnableConfig) -> str | None:
    return None if "run_id" not in config or config["run_id"] is None else str(config["run_id"])


def _storable_metadata(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        plain_name(key): plain
        for key, value in given.items()
        if (plain := plain_scalar(value)) is not None and not str(key).startswith("__") and key not in _OF_A_NODE
    }


def settings_of(
    config: RunnableConfig, options: RunOptions, *, stored: bool, nested: bool, results: NodeResultCache | None = None
) -> Settings:
    """Make the settings of a call from its merged config and checked options.

    Args:
        config: the merged config.
        options: the checked options.
        stored: True if the graph has a checkpointer, so that the config must name a thread.
        nested: True if a node runs the graph, on the thread of the enclosing graph.
        results: as in `Settings`.

    Raises:
        ConfigError: the config lacks a thread, or a value is invalid.
    """
    thread_id, ns, checkpoint_id = address_of(config)
    if stored and thread_id is None:
        raise ConfigError(
            "the graph has a checkpointer, so a run needs a thread: pass {'configurable': {'thread_id': ...}}, "
            "or the thread's id as config"
        )
    travels: dict[str, CheckpointId] = {}
    if ns and not nested:
        checkpoint_id, travels = _read_checkpoint_map(config, ns, checkpoint_id)
    metadata = _metadata(config) if config else {}
    given = config.get("metadata")
    return Settings(
        **structs.asdict(options),
        thread_id=thread_id,
        at=checkpoint_id,
        travels=travels,
        run_id=_run_id(config),
        limit=_positive_int(config, "recursion_limit") or DEFAULT_RECURSION_LIMIT,
        max_concurrency=_positive_int(config, "max_concurrency"),
        metadata=metadata,
        config=config,
        results=results,
        thread_metadata=_storable_metadata(given) if given else {},
    )
