"""What langchain-core's messages need here: to be stored, their classes are registered in a codec.

`pregel_async.messages.add_messages` takes them as they are. `add_messages` of this module is for those who come from
LangGraph: it makes langchain's messages of all that comes in.

    from langchain_core.messages import AnyMessage
    from pregel_async.langchain import add_messages, with_messages

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    graph = builder.compile(InMemorySaver(codec=with_messages()))
"""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any, Final

from checkpoint_savers.codec import Codec
from checkpoint_savers.codec.annotations import classes

from .messages import InvalidMessageError, fold_messages
from .messages import add_messages as add_any_messages

__all__ = ["MESSAGE_TYPES", "add_messages", "names_messages", "with_messages"]

try:
    # By name, and so without types: who checks this package need not have langchain-core.
    _messages: Any = import_module("langchain_core.messages")
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "langchain_core":
        raise  # langchain-core is there, and lacks something itself
    raise ImportError(
        "pregel_async.langchain works with the messages of langchain-core, which is not installed: "
        "pip install 'langchain-core>=0.3'",
        name="langchain_core",
    ) from error

_KINDS: Final = ("AI", "Human", "System", "Tool", "Function", "Chat")

MESSAGE_TYPES: Final[tuple[type, ...]] = (
    *(getattr(_messages, f"{kind}Message") for kind in _KINDS),
    *(getattr(_messages, f"{kind}MessageChunk") for kind in _KINDS),
    _messages.RemoveMessage,
)
"""The classes of messages. By name and not by `__subclasses__()`: which types can be read is said in code, and does not
depend on what happens to be imported."""


def with_messages(codec: Codec | None = None) -> Codec:
    """A codec that stores langchain-core's messages too; of your own subclasses, register each.

    Their tags are those under which compile registers what a schema names (`list[AnyMessage]`, say): a thread can be
    read with one that was written with the other.

    Args:
        codec: what else is stored; by default what needs no registration.

    Raises:
        TypeRegistrationError: the codec has one of the tags for another class.
    """
    return (Codec() if codec is None else codec).with_types(*MESSAGE_TYPES)


def names_messages(*hints: object) -> bool:
    """Whether annotations name langchain-core's messages: one of the classes, the base class, or a subclass; or whether
    they are of a list of messages of any class, as that of `MessagesState` is.

    Who names one may get all: `BaseMessage` stands for them, and a list of `AnyMessage` is written with a
    `RemoveMessage`, which that does not include.
    """
    if any(issubclass(cls, _messages.BaseMessage) for cls in classes(hints)):
        return True
    reducers = (add_any_messages, add_messages)
    return any(mark in reducers for hint in hints for mark in getattr(hint, "__metadata__", ()) if callable(mark))


def add_messages(left: Any, right: Any) -> list[Any]:
    """`pregel_async.messages.add_messages`, of which every message is one of langchain-core's.

    Args:
        left: the messages so far; those that are not langchain's yet are made so.
        right: a list, or one: messages, dicts with a role or a type, `(role, content)` pairs, strings (of a human).

    Raises:
        InvalidMessageError: langchain-core makes no message of it, or one of both is None.
        MessageNotFoundError: a message is removed that is not in the list.
    """
    for side, given in (("left", left), ("right", right)):
        if given is None:
            raise InvalidMessageError(f"add_messages takes two lists of messages, and the {side} one is None")
    before = [_to_langchain(item) for item in (left if isinstance(left, list) else [left])]
    return fold_messages(before, (right,), _to_langchain)


def _to_langchain(given: Any) -> Any:
    if isinstance(given, _messages.BaseMessage):
        return given
    if isinstance(given, dict) and given.get("role", given.get("type")) == "remove":
        return given  # which langchain-core does not know; it is not kept
    try:
        # Of a copy: a constructor's validators are free to change what they are given.
        return _messages.convert_to_messages([copy.deepcopy(given)])[0]
    except (ValueError, NotImplementedError, TypeError, AttributeError) as error:
        raise InvalidMessageError(f"langchain-core makes no message of {given!r}: {error}") from error
