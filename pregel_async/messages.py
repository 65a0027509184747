"""A list of messages that knows them by id: `add_messages`, `RemoveMessage`, `MessagesState`.

A message is a mapping with a role (or a type), or any object that has an `id` and a `role` (or a `type`): a dataclass,
a msgspec.Struct, a pydantic model, a message of langchain-core. All is told by its shape; langchain-core is never
imported here (`pregel_async.langchain` registers its classes, so that they can be stored).

Ids that are made up. A message without an id gets one, which is made of the message alone: a hash of its class and its
fields, with `-2`, `-3` and so on behind it when the list has that id already. No clock, randomness or counter is asked,
so that the same fold gives the same ids on every run, retry and replay (P2). Nor is the message's place in the list,
which would be the simplest way to tell equal messages apart: a reducer is run for a router's view, which has the writes
of the router's own node only, and once more for the superstep, behind those of the node's siblings. A message would
have two places, and a router that kept its id would find another message by it, or none. (Where a sibling wrote an
equal message in the same superstep, they may change ids; nothing else differs between them.)

The price: an id names a message in its list. Equal messages of two threads have equal ids, and a message that is
removed and comes again in a later superstep gets the id that it had. Who needs more gives ids in the node, `uuid4()`
for example: what a node returned is recorded, so a resumed run has the same ones.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Annotated, Any, Final, TypeAlias, TypedDict, cast, overload

import msgspec

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


# ---- errors --------------------------------------------------------------------------------------------------------


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


# ---- what users write ----------------------------------------------------------------------------------------------


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

    Neither argument is changed, nor is any message: one without an id is copied and the copy gets an id (see the module
    for how it is made). Messages that are not concerned are the same objects in the new list.

    Args:
        left: the messages so far.
        right: a list of messages, or one. A string becomes `{"role": "user", "content": ...}`, a pair
            `(role, content)` a dict of those two, with the roles "human" and "ai" written as "user" and "assistant";
            a chunk of langchain-core becomes the message that it is a chunk of.
        format: nothing but None. The peer's "langchain-openai" rewrites messages with langchain-core, which is not
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


# ---- the fold ------------------------------------------------------------------------------------------------------


def fold_messages(left: Any, updates: Iterable[Any]) -> list[Any]:
    """`add_messages(add_messages(left, first), second)` and so on, looking through the list once and not each time.

    Raises:
        InvalidMessageError, MessageNotFoundError: as `add_messages`.
    """
    listed = _listed(left)
    fold = _Fold()
    if not fold.begin(listed):
        fold.add(listed)  # something in it has no id yet: written by another reducer, or by hand
    for update in updates:
        fold.add(_listed(update))
    return fold.messages


class _Fold:
    """A list of messages that is being made.

    Attributes:
        messages: the list.
        ids: theirs, in the same order.
        places: where each id stands.
    """

    __slots__ = ("ids", "messages", "places")

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.ids: list[Any] = []
        self.places: dict[Any, int] = {}

    def begin(self, messages: Sequence[Any]) -> bool:
        """Take a list of which each message has an id; or take nothing, and return False."""
        try:
            # In one go, and without a call for each: this is what an append to a long list costs.
            ids = [message["id"] if isinstance(message, dict) else message.id for message in messages]
            places = dict(zip(ids, range(len(ids)), strict=True))
        except (AttributeError, KeyError, TypeError):
            return False
        if None in places:
            return False
        self.messages, self.ids, self.places = list(messages), ids, places
        return True

    def add(self, update: Sequence[Any]) -> None:
        """Add, replace and remove."""
        given = [_message(item) for item in update]
        ids = [_id_of(message) for message in given]
        # Ids that are not made up again in this update, beside those in the list.
        avoided = {id for id in ids if id is not None}
        for place in range(len(given) - 1, -1, -1):
            if ids[place] == REMOVE_ALL_MESSAGES and _is_removal(given[place]):
                avoided.update(self.ids)
                del given[: place + 1], ids[: place + 1]
                self.messages, self.ids, self.places = [], [], {}
                break
        repeats: dict[str, int] = {}
        removed: set[Any] = set()
        for message, id in zip(given, ids, strict=True):
            if _is_removal(message):
                if id is None:
                    raise InvalidMessageError(f"{message!r} removes a message and has no id")
                if id not in self.places:
                    raise MessageNotFoundError(id)
                removed.add(id)
                continue
            kept = message
            if id is None:
                id = self._new_id(message, avoided, repeats)
                kept = with_id(message, id)
            at = self.places.get(id)
            if at is None:
                self.places[id] = len(self.messages)
                self.messages.append(kept)
                self.ids.append(id)
            else:
                removed.discard(id)
                self.messages[at] = kept
        if removed:
            left = [place for place, id in enumerate(self.ids) if id not in removed]
            self.messages = [self.messages[place] for place in left]
            self.ids = [self.ids[place] for place in left]
            self.places = {id: place for place, id in enumerate(self.ids)}

    def _new_id(self, message: Any, avoided: set[Any], repeats: dict[str, int]) -> str:
        """An id for a message, made of it alone, which nothing in the list or the update has."""
        base = _fingerprint(message)
        # Where this update has got to with messages like it: many equal ones are not each counted from the start.
        count = repeats.get(base, 1)
        while True:
            made = base if count == 1 else f"{base}-{count}"
            count += 1
            if made not in self.places and made not in avoided:
                repeats[base] = count
                return made


# ---- messages, told by their shape ---------------------------------------------------------------------------------

_ROLES: Final = {"human": "user", "ai": "assistant"}
"""Names of langchain's for roles that dicts of messages call otherwise."""


def _listed(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list) else [given]


def _message(given: Any) -> Any:
    """A message as it is kept, if it has an id."""
    if isinstance(given, str):
        return {"role": "user", "content": given}
    if isinstance(given, (tuple, list)):
        if len(given) == 2 and isinstance(given[0], str):
            return {"role": _ROLES.get(given[0], given[0]), "content": given[1]}
    elif isinstance(given, Mapping):
        if "role" in given or "type" in given:
            return given if isinstance(given, dict) else dict(given)
    elif hasattr(given, "id") and (hasattr(given, "role") or hasattr(given, "type")):
        return _whole(given)
    raise InvalidMessageError(
        f"{given!r} is no message. A message is a dict with 'role' (or 'type') and 'content', an object with `id` and "
        "`role` (or `type`), a string, or a pair of role and content."
    )


def _whole(message: Any) -> Any:
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
    if _is_model(type(message)):
        return message.model_copy(update={"id": id})  # which notes that the field is set
    try:
        copied = copy.copy(message)
        copied.id = id
    except (AttributeError, TypeError) as error:
        raise InvalidMessageError(f"{message!r} has no id, and a copy of it cannot be given one: {error}") from error
    return copied


def _is_model(kind: type) -> bool:
    return hasattr(kind, "__pydantic_fields_set__")


# ---- ids -----------------------------------------------------------------------------------------------------------


def _fingerprint(message: Any) -> str:
    """32 hex digits that are the same for equal messages, in every process and on every version of Python."""
    if isinstance(message, dict):
        name, parts = "", cast("Mapping[Any, Any]", message)
    else:
        name = type(message).__qualname__
        parts = _fields_of(message) or getattr(message, "__dict__", {})
    spelled = name + _spelled({key: value for key, value in parts.items() if key != "id"})
    return blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _spelled(value: object) -> str:
    """A value as text: equal for equal values, whatever the order of their keys.

    Not `repr`, which writes addresses, the order of a set, and other escapes from one version of Python to the next.
    Nothing is left out but what has no value of its own: of an object of an unknown class there is only its class.
    """
    if isinstance(value, str):
        return f"{len(value)}:{value}"
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{_spelled(key)}={_spelled(part)}" for key, part in value.items())) + "}"
    if isinstance(value, (list, tuple, deque)):
        return "[" + ",".join([_spelled(part) for part in cast("Iterable[object]", value)]) + "]"
    if isinstance(value, (set, frozenset)):
        return "<" + ",".join(sorted(_spelled(part) for part in cast("Iterable[object]", value))) + ">"
    name = type(value).__qualname__
    if value is None or isinstance(value, _PLAIN):
        return f"{name} {value!r}"
    parts = _fields_of(value)
    if parts is not None:
        return name + _spelled(parts)
    # Values of the standard library's own types (dates, decimals, uuids, paths) say by `str` what they are.
    return f"{name} {value}" if type(value).__str__ is not object.__str__ and _is_standard(type(value)) else name


_PLAIN: Final = (bool, int, float, complex, bytes, bytearray, range)


def _is_standard(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names


def _fields_of(value: Any) -> dict[str, Any] | None:
    """An object's fields that are not None; None when its class does not say which it has.

    Without None, a class may get another optional field, and the ids of its objects stay as they were.
    """
    kind: Any = type(value)
    if isinstance(value, msgspec.Struct):
        found = {name: getattr(value, name, None) for name in value.__struct_fields__}
    elif dataclasses.is_dataclass(value):
        found = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    elif _is_model(kind):
        # The first is new in pydantic 2.10, where the second may not be asked of an object any more.
        names = kind.__pydantic_fields__ if hasattr(kind, "__pydantic_fields__") else kind.model_fields
        found = {name: value.__dict__.get(name) for name in names} | (value.__pydantic_extra__ or {})
    else:
        return None
    return {name: part for name, part in found.items() if part is not None}


# ---- for streams ---------------------------------------------------------------------------------------------------


_TYPES: Final = frozenset(("human", "ai", "system", "tool", "function", "AIMessageChunk"))
"""What a dict of a message that has no role calls itself. (Parts of a content have types too.)"""


def messages_in(value: Any, *, named: bool = False) -> list[Any]:
    """The messages that a value is, or that it holds as a list or as an entry of a mapping.

    Args:
        named: those without an id get the one that `add_messages` would give them. (Else they are left out.)
    """
    if isinstance(value, list):
        found = [item for item in value if _is_message(item)]
    elif _is_message(value):
        found = [value]
    elif isinstance(value, dict):
        return [message for item in value.values() for message in messages_in(item, named=named)]
    else:
        return []
    whole = [message for message in found if not _is_removal(message)]
    if not named:
        return [message for message in whole if _id_of(message) is not None]
    return fold_messages([], [whole]) if whole else []


def id_of(message: Any) -> Any:
    """A message's id; None when it has none."""
    return _id_of(message) if _is_message(message) else None


def _is_message(item: Any) -> bool:
    if isinstance(item, dict):
        return "content" in item and ("role" in item or item.get("type") in _TYPES)
    return hasattr(item, "id") and hasattr(item, "content") and (hasattr(item, "role") or hasattr(item, "type"))
