"""langchain-core's models show their tokens by themselves: a callback handler that is there wherever a node's code is.

A node only awaits `model.ainvoke(messages)`. The handler makes the model stream, writes each chunk on the `messages`
stream, and the whole message where nothing was streamed: the model cannot, was told not to, or had it in a cache.

langchain-core is imported when `callbacks` or `ambient` is called, and not before.

How the handler gets to the models. langchain-core looks into registered context variables whenever it sets up the
callbacks of a run (`register_configure_hook`). Not into `var_child_runnable_config` alone, which LangGraph uses: that
is a config to start from, and a call that brings callbacks of its own, a tracer say, replaces the ones in it.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Final

from .shapes import MessageWriter
from .streaming import READING

__all__ = ["ambient", "callbacks"]

NOSTREAM: Final = "nostream"
"""The tag of models that are to be left alone."""

_AMBIENT: Final[ContextVar[Any]] = ContextVar("pregel_async.adapters.ambient", default=None)
"""The handler of the node that the running code belongs to."""


def callbacks(writer: MessageWriter) -> list[Any]:
    """Handlers that write the tokens of chat models, for a config's `callbacks`.

    Args:
        writer: what to write with; it is called in the order of the tokens, in whatever thread the model runs.

    Raises:
        ImportError: langchain-core is not installed.
    """
    return [_handler_class()(writer)]


@contextmanager
def ambient(writer: MessageWriter) -> Generator[None]:
    """Have the models that are called inside write their tokens, from however deep, in tasks and langchain's threads.

    In a node of a graph that another node runs, the inner one's writer is written to, and no other.

    Raises:
        ImportError: langchain-core is not installed.
    """
    _register_handler()
    token = _AMBIENT.set(_handler_class()(writer))
    try:
        yield
    finally:
        _AMBIENT.reset(token)


@functools.cache
def _register_handler() -> None:
    """Have langchain-core look into `_AMBIENT`. Once: what is registered there stays."""
    # By name, and so without types: who checks this package need not have langchain-core.
    context: Any = import_module("langchain_core.tracers.context")
    context.register_configure_hook(_AMBIENT, inheritable=True)


@functools.cache
def _handler_class() -> Any:
    """The handler's class, made when langchain-core is there to derive it from."""
    bases: list[Any] = [_TokenHandler, import_module("langchain_core.callbacks").BaseCallbackHandler]
    # It is langchain-core's own, made for LangGraph. Where it is missing, models that nobody tells to stream do not,
    # and `on_llm_end` has the message.
    with suppress(ImportError, AttributeError):
        bases.append(import_module("langchain_core.tracers._streaming")._StreamingCallbackHandler)
    return type("TokenHandler", tuple(bases), {})


class _TokenHandler:
    """What the handler does; the other base classes say what it is.

    One belongs to one attempt at a node. Models may run in several threads and tasks at once; each of their runs has
    an entry of its own.
    """

    run_inline = True  # in the order of the tokens, and not in a thread beside
    raise_error = True  # what goes wrong in writing is not only logged

    def __init__(self, writer: MessageWriter) -> None:
        super().__init__()
        self._writer = writer
        self._runs: dict[Any, dict[str, Any]] = {}
        self._streamed: set[Any] = set()
        self._seen: set[str] = set()
        # Instance attributes, so that they are found before the base class's methods.
        self.on_llm_new_token = _EagerMethod(self._token)
        self.on_llm_end = _EagerMethod(self._end)

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: Any,
        *,
        run_id: Any,
        tags: list[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if NOSTREAM in (tags or ()) or READING.get() or _AMBIENT.get() not in (None, self):
            # `stream_message` writes what it reads. And a handler that is here because a config was handed down to a
            # graph inside leaves its nodes' models to their own.
            return
        about = dict(metadata or {})
        kept = [tag for tag in tags or () if not tag.startswith("seq:step:")]
        if kept:
            about["tags"] = kept
        self._runs[run_id] = about

    def _token(self, token: Any, *, run_id: Any, chunk: Any = None, **kwargs: Any) -> Awaitable[None] | None:
        message = getattr(chunk, "message", None)
        if run_id not in self._runs or message is None:
            return None
        self._streamed.add(run_id)
        return self._write(message, run_id)

    def _end(self, response: Any, *, run_id: Any, **kwargs: Any) -> Awaitable[None] | None:
        if run_id not in self._runs:
            return None
        try:
            generations = response.generations
            message = getattr(generations[0][0], "message", None) if generations and generations[0] else None
            if message is None or run_id in self._streamed or message.id in self._seen:
                return None
            return self._write(message, run_id)
        finally:
            self._forget(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: Any, **kwargs: Any) -> None:
        self._forget(run_id)

    def _forget(self, run_id: Any) -> None:
        self._runs.pop(run_id, None)
        self._streamed.discard(run_id)

    def _write(self, message: Any, run_id: Any) -> Awaitable[None]:
        if message.id is None:
            # Versions before 1.0 give the id only to the whole message: the same one, made the same way.
            message = message.model_copy(update={"id": f"run-{run_id}"})
        self._seen.add(message.id)
        return self._writer.message(message, self._runs[run_id])

    # What marks a handler that wants chunks, besides the class: outputs of chains pass through these.

    def tap_output_aiter(self, run_id: Any, output: Any) -> Any:
        return output

    def tap_output_iter(self, run_id: Any, output: Any) -> Any:
        return output


async def _declared(*args: Any, **kwargs: Any) -> None:
    """What `_EagerMethod` is taken for."""


class _EagerMethod(functools.partial[Any]):
    """An async function to who asks, which does its work when it is called, and only waits when it is awaited.

    langchain-core calls the same handler from `ainvoke` and from `invoke`. The first awaits what is a coroutine
    function, and so waits until there is room for the next token; `inspect` looks for that through a partial. The
    second drops what it gets, unless that is a coroutine, for which it would start an event loop per token. In a
    worker thread the writer has waited by then. And where an async node calls `invoke`, which blocks its event loop,
    the chunk is on its way, and nobody waits for room that only the loop could make.
    """

    def __new__(cls, work: Callable[..., Awaitable[None] | None]) -> _EagerMethod:
        made = super().__new__(cls, _declared)
        made.work = work
        return made

    work: Callable[..., Awaitable[None] | None]

    def __call__(self, /, *args: Any, **kwargs: Any) -> _CapacityWait:
        return _CapacityWait(self.work(*args, **kwargs))


class _CapacityWait:
    """An awaitable that is no coroutine."""

    __slots__ = ("_wait",)

    def __init__(self, wait: Awaitable[None] | None) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, None]:
        if self._wait is not None:
            yield from self._wait.__await__()
