"""A list of messages that knows them by id: `add_messages`, `RemoveMessage`, `MessagesState`.

A message is a mapping with a role (or a type), or any object that has an `id` and a `role` (or a `type`): a dataclass,
a msgspec.Struct, a pydantic model, a message of langchain-core. All is told by its shape; langchain-core is never
imported here (`pregel_async.langchain` registers its classes, so that they can be stored).

Ids that are made. A message without an id gets one when it is folded into the list. It is made of the task that wrote
the message (or of the thread's superstep, for an input and an edit), of the message's place in what was written, and of
its content; `_message_ids` says how. So two messages of the same words are two messages, and the same fold gives the
same ids on every run, retry and replay (P2). Outside of a run ids are random.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias, TypedDict, overload

import msgspec

from ._message_ids import MessagePosition, is_model, next_id
from .errors import GraphValidationError, InvalidUpdateError

__all__ = [
    "REMOVE_ALL_MESSAGES",
    "InvalidMessageError",
    "MessageNotFoundError",
    "MessagesState",
    "RemoveMessage",
    "add_messages",
]

REMOVE_ALL_MESSAGES: Final = "__remove_all__"
"""`RemoveMessage` of this id removes everything: the list so far, and what stands before it in the same update."""

Reducer: TypeAlias = Callable[[Any, Any], list[Any]]


class InvalidMessageError(InvalidUpdateError, ValueError):
    """What was given to `add_messages` is no message. The superstep was not applied."""


class MessageNotFoundError(InvalidUpdateError, ValueError):
    """A message was to be removed that is not in the list. The superstep was not applied.

    Attributes:
        id: the id that was to be removed.
    """

    def __init__(self, id: object) -> None:
        self.id = id
        super().__init__(
            f"the message {id!r} cannot be removed: the list has none of that id. Remove each message once, or all of "
            "them with RemoveMessage(REMOVE_ALL_MESSAGES)."
        )


def RemoveMessage(id: str) -> dict[str, Any]:  # noqa: N802  # users know it as a class, which langchain-core's is
    """What removes a message, in an update of a list of messages.

    A plain dict, `{"role": "remove", "id": id}`, and no class of its own: it is recorded with the node's result, is
    shown in streams and may come in by HTTP, and a dict can be stored and sent without being registered anywhere.

    Args:
        id: the message's id, or `REMOVE_ALL_MESSAGES`.
    """
    return {"role": "remove", "id": id}


_ABSENT: Final = object()


@overload
def add_messages(left: Any, right: Any) -> list[Any]: ...
@overload
def add_messages(*, format: None = None) -> Reducer: ...
def add_messages(left: Any = _ABSENT, right: Any = _ABSENT, *, format: str | None = None) -> list[Any] | Reducer:
    """A reducer for `Annotated[list[...], add_messages]`: adds, replaces and removes messages by their ids.

    In the order of `right`: a message whose id the list has takes the place of that one; another is appended; one of
    role (or type) "remove" removes the message of its id. `RemoveMessage(REMOVE_ALL_MESSAGES)` drops the list, and all
    that comes before it in `right`. What is removed and comes again in one `right` is put where it was.

    Neither argument is changed, nor is any message: one without an id is copied and the copy gets an id. As a key's
    reducer, and in the code of a node, the id is made of the task, the message's place and its content, and is the same
    on every replay; outside of a run it is random. Messages that are not concerned are the same objects as before.

    Args:
        left: the messages so far.
        right: a list of messages, or one. A string becomes `{"role": "user", "content": ...}`, a pair
            `(role, content)` a dict of those two, with the roles "human" and "ai" written as "user" and "assistant";
            a chunk of langchain-core becomes the message that it is a chunk of.
        format: nothing but None. LangGraph's "langchain-openai" rewrites messages with langchain-core, which is not
            needed here: call its `convert_to_openai_messages` where a model is called.

    Returns:
        A new list. Without `left` and `right`: the reducer itself.

    Raises:
        InvalidMessageError: something is no message, or one of `left` and `right` is missing or None.
        MessageNotFoundError: a message is removed that is not in the list.
        GraphValidationError: a format is asked for.
    """
    if format is not None:
        raise GraphValidationError(
            f"add_messages knows no format, and {format!r} was asked for: messages are kept as they were written. "
            "Convert them where they are used (langchain_core.messages.convert_to_openai_messages, for example)."
        )
    if left is _ABSENT and right is _ABSENT:
        return add_messages
    for side, given in (("left", left), ("right", right)):
        if given is None or given is _ABSENT:
            what = "missing" if given is _ABSENT else "None"
            raise InvalidMessageError(f"add_messages takes two lists of messages, and the {side} one is {what}")
    return fold_messages(left, (right,))


class MessagesState(TypedDict):
    """A state with a list of messages; subclass it for more keys.

    The messages are of any class. Declare a state of your own where one class is known:
    `messages: Annotated[list[Message], add_messages]`.
    """

    messages: Annotated[list[Any], add_messages]


def fold_messages(left: Any, updates: Iterable[Any], convert: Callable[[Any], Any] | None = None) -> list[Any]:
    """`add_messages(add_messages(left, first), second)` and so on, looking through the list once and not each time.

    Args:
        convert: makes the message that is put into the list of one in an update. Ids are made of what was written, so
            that they are the same to a reader of that alone.

    Raises:
        InvalidMessageError, MessageNotFoundError: as `add_messages`.
    """
    messages = _as_list(left)
    fold = _Fold(convert)
    if not fold.load(messages):
        fold.apply(messages)  # something in it has no id yet: written by another reducer, or by hand
    for update in updates:
        fold.apply(_as_list(update))
    return fold.messages


class _Fold:
    """A list of messages that is being made.

    Attributes:
        messages: the list.
        ids: theirs, in the same order.
        index_of: the index of each id in the list.
    """

    __slots__ = ("_convert", "ids", "index_of", "messages")

    def __init__(self, convert: Callable[[Any], Any] | None) -> None:
        self._convert = convert
        self.messages: list[Any] = []
        self.ids: list[Any] = []
        self.index_of: dict[Any, int] = {}

    def load(self, messages: Sequence[Any]) -> bool:
        """Take a list of which each message has an id; or take nothing, and return False."""
        try:
            # In one go, and without a call for each: this is what an append to a long list costs.
            ids = [message["id"] if isinstance(message, dict) else message.id for message in messages]
            index_of = dict(zip(ids, range(len(ids)), strict=True))
        except (AttributeError, KeyError, TypeError):
            return False
        if None in index_of:
            return False
        self.messages, self.ids, self.index_of = list(messages), ids, index_of
        return True

    def apply(self, update: Sequence[Any]) -> None:
        """Add, replace and remove."""
        given = [_require_message(item) for item in update]
        ids = [_id_of(message) for message in given]
        # Ids that are not made up again in this update, beside those in the list.
        avoided = {id for id in ids if id is not None}
        for index in range(len(given) - 1, -1, -1):
            if ids[index] == REMOVE_ALL_MESSAGES and _is_removal(given[index]):
                avoided.update(self.ids)
                del given[: index + 1], ids[: index + 1]
                self.messages, self.ids, self.index_of = [], [], {}
                break
        removed: set[Any] = set()
        for message, id in zip(given, ids, strict=True):
            if _is_removal(message):
                if id is None:
                    raise InvalidMessageError(f"{message!r} removes a message and has no id")
                if id not in self.index_of:
                    raise MessageNotFoundError(id)
                removed.add(id)
                continue
            kept = message if self._convert is None else self._convert(message)
            if id is None:
                id = self._new_id(message, avoided)
                kept = with_id(kept, id)
            at = self.index_of.get(id)
            if at is None:
                self.index_of[id] = len(self.messages)
                self.messages.append(kept)
                self.ids.append(id)
            else:
                removed.discard(id)
                self.messages[at] = kept
        if removed:
            left = [index for index, id in enumerate(self.ids) if id not in removed]
            self.messages = [self.messages[index] for index in left]
            self.ids = [self.ids[index] for index in left]
            self.index_of = {id: index for index, id in enumerate(self.ids)}

    def _new_id(self, message: Any, avoided: set[Any]) -> str:
        """Return an id for a message which nothing in the list or the update has.

        Ids are met again where one task's writes are made twice: by two edits as the same node in one superstep, or by
        a reducer that repeats messages.
        """
        id = base = next_id(message)
        count = 1
        while id in self.index_of or id in avoided:
            count += 1
            id = f"{base}-{count}"
        return id


_ROLES: Final = {"human": "user", "ai": "assistant"}
"""Names of langchain's for roles that dicts of messages call otherwise."""


def _as_list(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list) else [given]


def _require_message(given: Any) -> Any:
    """Return a message as it is kept, if it has an id. Raises `InvalidMessageError`."""
    message = _parse_message(given)
    if message is None:
        raise InvalidMessageError(
            f"{given!r} is no message. A message is a dict with 'role' (or 'type') and 'content', an object with `id` "
            "and `role` (or `type`), a string, or a pair of role and content."
        )
    return message


def _parse_message(given: Any) -> Any:
    """Return the message that is written like this; None for what is no message."""
    if isinstance(given, str):
        return {"role": "user", "content": given}
    if isinstance(given, (tuple, list)):
        if len(given) == 2 and isinstance(given[0], str):
            return {"role": _ROLES.get(given[0], given[0]), "content": given[1]}
    elif isinstance(given, Mapping):
        if "role" in given or "type" in given:
            return given if isinstance(given, dict) else dict(given)
    elif hasattr(given, "id") and (hasattr(given, "role") or hasattr(given, "type")):
        return _message_of_chunk(given)
    return None


def messages_without_id(update: Any) -> Iterator[tuple[int, Any, Any]]:
    """Yield each message of an update to which a fold gives an id: its index, and it as written and as it is kept."""
    for index, item in enumerate(_as_list(update)):
        message = _parse_message(item)
        if message is not None and _id_of(message) is None and not _is_removal(message):
            yield index, item, message


def _message_of_chunk(message: Any) -> Any:
    """The message that a chunk of langchain-core is a chunk of; anything else as it is."""
    if not any(base.__name__ == "BaseMessageChunk" for base in type(message).__mro__):
        return message
    langchain: Any = sys.modules.get("langchain_core.messages")
    if langchain is None or not isinstance(message, langchain.BaseMessageChunk):
        return message
    # Of a copy: the message is made by a constructor, whose validators are free to change what they are given.
    return langchain.message_chunk_to_message(copy.deepcopy(message))


def _id_of(message: Any) -> Any:
    """A message's id; None when it has none."""
    id = message.get("id") if isinstance(message, dict) else message.id
    try:
        hash(id)
    except TypeError:
        raise InvalidMessageError(f"{message!r} has an id which cannot be looked up: make it a string") from None
    return id


def _is_removal(message: Any) -> bool:
    kind: object
    if isinstance(message, dict):
        kind = message["role"] if "role" in message else message["type"]
    else:
        kind = message.role if hasattr(message, "role") else message.type
    return kind == "remove"


def with_id(message: Any, id: str) -> Any:
    """A copy that has an id; what the message holds is shared."""
    if isinstance(message, dict):
        copied: Any = copy.copy(message)
        copied["id"] = id
        return copied
    if isinstance(message, msgspec.Struct):
        # Copied and then written to, frozen or not. `replace` would make a new one, and run the class's
        # `__post_init__` a second time, on fields that it has changed before.
        copied = copy.copy(message)
        msgspec.structs.force_setattr(copied, "id", id)
        return copied
    if dataclasses.is_dataclass(message):
        copied = copy.copy(message)
        object.__setattr__(copied, "id", id)
        return copied
    if is_model(type(message)):
        return message.model_copy(update={"id": id})  # which notes that the field is set
    try:
        copied = copy.copy(message)
        copied.id = id
    except (AttributeError, TypeError) as error:
        raise InvalidMessageError(f"{message!r} has no id, and a copy of it cannot be given one: {error}") from error
    return copied


_TYPES: Final = frozenset(("human", "ai", "system", "tool", "function", "AIMessageChunk"))
"""What a dict of a message that has no role calls itself. (Parts of a content have types too.)"""


def messages_in(value: Any) -> Iterator[tuple[MessagePosition, Any]]:
    """Yield the messages that a value is, or that it holds as a list or as an entry of a mapping, and their places."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            if _is_message(item) and not _is_removal(item):
                yield index, item
    elif _is_message(value):
        if not _is_removal(value):
            yield 0, value
    elif isinstance(value, dict):
        for key, item in value.items():
            for position, message in messages_in(item):
                yield (str(key), position), message


def id_of(message: Any) -> Any:
    """A message's id; None when it has none."""
    return _id_of(message) if _is_message(message) else None


def _is_message(item: Any) -> bool:
    if isinstance(item, dict):
        return "content" in item and ("role" in item or item.get("type") in _TYPES)
    return hasattr(item, "id") and hasattr(item, "content") and (hasattr(item, "role") or hasattr(item, "type"))
