"""Stream the tokens of langchain-core's models without a call in the node: a callback handler is set around its code.

A node only awaits `model.ainvoke(messages)`. The handler makes the model stream, and writes each chunk on the
`messages` stream. If nothing was streamed (the model cannot stream, has streaming disabled, or answered from a cache),
the handler writes the whole message.

langchain-core is imported by the first call of `callbacks` or `ambient`, not by this module.

How models find the handler: whenever langchain-core sets up the callbacks of a run, it reads the context variables
registered with `register_configure_hook`. `var_child_runnable_config`, which LangGraph uses, would not be enough: it is
a default config, and a call with callbacks of its own (a tracer, say) replaces the callbacks in it.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Final

from ..types import TAG_NOSTREAM
from .langchain_chunks import usage_of_chunks
from .shapes import MessageWriter
from .streaming import READING
from .usage import read_usage, report_usage

__all__ = ["ambient", "callbacks"]

_AMBIENT: Final[ContextVar[Any]] = ContextVar("pregel_async.adapters.ambient", default=None)
"""The handler of the node that the running code belongs to."""


def callbacks(writer: MessageWriter) -> list[Any]:
    """Make callback handlers that write the tokens of chat models, for a config's `callbacks`.

    Args:
        writer: where to write. Its `message` is called in the order of the tokens, in the thread in which the model
            runs.

    Returns:
        A list of one handler.

    Raises:
        ImportError: langchain-core is not installed.
    """
    return [_handler_class()(writer)]


@contextmanager
def ambient(writer: MessageWriter) -> Generator[None]:
    """Stream the tokens of the models that the body calls, at any depth.

    Models that run in the body's tasks and in langchain-core's threads are included.

    If a node runs a graph, the nodes of that graph set their own writer: their models write to the inner writer only.

    Args:
        writer: where to write. Its `message` is called in the order of the tokens, in the thread in which the model
            runs.

    Yields:
        None, with the handler set in the current context.

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
    """Make langchain-core read `_AMBIENT`. Cached, because langchain-core never removes a registered variable."""
    # Imported by name, and so untyped: type-checking this package must not require langchain-core.
    context: Any = import_module("langchain_core.tracers.context")
    context.register_configure_hook(_AMBIENT, inheritable=True)


@functools.cache
def _handler_class() -> Any:
    """Return the handler's class, derived from langchain-core's base classes."""
    bases: list[Any] = [_TokenHandler, import_module("langchain_core.callbacks").BaseCallbackHandler]
    # A private marker of langchain-core, made for LangGraph: models stream when a handler has it. In versions without
    # it, models stream only on request, and `on_llm_end` writes the whole message instead.
    with suppress(ImportError, AttributeError):
        bases.append(import_module("langchain_core.tracers._streaming")._StreamingCallbackHandler)
    return type("TokenHandler", tuple(bases), {})


class _TokenHandler:
    """The handler's methods; langchain-core's base classes are added in `_handler_class`.

    There is one handler for each attempt at a node. Several models may run at once in threads and tasks, so the state
    is kept for each of their runs, by `run_id`.
    """

    run_inline = True  # a separate thread would lose the order of the tokens
    raise_error = True  # langchain-core would only log errors of the writer

    def __init__(self, writer: MessageWriter) -> None:
        super().__init__()
        self._writer = writer
        self._runs: dict[Any, dict[str, Any]] = {}
        self._streamed: set[Any] = set()
        self._counted: dict[Any, list[Any]] = {}  # the chunks with a usage
        self._seen: set[str] = set()
        # Set on the instance: they wrap bound methods, and hide the base classes' methods of these names.
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
        if TAG_NOSTREAM in (tags or ()) or READING.get() or _AMBIENT.get() not in (None, self):
            # `stream_message` writes the chunks that it reads. And an outer node's config may carry its handler into
            # a nested graph, whose nodes have handlers of their own: each model writes with the innermost one only.
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
        if getattr(message, "usage_metadata", None) is not None:
            self._counted.setdefault(run_id, []).append(message)
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
        # langchain-core drops the chunks of a stream that breaks, and the first one may have the tokens of the input.
        chunks = self._counted.get(run_id, [])
        if chunks:
            about = chunks[0].response_metadata
            model, provider = about.get("model_name"), about.get("model_provider")
            report_usage(read_usage(usage_of_chunks(chunks)), model, provider)
        self._forget(run_id)

    def _forget(self, run_id: Any) -> None:
        self._runs.pop(run_id, None)
        self._streamed.discard(run_id)
        self._counted.pop(run_id, None)

    def _write(self, message: Any, run_id: Any) -> Awaitable[None]:
        if message.id is None:
            # langchain-core before 1.0 sets this id only on the whole message. Chunks must have the same one.
            message = message.model_copy(update={"id": f"run-{run_id}"})
        self._seen.add(message.id)
        return self._writer.message(message, self._runs[run_id])

    # langchain-core also recognises a handler that wants chunks by these two methods. They must return the output.

    def tap_output_aiter(self, run_id: Any, output: Any) -> Any:
        return output

    def tap_output_iter(self, run_id: Any, output: Any) -> Any:
        return output


async def _declared(*args: Any, **kwargs: Any) -> None:
    """Declare the signature that `inspect` sees instead of `_EagerMethod`."""


class _EagerMethod(functools.partial[Any]):
    """A method that `inspect` takes for a coroutine function. The call does the work; awaiting the result only waits.

    langchain-core calls the same handler from `ainvoke` and from `invoke`:

    - `ainvoke` awaits the result of coroutine functions, and so waits until there is capacity for the next token.
      `inspect` unwraps a `partial` to find `_declared`, which is one.
    - `invoke` drops the result, unless it is a coroutine, which langchain-core would run in a new event loop for each
      token. The result is therefore another kind of awaitable. In a worker thread the writer has already waited inside
      the call. If an async node calls `invoke`, which blocks the event loop, the chunk has been sent and nothing waits:
      only the blocked loop could free capacity, so waiting would deadlock.
    """

    def __new__(cls, work: Callable[..., Awaitable[None] | None]) -> _EagerMethod:
        made = super().__new__(cls, _declared)
        made.work = work
        return made

    work: Callable[..., Awaitable[None] | None]

    def __call__(self, /, *args: Any, **kwargs: Any) -> _CapacityWait:
        return _CapacityWait(self.work(*args, **kwargs))


class _CapacityWait:
    """An awaitable that is not a coroutine, so that `invoke` drops it instead of running it."""

    __slots__ = ("_wait",)

    def __init__(self, wait: Awaitable[None] | None) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, None]:
        if self._wait is not None:
            yield from self._wait.__await__()
