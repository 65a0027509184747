"""Run a graph: the work of `ainvoke`, `astream` and `abatch`, also for a call inside a node."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, TypeVar, cast

import msgspec
from msgspec import structs

from checkpoint_savers.children import start_soon

from .._checks.config import is_elsewhere, merge_configs, metadata_in_streams, settings_of, without_address
from .._checks.options import (
    BY_REFERENCE,
    BatchOptions,
    CallOptions,
    InvokeOptions,
    StreamOptions,
    check_capacity,
    check_version,
    names_of_modes,
    options_of_call,
    policies_of,
    printed_modes,
)
from .._core.isolation import isolate
from .._core.ownership import NO_CLASSES
from .._runtime.engine.call_input import read_call_input
from .._runtime.engine.graph_run import EndedRun
from .._runtime.engine.nested import NestedCall, run_nested
from .._runtime.engine.run import run
from .._runtime.engine.settings import Audience, Settings
from .._runtime.observing.error_text import shorten_traceback
from .._runtime.persistence.digests import Digests
from .._runtime.persistence.namespace_writer import NamespaceWriter
from .._runtime.platform.event_loops import task_group
from .._runtime.streaming.buffer import CAPACITY, Buffer, Unbounded
from .._runtime.streaming.parts import Cursor, RawPart, Shape, bare, shape_of
from .._runtime.streaming.stream import GraphStream
from .._runtime.streaming.subscription import Subscription
from .._runtime.tasks.context import CONCURRENT_BASE, CURRENT, AttemptContext, AttemptTracer
from .._runtime.tasks.run_options import RunOptions
from ..errors import ConfigError, OutsideRunError
from ..parts import GraphOutput
from ..types import INTERRUPT, Config, Interrupt, Names, OverflowPolicy, RunnableConfig, StreamWriter
from .definition import Definition
from .plugins import RUNNABLES, plugin

OutputT = TypeVar("OutputT")


async def invoke(graph: Definition, given: Any, config: Config | None, options: InvokeOptions) -> Any:
    """See `Graph.ainvoke`."""
    modes = options.get("stream_mode", "values")
    checked = _checked(graph, options, modes)
    # The prepared call is no variable here: it would be one more object of a waiting run for the collector to visit.
    if modes == "values":
        shown = graph.program.outputs if checked.channels is None else checked.channels
        ended = await _run(graph, given, _prepare(graph, given, config, options, checked), None)
        value = ended.board.output(graph.program, shown)
        if checked.version == "v1":
            return _with_interrupts(value, ended.interrupts)
        if checked.channels is None and graph.coerce_output is not None and ended.done:
            value = graph.coerce_output(value)
        return GraphOutput(value, isolate(ended.interrupts))
    chunks: list[Any] = []
    subscription = Subscription(
        checked.modes,
        _sink_into(chunks, checked.shape),
        channels=checked.channels,
        subgraphs=checked.subgraphs,
        reports_errors=checked.version == "v2",
    )
    await _run(graph, given, _prepare(graph, given, config, options, checked), subscription)
    return chunks


def _sink_into(chunks: list[Any], shape: Shape) -> Unbounded:
    # A function of its own: the cells of a closure in `invoke` would be two more objects of each waiting run.
    return Unbounded(lambda part: chunks.append(shape(part)))


def stream(
    graph: Definition, given: Any, config: Config | None, options: StreamOptions, shape: Shape | None = None
) -> GraphStream[Any]:
    """See `Graph.astream`. `shape` makes the chunks instead of the options."""
    asked, after = options.get("stream_mode"), options.get("after")
    if after is not None and asked is None:
        raise ConfigError("after= needs stream_mode=: pass the modes with which the run was streamed before")
    checked = _checked(graph, options, graph.stream_mode if asked is None else asked)
    cursor = None if after is None else _read_cursor(graph, given, after, checked.version)
    if checked.keeps_events:
        _require_checkpointer_for_events(graph)
    call = _prepare(graph, given, config, options, checked)
    if call.outer is not None and (checked.keeps_events or cursor is not None):
        raise ConfigError(
            f"graph {graph.name!r} runs as part of the node that calls it, and the run around it keeps its events: "
            "ask for them there (keep_events=True, subgraphs=True), or name a thread of its own in config"
        )
    buffer = Buffer(checked.capacity, checked.policies)
    subscription = Subscription(
        checked.modes,
        buffer,
        channels=checked.channels,
        subgraphs=checked.subgraphs,
        reports_errors=checked.version == "v2",
        records_events=checked.keeps_events or cursor is not None,
        has_own_task=True,
        reconnects=cursor is not None,
        number=0 if cursor is None else cursor.seq,
    )

    async def work(buffer: Buffer) -> None:
        try:
            if cursor is None:
                await _run(graph, given, call, subscription)
            else:
                await _rejoin(graph, call, subscription, cursor, buffer)
        except Exception as error:
            # A run that failed before its start has not published an error part yet.
            if subscription.reports_errors and not subscription.failed:
                await subscription.put(subscription.error_part(error, 0))
            raise

    return GraphStream(work, buffer, shape or checked.shape, subscription, cursor=after)


def check_call(
    graph: Definition,
    given: Any,
    config: Config | None,
    options: StreamOptions,
    *,
    checks_context: bool,
    continues: bool,
) -> Settings:
    """Check a call that another process is to make. Raises as the call would, before it acquires its thread.

    Args:
        graph: the graph.
        given: the input.
        config: the config.
        options: the options.
        checks_context: False if the context is made later.
        continues: the thread may have a state to continue from.

    Returns:
        The settings of the call.
    """
    if not checks_context:
        graph = structs.replace(graph, read_context=None)
    asked = options.get("stream_mode")
    checked = _checked(graph, options, graph.stream_mode if asked is None else asked)
    call = _prepare(graph, given, config, options, checked)
    call_input = read_call_input(graph.program, given, NO_CLASSES if graph.codec is None else graph.codec.kept_scalars)
    if not continues:
        call_input.require_input(graph.program, call.settings.thread_id)
    return call.settings


async def batch(
    ainvoke: Callable[..., Awaitable[OutputT]],
    inputs: Sequence[Any],
    config: Config | Sequence[Config] | None,
    options: BatchOptions,
) -> list[OutputT]:
    """See `Graph.abatch`."""
    done: dict[int, OutputT | Exception] = {}
    await _run_each(ainvoke, inputs, _config_of_each(inputs, config), options, done.__setitem__)
    if not options.get("return_exceptions", False):
        for index in sorted(done):
            result = done[index]
            if isinstance(result, Exception):
                raise result
    return [cast("OutputT", done[index]) for index in range(len(inputs))]


def batch_as_completed(
    ainvoke: Callable[..., Awaitable[Any]],
    inputs: Sequence[Any],
    config: Config | Sequence[Config] | None,
    options: BatchOptions,
) -> GraphStream[Any]:
    """See `Graph.abatch_as_completed`."""
    configs = _config_of_each(inputs, config)

    async def work(buffer: Buffer) -> None:
        failures: list[Exception] = []

        def add(index: int, result: Any) -> None:
            if isinstance(result, Exception) and not options.get("return_exceptions", False):
                failures.append(result)
            else:
                buffer.add(RawPart(mode="values", ns=(), data=(index, result), step=0))

        await _run_each(ainvoke, inputs, configs, options, add)
        for failure in failures:
            raise failure

    buffer = Buffer()  # holds at most one part for each input, so that no run has to wait for the reader
    return GraphStream(work, buffer, bare, Subscription((), buffer))


def _config_of_each(inputs: Sequence[Any], config: Config | Sequence[Config] | None) -> Sequence[Config | None]:
    if config is None or isinstance(config, (str, Mapping)):
        return [config] * len(inputs)
    if len(config) != len(inputs):
        raise ConfigError(
            f"abatch got {len(inputs)} inputs and {len(config)} configs: pass one config, or one for each"
        )
    return config


async def _run_each(
    ainvoke: Callable[..., Awaitable[Any]],
    inputs: Sequence[Any],
    configs: Sequence[Config | None],
    options: BatchOptions,
    finished: Callable[[int, Any], None],
) -> None:
    """Run a graph once per input, and pass the index and the output or exception of each run to `finished`.

    Without `return_exceptions`, the first exception cancels the other runs.
    """
    call = cast("dict[str, Any]", options).copy()
    return_exceptions, limit = call.pop("return_exceptions", False), call.pop("max_concurrency", None)
    if limit is None and configs and isinstance(configs[0], Mapping):
        limit = configs[0].get("max_concurrency")  # as in LangGraph, where it limits the runs and the tasks of each
    indexes = iter(range(len(inputs)))

    async def work() -> None:
        for index in indexes:
            try:
                result = await ainvoke(inputs[index], configs[index], **call)
            except Exception as error:
                shorten_traceback(error)
                result = error
                if not return_exceptions:
                    group.cancel_scope.cancel()
            finished(index, result)

    async with task_group() as group:  # `work` passes on every `Exception`, so this can only raise Ctrl-C
        for _ in range(len(inputs) if limit is None else max(1, limit)):
            start_soon(group, work)


class _CheckedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a call shows, as its options and the graph's definition decide it. Shared by equal calls.

    Attributes:
        modes: the names of the stream modes.
        version: the version of the chunks.
        shape: turns a part into a chunk.
        channels: the channels to show; None for the graph's own choice.
        subgraphs: the parts of subgraphs are shown.
        capacity: the number of chunks that may wait for the reader.
        policies: the overflow policy of each mode that does not block.
        keeps_events: the events are stored with the commits.
        printed: the stream modes whose parts are printed.
        run: the options of a run of its own; None if they depend on more than the call's plain options.
        call: the prepared call without a config; None if there is more to prepare.
    """

    modes: tuple[str, ...]
    version: Literal["v1", "v2"]
    shape: Shape
    channels: str | tuple[str, ...] | None
    subgraphs: bool
    capacity: int
    policies: Mapping[str, OverflowPolicy]
    keeps_events: bool
    printed: tuple[str, ...]
    run: RunOptions | None
    call: _PreparedCall | None


_MOST_CHECKED = 64
"""The most records of checked options that a graph keeps. Programs use few; generated options must not add up."""


def _checked(graph: Definition, options: Mapping[str, Any], modes: Any) -> _CheckedOptions:
    """Return the checked options of a call, from the graph's cache if equal options were checked before.

    Args:
        graph: the graph.
        options: the options of the call.
        modes: the stream modes of the call, which are the graph's if the options name none.

    Raises:
        ConfigError: an option is invalid.
    """
    # Cached: the checks made a fifth of all calls before a first chunk, with the same result each time.
    depends = graph.read_context is not None or CURRENT.get() is not None or not BY_REFERENCE.isdisjoint(options)
    try:
        key = (depends, *_key_of({**options, "stream_mode": modes}))
    except TypeError:
        return _check(graph, options, modes, depends=depends)
    found: _CheckedOptions | None = graph.checked.get(key)
    if found is None:
        found = _check(graph, options, modes, depends=depends)
        if len(graph.checked) >= _MOST_CHECKED:
            graph.checked.clear()
        graph.checked[key] = found
    return found


_PLAIN = frozenset((str, int, bool, float, type(None)))


def _key_of(options: Mapping[str, Any]) -> list[tuple[str, type, Any]]:
    """Return the options by value. Raises `TypeError` if one is not plain: it might change, or equal another one."""
    # With the types, because 1, 1.0 and True are equal, and the checks accept only one of them.
    return [
        (name, type(value), value if type(value) in _PLAIN else _names(value))
        for name, value in options.items()
        if name not in BY_REFERENCE
    ]


def _names(value: Any) -> tuple[str, ...]:
    """Return a list or tuple of strings as a tuple. Raises `TypeError` for other values."""
    if type(value) not in (list, tuple) or any(type(each) is not str for each in value):
        raise TypeError
    return tuple(value)


def _check(graph: Definition, options: Mapping[str, Any], modes: Any, *, depends: bool) -> _CheckedOptions:
    """Check the options of a call; see `_checked`.

    Args:
        depends: the run's options depend on more than these: on the calling node, or on objects of the caller.
    """
    names = names_of_modes(modes)
    version = check_version(options.get("version", "v1"))
    capacity = check_capacity(options.get("capacity", CAPACITY))
    output_keys, subgraphs = options.get("output_keys"), options.get("subgraphs", False)
    printed = printed_modes(graph.options, cast("CallOptions", options))
    run = call = None
    if not depends:
        run = _options_of_run(graph, cast("CallOptions", options), None, None)
        # A call that prints is never shared: its subscription counts the parts of one run.
        if graph.checkpointer in (None, False) and not graph.config and not printed:
            call = _PreparedCall(settings_of({}, run, stored=False, nested=False, results=graph.results), None, 0)
    return _CheckedOptions(
        modes=names,
        version=version,
        shape=shape_of(version, labelled=not isinstance(modes, str), subgraphs=subgraphs),
        channels=None if output_keys is None else _channels(graph, output_keys),
        subgraphs=subgraphs,
        capacity=capacity,
        policies=policies_of(options.get("overflow", "block"), names),
        keeps_events=options.get("keep_events", False),
        printed=printed,
        run=run,
        call=call,
    )


def _options_of_run(
    graph: Definition, options: CallOptions, outer: AttemptContext | None, inherits_from: AttemptContext | None
) -> RunOptions:
    return options_of_call(
        graph.program,
        graph.options,
        options,
        stored=outer is None and graph.saver is not None,
        outer=outer,
        inherits_from=inherits_from,
        read_context=graph.read_context,
    )


class _PreparedCall(msgspec.Struct, frozen=True):
    """A checked call of a graph.

    Attributes:
        settings: the checked settings of the run.
        outer: the attempt at the node that makes the call, if the graph runs as part of the node's run; else None.
        number: the number of the call among the graphs that the node runs.
        digest: the digest of the input, to compare with that of an earlier attempt; empty if there is nothing to
            compare.
        printed: the subscription that prints parts; empty if nothing is printed.
    """

    settings: Settings
    outer: AttemptContext | None
    number: int
    digest: bytes = b""
    printed: tuple[Subscription, ...] = ()


def _prepare(
    graph: Definition, given: Any, config: Config | None, options: CallOptions, checked: _CheckedOptions
) -> _PreparedCall:
    """Check a call, and decide whether the graph runs as part of the run of the calling node.

    A config that names a thread makes the call a run of its own, unless it is the config of the calling node or of an
    enclosing one.
    """
    if RUNNABLES in sys.modules:
        config = plugin("tracing").with_ambient(config, CURRENT.get())
    if config is None and checked.call is not None:
        return checked.call
    mine = merge_configs(graph.config, config)
    outer = inherits_from = CURRENT.get()
    if outer is not None:
        own_saver = graph.saver is not None and not outer.graph.run.is_stored
        if own_saver or all(is_elsewhere(mine, here) for here in outer.configs()):
            inherited = _inherited_config(outer) if own_saver else None
            mine, outer, inherits_from = merge_configs(inherited, mine), None, outer if own_saver else None
        else:
            mine = merge_configs(_inherited_config(outer), without_address(mine))
    if outer is None and graph.checkpointer is True:
        raise ConfigError(
            f"graph {graph.name!r} is compiled with checkpointer=True, which is for a graph that a node runs: it "
            "keeps its state with the graph around it. Give it a saver to run it by itself"
        )
    stored = outer is None and graph.saver is not None
    run = _options_of_run(graph, options, outer, inherits_from) if checked.run is None else checked.run
    settings = settings_of(mine, run, stored=stored, nested=outer is not None, results=graph.results)
    printed = _printed(checked)
    if outer is None:
        return _PreparedCall(settings, None, 0, printed=printed)
    outer.fence.check(f"graph {graph.name!r}")
    if outer.ended:
        raise OutsideRunError(
            f"graph {graph.name!r} was run for node {outer.task.node.name!r}, which has ended: wait in the node "
            "for whatever it starts"
        )
    name, nodes = graph.name, list(graph.program.nodes)  # graphs without a given name differ by their nodes only

    def fingerprint(digests: Digests) -> bytes:
        return digests.fingerprint((name, nodes, given))

    kept = graph.checkpointer is True
    number = outer.number("run", fingerprint, name=name, target=graph.program, ordered=kept)
    digest = b""
    # The number of an unordered call is itself a digest of the call, and without storage there is nothing to compare.
    if number < CONCURRENT_BASE and graph.checkpointer is not False:
        digest = outer.digest_of_input(given)
    return _PreparedCall(settings, outer, number, digest, printed)


def _inherited_config(outer: AttemptContext) -> RunnableConfig:
    """Return the settings of the calling node's graph, without those that belong to its own run for tracers."""
    # The callbacks of the node are nested in its run, and come with the call: by its config, or by the context.
    config = outer.graph.config
    if outer.graph.tracer is None:
        return config
    return cast("RunnableConfig", {key: value for key, value in config.items() if key not in ("callbacks", "run_name")})


def _printed(checked: _CheckedOptions) -> tuple[Subscription, ...]:
    """Return the subscription that prints what `print_mode` and `debug` name; empty if they name nothing."""
    if not checked.printed:
        return ()
    sink = Unbounded(_print)
    return (Subscription(checked.printed, sink, channels=checked.channels, subgraphs=checked.subgraphs),)


def _print(part: RawPart) -> None:
    print(f"[{part.mode}]", *((f"[graph={part.ns}]",) if part.ns else ()), bare(part))


def _run(
    graph: Definition,
    given: Any,
    call: _PreparedCall,
    subscription: Subscription | None = None,
    begun: tuple[Callable[[NamespaceWriter], Awaitable[bool]], ...] = (),
) -> Coroutine[Any, Any, EndedRun]:
    caller, start = CURRENT.get(), _start_traced_run if RUNNABLES in sys.modules else _start_run
    if caller is None or not caller.fence.may_abandon:
        return start(graph, given, call, subscription, begun)
    # The caller may be in a worker thread that can be abandoned. Its fence then cancels the run and waits for its end.
    return caller.fence.admit("a graph", partial(start, graph, given, call, subscription, begun))


def _start_traced_run(
    graph: Definition,
    given: Any,
    call: _PreparedCall,
    subscription: Subscription | None,
    begun: tuple[Callable[[NamespaceWriter], Awaitable[bool]], ...],
) -> Coroutine[Any, Any, EndedRun]:
    """Run a graph, and show the run to callbacks of langchain-core."""
    settings = call.settings
    if call.outer is None and settings.run_id is None:  # one id for the run and for its trace
        settings = structs.replace(settings, run_id=graph.environment.new_id())
        call = structs.replace(call, settings=settings)
    tracer = plugin("tracing").GraphTracer(graph.program, settings, call.outer)
    work = partial(_start_run, graph, given, call, subscription, begun, tracer)
    running: Coroutine[Any, Any, EndedRun] = tracer.run(
        given, work, lambda ended: ended.board.output(graph.program, graph.program.outputs)
    )
    return running


def _start_run(
    graph: Definition,
    given: Any,
    call: _PreparedCall,
    subscription: Subscription | None,
    begun: tuple[Callable[[NamespaceWriter], Awaitable[bool]], ...],
    tracer: AttemptTracer | None = None,
) -> Coroutine[Any, Any, EndedRun]:
    settings, outer = call.settings, call.outer
    subscriptions = call.printed if subscription is None else (*call.printed, subscription)
    if "metadata" in settings.config or "tags" in settings.config:
        for each in subscriptions:
            each.metadata = metadata_in_streams(settings.config)
    audience = Audience(
        shown=graph.shown,
        subscriptions=subscriptions,
        codec=graph.events_codec,
        token_listener=_model_token_listener(),
        tracer=tracer,
        begun=begun,
    )
    if outer is not None:
        stores, keeps_state = graph.checkpointer is not False, graph.checkpointer is True
        nested = NestedCall(
            outer, call.number, call.digest, graph.codecs.nested, stores=stores, keeps_state=keeps_state
        )
        return run_nested(graph.program, given, settings, nested, audience)
    if subscription is not None and subscription.records_events:
        return _run_joinable(graph, given, settings, subscription, audience)
    return run(graph.program, given, settings, graph.environment, graph.saver, graph.codec, audience)


async def _run_joinable(
    graph: Definition, given: Any, settings: Settings, subscription: Subscription, audience: Audience
) -> EndedRun:
    """Run a graph, and let other readers of this process join the run until it ends."""

    async def joinable(thread: NamespaceWriter) -> bool:
        graph.live.add(thread.thread_id, subscription)
        return True

    audience = structs.replace(audience, begun=(joinable, *audience.begun))
    failure: list[BaseException] = []
    try:
        return await run(graph.program, given, settings, graph.environment, graph.saver, graph.codec, audience)
    except BaseException as error:
        failure.append(error)
        raise
    finally:
        graph.live.remove(settings.thread_id or "", subscription, *failure)


async def _rejoin(
    graph: Definition, call: _PreparedCall, subscription: Subscription, after: Cursor, buffer: Buffer
) -> None:
    from .._runtime.streaming.replay import rejoin  # imported here: most programs never reconnect

    saver, thread_id = graph.saver, call.settings.thread_id
    assert saver is not None and thread_id is not None  # `_read_cursor` and `_prepare` have checked this
    eager = _PreparedCall(call.settings.without_waiting(), None, 0, printed=call.printed)

    async def resume(subscription: Subscription, begun: Callable[[NamespaceWriter], Awaitable[bool]]) -> EndedRun:
        return await _run(graph, None, eager, subscription, (begun,))

    await rejoin(
        buffer,
        subscription,
        after,
        saver,
        thread_id,
        graph.codecs.of_events(graph.codec),
        graph.live,
        resume,
        coerce=partial(coercion_of, graph),
        waits=call.settings.waits,
    )


def coercion_of(graph: Definition, part: RawPart) -> Callable[[Any], Any] | None:
    """Return the function that makes the schema's object of a stored event's state; None if there is none.

    Args:
        graph: the graph that was called.
        part: the event, of this graph or of a subgraph.
    """
    for step in part.ns:
        if not step.isdigit():
            found = graph.subgraph_index.stored.get(step.partition(":")[0])
            if found is None:
                return None
            graph = found._definition
    return graph.coerce_state


def _require_checkpointer_for_events(graph: Definition) -> None:
    if graph.saver is None:
        raise ConfigError("keep_events=True keeps events with a thread, and the graph has no checkpointer of its own")


def _read_cursor(graph: Definition, given: Any, after: str, version: Literal["v1", "v2"]) -> Cursor:
    _require_checkpointer_for_events(graph)
    if given is not None:
        raise ConfigError("after= reconnects to a run, which has its input already: pass None as input")
    if version != "v2":
        raise ConfigError("after= needs version='v2', which reports void parts as parts of their own")
    return Cursor.parse(after)


def _channels(graph: Definition, output_keys: Names) -> str | tuple[str, ...]:
    for key in (output_keys,) if isinstance(output_keys, str) else output_keys:
        if key not in graph.program.channels:
            raise ConfigError(f"output_keys names {key!r}, and graph {graph.name!r} has no such channel")
    return output_keys if isinstance(output_keys, str) else tuple(output_keys)


def _with_interrupts(value: Any, interrupts: tuple[Interrupt, ...]) -> Any:
    """Return a call's output with the open questions in it."""
    if not interrupts:
        return value
    asked = list(isolate(interrupts))
    return {**value, INTERRUPT: asked} if isinstance(value, dict) else {INTERRUPT: asked}


def _model_token_listener() -> Callable[[StreamWriter], AbstractContextManager[None]] | None:
    """Return the context manager that streams tokens of langchain-core's models; None if langchain-core is not used."""
    if "langchain_core" not in sys.modules:
        return None
    ambient: Callable[[StreamWriter], AbstractContextManager[None]] = plugin("model tokens").ambient
    return ambient
