"""The attributes of a compiled graph that may be set after it was compiled, checked as `compile` checks them.

What is set holds for runs that begin later. A setter replaces values and changes none in place, so that a run that is
under way keeps what it has begun with, and so does a copy that `with_config` has made.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from msgspec import structs

from checkpoint_savers import ports
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec

from .._checks.config import merge_configs
from .._checks.node_policies import NodePolicies, RetryPolicies, node_policies, seconds_of
from .._checks.stream_options import names_of_modes
from .._core.program import Node, Program
from .._core.superstep import Breakpoints
from .._runtime.streaming.subscription import Live
from .._runtime.tasks.kept_results import Results
from ..errors import ConfigError, GraphValidationError, InvalidCheckpointerError, UnsettableAttributeError
from ..policies import CachePolicy, RetryPolicy
from ..types import All, Config, Names, RunnableConfig, StreamMode
from .stored_types import codec_of, with_runtime_types


class GraphAttributes:
    """What may be set on a compiled graph. An existing method may be replaced too, as mocks do."""

    # Set by the graph's constructor.
    _program: Program
    _hints: Sequence[Any]
    _defaults: NodePolicies
    _own_policies: Mapping[str, NodePolicies]

    _checkpointer: BaseCheckpointSaver | bool | None
    _codec: Codec | None
    _live: Live
    _store: ports.BaseStore | None
    _cache: ports.BaseCache | None = None
    _results: Results | None
    _debug: bool
    _breakpoints: Breakpoints
    _stream_mode: StreamMode | Sequence[StreamMode]
    _stream_channels: str | tuple[str, ...]
    _config: RunnableConfig

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            found = getattr(type(self), name, None)
            if found is None or not (callable(found) or (isinstance(found, property) and found.fset is not None)):
                raise UnsettableAttributeError(self._program.name, name, _nearest(type(self), name))
        object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """For messages and drawings."""
        return self._program.name

    @name.setter
    def name(self, name: str) -> None:
        if not isinstance(cast("object", name), str) or not name:
            raise GraphValidationError(f"a graph's name is a text, not {name!r}")
        self._program = structs.replace(self._program, name=name)

    @property
    def checkpointer(self) -> BaseCheckpointSaver | bool | None:
        """Where threads are stored; None runs without.

        Of a graph that a node runs: None stores its state with the graph around it, for one call of it; True keeps the
        state from call to call; False stores nothing.
        """
        return self._checkpointer

    @checkpointer.setter
    def checkpointer(self, checkpointer: BaseCheckpointSaver | bool | None) -> None:
        checked = checked_saver(checkpointer)
        codec = codec_of(checked, self._hints)
        self._checkpointer, self._codec, self._live = checked, codec, Live()
        self.cache = self._cache  # what it keeps is encoded with the saver's codec

    @property
    def store(self) -> ports.BaseStore | None:
        """What nodes get as `store`."""
        return self._store

    @store.setter
    def store(self, store: ports.BaseStore | None) -> None:
        self._store = checked_store(store)

    @property
    def cache(self) -> ports.BaseCache | None:
        """Where results of nodes are kept that have a cache policy."""
        return self._cache

    @cache.setter
    def cache(self, cache: ports.BaseCache | None) -> None:
        self._cache = checked_cache(cache)
        codec = self._codec or with_runtime_types(Codec(), self._hints)
        self._results = None if cache is None else Results(cache, codec)

    @property
    def debug(self) -> bool:
        """Warn (`InPlaceChangeWarning`) when a node changes its input in place."""
        return self._debug

    @debug.setter
    def debug(self, debug: bool) -> None:
        if not isinstance(cast("object", debug), bool):
            raise GraphValidationError(f"debug is True or False, not {debug!r}")
        self._debug = debug

    @property
    def step_timeout(self) -> float | None:
        """Seconds that one superstep may take; None for no limit. A timedelta may be set too."""
        return self._program.step_timeout

    @step_timeout.setter
    def step_timeout(self, step_timeout: float | timedelta | None) -> None:
        self._program = structs.replace(self._program, step_timeout=seconds_of("step_timeout", step_timeout))

    @property
    def retry_policy(self) -> tuple[RetryPolicy, ...]:
        """For nodes that were added without one, and for error handlers. One policy, several or None may be set."""
        return self._defaults.retry

    @retry_policy.setter
    def retry_policy(self, retry_policy: RetryPolicies | None) -> None:
        retry = node_policies("the graph", retry_policy=retry_policy).retry
        self._set_defaults(structs.replace(self._defaults, retry=retry))

    @property
    def cache_policy(self) -> CachePolicy | None:
        """For nodes that were added without one."""
        return self._defaults.cache

    @cache_policy.setter
    def cache_policy(self, cache_policy: CachePolicy | None) -> None:
        cache = node_policies("the graph", cache_policy=cache_policy).cache
        self._set_defaults(structs.replace(self._defaults, cache=cache))

    @property
    def interrupt_before_nodes(self) -> list[str]:
        """Nodes before which a run stops, sorted. "*" may be set, for all."""
        return sorted(self._breakpoints.before)

    @interrupt_before_nodes.setter
    def interrupt_before_nodes(self, names: All | Sequence[str] | None) -> None:
        self._breakpoints = Breakpoints(self._named(names, "interrupt_before_nodes"), self._breakpoints.after)

    @property
    def interrupt_after_nodes(self) -> list[str]:
        """Nodes after which a run stops, sorted. "*" may be set, for all."""
        return sorted(self._breakpoints.after)

    @interrupt_after_nodes.setter
    def interrupt_after_nodes(self, names: All | Sequence[str] | None) -> None:
        self._breakpoints = Breakpoints(self._breakpoints.before, self._named(names, "interrupt_after_nodes"))

    @property
    def stream_mode(self) -> StreamMode | Sequence[StreamMode]:
        """What `astream` shows when a call does not say."""
        return self._stream_mode

    @stream_mode.setter
    def stream_mode(self, stream_mode: StreamMode | Sequence[StreamMode]) -> None:
        names_of_modes(stream_mode)
        self._stream_mode = stream_mode

    @property
    def stream_channels(self) -> str | list[str]:
        """What streams show: one channel bare, or several as a mapping. None may be set, for all of the state's."""
        shown = self._stream_channels
        return shown if isinstance(shown, str) else list(shown)

    @stream_channels.setter
    def stream_channels(self, names: Names | None) -> None:
        names = self._program.shown if names is None else names
        if not isinstance(cast("object", names), Iterable):
            raise GraphValidationError(f"stream_channels is a channel, or a list of channels, not {names!r}")
        for name in (names,) if isinstance(names, str) else names:
            if not isinstance(cast("object", name), str) or name not in self._program.keys:
                raise GraphValidationError(
                    f"stream_channels names {name!r}, and graph {self.name!r} has no such channel; it has "
                    f"{', '.join(sorted(self._program.keys))}"
                )
        self._stream_channels = names if isinstance(names, str) else tuple(names)
        self.__dict__.pop("_as_shown", None)  # it is made anew for the next run

    @property
    def config(self) -> RunnableConfig:
        """Settings that are bound to the graph; those of a call win over them. None may be set, for none."""
        return merge_configs(self._config)

    @config.setter
    def config(self, config: Config | None) -> None:
        self._config = merge_configs(config)

    def _set_defaults(self, defaults: NodePolicies) -> None:
        """Replace the policies of nodes that were added without their own."""

        def renewed(node: Node) -> Node:
            if node.hidden:
                return node
            own = self._own_policies.get(node.name, NodePolicies())
            handler = None if node.handler is None else structs.replace(node.handler, retry=defaults.retry)
            policies = own.over(defaults)
            return structs.replace(node, retry=policies.retry, cache=policies.cache, handler=handler)

        nodes = {name: renewed(node) for name, node in self._program.nodes.items()}
        self._program, self._defaults = structs.replace(self._program, nodes=nodes), defaults

    def _named(self, names: All | Sequence[str] | None, what: str) -> frozenset[str]:
        """Names of nodes; none for None. Raises `ConfigError` for unknown ones."""
        shown = frozenset(name for name, node in self._program.nodes.items() if not node.hidden)
        if names is None:
            return frozenset()
        if names == "*":
            return shown
        if isinstance(names, str) or not isinstance(cast("object", names), Iterable):
            raise ConfigError(f'{what} is a list of nodes, or "*" for all, not {names!r}')
        for name in names:
            if not isinstance(cast("object", name), str) or name not in shown:
                raise ConfigError(f"{what} names {name!r}, and graph {self.name!r} has no such node")
        return frozenset(names)


def _nearest(kind: type, name: str) -> str:
    """Return the attribute with the nearest name, among those that may be set; a method only if the names are alike."""
    found = {each: getattr(kind, each, None) for each in dir(kind) if not each.startswith("_")}
    settable = [each for each, it in found.items() if isinstance(it, property) and it.fset is not None]
    methods = [each for each, it in found.items() if callable(it)]
    close = difflib.get_close_matches(name, settable + methods, n=1, cutoff=0.75)
    return (close or difflib.get_close_matches(name, settable, n=1, cutoff=0.0))[0]


def checked_cache(cache: ports.BaseCache | None) -> ports.BaseCache | None:
    """Return a cache as it is. Raises `GraphValidationError`."""
    if cache is None:
        return None
    from checkpoint_savers.caches.abc import BaseCache

    if not isinstance(cache, BaseCache):
        raise GraphValidationError(f"a cache is a BaseCache (InMemoryCache(), SqliteCache(path)), not {cache!r}")
    return cache


def checked_store(store: ports.BaseStore | None) -> ports.BaseStore | None:
    """Return a store as it is. Raises `GraphValidationError` for a class; a test double need be no `BaseStore`."""
    given: object = store
    if isinstance(given, type):
        raise GraphValidationError(f"a store is a BaseStore, not a class: make one, {given.__name__}()")
    return store


def checked_saver(checkpointer: BaseCheckpointSaver | bool | None) -> BaseCheckpointSaver | bool | None:
    """Return a checkpointer as it is. Raises `InvalidCheckpointerError`."""
    if checkpointer is not None and not isinstance(checkpointer, (BaseCheckpointSaver, bool)):
        given = cast("object", checkpointer)
        kind = f"class: make one, {given.__name__}()" if isinstance(given, type) else type(given).__name__
        raise InvalidCheckpointerError(
            f"a checkpointer is a BaseCheckpointSaver, not a {kind}. A saver that is an async context manager is "
            "entered first: async with SqliteSaver.from_conn_string(path) as saver, or with open_sync(...) as saver"
        )
    return checkpointer
