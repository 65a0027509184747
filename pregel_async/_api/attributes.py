"""The attributes of a compiled graph: those that may be set, its schemas, and the methods that runnables have.

A new value applies to runs that begin later. A setter replaces the graph's `Definition` instead of changing it in
place, so runs in progress and copies made by `with_config` keep the definition that they have.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, Unpack, cast

from msgspec import structs

from checkpoint_savers import ports
from checkpoint_savers.abc import BaseCheckpointSaver

from .._checks.config import merge_configs
from .._checks.node_policies import RetryPolicies, node_policies, seconds_of
from .._checks.options import EventOptions, check_debug, check_store, names_of_modes, node_names, takes
from .._core.program import Program
from ..errors import GraphValidationError, UnsettableAttributeError
from ..policies import CachePolicy, RetryPolicy
from ..types import All, Config, Names, RunnableConfig, StreamMode
from .definition import HasDefinition
from .plugins import plugin

if TYPE_CHECKING:
    from .sync_verbs import SyncStream

GraphT = TypeVar("GraphT")


class GraphAttributes(HasDefinition):
    """The attributes of a compiled graph that may be set. Existing methods may be replaced too, as mocks do.

    Setters raise `GraphValidationError`, `ConfigError` or `InvalidCheckpointerError` for a value that `compile` would
    refuse, and leave the graph unchanged.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            found = getattr(type(self), name, None)
            if found is None or not (callable(found) or (isinstance(found, property) and found.fset is not None)):
                raise UnsettableAttributeError(self.name, name, _nearest(type(self), name))
        object.__setattr__(self, name, value)

    def _change(self, **changed: Any) -> None:
        self._definition = structs.replace(self._definition, **changed)

    def _change_program(self, **changed: Any) -> None:
        self._change(program=structs.replace(self._definition.program, **changed))

    def _change_options(self, **changed: Any) -> None:
        self._change(options=structs.replace(self._definition.options, **changed))

    def _change_policies(self, **changed: Any) -> None:
        self._definition = self._definition.with_policies(structs.replace(self._definition.policies, **changed))

    @property
    def name(self) -> str:
        """The graph's name, used in messages and drawings."""
        return self._definition.name

    @name.setter
    def name(self, name: str) -> None:
        self._change_program(name=_checked_name(name))

    @property
    def checkpointer(self) -> BaseCheckpointSaver | bool | None:
        """The saver that stores the graph's threads; None if runs store nothing.

        For a subgraph: None stores its state with the enclosing graph, for one call of the subgraph; True keeps the
        state from call to call; False stores nothing.
        """
        return self._definition.checkpointer

    @checkpointer.setter
    def checkpointer(self, checkpointer: BaseCheckpointSaver | bool | None) -> None:
        self._definition = self._definition.with_checkpointer(checkpointer)

    @property
    def store(self) -> ports.BaseStore | None:
        """The store that nodes get as `store`; None if there is none."""
        return cast("ports.BaseStore | None", self._definition.options.store)

    @store.setter
    def store(self, store: ports.BaseStore | None) -> None:
        self._change_options(store=check_store(store))

    @property
    def cache(self) -> ports.BaseCache | None:
        """The cache for the results of nodes with a cache policy; None if there is none."""
        return self._definition.cache

    @cache.setter
    def cache(self, cache: ports.BaseCache | None) -> None:
        self._definition = self._definition.with_cache(cache)

    @property
    def debug(self) -> bool:
        """True to print updates and states, and to warn if a node changes its input in place."""
        return self._definition.options.debug

    @debug.setter
    def debug(self, debug: bool) -> None:
        self._change_options(debug=check_debug(debug))

    @property
    def step_timeout(self) -> float | None:
        """The time limit of one superstep, in seconds; None for no limit. A timedelta may be set too."""
        return self._definition.program.step_timeout

    @step_timeout.setter
    def step_timeout(self, step_timeout: float | timedelta | None) -> None:
        self._change_program(step_timeout=seconds_of("step_timeout", step_timeout))

    @property
    def retry_policy(self) -> tuple[RetryPolicy, ...]:
        """The retry policies of error handlers and of nodes without their own. One, several or None may be set."""
        return self._definition.policies.retry

    @retry_policy.setter
    def retry_policy(self, retry_policy: RetryPolicies | None) -> None:
        self._change_policies(retry=node_policies("the graph", retry_policy=retry_policy).retry)

    @property
    def cache_policy(self) -> CachePolicy | None:
        """The cache policy of nodes without their own; None if there is none."""
        return self._definition.policies.cache

    @cache_policy.setter
    def cache_policy(self, cache_policy: CachePolicy | None) -> None:
        self._change_policies(cache=node_policies("the graph", cache_policy=cache_policy).cache)

    @property
    def interrupt_before_nodes(self) -> list[str]:
        """Names of the nodes before which a run stops, sorted. "*" may be set for all nodes."""
        return sorted(self._definition.options.interrupt_before)

    @interrupt_before_nodes.setter
    def interrupt_before_nodes(self, names: All | Sequence[str] | None) -> None:
        self._change_options(interrupt_before=node_names(self._definition.program, names, "interrupt_before_nodes"))

    @property
    def interrupt_after_nodes(self) -> list[str]:
        """Names of the nodes after which a run stops, sorted. "*" may be set for all nodes."""
        return sorted(self._definition.options.interrupt_after)

    @interrupt_after_nodes.setter
    def interrupt_after_nodes(self, names: All | Sequence[str] | None) -> None:
        self._change_options(interrupt_after=node_names(self._definition.program, names, "interrupt_after_nodes"))

    @property
    def stream_mode(self) -> StreamMode | Sequence[StreamMode]:
        """The stream mode, or modes, of `astream` calls without `stream_mode`."""
        return self._definition.stream_mode

    @stream_mode.setter
    def stream_mode(self, stream_mode: StreamMode | Sequence[StreamMode]) -> None:
        names_of_modes(stream_mode)
        self._change(stream_mode=stream_mode)

    @property
    def stream_channels(self) -> str | list[str]:
        """The channels that streams show: one bare, or several as a mapping. None may be set for all state channels."""
        shown = self._definition.stream_channels
        return shown if isinstance(shown, str) else list(shown)

    @stream_channels.setter
    def stream_channels(self, names: Names | None) -> None:
        self._change(stream_channels=_checked_stream_channels(self._definition.program, names))

    @property
    def config(self) -> RunnableConfig:
        """The config settings that are bound to the graph; a call's config overrides them. None may be set for none."""
        return merge_configs(self._definition.config)

    @config.setter
    def config(self, config: Config | None) -> None:
        self._change(config=merge_configs(config))


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise GraphValidationError(f"a graph's name is a text, not {name!r}")
    return name


def _checked_stream_channels(program: Program, names: Names | None) -> str | tuple[str, ...]:
    names = program.shown if names is None else names
    if not isinstance(cast("object", names), Iterable):
        raise GraphValidationError(f"stream_channels is a channel, or a list of channels, not {names!r}")
    for name in (names,) if isinstance(names, str) else names:
        if not isinstance(cast("object", name), str) or name not in program.keys:
            raise GraphValidationError(
                f"stream_channels names {name!r}, and graph {program.name!r} has no such channel; it has "
                f"{', '.join(sorted(program.keys))}"
            )
    return names if isinstance(names, str) else tuple(names)


def _nearest(kind: type, name: str) -> str:
    """Return the settable attribute with the nearest name; a method only if the names are similar."""
    found = {each: getattr(kind, each, None) for each in dir(kind) if not each.startswith("_")}
    settable = [each for each, it in found.items() if isinstance(it, property) and it.fset is not None]
    methods = [each for each, it in found.items() if callable(it)]
    close = difflib.get_close_matches(name, settable + methods, n=1, cutoff=0.75)
    return (close or difflib.get_close_matches(name, settable, n=1, cutoff=0.0))[0]


class Introspection(HasDefinition):
    """The schemas of a graph's input, output and context, for forms, servers and documents.

    Models and JSON schemas are made by pydantic: these methods raise `ImportError` without it. A type that pydantic
    cannot describe becomes `{}`, any value.
    """

    @property
    def InputType(self) -> Any:  # noqa: N802  # LangGraph's name
        """The annotation of the input: the input schema, or the type of the input channel."""
        return self._definition.input_type

    @property
    def OutputType(self) -> Any:  # noqa: N802  # LangGraph's name
        """The annotation of the output: the output schema, or the type of the output channel."""
        return self._definition.output_type

    @property
    def context_schema(self) -> type[Any] | None:
        """The class of a call's context; None if the graph has none."""
        return self._definition.context_schema

    def get_input_schema(self, config: Any = None) -> Any:
        """Return a pydantic model of the input: the input schema if it is a model, else a `RootModel` of it.

        Args:
            config: not used; LangGraph has the parameter.

        Returns:
            The class of the model.

        Raises:
            ImportError: pydantic is not installed.
        """
        return _pydantic().input_model(self._definition)

    def get_output_schema(self, config: Any = None) -> Any:
        """Return a pydantic model of the output. Keys that a run does not write are None in it.

        Args:
            config: not used; LangGraph has the parameter.

        Returns:
            The class of the model.

        Raises:
            ImportError: pydantic is not installed.
        """
        return _pydantic().output_model(self._definition)

    input_schema = property(get_input_schema)
    output_schema = property(get_output_schema)

    def get_input_jsonschema(self, config: Any = None) -> dict[str, Any]:
        """Return the JSON schema of the input.

        Args:
            config: not used; LangGraph has the parameter.

        Returns:
            The schema.

        Raises:
            ImportError: pydantic is not installed.
        """
        return _pydantic().json_schema(self._definition, "input")  # type: ignore[no-any-return]  # a lazy module

    def get_output_jsonschema(self, config: Any = None) -> dict[str, Any]:
        """Return the JSON schema of the output.

        Args:
            config: not used; LangGraph has the parameter.

        Returns:
            The schema.

        Raises:
            ImportError: pydantic is not installed.
        """
        return _pydantic().json_schema(self._definition, "output")  # type: ignore[no-any-return]  # a lazy module

    def get_context_jsonschema(self) -> dict[str, Any] | None:
        """Return the JSON schema of a call's context.

        Returns:
            The schema; None if the graph has no context schema.

        Raises:
            ImportError: pydantic is not installed.
        """
        return _pydantic().json_schema(self._definition, "context")  # type: ignore[no-any-return]  # a lazy module

    def config_schema(self, *, include: Sequence[str] | None = None) -> Any:
        """Return a pydantic model of a config whose `configurable` is the context. Deprecated.

        Args:
            include: names of further keys of a config.

        Returns:
            The class of the model.

        Raises:
            ImportError: pydantic is not installed.
        """
        return _pydantic().config_model(self._definition, include, "config_schema()")

    def get_config_jsonschema(self, *, include: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the JSON schema of `config_schema()`. Deprecated.

        Args:
            include: names of further keys of a config.

        Returns:
            The schema.

        Raises:
            ImportError: pydantic is not installed.
        """
        model = _pydantic().config_model(self._definition, include, "get_config_jsonschema()")
        return _pydantic().schema_of(model)  # type: ignore[no-any-return]  # a lazy module


def _pydantic() -> Any:
    try:
        from . import pydantic_schemas  # imported here: pydantic need not be installed
    except ModuleNotFoundError as error:
        if error.name != "pydantic":
            raise
        raise ImportError("schemas of graphs are made by pydantic: pip install pydantic", name="pydantic") from error
    return pydantic_schemas


class RunnableMethod:
    """A method of langchain-core's `Runnable`, which a graph passes on to `as_runnable()`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, graph: Any, owner: type | None = None) -> Callable[..., Any]:
        return self if graph is None else partial(self, graph)

    def __call__(self, graph: Any, /, *args: Any, **kwargs: Any) -> Any:
        # langchain-core is imported by the call, and not by reading the attribute, as `inspect` and mocks do.
        return getattr(graph.as_runnable(), self._name)(*args, **kwargs)


class RunnableVerbs(HasDefinition):
    """What langchain-core's runnables can do. The methods without a docstring are those of its class `Runnable`."""

    as_tool: ClassVar = RunnableMethod()
    atransform: ClassVar = RunnableMethod()
    bind: ClassVar = RunnableMethod()
    map: ClassVar = RunnableMethod()
    pipe: ClassVar = RunnableMethod()
    transform: ClassVar = RunnableMethod()
    with_fallbacks: ClassVar = RunnableMethod()
    with_retry: ClassVar = RunnableMethod()

    def as_runnable(self) -> Any:
        """Return the graph as a `Runnable` of langchain-core.

        Returns:
            An object of `pregel_async.langchain.runnables.GraphRunnable`.

        Raises:
            ImportError: langchain-core is not installed.
        """
        return plugin("runnables").GraphRunnable(self)

    @takes(EventOptions)
    def astream_events(
        self, input: Any, config: Config | None = None, **options: Unpack[EventOptions[Any]]
    ) -> AsyncGenerator[dict[str, Any]]:
        """Run the graph, and stream the starts, chunks and ends of everything that runs: graph, nodes, models, tools.

        Args:
            input: as in `ainvoke`.
            config: as in `ainvoke`.
            version: "v2", the only version; for others, and for `transformers`, see `astream`.
            stream_mode: the modes of the chunks of the graph, in its `on_chain_stream` events; the graph's by default.
            include_names, include_types, include_tags: show only events of runs with one of these names, types
                ("chain", "chat_model", "tool") or tags; None shows all.
            exclude_names, exclude_types, exclude_tags: leave out events of runs with one of these.
            **options: every other option of `ainvoke`.

        Returns:
            An async generator of events: dicts with `event` ("on_chain_start", "on_chat_model_stream"), `name`, `data`,
            `run_id`, `parent_ids`, `tags` and `metadata`. Close it if you do not read it to its end.

        Raises:
            ConfigError: the config or an option is wrong.

        Reading raises what `astream` raises while reading.
        """
        return _events_of(self._definition, self.as_runnable, input, config, dict(options))

    @takes(EventOptions)
    def stream_events(
        self, input: Any, config: Config | None = None, **options: Unpack[EventOptions[Any]]
    ) -> SyncStream[dict[str, Any]]:
        """Run the graph, and stream its events: `astream_events` for code without an event loop.

        Args:
            input: as in `ainvoke`.
            config: as in `ainvoke`.
            **options: every option of `astream_events`.

        Returns:
            An iterator of events, to be used as a context manager too.

        Raises:
            SyncCallError: called where the run needs the event loop that a read would block.
            ConfigError: the config or an option is wrong.

        Reading raises what `astream` raises while reading.
        """
        return _sync_stream("stream_events()", self.astream_events(input, config, **options), self._definition)

    def __or__(self, other: Any) -> Any:
        return self.as_runnable() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.as_runnable()

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        """Return the name of the graph.

        Args:
            suffix: text to append.
            name: a name to use instead of the graph's.

        Returns:
            The name.
        """
        return (name or self._definition.name) + (suffix or "")

    def copy(self, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy of the graph, with other values of some attributes.

        Args:
            update: the values, by attribute.

        Returns:
            The copy. The graph itself is unchanged.

        Raises:
            UnsettableAttributeError: an attribute cannot be set.
            GraphValidationError, ConfigError, InvalidCheckpointerError: a value is invalid.
        """
        return _copied(self, update or {})


def stored_through(graph: GraphT, saver: BaseCheckpointSaver) -> GraphT:
    """Return a copy of a graph whose runs are stored through a wrapper of its own saver.

    The codec, and the runs that readers can join, remain those of the graph: unlike `with_checkpointer`, it costs next
    to nothing.

    Args:
        graph: the graph, which has a saver.
        saver: the wrapped saver.

    Returns:
        The copy. The graph itself is unchanged.
    """
    made: Any = copy.copy(graph)
    made._definition = made._definition.through(saver)
    return cast("GraphT", made)


def _copied(graph: GraphT, update: Mapping[str, Any]) -> GraphT:
    made = copy.copy(graph)
    for name, value in update.items():
        type(made).__setattr__(made, name, value)  # refuses attributes that cannot be set
    return made


def _events_of(*args: Any) -> AsyncGenerator[dict[str, Any]]:
    from .event_stream import events_of  # imported here: few programs read events

    return events_of(*args)


def _sync_stream(*args: Any) -> SyncStream[dict[str, Any]]:
    from .event_stream import sync_stream

    return sync_stream(*args)
