"""Messages that name the components which a user interface shows: `push_ui_message`, `delete_ui_message`.

    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]
        ui: Annotated[list[AnyUIMessage], ui_message_reducer]

    async def forecast(state: State) -> dict[str, Any]:
        message = {"role": "assistant", "content": "Here is the weather.", "id": "answer-1"}
        push_ui_message("weather", {"city": "Leeds", "degrees": 12}, message=message)
        return {"messages": [message]}

The messages have LangGraph's form, so that its components for user interfaces show them. They are written to the state,
and shown at once in the stream mode "custom".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypedDict, cast

from ._runtime.tasks.context import AttemptContext, current
from ._runtime.tasks.pushed_writes import push_write
from .errors import InvalidUpdateError

__all__ = [
    "AnyUIMessage",
    "RemoveUIMessage",
    "UIMessage",
    "UIMessageNotFoundError",
    "delete_ui_message",
    "push_ui_message",
    "ui_message_reducer",
]


class UIMessage(TypedDict):
    """A component to show.

    Keys:
        type: "ui".
        id: identifies the component; a message with the same id replaces it.
        name: the component's name, which the user interface knows.
        props: the component's properties.
        metadata: `merge` (True to add the properties to those of the replaced message), the run's `run_id`, `tags` and
            `name`, `message_id` if the component belongs to a message, and entries of your own.
    """

    type: Literal["ui"]
    id: str
    name: str
    props: dict[str, Any]
    metadata: dict[str, Any]


class RemoveUIMessage(TypedDict):
    """The removal of a component.

    Keys:
        type: "remove-ui".
        id: the component's id.
    """

    type: Literal["remove-ui"]
    id: str


AnyUIMessage: TypeAlias = UIMessage | RemoveUIMessage
"""A component, or the removal of one."""


class UIMessageNotFoundError(InvalidUpdateError, ValueError):
    """An update removes a component that is not in the list. The superstep was not applied.

    Attributes:
        id: the id of the component.
    """

    def __init__(self, id: object) -> None:
        self.id = id
        super().__init__(f"the UI message {id!r} cannot be removed: the list has none of that id")


def push_ui_message(
    name: str,
    props: dict[str, Any],
    *,
    id: str | None = None,
    metadata: dict[str, Any] | None = None,
    message: Any = None,
    state_key: str | None = "ui",
    merge: bool = False,
) -> UIMessage:
    """Show a component at once, in the stream mode "custom", and write it to the state with the node's result.

    Args:
        name: the component's name.
        props: the component's properties.
        id: the component's id; None for one that is derived from the task, and is the same on a retry.
        metadata: entries that are added to the message's metadata.
        message: the message that the component belongs to, whose id becomes `message_id`; None for none.
        state_key: the key that the message is written to; None to show it only.
        merge: True to add the properties to those of the component with the same id; False to replace them.

    Returns:
        The message.

    Raises:
        InvalidUpdateError: the graph has no such key, or a called task pushes: its caller writes the state.
        OutsideRunError: called outside a run.
    """
    attempt = _running("push_ui_message()")
    config = attempt.config
    belongs_to = cast("Any", message.get("id") if isinstance(message, Mapping) else getattr(message, "id", None))
    pushed: UIMessage = {
        "type": "ui",
        "id": "",
        "name": name,
        "props": props,
        "metadata": {
            "merge": merge,
            "run_id": config.get("run_id"),
            "tags": config.get("tags"),
            "name": config.get("run_name"),
            **(metadata or {}),
            **({"message_id": belongs_to} if belongs_to else {}),
        },
    }
    # Without the metadata, which contains the run's id: a component pushed by a resumed run has the same id.
    pushed["id"] = id or attempt.message_id({"type": "ui", "name": name, "props": props})
    _push(attempt, "push_ui_message()", pushed, state_key)
    return pushed


def delete_ui_message(id: str, *, state_key: str | None = "ui") -> RemoveUIMessage:
    """Remove a component: at once in the stream mode "custom", and from the state with the node's result.

    Args:
        id: the component's id.
        state_key: the key that has the component; None to show the removal only.

    Returns:
        The message that removes the component.

    Raises:
        InvalidUpdateError: the graph has no such key, or a called task pushes: its caller writes the state.
        OutsideRunError: called outside a run.
    """
    attempt = _running("delete_ui_message()")
    removal: RemoveUIMessage = {"type": "remove-ui", "id": id}
    _push(attempt, "delete_ui_message()", removal, state_key)
    return removal


def ui_message_reducer(
    left: list[AnyUIMessage] | AnyUIMessage, right: list[AnyUIMessage] | AnyUIMessage
) -> list[AnyUIMessage]:
    """Add, replace, merge and remove components by their ids: a reducer for `Annotated[list[AnyUIMessage], ...]`.

    Args:
        left: the components so far, or one.
        right: messages, applied in order. One with the id of a component replaces it, in its place; with `merge` in its
            metadata it keeps the properties that it does not name. One that removes a component which a later one
            shows again has no effect.

    Returns:
        A new list. The arguments and their messages are not changed.

    Raises:
        UIMessageNotFoundError: a component to remove is not in the list.
    """
    messages = {message["id"]: message for message in (left if isinstance(left, list) else [left])}
    removed: set[str] = set()
    for message in right if isinstance(right, list) else [right]:
        before = messages.get(message["id"])
        if message["type"] == "remove-ui":
            if before is None:
                raise UIMessageNotFoundError(message["id"])
            removed.add(message["id"])
            continue
        removed.discard(message["id"])
        if before is not None and before["type"] == "ui" and message.get("metadata", {}).get("merge"):
            message = cast("UIMessage", {**message, "props": {**before["props"], **message["props"]}})
        messages[message["id"]] = message
    return [message for id, message in messages.items() if id not in removed]


def _running(what: str) -> AttemptContext:
    attempt = current(what)
    attempt.check(what)
    return attempt


def _push(attempt: AttemptContext, what: str, message: AnyUIMessage, state_key: str | None) -> None:
    if state_key is not None:
        push_write(attempt, what, state_key, message)
    attempt.writer(message)
