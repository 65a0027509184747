"""The parts that a reader of a stream keeps if it follows docs/streaming.md and docs/serving.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent


def events_of(response: httpx.Response) -> Iterator[ServerSentEvent]:
    """Yield the events of a response as they arrive, without those that have no data.

    After the first id, httpx-sse makes an empty event of each comment that keeps the connection open, which a service sends
    after five quiet seconds. A browser dispatches no event without data.
    """
    return (event for event in EventSource(response).iter_sse() if event.data)


def kept_by_reader(parts: Iterable[Any]) -> list[Any]:
    """Return the parts without those that `superstep_restarted` makes void: after the place `after`, those of the named
    tasks, or all of them if it names none."""
    kept: list[Any] = []
    for part in parts:
        if part["type"] != "superstep_restarted":
            kept.append(part)
            continue
        void = part["data"]
        named = None if void["tasks"] is None else {task["id"] for task in void["tasks"]}
        kept = [each for each in kept if each["cursor"] <= void["after"] or not _is_of(each["task"], named)]
    return kept


def _is_of(task: Any, named: set[str] | None) -> bool:
    return named is None or (task is not None and task["id"] in named)


def is_void(id: str, restarted: Any) -> bool:
    """Return True if the data of the event `superstep_restarted` make the event of this id void."""
    tasks = restarted["tasks"]
    return id > restarted["after"] and (tasks is None or any(id.endswith(f"!{task['id']}") for task in tasks))
