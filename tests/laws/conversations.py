"""Shared by the laws: driving a conversation to its end, the trace that it leaves, and faulty savers."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
from hypothesis import HealthCheck, note, reject, settings

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.deltas import read_record
from checkpoint_savers.history import walk
from checkpoint_savers.patches import decode
from checkpoint_savers.records import (
    Header,
)
from pregel_async import Command, Interrupt, StateSnapshot
from pregel_async.errors import GraphRecursionError
from tests.helpers.environments import SeededEnvironment
from tests.helpers.law_programs import Build, Hooks, Program, answer_to, inputs_of, story

T = TypeVar("T")


THREAD: dict[str, Any] = {"configurable": {"thread_id": "t"}, "recursion_limit": 30}


def law(share: float = 1.0) -> Any:
    """Return the settings of a law; PREGEL_LAWS sets the number of programs to try."""
    return settings(
        max_examples=max(1, int(int(os.environ.get("PREGEL_LAWS", "10")) * share)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        report_multiple_bugs=False,
    )


def show(made: Program) -> None:
    """Print the program of a failing example."""
    note("the program:\n    " + "\n    ".join(story(made)))


class ScheduledHooks(Hooks):
    """Programs that wait a random number of turns of the event loop at each suspension point."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    async def turn(self) -> None:
        for _ in range(self._random.choice((0, 0, 1, 2, 5))):
            await anyio.lowlevel.checkpoint()


def questions_in(result: Any) -> list[Interrupt]:
    return list(result.get("__interrupt__", ())) if isinstance(result, dict) else []


def all_at_once(asked: Sequence[Interrupt]) -> Any:
    return Command(resume={question.id: answer_to(question.value) for question in asked})


class Conversation:
    """The course of a conversation.

    Attributes:
        asked: the open questions at each pause, with ids, in order.
        values: the final state.
    """

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, Any]]] = []
        self.values: Any = None


async def converse(
    graph: Any,
    given: Sequence[Any],
    config: Any = None,
    *,
    answer: Callable[[Sequence[Interrupt]], Any] = all_at_once,
    at_pause: Callable[[], Awaitable[None]] | None = None,
    stops: bool = False,
) -> Conversation:
    """Call a graph until no work is left, answering its questions.

    Args:
        given: the inputs; the next one is passed when no work is left.
        config: the config of the first call; later calls continue at the head.
        answer: returns the call's input that answers some of the open questions, or all.
        at_pause: called after each call.
        stops: True if the graph also stops at breakpoints.
    """
    talk = Conversation()
    config = THREAD if config is None else {**THREAD, **config}
    inputs = list(given)
    call = inputs.pop(0)
    for _ in range(300):
        try:
            result = await graph.ainvoke(call, config)
        except GraphRecursionError:
            reject()  # subgraphs that count nothing: such an example tests nothing
        config = THREAD
        asked = questions_in(result)
        state = await graph.aget_state("t")
        assert {question.id for question in state.interrupts} == {question.id for question in asked}
        if asked:
            talk.asked.append([(question.id, question.value) for question in asked])
        if at_pause is not None:
            await at_pause()
            state = await graph.aget_state("t")
            asked = [question for question in asked if question in state.interrupts]
        if asked:
            call = answer(asked)
        elif state.next and stops:
            call = None
        elif inputs:
            assert not state.next, f"the run has ended, but {state.next} are left"
            call = inputs.pop(0)
        else:
            assert not state.next, f"the run has ended, but {state.next} are left"
            talk.values = state.values
            return talk
    raise AssertionError("the conversation does not end")


async def trace_of(graph: Any, saver: BaseCheckpointSaver, *, sources: bool = True) -> dict[str, list[Any]]:
    """P2: return the trace, which is the same in every run of the same work: namespace -> its checkpoints, oldest first.

    Each checkpoint has its values, versions, versions seen, the planned tasks with their results, and the parent graphs'
    checkpoints on which it was made.
    """
    found: list[tuple[Header, Any]] = []
    async for header, reader, _ in walk(saver, "t", None):
        found.append((header, reader.state(header.checkpoint_id)))
    found.reverse()
    place: dict[str, tuple[str, int]] = {}
    counted: dict[str, int] = {}
    for header, _ in found:
        place[header.checkpoint_id] = (header.ns, counted.get(header.ns, 0))
        counted[header.ns] = counted.get(header.ns, 0) + 1
    trace: dict[str, list[Any]] = {}
    for header, state in found:
        codec = graph._definition.codec
        trace.setdefault(header.ns, []).append(
            {
                "step": header.step,
                "source": header.metadata.get("source") if sources else None,
                "parent": place.get(header.parent_id or ""),
                "made on": {ns: place.get(at) for ns, at in dict(header.metadata.get("parents") or {}).items()},
                "values": {name: decode(data, codec, channel=name) for name, data in state.values.items()},
                "versions": {name: state.versions[name] for name in state.values},
                "seen": {name: dict(seen) for name, seen in state.seen.items() if name in state.values},
                "ran": state.ran,
                "tips": {ns: place.get(at) for ns, at in state.tips.items()},
            }
        )
    for ns, rows in trace.items():
        snapshots = [
            each async for each in graph.aget_state_history({"configurable": {"thread_id": "t", "checkpoint_ns": ns}})
        ]
        for row, snapshot in zip(rows, reversed(snapshots), strict=True):
            row["next"] = snapshot.next
            row["tasks"] = [described(task) for task in snapshot.tasks]
    return trace


def described(task: Any) -> Any:
    error = None if task.error is None else (task.error.type, task.error.message)
    # A task with a result keeps the questions that it has asked, for readers: an undisturbed run has asked none.
    return (task.name, task.id, task.path, task.result, error, task.interrupts if task.result is None else ())


def diff(one: Any, other: Any, path: str = "") -> str:
    """Return the first difference between two traces, as text."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                return f"{path}[{key!r}] is only in one: {one.get(key, other.get(key))!r}"
            if one[key] != other[key]:
                return diff(one[key], other[key], f"{path}[{key!r}]")
    if isinstance(one, list) and isinstance(other, list):
        for place, (left, right) in enumerate(zip(one, other, strict=False)):
            if left != right:
                return diff(left, right, f"{path}[{place}]")
        if len(one) != len(other):
            longer = one if len(one) > len(other) else other
            return f"{path} has {len(one)} and {len(other)}; the next is {longer[min(len(one), len(other))]!r}"
    return f"{path}: {one!r} is not {other!r}"


def same(one: Any, other: Any, what: str) -> None:
    assert one == other, f"{what}: {diff(one, other)}"


async def undisturbed(
    made: Program, saver: BaseCheckpointSaver, environment: SeededEnvironment, turns: int = 2
) -> tuple[Conversation, dict[str, list[Any]], Hooks]:
    """Run a program's conversation without faults."""
    hooks = Hooks()
    graph = Build(hooks)(made, saver, environment)
    talk = await converse(graph, inputs_of(made)[:turns])
    return talk, await trace_of(graph, saver), hooks


async def recorded_in(saver: BaseCheckpointSaver) -> set[str]:
    """Return the ids of the tasks whose results are stored (for some, only the routers are left to run)."""
    ids: set[str] = set()
    async for header, reader, records in walk(saver, "t", None):
        ids.update(reader.results(header.checkpoint_id))
        for record in records:
            entry = read_record(record, "t")
            if entry.finished or not entry.routed:
                ids.add(record.task_id)
    return ids


def plain(snapshot: StateSnapshot) -> Any:
    """Return all data of a snapshot."""
    return (
        snapshot.values,
        snapshot.next,
        snapshot.config,
        snapshot.metadata,
        snapshot.created_at,
        snapshot.parent_config,
        snapshot.tasks,
        snapshot.interrupts,
        snapshot.error,
    )
