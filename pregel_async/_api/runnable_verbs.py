"""The methods that a compiled graph shares with langchain-core's runnables."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self, TypeVar, Unpack

from .._checks.options import EventOptions, takes
from ..types import Config
from .definition import HasDefinition
from .event_stream import events_of, sync_stream
from .plugins import plugin
from .sync_verbs import SyncStream

GraphT = TypeVar("GraphT")


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
        return events_of(self._definition, self.as_runnable, input, config, dict(options))

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
        return sync_stream("stream_events()", self.astream_events(input, config, **options), self._definition)

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


def _copied(graph: GraphT, update: Mapping[str, Any]) -> GraphT:
    made = copy.copy(graph)
    for name, value in update.items():
        type(made).__setattr__(made, name, value)  # refuses attributes that cannot be set
    return made
