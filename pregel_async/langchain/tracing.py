"""Show runs of graphs to the callbacks of langchain-core: tracers, token counters, and handlers of users.

A run of a graph is a run of the callbacks, and each attempt at a node is a run inside it; so are the calls of routers
and tasks inside their node. What the code of a node calls is nested in the node's run in two ways: by the `callbacks`
of the node's config, if the code passes it on, and by langchain-core's own context variable, if it does not.

The runtime calls this module only if `langchain_core.runnables` is already imported.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import Token
from importlib import import_module
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

import anyio

from .._api.event_stream import run_name
from .._core.isolation import isolate
from .._core.program import Program
from .._runtime.engine.graph_run import EndedRun
from .._runtime.engine.settings import Settings
from .._runtime.persistence.unstored import Persistence
from .._runtime.platform.event_loops import on_asyncio
from .._runtime.tasks.context import NODE_METADATA, AttemptContext
from ..errors import GraphBubbleUp
from ..types import Command, Config, Interrupt
from .graph_callbacks import GraphInterruptEvent, GraphResumeEvent, GraphStatus, dispatch

__all__ = ["GraphTracer", "with_ambient"]

T = TypeVar("T")

# Imported by name, and so untyped: type-checking this package must not require langchain-core.
_config: Any = import_module("langchain_core.runnables.config")
_managers: Any = import_module("langchain_core.callbacks.manager")
_CHILD: Any = _config.var_child_runnable_config

CLEANUP_SECONDS: Final = 5.0
"""The longest time that handlers may take to learn of the end of a run that is being cancelled."""

HIDDEN: Final = "langsmith:hidden"
"""The tag of the hidden start, which tracers do not show."""

_OF_RUNS: Final = ("handlers", "inheritable_handlers", "tags", "inheritable_tags", "metadata", "inheritable_metadata")
"""What the manager of a run takes over from the manager that reports its start."""

_TO_GRAPHS: Final = ("tags", "metadata", "max_concurrency", "recursion_limit")


def with_ambient(config: Config | None, outer: AttemptContext | None) -> Config | None:
    """Add what a call of a graph inherits from the runnable that makes the call, by langchain-core's context variable.

    Args:
        config: the config of the call; its own settings win.
        outer: the node that makes the call, whose settings the call inherits anyway; None if no node does.

    Returns:
        The config; `config` itself if there is nothing to add.
    """
    ambient: Mapping[str, Any] | None = _CHILD.get()
    if not ambient or (config is not None and not isinstance(config, (str, Mapping))):
        return config
    given: dict[str, Any] = {"configurable": {"thread_id": config}} if isinstance(config, str) else dict(config or {})
    added = {key: value for key, value in _inherited(ambient, outer).items() if value}
    if given.get("callbacks") is not None:
        added.pop("callbacks", None)
    if not added:
        return config
    merged = {**added, **{key: value for key, value in given.items() if value is not None}}
    for key in ("configurable", "metadata"):
        if isinstance(given.get(key), Mapping) and key in added:
            merged[key] = {**added[key], **given[key]}
    if isinstance(given.get("tags"), list):
        merged["tags"] = [*added.get("tags", ()), *(tag for tag in given["tags"] if tag not in added.get("tags", ()))]
    return merged


def _inherited(ambient: Mapping[str, Any], outer: AttemptContext | None) -> dict[str, Any]:
    found: dict[str, Any] = {"callbacks": ambient.get("callbacks")}
    if outer is not None:
        return found  # tags and metadata are inherited from the node, and from the callback manager by the handlers
    found |= {key: ambient.get(key) for key in _TO_GRAPHS}
    if found["recursion_limit"] == _config.DEFAULT_RECURSION_LIMIT:
        # Every runnable has this limit, which counts other things than supersteps, unless a user sets one.
        found["recursion_limit"] = None
    found["metadata"] = {key: value for key, value in (found["metadata"] or {}).items() if key not in NODE_METADATA}
    found["configurable"] = {
        key: value
        for key, value in (ambient.get("configurable") or {}).items()
        # The place in another graph is no place in this one.
        if not key.startswith("__") and key not in ("checkpoint_ns", "checkpoint_id", "checkpoint_map")
    }
    return found


class GraphTracer:
    """Shows one run of a graph; see `Tracer`. Without handlers, it only sets langchain-core's context variable.

    Args:
        program: the graph.
        settings: the settings of the call.
        outer: the node that makes the call, if the graph runs as part of the node's run; else None.
    """

    def __init__(self, program: Program, settings: Settings, outer: AttemptContext | None) -> None:
        config: Mapping[str, Any] = settings.config
        self._name = config.get("run_name") or run_name(program)
        self._config: dict[str, Any] = {
            key: value for key, value in config.items() if key not in ("run_name", "run_id")
        }
        self._run_id = _as_uuid(settings.run_id) if outer is None else None
        place = ("thread_id", settings.thread_id) if outer is None else ("checkpoint_ns", outer.ns)
        if place[1] is not None:
            metadata = config.get("metadata", {})
            self._config["metadata"] = {**metadata, place[0]: metadata.get(*place)}
        self._run: Any = None  # langchain-core's manager of the graph's run; None without handlers
        self._results: dict[AttemptContext, Any] = {}
        self._is_root = outer is None
        self._settings = settings
        self._persistence: Persistence | None = None
        self._ns = ""
        self._resumes = False
        self._last_step: tuple[int, set[str]] = (-1, set())  # the last superstep, and its nodes

    async def run(
        self, value: Any, work: Callable[[], Coroutine[Any, Any, EndedRun]], output: Callable[[EndedRun], Any]
    ) -> EndedRun:
        """Run the graph, and report its start and its end.

        Args:
            value: the input.
            work: runs the graph.
            output: returns the output of the result of `work`.

        Returns:
            What `work` returns.
        """
        manager = _manager_of(self._config)
        if not manager.handlers:
            return await work()
        self._resumes = value is None or (isinstance(value, Command) and value.resume is not None)
        self._run = await _started(manager, value, self._name, self._run_id)
        async with _reported(self._run) as ended:
            result = await work()
            ended.append(output(result))
            if not result.done and self._is_root:
                await self._report_pause(result.interrupts)
        return result

    async def _report_pause(self, interrupts: tuple[Interrupt, ...]) -> None:
        status: GraphStatus = "pending"
        if not interrupts:
            is_after = self._last_step[1] & self._settings.interrupt_after
            status = "interrupt_after" if is_after else "interrupt_before"
        event = GraphInterruptEvent(self._run.run_id, status, self._checkpoint_id, (), isolate(interrupts))
        await dispatch(self._run.handlers, event)

    async def _report_resume(self) -> None:
        self._resumes = False
        ns = tuple(self._ns.split("|")) if self._ns else ()
        event = GraphResumeEvent(self._run.run_id, "pending", self._checkpoint_id, ns)
        await dispatch(self._run.handlers, event)

    @property
    def _checkpoint_id(self) -> str:
        return "" if self._persistence is None else self._persistence.tip or ""

    def attach(self, persistence: Persistence, ns: str) -> None:
        self._persistence, self._ns = persistence, ns
        if not self._is_root:
            self._resumes = persistence.continues

    def callbacks(self) -> Any:
        ambient = _CHILD.get()
        return None if ambient is None else ambient.get("callbacks")

    @property
    def has_handlers(self) -> bool:
        return self._run is not None

    def ambient(self, attempt: AttemptContext) -> AbstractContextManager[None]:
        return _ambient(_LazyConfig(lambda: self._config_of(attempt, self._config.get("callbacks"))))

    def returned(self, attempt: AttemptContext, result: Any) -> None:
        self._results[attempt] = result

    async def attempt(self, attempt: AttemptContext, value: Any, work: Callable[[], Awaitable[T]]) -> T:
        if self._resumes:
            await self._report_resume()
        task = attempt.task
        if task.step != self._last_step[0]:
            self._last_step = (task.step, set())
        self._last_step[1].add(task.node.name)
        # A called task is nested in the attempt that calls it, whose callbacks are those of the context.
        callbacks = self._run.get_child(f"graph:step:{task.step}") if task.is_planned else self.callbacks()
        config = self._config_of(attempt, callbacks)
        shown = _arguments(task.node.call, *value) if task.is_called and task.node.spread else value
        run = await _started(_manager_of(config), shown, task.node.name)
        config["callbacks"] = run.get_child("seq:step:1")
        try:
            async with _reported(run) as ended:
                with _ambient(config):
                    done = await work()
                result = self._results.get(attempt)
                await _streamed(run, result)
                ended.append(result)
            return done
        finally:
            self._results.pop(attempt, None)

    async def router(self, attempt: AttemptContext, name: str, view: Any) -> RouterTrace:
        around = self.callbacks()
        config = self._config_of(attempt, around.copy())
        # As LangGraph counts: the node's function, its writes, then its routers. The hidden start has no function.
        position = (2 if attempt.task.node.hidden else 3) + [router.name for router in attempt.task.node.routers].index(
            name
        )
        config["callbacks"].tags = [*around.tags]
        config["callbacks"].remove_tags(["seq:step:1"])
        config["callbacks"].add_tags([f"seq:step:{position}"], False)
        run = await _started(_manager_of(config), view, name)
        config["callbacks"] = run.get_child()
        return RouterTrace(run, _CHILD.set(config))

    def _config_of(self, attempt: AttemptContext, callbacks: Any) -> dict[str, Any]:
        """Return the config with which the code of an attempt calls runnables."""
        configurable = {**self._config.get("configurable", {}), "checkpoint_ns": attempt.ns}
        thread_id = attempt.graph.run.lease.thread_id
        hidden = (HIDDEN,) if attempt.task.node.hidden else ()
        if thread_id is not None:
            configurable["thread_id"] = thread_id
        return {
            **self._config,
            "tags": [*self._config.get("tags", ()), *attempt.task.node.tags, *hidden],
            "metadata": {**self._config.get("metadata", {}), **attempt.metadata},
            "configurable": configurable,
            "callbacks": callbacks,
        }


class RouterTrace:
    """One call of a router, inside the run of its node."""

    def __init__(self, run: Any, token: Token[Any]) -> None:
        self._run = run
        self._token = token

    async def end(self, answer: Any) -> None:
        _CHILD.reset(self._token)
        await _awaited(self._run.on_chain_end(answer))

    async def fail(self, error: BaseException) -> None:
        _CHILD.reset(self._token)
        await _failed(self._run, error)


class _LazyConfig(Mapping[str, Any]):
    """A config that is made at its first use: without handlers, few nodes call a runnable that reads it."""

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make
        self._made: dict[str, Any] | None = None

    def _whole(self) -> dict[str, Any]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, key: str) -> Any:
        return self._whole()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())


def _arguments(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a called task by the names of its parameters."""
    try:
        return dict(inspect.signature(call).bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # the call fails, or it is a builtin without a signature
        return {"args": args, "kwargs": kwargs}


def _manager_of(config: Mapping[str, Any]) -> Any:
    """Return the callback manager for a config, with the handlers that the process or the context adds."""
    # langchain-core's async managers need asyncio. On trio, handlers are called in place.
    make = _config.get_async_callback_manager_for_config if on_asyncio() else _config.get_callback_manager_for_config
    return make(config)


async def _started(manager: Any, value: Any, name: str, run_id: UUID | None = None) -> Any:
    """Report the start of a run, and return langchain-core's manager of it.

    Args:
        manager: the callback manager, which has the handlers.
        value: the input.
        name: the run's name.
        run_id: the run's id; None for a new one.

    Raises:
        BaseException: the caller was cancelled while a handler awaited, or a handler raised and is not to be ignored.
            The run has been reported as failed: handlers that had seen its start would show it as running for ever.
    """
    run_id = run_id or uuid4()
    try:
        return await _awaited(manager.on_chain_start(None, value, name=name, run_id=run_id))
    except GeneratorExit:  # the coroutine is closed, and may not await
        raise
    except BaseException as error:
        make = _managers.AsyncCallbackManagerForChainRun if on_asyncio() else _managers.CallbackManagerForChainRun
        run = make(
            run_id=run_id,
            parent_run_id=manager.parent_run_id,
            **{part: getattr(manager, part) for part in _OF_RUNS},
        )
        await _failed(run, error)
        raise


async def _awaited(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


@contextlib.asynccontextmanager
async def _reported(run: Any) -> AsyncGenerator[list[Any]]:
    """Report the end of a run: the output that the body appends to the list, or its exception."""
    ended: list[Any] = []
    try:
        yield ended
    except GeneratorExit:  # the coroutine is closed, and may not await
        raise
    except BaseException as error:
        await _failed(run, error)
        raise
    await _awaited(run.on_chain_end(ended[0]))


async def _failed(run: Any, error: BaseException) -> None:
    if isinstance(error, (Exception, GraphBubbleUp)):
        await _awaited(run.on_chain_error(error))
        return
    with anyio.move_on_after(CLEANUP_SECONDS, shield=True):  # a cancellation, which handlers must not hold up for long
        await _awaited(run.on_chain_error(error))


async def _streamed(run: Any, result: Any) -> None:
    """Pass a node's result to handlers that stream the output of every run, as `astream_events` does."""
    for handler in run.handlers:
        tap = getattr(handler, "tap_output_aiter", None)
        if tap is not None:
            async for _ in _tapped(tap, run.run_id, result):
                pass


def _tapped(tap: Any, run_id: UUID, result: Any) -> AsyncIterator[Any]:
    async def once() -> AsyncIterator[Any]:
        yield result

    tapped: AsyncIterator[Any] = tap(run_id, once())
    return tapped


@contextlib.contextmanager
def _ambient(config: Mapping[str, Any]) -> Generator[None]:
    """Set the config that runnables of the body inherit."""
    token = _CHILD.set(config)
    try:
        yield
    finally:
        _CHILD.reset(token)


def _as_uuid(run_id: str | None) -> UUID | None:
    """Return a run's id for langchain-core; None, for a new one, if it is no UUID."""
    try:
        return None if run_id is None else UUID(run_id)
    except ValueError:
        return None
