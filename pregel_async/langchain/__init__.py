"""Use the messages of langchain-core: store them, and fold them into lists of langchain-core's classes.

Importing this package also registers compiled graphs as virtual subclasses of langchain-core's `Runnable`.

Storing them needs a codec in which their classes are registered: `with_messages` makes one.
`pregel_async.messages.add_messages` accepts langchain-core's messages as they are. The `add_messages` of this module is
for graphs that come from LangGraph: it converts every message to langchain-core's classes.

    from langchain_core.messages import AnyMessage
    from pregel_async.langchain import add_messages, with_messages

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    graph = builder.compile(InMemorySaver(codec=with_messages()))
"""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Annotated, Any, Final, TypedDict

from checkpoint_savers.codec import Codec
from checkpoint_savers.codec.annotations import classes

from ..messages import InvalidMessageError, fold_messages
from ..messages import add_messages as add_any_messages

__all__ = [
    "MESSAGE_TYPES",
    "GraphCallbackHandler",
    "GraphInterruptEvent",
    "GraphResumeEvent",
    "GraphRunnable",
    "MessagesState",
    "add_messages",
    "names_messages",
    "with_messages",
]

try:
    # Imported by name, and so untyped: type-checking this package must not require langchain-core.
    _messages: Any = import_module("langchain_core.messages")
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "langchain_core":
        raise  # langchain-core is installed, and one of its own dependencies is missing
    raise ImportError(
        "pregel_async.langchain works with the messages of langchain-core, which is not installed: "
        "pip install 'langchain-core>=0.3'",
        name="langchain_core",
    ) from error

# After the check above, since these need langchain-core too.
from .graph_callbacks import GraphCallbackHandler, GraphInterruptEvent, GraphResumeEvent
from .runnables import GraphRunnable

_KINDS: Final = ("AI", "Human", "System", "Tool", "Function", "Chat")

MESSAGE_TYPES: Final[tuple[type, ...]] = (
    *(getattr(_messages, f"{kind}Message") for kind in _KINDS),
    *(getattr(_messages, f"{kind}MessageChunk") for kind in _KINDS),
    _messages.RemoveMessage,
)
"""The message classes, listed by name and not found by `__subclasses__()`: which types can be read must not depend on
the modules that happen to be imported."""


def with_messages(codec: Codec | None = None) -> Codec:
    """Return a codec that also stores langchain-core's messages. Subclasses of your own must be registered one by one.

    The tags are the same as those under which `compile` registers the messages that a schema names (`list[AnyMessage]`,
    for example), so a thread that was written with the one codec can be read with the other.

    Args:
        codec: a codec for the other values; None for one without registrations.

    Returns:
        A new codec.

    Raises:
        TypeRegistrationError: the codec has one of the tags for another class.
    """
    return (Codec() if codec is None else codec).with_types(*MESSAGE_TYPES)


def names_messages(*hints: object) -> bool:
    """Return True if annotations name langchain-core's messages, or a list that `add_messages` folds.

    A named class stands for all of them: `BaseMessage` is their base, and a list of `AnyMessage` is written with a
    `RemoveMessage`, which `AnyMessage` does not include. A list with the reducer `add_messages`, such as that of
    `MessagesState`, may hold messages of any class.

    Args:
        hints: annotations of channels.

    Returns:
        Whether the messages' classes have to be registered.
    """
    if any(issubclass(cls, _messages.BaseMessage) for cls in classes(hints)):
        return True
    reducers = (add_any_messages, add_messages)
    return any(mark in reducers for hint in hints for mark in getattr(hint, "__metadata__", ()) if callable(mark))


def add_messages(left: Any, right: Any) -> list[Any]:
    """Fold messages like `pregel_async.messages.add_messages`, and convert each to a class of langchain-core.

    Args:
        left: the messages so far; those of other classes are converted.
        right: a list or a single one of: a message, a dict with a role or a type, a `(role, content)` pair, a string
            (from the user).

    Returns:
        A new list of langchain-core's messages.

    Raises:
        InvalidMessageError: langchain-core cannot convert a message, or `left` or `right` is None.
        MessageNotFoundError: the message to remove is not in the list.
    """
    for side, given in (("left", left), ("right", right)):
        if given is None:
            raise InvalidMessageError(f"add_messages takes two lists of messages, and the {side} one is None")
    before = [_to_langchain(item) for item in (left if isinstance(left, list) else [left])]
    return fold_messages(before, (right,), _to_langchain)


# A subclass of the class of this name in `pregel_async.messages` could not replace the reducer.
MessagesState = TypedDict("MessagesState", {"messages": Annotated[list[Any], add_messages]})  # noqa: UP013 # a class statement has this name
"""A state with a list of langchain-core's messages, whatever callers and nodes write. Subclass it for more keys."""


def _to_langchain(given: Any) -> Any:
    if isinstance(given, _messages.BaseMessage):
        return given
    if isinstance(given, dict) and given.get("role", given.get("type")) == "remove":
        return given  # langchain-core knows no such dict; folding removes messages and does not keep it
    try:
        # Convert a copy: the validators of a constructor may change their arguments.
        return _messages.convert_to_messages([copy.deepcopy(given)])[0]
    except (ValueError, NotImplementedError, TypeError, AttributeError) as error:
        raise InvalidMessageError(f"langchain-core makes no message of {given!r}: {error}") from error
