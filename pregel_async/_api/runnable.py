"""Running a graph: what `ainvoke`, `astream` and `abatch` ask of the runtime, and what a call in a node takes over."""

from __future__ import annotations

import copy
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

import anyio
import msgspec
from msgspec import structs

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.children import start_soon
from checkpoint_savers.codec import Codec
from checkpoint_savers.upkeep.retention import Retention

from .._checks.config import (
    check_budgets,
    check_durability,
    check_on_failure,
    is_elsewhere,
    merge_configs,
    settings_of,
    without_address,
)
from .._checks.node_policies import NodePolicies, seconds_of
from .._checks.stream_options import (
    CallOptions,
    ChunkModes,
    Modes,
    Overflow,
    StreamOptions,
    check_capacity,
    check_observer,
    check_version,
    names_of_modes,
    policies_of,
)
from .._core.isolation import isolate
from .._core.program import Program
from .._core.superstep import Breakpoints
from .._runtime.engine.graph_run import Ended
from .._runtime.engine.run import run, run_nested
from .._runtime.engine.settings import Audience, Settings
from .._runtime.observing.observer import Observer
from .._runtime.persistence.digests import Digests
from .._runtime.persistence.namespace_writer import Thread
from .._runtime.platform.environment import SystemWorld, World
from .._runtime.platform.event_loops import alone
from .._runtime.streaming.buffer import CAPACITY, ChunkList, Pipe
from .._runtime.streaming.parts import Cursor, Part, shape_of
from .._runtime.streaming.publisher import Shown
from .._runtime.streaming.stream import GraphStream
from .._runtime.streaming.subscription import Feed
from .._runtime.tasks.context import BESIDE, CURRENT, Running
from .._runtime.tasks.control import RunControl
from ..errors import (
    ConfigError,
    GraphValidationError,
    OutsideRunError,
)
from ..parts import GraphOutput, StreamPart
from ..policies import Budget, OnFailure
from ..types import (
    INTERRUPT,
    All,
    ChangedQuestions,
    Command,
    Config,
    Durability,
    Interrupt,
    Names,
    OnConflict,
    RunnableConfig,
    StreamMode,
    StreamWriter,
)
from .attributes import GraphAttributes
from .defaults import changed_questions_of
from .plugins import plugin
from .stored_types import with_hints
from .sync_verbs import SyncFace

if TYPE_CHECKING:
    from checkpoint_savers.caches.abc import BaseCache
    from checkpoint_savers.stores.abc import BaseStore

InputT = TypeVar("InputT", contravariant=True)
OutputT = TypeVar("OutputT", covariant=True)


class Runs(GraphAttributes, SyncFace[InputT, OutputT]):
    """A graph, as it is run. It holds no state of a run."""

    if TYPE_CHECKING:
        # What the graph knows of the graphs that its nodes run.
        @property
        def _graphs_inside(self) -> Mapping[str, Runs[Any, Any]]: ...
        def _subgraphs(
            self, namespace: str | None, recurse: bool, around: tuple[Any, ...]
        ) -> Iterator[tuple[str, Runs[Any, Any]]]: ...

    def __init__(
        self,
        program: Program,
        *,
        checkpointer: BaseCheckpointSaver | bool | None,
        hints: Sequence[Any],
        stream_channels: str | tuple[str, ...],
        stream_mode: StreamMode,
        world: World | None,
        debug: bool,
        store: BaseStore | None = None,
        cache: BaseCache | None = None,
        interrupt_before: All | Sequence[str] | None = (),
        interrupt_after: All | Sequence[str] | None = (),
        on_failure: OnFailure = "fail_fast",
        budgets: Mapping[str, Budget] | None = None,
        time_limit: float | timedelta | None = None,
        retention: Retention | None = None,
        observer: Observer | Sequence[Observer] | None = None,
        changed_questions: ChangedQuestions | None = None,
        read_context: Callable[[Any], Any] | None = None,
        coerce_state: Callable[[Any], Any] | None = None,
        coerce_output: Callable[[Any], Any] | None = None,
        complete_state: Callable[[Any], Any] | None = None,
        defaults: NodePolicies | None = None,
        own_policies: Mapping[str, NodePolicies] | None = None,
    ) -> None:
        self._program = program
        self._hints = hints
        self._defaults = NodePolicies() if defaults is None else defaults
        self._own_policies = {} if own_policies is None else own_policies
        self.checkpointer = checkpointer
        self.store = store
        self.cache = cache
        self.debug = debug
        self.stream_mode = stream_mode
        self._stream_channels = stream_channels
        self._on_failure: OnFailure = check_on_failure(program, on_failure, GraphValidationError)
        self._budgets = check_budgets(budgets, error=GraphValidationError)
        self._time_limit = seconds_of("time_limit", time_limit)
        self._retention = _checked_retention(retention)
        self._observers = check_observer(observer, GraphValidationError)
        self._changed_questions: ChangedQuestions = changed_questions_of(changed_questions)
        self._inner_codec: tuple[Codec, Codec] | None = None
        self._read_context = read_context
        self._coerce_state = coerce_state
        self._coerce_output = coerce_output
        self._complete_state = complete_state
        self._known_events_codec: tuple[Codec, Codec] | None = None
        self._breakpoints = Breakpoints(
            self._named(interrupt_before, "interrupt_before"), self._named(interrupt_after, "interrupt_after")
        )
        self._world: World = SystemWorld() if world is None else world
        self._config: RunnableConfig = {}

    def with_config(self, config: Config | None = None, **keys: Any) -> Self:
        """The same graph with settings bound to it; those of a call win over them."""
        bound = copy.copy(self)
        bound._config = merge_configs(self._config, config, keys)
        return bound

    def with_checkpointer(self, checkpointer: BaseCheckpointSaver | bool | None) -> Self:
        """The same graph, storing its threads there; None stores nothing."""
        bound = copy.copy(self)
        bound.checkpointer = checkpointer
        return bound

    @property
    def world(self) -> World:
        """The port for clock, ids and randomness, as given to `compile(world=)`."""
        return self._world

    # ---- the verbs ------------------------------------------------------------------------------------------------

    @overload
    async def ainvoke(
        self,
        input: InputT | Command | None,
        config: Config | None = None,
        *,
        stream_mode: Literal["values"] = "values",
        version: Literal["v2"],
        **call: Unpack[CallOptions],
    ) -> GraphOutput[OutputT]: ...

    @overload
    async def ainvoke(
        self,
        input: InputT | Command | None,
        config: Config | None = None,
        *,
        stream_mode: ChunkModes,
        version: Literal["v2"],
        **call: Unpack[CallOptions],
    ) -> list[StreamPart]: ...

    @overload
    async def ainvoke(
        self,
        input: InputT | Command | None,
        config: Config | None = None,
        *,
        stream_mode: Modes = "values",
        version: Literal["v1"] = "v1",
        **call: Unpack[CallOptions],
    ) -> OutputT: ...

    async def ainvoke(
        self,
        input: InputT | Command | None,
        config: Config | None = None,
        *,
        context: Any = None,
        stream_mode: Modes = "values",
        output_keys: Names | None = None,
        interrupt_before: All | Sequence[str] | None = None,
        interrupt_after: All | Sequence[str] | None = None,
        durability: Durability | None = None,
        on_conflict: OnConflict = "reject",
        on_failure: OnFailure | None = None,
        budgets: Mapping[str, Budget] | None = None,
        time_limit: float | timedelta | None = None,
        control: RunControl | None = None,
        observer: Observer | Sequence[Observer] | None = None,
        version: Literal["v1", "v2"] = "v1",
    ) -> Any:
        """Run to the end, or to where the run pauses, and return the output.

        Args:
            input: what the input schema says; None goes on with what is stored of the thread; a `Command` answers
                questions, or edits the state and says where to go on.
            config: settings, or a thread id.
            context: what nodes get as `Runtime.context`, as the context schema says. None takes that of the node that
                calls the graph, if it has one, or the schema's defaults.
            interrupt_before, interrupt_after: nodes before or after which to stop, "*" for all, instead of those that
                the graph was compiled with. Call with input None to go on.
            durability: "sync", the default, stores each superstep before the next starts; "async" while the next runs;
                "exit" stores all of them as one when the run ends. See docs/durability.md.
            stream_mode: other than "values": return the list of all chunks that `astream` would give.
            output_keys: the channels to return, instead of the output schema's.
            on_conflict: "reject" raises when another run owns the thread; "wait" waits for it.
            on_failure: "fail_fast", "finish" or `Collect(channel)`; see `StateGraph.compile`.
            budgets: other limits than those that the graph was compiled with, by name. One takes the place of the
                graph's as a whole: a limit that it leaves out does not hold in this call.
            time_limit: seconds, or a timedelta, after which the run stops at its next barrier.
            control: lets the run be stopped from outside, at its next barrier.
            observer: is told what the run does, the graphs inside included; besides the graph's own.
            version: "v2" returns a `GraphOutput`.

        Returns:
            The output channels' values at the end: those that hold something. When nodes have asked
            (`interrupt()`), with their questions under "__interrupt__".

        Raises:
            PregelError: see `pregel_async.errors`: a bad input or config, a busy thread, failing storage, the step
                limit, a drained run.
            Exception: what a node raised, with a note that names it; an `ExceptionGroup` in plan order when several
                nodes of one superstep did. The thread can be resumed.
        """
        stops = self._stops(interrupt_before, interrupt_after)
        limits = _Limits(on_failure, budgets, time_limit)
        call = self._call(input, config, context, stops, durability, on_conflict, limits, control, observer)
        shown = self._shown(output_keys, self._program.outputs)
        check_version(version)
        if stream_mode == "values":
            ended = await self._run(input, call, None)
            value = ended.board.output(self._program, shown)
            if version == "v1":
                return _result(value, ended.interrupts)
            if output_keys is None and self._coerce_output is not None and ended.done:
                value = self._coerce_output(value)
            return GraphOutput(value, isolate(ended.interrupts))
        kept = ChunkList(shape_of(version, labelled=not isinstance(stream_mode, str), subgraphs=False))
        channels = None if output_keys is None else shown
        await self._run(input, call, Feed(names_of_modes(stream_mode), kept, channels=channels, tells=version == "v2"))
        return kept.chunks

    @overload
    def astream(
        self,
        input: InputT | Command | None,
        config: Config | None = None,
        *,
        version: Literal["v2"],
        **call: Unpack[StreamOptions],
    ) -> GraphStream[StreamPart]: ...

    @overload
    def astream(
        self,
        input: InputT | Command | None,
        config: Config | None = None,
        *,
        version: Literal["v1", "v2"] = "v1",
        **call: Unpack[StreamOptions],
    ) -> GraphStream[Any]: ...

    def astream(
        self,
        input: InputT | Command | None,
        config: Config | None = None,
        *,
        context: Any = None,
        stream_mode: Modes | None = None,
        subgraphs: bool = False,
        output_keys: Names | None = None,
        interrupt_before: All | Sequence[str] | None = None,
        interrupt_after: All | Sequence[str] | None = None,
        durability: Durability | None = None,
        on_conflict: OnConflict = "reject",
        on_failure: OnFailure | None = None,
        budgets: Mapping[str, Budget] | None = None,
        time_limit: float | timedelta | None = None,
        control: RunControl | None = None,
        observer: Observer | Sequence[Observer] | None = None,
        capacity: int = CAPACITY,
        overflow: Overflow = "block",
        keep_events: bool = False,
        after: str | None = None,
        version: Literal["v1", "v2"] = "v1",
    ) -> GraphStream[Any]:
        """Run, and show what happens while it does.

        Args:
            stream_mode: "updates" (each task's update as it finishes), "values" (the state after each superstep),
                "messages" (messages and their chunks, with where they come from), "custom" (what nodes write to the
                stream), "tasks" (each task when it is planned and when it has ended), "checkpoints" (each, once it is
                stored), "debug" (the last two, dated), or a list of several, which labels each chunk: `(mode,
                payload)`. Questions come as `{"__interrupt__": (...)}`.
            subgraphs: show the graphs that nodes run too; each chunk says whose it is: `(namespace, payload)`, or
                `(namespace, mode, payload)`.
            output_keys: the channels to show, instead of all state keys.
            capacity: how many chunks may wait for the reader.
            overflow: what happens when that many do, for all modes or by mode: "block" makes the run wait,
                "drop_oldest" drops the oldest chunk of the mode, "coalesce" keeps only its newest.
            keep_events: keep what is shown with the commits, so that a reader can come back (`after`). The called
                graph needs a checkpointer.
            after: come back to a run: the cursor of the last part that was read. `input` is None, and the version
                "v2". What was missed comes first. A run that goes on in this process is joined. One that was cut off is
                resumed: "superstep_restarted" tells what is void. One that has ended is not run again.
            version: "v2" gives each chunk as a dict: see `pregel_async.parts`.

        The other arguments and the errors are those of `ainvoke`. A bad config raises here, all else while reading.

        Raises:
            InvalidCursorError: `after` is no cursor, or one of another thread or branch.
            RecordedFailureError: the run that a reader came back to had failed.
        """
        if after is not None and stream_mode is None:
            raise ConfigError("after= comes back to what was asked for: say stream_mode= as it was said then")
        modes = self._stream_mode if stream_mode is None else stream_mode
        names = names_of_modes(modes)
        check_version(version)
        pipe = Pipe(check_capacity(capacity), policies_of(overflow, names))
        cursor = None if after is None else self._check_return(input, after, version)
        if keep_events:
            self._check_keeps()
        stops = self._stops(interrupt_before, interrupt_after)
        limits = _Limits(on_failure, budgets, time_limit)
        call = self._call(input, config, context, stops, durability, on_conflict, limits, control, observer)
        if call.outer is not None and (keep_events or cursor is not None):
            raise ConfigError(
                f"graph {self.name!r} runs as part of the node that calls it, and the run around it keeps its events: "
                "ask for them there (keep_events=True, subgraphs=True), or name a thread of its own in config"
            )
        channels = None if output_keys is None else self._shown(output_keys, self._stream_channels)
        feed = Feed(
            names,
            pipe,
            channels=channels,
            subgraphs=subgraphs,
            tells=version == "v2",
            keeps=keep_events or cursor is not None,
            fresh=True,
            returns=cursor is not None,
            number=0 if cursor is None else cursor.seq,
        )

        async def work(pipe: Pipe) -> None:
            try:
                if cursor is None:
                    await self._run(input, call, feed)
                else:
                    await self._rejoin(call, feed, cursor, pipe)
            except Exception as error:
                if feed.tells and not feed.failed:  # it failed before it had begun
                    await feed.put(feed.fail(error, 0))
                raise

        shape = shape_of(version, labelled=not isinstance(modes, str), subgraphs=subgraphs)
        return GraphStream(work, pipe, shape, feed, cursor=after)

    async def abatch(
        self,
        inputs: Sequence[InputT],
        config: Config | Sequence[Config] | None = None,
        *,
        context: Any = None,
        return_exceptions: bool = False,
        max_concurrency: int | None = None,
        on_conflict: OnConflict = "reject",
    ) -> list[OutputT]:
        """Run once per input, concurrently; the outputs in the inputs' order.

        Args:
            config: one for all, or one for each input.
            return_exceptions: put a run's exception in its place instead of raising it.
            max_concurrency: how many runs at once; None for all.

        Raises:
            Exception: the failure of the first input, in order, that failed; the other runs are cancelled.
        """
        if config is None or isinstance(config, (str, Mapping)):
            configs: list[Config | None] = [config] * len(inputs)
        else:
            configs = list(config)
        if len(configs) != len(inputs):
            raise ConfigError(
                f"abatch got {len(inputs)} inputs and {len(configs)} configs: pass one config, or one for each"
            )
        done: dict[int, OutputT | BaseException] = {}
        places = iter(range(len(inputs)))

        async def work() -> None:
            for place in places:
                try:
                    done[place] = await self.ainvoke(
                        inputs[place], configs[place], context=context, on_conflict=on_conflict
                    )
                except Exception as error:
                    done[place] = error
                    if not return_exceptions:
                        group.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as group:
                for _ in range(len(inputs) if max_concurrency is None else max(1, max_concurrency)):
                    start_soon(group, work)
        except BaseExceptionGroup as several:  # Ctrl-C: every other error is kept in its place
            raise alone(several) from None
        if not return_exceptions:
            for place in sorted(done):
                result = done[place]
                if isinstance(result, BaseException):
                    raise result
        return [cast("OutputT", done[place]) for place in range(len(inputs))]

    def _run(
        self,
        given: Any,
        call: _Call,
        feed: Feed | None,
        begun: Callable[[Thread], Awaitable[bool]] | None = None,
    ) -> Coroutine[Any, Any, Ended]:
        around = CURRENT.get()
        if around is None or around.fence is None:
            return self._run_here(given, call, feed, begun)
        # In a thread that may be left behind: what it runs on the event loop has ended by then.
        return around.fence.admit("a graph", partial(self._run_here, given, call, feed, begun))

    def _run_here(
        self,
        given: Any,
        call: _Call,
        feed: Feed | None,
        begun: Callable[[Thread], Awaitable[bool]] | None,
    ) -> Coroutine[Any, Any, Ended]:
        settings, outer = call.settings, call.outer
        codec = self.events_codec
        if feed is not None and feed.keeps:  # as the run begins: another saver may be set while it runs
            codec = partial(self._events_codec, self._codec)
        audience = Audience(shown=self._as_shown, feed=feed, codec=codec, overhears=_overhears(), begun=begun)
        if outer is not None:
            keeps = None if self._checkpointer is False else self._checkpointer is True
            inside, number, digest = self._codec_inside, call.number, call.digest
            return run_nested(self._program, given, settings, outer, number, digest, inside, audience, keeps=keeps)
        if feed is not None and feed.keeps:
            return self._run_joinable(given, settings, feed, audience)
        return run(self._program, given, settings, self._world, self._saver, self._codec, audience)

    async def _run_joinable(self, given: Any, settings: Settings, feed: Feed, audience: Audience) -> Ended:
        """A run that others can join while it goes on."""
        begun = audience.begun

        async def joinable(thread: Thread) -> bool:
            self._live.add(thread.thread_id, feed)
            return begun is None or await begun(thread)

        audience = structs.replace(audience, begun=joinable)
        failure: BaseException | None = None
        try:
            return await run(self._program, given, settings, self._world, self._saver, self._codec, audience)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._live.remove(settings.thread_id or "", feed, failure)

    @property
    def _saver(self) -> BaseCheckpointSaver | None:
        return self._checkpointer if isinstance(self._checkpointer, BaseCheckpointSaver) else None

    async def _rejoin(self, call: _Call, feed: Feed, after: Cursor, pipe: Pipe) -> None:
        from .._runtime.streaming.replay import rejoin  # loaded when it is used

        saver, thread_id = self._checkpointer, call.settings.thread_id
        assert isinstance(saver, BaseCheckpointSaver) and thread_id is not None  # checked when it was called
        eager = _Call(structs.replace(call.settings, on_conflict="reject"), None, 0)

        async def resume(feed: Feed, begun: Callable[[Thread], Awaitable[bool]]) -> Ended:
            return await self._run(None, eager, feed, begun)

        await rejoin(
            pipe,
            feed,
            after,
            saver,
            thread_id,
            self._events_codec(self._codec),
            self._live,
            resume,
            coerce=self._coercion_of,
            waits=call.settings.on_conflict == "wait",
        )

    def _coercion_of(self, part: Part) -> Callable[[Any], Any] | None:
        """What makes the schema's own object of an event that was stored."""
        graph: Runs[Any, Any] | None = self
        for step in part.ns:
            if graph is not None and not step.isdigit():
                graph = graph._graphs_inside.get(step.partition(":")[0])
        return None if graph is None else graph._coerce_state

    def _check_keeps(self) -> None:
        if not isinstance(self._checkpointer, BaseCheckpointSaver):
            raise ConfigError(
                "keep_events=True keeps events with a thread, and the graph has no checkpointer of its own"
            )

    def _check_return(self, given: Any, after: str, version: str) -> Cursor:
        self._check_keeps()
        if given is not None:
            raise ConfigError("after= comes back to a run, which has its input: pass None as input")
        if version != "v2":
            raise ConfigError("after= tells what is void in parts of their own: pass version='v2'")
        return Cursor.read(after)

    @cached_property
    def _as_shown(self) -> Shown:
        return Shown(channels=self._stream_channels, coerce=self._coerce_state, inside=self._keeps_inside)

    def _keeps_inside(self) -> Mapping[str, bool]:
        return {name: graph.checkpointer is True for name, graph in self._graphs_inside.items()}

    def events_codec(self) -> Codec:
        """The codec of this graph and of all graphs inside."""
        return self._events_codec(self._codec)

    def _events_codec(self, own: Codec | None) -> Codec:
        assert own is not None  # events are kept with a thread
        known = self._known_events_codec
        if known is None or known[0] is not own:
            codec = own
            for _, graph in self._subgraphs(None, True, ()):
                codec = graph._codec_inside(codec)
            known = self._known_events_codec = (own, codec)
        return known[1]

    def _codec_inside(self, outer: Codec) -> Codec:
        """The codec of the graph around this one, and the types that this graph's annotations name."""
        known = self._inner_codec
        if known is None or known[0] is not outer:
            known = self._inner_codec = (outer, with_hints(outer, self._hints))
        return known[1]

    def _call(
        self,
        given: Any,
        config: Config | None,
        context: Any,
        stops: Breakpoints,
        durability: Durability | None,
        on_conflict: OnConflict,
        limits: _Limits,
        control: RunControl | None,
        observer: Observer | Sequence[Observer] | None,
    ) -> _Call:
        """A call's settings, checked; and the node that makes it, when the graph runs as part of its run.

        A config that names a thread makes a run of its own, unless it is the config of that node, or of one around it.
        """
        mine = merge_configs(self._config, config)
        outer = around = CURRENT.get()
        if outer is not None:
            own_saver = isinstance(self._checkpointer, BaseCheckpointSaver) and outer.around.session.hold is None
            if own_saver or all(is_elsewhere(mine, here) for here in outer.configs()):
                inherited = outer.around.config if own_saver else None
                mine, outer, around = merge_configs(inherited, mine), None, outer if own_saver else None
            else:
                mine = merge_configs(outer.around.config, without_address(mine))
        if outer is None and self._checkpointer is True:
            raise ConfigError(
                f"graph {self.name!r} is compiled with checkpointer=True, which is for a graph that a node runs: it "
                "keeps its state with the graph around it. Give it a saver to run it by itself"
            )
        stored = isinstance(self._checkpointer, BaseCheckpointSaver) if outer is None else False
        hold = None if outer is None else outer.around.session.hold
        durable = check_durability(
            durability,
            stored=stored or (outer is not None and outer.around.thread is not None),
            around=None if hold is None else hold.durability,
        )
        given_context = context
        if context is None and around is not None:
            context = around.context  # as the schema of the graph around has made it
        if self._read_context is not None and (given_context is not None or context is None):
            context = self._read_context(context)
        store = around.store if around is not None and self._store is None else self._store
        watching = around.around.observed if around is not None else None
        inherited_observers = () if watching is None else watching.observers.each
        settings = settings_of(
            mine,
            stored=stored,
            nested=outer is not None,
            on_conflict=on_conflict,
            durability=durable,
            context=context,
            store=store,
            breakpoints=stops if stops.before or stops.after else None,
            debug=self._debug,
            control=control,
            on_failure=self._on_failure
            if limits.on_failure is None
            else check_on_failure(self._program, limits.on_failure),
            budgets=check_budgets(limits.budgets, self._budgets),
            time_limit=self._time_limit
            if limits.time_limit is None
            else seconds_of("time_limit", limits.time_limit, ConfigError),
            retention=self._retention,
            results=self._results,
            changed_questions=self._changed_questions,
            observers=_each_once(*inherited_observers, *self._observers, *check_observer(observer)),
        )
        number, digest = 0, b""
        if outer is not None:
            if outer.fence is not None:
                outer.fence.check(f"graph {self.name!r}")
            if outer.ended:
                raise OutsideRunError(
                    f"graph {self.name!r} was run for node {outer.task.node.name!r}, which has ended: wait in the node "
                    "for whatever it starts"
                )
            nodes = list(self._program.nodes)  # a graph that was given no name is known by them
            kept = self._checkpointer is True
            name = self._program.name

            def fingerprint(digests: Digests) -> bytes:
                return digests.fingerprint((name, nodes, given))

            number = outer.number("run", fingerprint, name=name, who=self._program, ordered=kept)
            digest = b""
            if number < BESIDE and self._checkpointer is not False:  # else its number says it, or nothing is stored
                digest = outer.digest_of_input(given)
        return _Call(settings, outer, number, digest)

    def _stops(self, before: All | Sequence[str] | None, after: All | Sequence[str] | None) -> Breakpoints:
        bound = self._breakpoints
        if before is None and after is None:
            return bound
        return Breakpoints(
            bound.before if before is None else self._named(before, "interrupt_before"),
            bound.after if after is None else self._named(after, "interrupt_after"),
        )

    def _shown(self, keys: Names | None, default: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if keys is None:
            return default
        for key in (keys,) if isinstance(keys, str) else keys:
            if key not in self._program.channels:
                raise ConfigError(f"output_keys names {key!r}, and graph {self.name!r} has no such channel")
        return keys if isinstance(keys, str) else tuple(keys)


class _Limits(msgspec.Struct, frozen=True):
    """What a call says of failures and limits; None leaves what the graph was compiled with."""

    on_failure: OnFailure | None
    budgets: Mapping[str, Budget] | None
    time_limit: float | timedelta | None


class _Call(msgspec.Struct, frozen=True):
    """A call of a graph.

    Attributes:
        settings: checked.
        outer: the node that makes it, when the graph runs as part of its run.
        number: which of the graphs that the node runs this is.
        digest: of the input, if it is compared with that of an earlier attempt at the same run; else empty.
    """

    settings: Settings
    outer: Running | None
    number: int
    digest: bytes = b""


def _each_once(*observers: Observer) -> tuple[Observer, ...]:
    if len(observers) < 2:
        return observers
    return tuple({id(observer): observer for observer in observers}.values())


def _result(value: Any, interrupts: tuple[Interrupt, ...]) -> Any:
    """What a call returns: its output, with the open questions in it."""
    if not interrupts:
        return value
    asked = list(isolate(interrupts))
    return {**value, INTERRUPT: asked} if isinstance(value, dict) else {INTERRUPT: asked}


def _overhears() -> Callable[[StreamWriter], AbstractContextManager[None]] | None:
    """What makes langchain-core's models show what they say, where it is in use."""
    if "langchain_core" not in sys.modules:
        return None
    ambient: Callable[[StreamWriter], AbstractContextManager[None]] = plugin("model tokens").ambient
    return ambient


def _checked_retention(retention: object) -> Retention | None:
    if retention is None or isinstance(retention, Retention):
        return retention
    raise GraphValidationError(f"retention is a Retention(keep=..., max_age=..., max_bytes=...), not {retention!r}")
