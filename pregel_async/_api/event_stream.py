"""Stream events of runs: the work of `astream_events` and `stream_events`.

If the program uses langchain-core, its own implementation collects the events from the callbacks of the run, so that
everything that nodes call is among them. Otherwise the events are made here of the parts of the run's stream: those of
graphs, nodes and tasks, and of the tokens that nodes write with `writer.message()` or `stream_message`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast
from uuid import UUID

import msgspec

from .._checks.config import DEFAULT_RECURSION_LIMIT, merge_configs
from .._checks.options import EventOptions, Modes, checked_options, names_of_modes
from .._core.isolation import isolate
from .._core.program import Program
from .._core.task import PUSH, Path, Task
from .._runtime.platform.event_loops import on_asyncio
from .._runtime.streaming.parts import RawPart, bare
from .._runtime.tasks.context import NODE_METADATA, PREVIOUS
from ..errors import ConfigError
from ..messages import id_of
from ..types import Config
from . import calls
from .definition import Definition
from .plugins import RUNNABLES
from .sync_verbs import SyncStream

EventDict = dict[str, Any]

FILTERS: Final = tuple(f"{verb}_{what}" for verb in ("include", "exclude") for what in ("names", "types", "tags"))


def run_name(program: Program) -> str:
    """Return the name of a graph's runs in events and traces.

    That of a graph without a name of its own is LangGraph's: programs look for it to find the end of the whole run.
    """
    is_unnamed = program.name in ("StateGraph", "Pregel") or PREVIOUS in program.channels
    return "LangGraph" if is_unnamed else program.name


def events_of(
    graph: Definition, as_runnable: Callable[[], Any], given: Any, config: Config | None, options: dict[str, Any]
) -> AsyncGenerator[EventDict]:
    """See `Graph.astream_events`.

    Args:
        as_runnable: makes a `Runnable` of the graph, if langchain-core is imported.
    """
    options = cast("dict[str, Any]", checked_options("astream_events", EventOptions, options))
    version = options.pop("version", "v2")
    if version != "v2":
        raise ConfigError(
            f"astream_events has version 'v2' only, not {version!r}: use astream, which shows the same in one format"
        )
    if options.pop("transformers", None) is not None:
        raise ConfigError("astream_events takes no transformers: transform the chunks of astream as you read them")
    filters = {name: options.pop(name) for name in FILTERS if name in options}
    for name, names in filters.items():
        if isinstance(names, str):
            raise ConfigError(f"{name} is a list of texts, not {names!r}")
    merged: Mapping[str, Any] = merge_configs(graph.config, config)
    shown = graph.modes_for(options)
    names_of_modes(shown)
    return _events(graph, as_runnable, given, merged, {**options, "stream_mode": shown}, shown, filters)


def sync_stream(verb: str, events: AsyncGenerator[EventDict], graph: Definition) -> SyncStream[EventDict]:
    """See `Graph.stream_events`."""
    from .._runtime.sync.background_portal import check_thread

    instead = "async for event in graph.astream_events(...)"
    check_thread(verb, instead)
    return SyncStream(events, verb, instead, graph.environment)


async def _events(
    graph: Definition,
    as_runnable: Callable[[], Any],
    given: Any,
    config: Mapping[str, Any],
    options: dict[str, Any],
    shown: Modes,
    filters: dict[str, Any],
) -> AsyncGenerator[EventDict]:
    if RUNNABLES in sys.modules and on_asyncio():
        run_id = config.get("run_id")
        # langchain-core adds its own limit of 25 to a config without one, and takes ids of runs as objects.
        config = {"recursion_limit": DEFAULT_RECURSION_LIMIT, **config}
        if run_id is not None:
            config["run_id"] = _uuid(run_id)
        events = as_runnable().astream_events(given, config, version="v2", **filters, **options)
    else:
        events = _own_events(graph, given, config, options, shown, filters)
    try:
        async for event in events:
            yield event
    finally:
        await events.aclose()


def _uuid(run_id: object) -> UUID:
    try:
        return run_id if isinstance(run_id, UUID) else UUID(str(run_id))
    except ValueError:
        raise ConfigError(f"the run_id of astream_events is a UUID, and {run_id!r} is none") from None


async def _own_events(
    graph: Definition,
    given: Any,
    config: Mapping[str, Any],
    options: dict[str, Any],
    shown: Modes,
    filters: Mapping[str, Any],
) -> AsyncGenerator[EventDict]:
    """Make events of the parts of the run's stream."""
    modes = names_of_modes(shown)
    run_id = str(config.get("run_id") or graph.environment.new_id())
    # `tasks` before the modes that are shown: a node's own events come before the chunk of the graph.
    watched = dict.fromkeys(("tasks", "messages", "values", "updates", *modes))
    every: Any = {**options, "stream_mode": list(watched), "subgraphs": True, "version": "v2"}
    builder = _EventBuilder(graph, config, run_id, given)
    allows = _filter(filters)

    def chunk_of(part: RawPart) -> EventDict:
        data = bare(part)
        return builder.root.event("stream", {"chunk": data if isinstance(shown, str) else (part.mode, data)})

    # The update of a task is published before the end of the task, and shown after it, as in LangGraph.
    updates: dict[str, EventDict] = {}
    stream = calls.stream(graph, given, cast("Config", {**config, "run_id": run_id}), every, shape=lambda part: part)
    async with stream as parts:
        for event in builder.start():
            if allows(event):
                yield event
        async for part in parts:
            made = [*builder.of_part(part)]
            is_shown, task = not part.ns and part.mode in modes, part.task
            if is_shown and part.mode == "updates" and task is not None and builder.is_open(task):
                updates[task.id] = chunk_of(part)
            elif is_shown:
                made.append(chunk_of(part))
            if part.mode == "tasks" and task is not None and task.id in updates:
                made.append(updates.pop(task.id))
            for event in filter(allows, made):
                yield event
    for event in [*updates.values(), *builder.end()]:
        if allows(event):
            yield event


def _filter(filters: Mapping[str, Any]) -> Callable[[EventDict], bool]:
    """Return the function that decides whether an event is shown."""

    def matches(verb: str, event: EventDict) -> bool:
        kind = event["event"].removeprefix("on_").rpartition("_")[0]
        return (
            event["name"] in (filters.get(f"{verb}_names") or ())
            or kind in (filters.get(f"{verb}_types") or ())
            or any(tag in (filters.get(f"{verb}_tags") or ()) for tag in event["tags"])
        )

    includes = any(filters.get(name) is not None for name in FILTERS[:3])
    return lambda event: (not includes or matches("include", event)) and not matches("exclude", event)


class _ShownRun(msgspec.Struct, kw_only=True):
    """Something that runs: the graph, a node, a task, or a model."""

    kind: Literal["chain", "chat_model"]
    name: str
    run_id: str
    parent_ids: list[str]
    tags: list[str]
    metadata: dict[str, Any]
    input: Any = None
    chunks: list[Any] = []
    ended: bool = False

    def event(self, what: Literal["start", "stream", "end"], data: dict[str, Any]) -> EventDict:
        return {
            "event": f"on_{self.kind}_{what}",
            "data": data,
            "name": self.name,
            "run_id": self.run_id,
            "tags": [*self.tags],
            "metadata": {**self.metadata},
            "parent_ids": [*self.parent_ids],
        }


class _EventBuilder:
    """Turns the parts of a stream, in order, into events.

    Args:
        graph: the graph that is called.
        config: the merged config of the call.
        run_id: the id of the run.
        given: the input.
    """

    def __init__(self, graph: Definition, config: Mapping[str, Any], run_id: str, given: Any) -> None:
        self._graph = graph
        self._tags: list[str] = [*config.get("tags", ())]
        self._metadata: dict[str, Any] = {**config.get("metadata", {})}
        thread_id = config.get("configurable", {}).get("thread_id")
        if thread_id is not None:
            self._metadata["thread_id"] = str(thread_id)
        self.root = _ShownRun(
            kind="chain",
            name=config.get("run_name") or run_name(graph.program),
            run_id=run_id,
            parent_ids=[],
            tags=self._tags,
            metadata=self._metadata,
            input=given,
        )
        self._graphs: dict[tuple[str, ...], _ShownRun] = {(): self.root}
        self._tasks: dict[str, _ShownRun] = {}
        self._by_path: dict[tuple[tuple[str, ...], Path], _ShownRun] = {}  # by namespace, for tasks that call others
        self._models: dict[tuple[str, Any], _ShownRun] = {}
        self._states: dict[tuple[str, ...], Any] = {}

    def start(self) -> Iterator[EventDict]:
        yield self.root.event("start", {"input": self.root.input})

    def end(self) -> Iterator[EventDict]:
        yield self.root.event("end", {"output": self._output(())})

    def is_open(self, task: Task) -> bool:
        """Return True if the task has started and not ended. One whose result is recorded or cached may not start."""
        run = self._tasks.get(task.id)
        return run is not None and not run.ended

    def of_part(self, part: RawPart) -> Iterator[EventDict]:
        """Yield the events of a part, except those of the called graph itself."""
        if part.mode == "values":
            self._states[part.ns] = part
        elif part.mode == "tasks" and part.task is not None:
            yield from self._of_task(part, part.task)
        elif part.mode == "updates" and part.task is not None and "__metadata__" in part.data:
            yield from self._of_recorded(part, self._tasks.get(part.task.id))
        elif part.mode == "messages" and part.task is not None:
            yield from self._of_message(part, self._tasks.get(part.task.id))

    def _of_task(self, part: RawPart, task: Task) -> Iterator[EventDict]:
        if "input" in part.data:
            yield from self._graph_start(part.ns)
            run = self._tasks[task.id] = self._started(part, task)
            yield run.event("start", {"input": run.input})
            return
        run = self._tasks[task.id]
        run.ended = True
        yield from self._ends_inside(run)
        if part.data["error"] is None and not part.data["interrupts"]:
            result = part.data["result"]
            # A called task and a graph with one output channel show the bare value.
            output = result if part.is_keyed else next(iter(result.values()), None)
            yield run.event("stream", {"chunk": output})
            yield run.event("end", {"output": isolate(output), "input": run.input})

    def _of_recorded(self, part: RawPart, run: _ShownRun | None) -> Iterator[EventDict]:
        """End a task that has started and does not run, because its result is recorded or cached."""
        if run is not None and not run.ended:
            run.ended = True
            yield run.event("end", {"output": isolate(part.data[run.name]), "input": run.input})

    def _started(self, part: RawPart, task: Task) -> _ShownRun:
        outer = self._graphs[part.ns] if task.caller is None else self._by_path[part.ns, task.caller]
        own_ns = "|".join((*part.ns, task.namespace))
        place = (task.step, task.node.name, task.triggers or (PUSH,), task.path, own_ns)
        run = self._by_path[part.ns, task.path] = self._inside(
            outer,
            task.node.name,
            [f"graph:step:{task.step}", *self._tags, *task.node.tags],
            {**self._metadata, **dict(zip(NODE_METADATA, place, strict=True)), **isolate(dict(task.node.metadata))},
            part.data["input"],
        )
        return run

    def _inside(
        self,
        outer: _ShownRun,
        name: str,
        tags: list[str],
        metadata: dict[str, Any],
        given: Any,
        kind: Literal["chain", "chat_model"] = "chain",
    ) -> _ShownRun:
        return _ShownRun(
            kind=kind,
            name=name,
            run_id=self._graph.environment.new_id(),
            parent_ids=[*outer.parent_ids, outer.run_id],
            tags=tags,
            metadata=metadata,
            input=given,
            chunks=[],
        )

    def _graph_start(self, ns: tuple[str, ...]) -> Iterator[EventDict]:
        """Start the run of a subgraph with its first part."""
        known = self._graphs.get(ns)
        if known is not None and not known.ended:
            return
        outer = self._node_of(ns)
        nodes = [step.partition(":")[0] for step in ns if not step.isdigit()]
        graph: Definition | None = self._graph
        for node in nodes:
            found = None if graph is None else graph.subgraph_index.stored.get(node)
            graph = None if found is None else found._definition
        name = "LangGraph" if graph is None else run_name(graph.program)
        run = self._graphs[ns] = self._inside(outer, name, self._tags, outer.metadata, outer.input)
        self._states.pop(ns, None)
        yield run.event("start", {"input": run.input})

    def _node_of(self, ns: Sequence[str]) -> _ShownRun:
        """Return the run of the node that runs the graph of a namespace."""
        steps = [step for step in ns if not step.isdigit()]
        node, _, task = steps[-1].partition(":")
        if task:
            return self._tasks[task]
        # A graph that keeps its state has no task's id in its namespace.
        return next(run for run in reversed(self._tasks.values()) if run.name == node and not run.ended)

    def _ends_inside(self, outer: _ShownRun) -> Iterator[EventDict]:
        """End the models and graphs inside a task that ends."""
        for model in self._models.values():
            if model.parent_ids[-1] == outer.run_id and not model.ended:
                model.ended = True
                yield model.event("end", {"output": _message_of(model.chunks)})
        for ns, run in self._graphs.items():
            if run.parent_ids and run.parent_ids[-1] == outer.run_id and not run.ended:
                run.ended = True
                yield run.event("end", {"output": self._output(ns), "input": run.input})

    def _output(self, ns: tuple[str, ...]) -> Any:
        part = self._states.get(ns)
        return None if part is None else isolate(bare(part))

    def _of_message(self, part: RawPart, node: _ShownRun | None) -> Iterator[EventDict]:
        if node is None or node.ended:
            return  # a message that the node has returned, and no token of a model
        message, metadata = bare(part)
        key = node.run_id, id_of(message)
        model = self._models.get(key)
        if model is None:
            about = {name: value for name, value in metadata.items() if name != "tags"}
            name = about.get("ls_model_name") or "chat_model"
            tags = [*dict.fromkeys([*self._tags, *metadata.get("tags", ())])]
            model = self._inside(node, name, tags, about, None, "chat_model")
            self._models[key] = model
            yield model.event("start", {"input": {}})
        model.chunks.append(message)
        yield model.event("stream", {"chunk": message})


def _message_of(chunks: list[Any]) -> Any:
    """Return the whole message of a model's chunks: a dict with their joined text."""
    texts = [chunk.get("content") if isinstance(chunk, dict) else getattr(chunk, "content", "") for chunk in chunks]
    text = "".join([each for each in texts if isinstance(each, str)])
    return {"role": "assistant", "content": text, "id": id_of(chunks[0])}
