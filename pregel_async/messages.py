"""Lists of messages that are identified by id: `add_messages`, `RemoveMessage`, `MessagesState`.

A message is a mapping with a role (or a type), or any object with an `id` and a `role` (or a `type`): a dataclass, a
msgspec.Struct, a pydantic model, a message of langchain-core. Messages are recognised by these keys and attributes, so
langchain-core is never imported here (`pregel_async.langchain` registers its classes, so that they can be stored).

A message without an id gets one when it is folded into the list. The id is derived from the task that wrote the message
(for an input or an edit: from the superstep of the thread), from the message's position in the write, and from its
content; `_message_ids` says how. So two messages with the same content stay two messages, and a fold gives the same ids
on every run, retry and replay (P2). Outside a run ids are random.
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
"""The id with which `RemoveMessage` removes all messages: the list so far, and those before it in the same update."""

Reducer: TypeAlias = Callable[[Any, Any], list[Any]]


class InvalidMessageError(InvalidUpdateError, ValueError):
    """A value that was given to `add_messages` is no message. The superstep was not applied."""


class MessageNotFoundError(InvalidUpdateError, ValueError):
    """An update removes a message that is not in the list. The superstep was not applied.

    Attributes:
        id: the id of the message to remove.
    """

    def __init__(self, id: object) -> None:
        self.id = id
        super().__init__(
            f"the message {id!r} cannot be removed: the list has none of that id. Remove each message once, or all of "
            "them with RemoveMessage(REMOVE_ALL_MESSAGES)."
        )


def RemoveMessage(id: str) -> dict[str, Any]:  # noqa: N802  # users know it as a class, which langchain-core's is
    """Make the entry that removes a message, for an update of a list of messages.

    Args:
        id: the message's id, or `REMOVE_ALL_MESSAGES`.

    Returns:
        The dict `{"role": "remove", "id": id}`.
    """
    # A dict instead of a class: removals are recorded with results, shown in streams and accepted over HTTP, and a dict
    # needs no registration with the codec for any of that.
    return {"role": "remove", "id": id}


_ABSENT: Final = object()


@overload
def add_messages(left: Any, right: Any) -> list[Any]: ...
@overload
def add_messages(*, format: None = None) -> Reducer: ...
def add_messages(left: Any = _ABSENT, right: Any = _ABSENT, *, format: str | None = None) -> list[Any] | Reducer:
    """Add, replace and remove messages by their ids: a reducer for `Annotated[list[...], add_messages]`.

    Messages of `right` are applied in order. A message with the id of a message in the list replaces it; other messages
    are appended; a message with the role (or type) "remove" removes the message with its id. If a message is removed
    and added again in one `right`, it keeps its position. `RemoveMessage(REMOVE_ALL_MESSAGES)` removes the whole list,
    and all messages before it in `right`.

    Neither the arguments nor the messages are changed: a message without an id is copied, and the copy gets an id. In a
    run, the id is derived from the task, the message's position and its content, and is the same on every replay.
    Outside a run it is random. Other messages are the same objects as before.

    Args:
        left: the messages so far.
        right: a list of messages, or one message. A string becomes `{"role": "user", "content": ...}`, and a pair
            `(role, content)` a dict of both, with the roles "human" and "ai" written as "user" and "assistant". A
            message chunk of langchain-core becomes a whole message.
        format: must be None. LangGraph's "langchain-openai" converts messages with langchain-core, which is not
            required here: call `convert_to_openai_messages` of langchain-core where you call a model.

    Returns:
        A new list. Without `left` and `right`, the reducer itself.

    Raises:
        InvalidMessageError: a value is no message, or one of `left` and `right` is missing or None.
        MessageNotFoundError: a message to remove is not in the list.
        GraphValidationError: `format` is given.
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
    """A state with a list of messages. Subclass it for more keys.

    The messages may be of any class. If they all have one class, declare your own state instead:
    `messages: Annotated[list[Message], add_messages]`.
    """

    messages: Annotated[list[Any], add_messages]


def fold_messages(left: Any, updates: Iterable[Any], convert: Callable[[Any], Any] | None = None) -> list[Any]:
    """Apply several updates: `add_messages(add_messages(left, first), second)`, with one pass over the list.

    Args:
        left: the messages so far.
        updates: the updates, as `right` of `add_messages`.
        convert: a function that converts each message of an update before it is put into the list; None for none. Ids
            are derived from the message as written, because readers of the write alone must derive the same ids.

    Returns:
        A new list.

    Raises:
        InvalidMessageError: as `add_messages`.
        MessageNotFoundError: as `add_messages`.
    """
    messages = _as_list(left)
    fold = _Fold(convert)
    if not fold.load(messages):
        fold.apply(messages)  # a message in the list has no id yet: it was not written by this reducer
    for update in updates:
        fold.apply(_as_list(update))
    return fold.messages


class _Fold:
    """The list of messages that a fold builds.

    Attributes:
        messages: the list.
        ids: the ids of the messages, in the same order.
        index_of: the index of each id in the list.
    """

    __slots__ = ("_convert", "ids", "index_of", "messages")

    def __init__(self, convert: Callable[[Any], Any] | None) -> None:
        self._convert = convert
        self.messages: list[Any] = []
        self.ids: list[Any] = []
        self.index_of: dict[Any, int] = {}

    def load(self, messages: Sequence[Any]) -> bool:
        """Start from a list in which each message has an id. If one has none, change nothing and return False."""
        try:
            # One comprehension, without a function call per message: it dominates the cost of an append to a long list.
            ids = [message["id"] if isinstance(message, dict) else message.id for message in messages]
            index_of = dict(zip(ids, range(len(ids)), strict=True))
        except (AttributeError, KeyError, TypeError):
            return False
        if None in index_of:
            return False
        self.messages, self.ids, self.index_of = list(messages), ids, index_of
        return True

    def apply(self, update: Sequence[Any]) -> None:
        """Apply one update: add, replace and remove messages."""
        given = [_require_message(item) for item in update]
        ids = [_id_of(message) for message in given]
        # Ids that `_new_id` must not generate in this update, besides those in the list: also ids of removed messages,
        # and ids that later messages of the update bring.
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
        """Return an id for a message that no message in the list or the update has."""
        # A derived id can exist already if a task's writes are made twice: by two edits as the same node in one
        # superstep, or by a reducer that repeats messages. A count keeps the ids both unique and reproducible.
        id = base = next_id(message)
        count = 1
        while id in self.index_of or id in avoided:
            count += 1
            id = f"{base}-{count}"
        return id


_ROLES: Final = {"human": "user", "ai": "assistant"}
"""langchain's names of roles, and the names that message dicts have for them."""


def _as_list(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list) else [given]


def _require_message(given: Any) -> Any:
    """Return a value as a message, in the form that the list holds. Raises `InvalidMessageError` for other values."""
    message = _parse_message(given)
    if message is None:
        raise InvalidMessageError(
            f"{given!r} is no message. A message is a dict with 'role' (or 'type') and 'content', an object with `id` "
            "and `role` (or `type`), a string, or a pair of role and content."
        )
    return message


def _parse_message(given: Any) -> Any:
    """Return the message that a value represents; None if it is no message."""
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


def with_own_id(given: Any) -> Any:
    """Return a value as a message with an id, in the form that a list of messages holds.

    Args:
        given: a message, or a string, pair or chunk that represents one, as for `add_messages`.

    Returns:
        The message; a copy with an id, derived from the running task, if it had none.

    Raises:
        InvalidMessageError: the value is no message, or removes a message and has no id.
    """
    message = _require_message(given)
    if _id_of(message) is not None:
        return message
    if _is_removal(message):
        raise InvalidMessageError(f"{message!r} removes a message and has no id")
    return with_id(message, next_id(message))


def messages_without_id(update: Any) -> Iterator[tuple[int, Any, Any]]:
    """Yield the messages of an update that a fold has to give an id.

    Args:
        update: a list of messages, or one message.

    Yields:
        `(index, written, message)`: the index in the update, the value as written, and the message that it represents.
    """
    for index, item in enumerate(_as_list(update)):
        message = _parse_message(item)
        if message is not None and _id_of(message) is None and not _is_removal(message):
            yield index, item, message


def _message_of_chunk(message: Any) -> Any:
    """Return a message chunk of langchain-core as a whole message; any other message as it is."""
    if not any(base.__name__ == "BaseMessageChunk" for base in type(message).__mro__):
        return message
    langchain: Any = sys.modules.get("langchain_core.messages")
    if langchain is None or not isinstance(message, langchain.BaseMessageChunk):
        return message
    # Convert a copy: validators of the message's class may change their input, and the chunk is the user's object.
    return langchain.message_chunk_to_message(copy.deepcopy(message))


def _id_of(message: Any) -> Any:
    """Return a message's id; None if it has none. Raises `InvalidMessageError` for an unhashable id."""
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
    """Return a shallow copy of a message with an id.

    Args:
        message: the message.
        id: the id of the copy.

    Returns:
        The copy.

    Raises:
        InvalidMessageError: the message's class does not allow to set an id.
    """
    if isinstance(message, dict):
        copied: Any = copy.copy(message)
        copied["id"] = id
        return copied
    if isinstance(message, msgspec.Struct):
        # `msgspec.structs.replace` would run `__post_init__` a second time, on fields that it has already changed.
        copied = copy.copy(message)
        msgspec.structs.force_setattr(copied, "id", id)
        return copied
    if dataclasses.is_dataclass(message):
        copied = copy.copy(message)
        object.__setattr__(copied, "id", id)
        return copied
    if is_model(type(message)):
        return message.model_copy(update={"id": id})  # works for frozen models, and adds "id" to `model_fields_set`
    try:
        copied = copy.copy(message)
        copied.id = id
    except (AttributeError, TypeError) as error:
        raise InvalidMessageError(f"{message!r} has no id, and a copy of it cannot be given one: {error}") from error
    return copied


_TYPES: Final = frozenset(("human", "ai", "system", "tool", "function", "AIMessageChunk"))
"""The types that identify a dict without a role as a message. Parts of a message's content have other types."""


def messages_in(value: Any) -> Iterator[tuple[MessagePosition, Any]]:
    """Yield the messages in a value, with their positions; removals are left out.

    Args:
        value: a message, a list of messages, or a dict of either, at any depth of dicts.

    Yields:
        `(position, message)`.
    """
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
    """Return a message's id.

    Args:
        message: any value.

    Returns:
        The id; None if the message has none, or if the value is no message.

    Raises:
        InvalidMessageError: the id is not hashable.
    """
    return _id_of(message) if _is_message(message) else None


def _is_message(item: Any) -> bool:
    if isinstance(item, dict):
        return "content" in item and ("role" in item or item.get("type") in _TYPES)
    return hasattr(item, "id") and hasattr(item, "content") and (hasattr(item, "role") or hasattr(item, "type"))
