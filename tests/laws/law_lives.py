"""Random lives of threads: what people do with them, one thing after the other, and how they can be compared."""

from __future__ import annotations

import random
from typing import Any

import anyio
from hypothesis import note

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.lease import UpkeepLease
from checkpoint_savers.records import CLOSED, FOLLOWED
from pregel_async import Command, StateSnapshot
from pregel_async.errors import GraphRecursionError, PregelError
from tests.helpers.law_programs import Build, Flow, Program, Tell, answer_to, inputs_of
from tests.laws.law_world import THREAD, Environment, questions_in


class Planned(Exception):
    """A node's own failure."""


class Stumbling(Tell):
    """Programs that fail, or are cancelled, at one of the places where they can be suspended.

    Attributes:
        left: how many such places are left until then; None for never.
        scope: what is cancelled; None lets the node fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None
        self.scope: anyio.CancelScope | None = None

    async def turn(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                if self.scope is None:
                    raise Planned
                self.scope.cancel()
        await anyio.lowlevel.checkpoint()


def at(snapshot: StateSnapshot) -> dict[str, Any]:
    return {**snapshot.config, "recursion_limit": THREAD["recursion_limit"]}


async def live(made: Program, saver: BaseCheckpointSaver, luck: random.Random, environment: Environment) -> None:
    """A few things that happen to a thread: runs that end, ask, fail or are cut off, answers to some of the questions,
    replays from anywhere, edits anywhere."""
    tell = Stumbling()
    graph = Build(tell)(made, saver, environment)
    inputs = inputs_of(made)
    await attempt(graph, inputs[0], THREAD)
    for _ in range(luck.randint(1, 7)):
        history = [each async for each in graph.aget_state_history("t")]
        head = await graph.aget_state("t")
        does = luck.choice(("input", "answer", "answer", "go on", "replay", "edit", "fail", "cut off"))
        config: Any = THREAD
        call: Any = None
        if does == "input" or (does in ("fail", "cut off") and not head.next):
            call = luck.choice(inputs)
        elif head.interrupts:
            asked = luck.sample(head.interrupts, luck.randint(1, len(head.interrupts)))
            call = Command(resume={question.id: answer_to(question.value) for question in asked})
        if does == "replay" and history:
            config = at(luck.choice(history))
            call = luck.choice((None, inputs[0]))
        editable = [each for each in history if "__start__" not in each.next]
        if does == "edit" and editable and not isinstance(made, Flow):
            name = luck.choice(("a", "b", None))
            note(f"edits as {name}")
            try:
                await graph.aupdate_state(at(luck.choice(editable)), {"log": ["edited"]}, as_node=name)
            except PregelError as error:
                note(f"  {type(error).__name__}")
            continue
        if does in ("fail", "cut off"):
            tell.left = luck.randint(0, 8)
        with anyio.CancelScope() as scope:
            tell.scope = scope if does == "cut off" else None
            note(f"{does}: {call!r}")
            await attempt(graph, call, config)
        tell.left = tell.scope = None


async def attempt(graph: Any, call: Any, config: Any) -> Any:
    """A call, and what came of it."""
    try:
        return await graph.ainvoke(call, config)
    except Planned:
        return "failed"
    except (PregelError, GraphRecursionError) as error:
        return type(error).__name__
    except ExceptionGroup as group:
        return sorted(type(error).__name__ for error in group.exceptions)


async def finish(made: Program, saver: BaseCheckpointSaver, config: Any) -> tuple[list[Any], list[Any], Any]:
    """Go on from a checkpoint until nothing is left to do, and with two more inputs; give what the calls gave, what ran (trio has no order), and the
    values."""
    tell = Tell()
    graph = Build(tell)(made, saver, Environment())
    start = await graph.aget_state(config)
    call: Any = None
    if start.interrupts:
        call = Command(resume={question.id: answer_to(question.value) for question in start.interrupts})
    results: list[Any] = []
    more = inputs_of(made)
    for _ in range(90):
        result = await attempt(graph, call, config)
        results.append(result)
        asked, config = questions_in(result), THREAD
        if asked:
            call = Command(resume={question.id: answer_to(question.value) for question in asked})
        elif more:
            call = more.pop()
        else:
            break
    return results, sorted(tell.began), (await graph.aget_state("t")).values


async def copied(saver: BaseCheckpointSaver) -> InMemorySaver:
    """Another saver with the same thread, byte for byte."""
    dump = await saver.dump("t")
    assert dump is not None
    other = InMemorySaver(clock=saver.clock)
    async with UpkeepLease(other, "t") as held:
        await other.load(held.token, dump)
    return other


async def shown(graph: Any, snapshot: StateSnapshot, *, results: bool = True) -> Any:
    """All that a snapshot says, but for its parent: of graphs inside what they say, wherever their configs lead.

    Args:
        results: with what tasks gave.
    """
    tasks: list[Any] = []
    for task in snapshot.tasks:
        inside: Any = task.state
        if inside is not None:
            if not isinstance(inside, StateSnapshot):
                inside = await graph.aget_state(inside, subgraphs=True)
            inside = (inside.config["configurable"]["checkpoint_ns"], await shown(graph, inside))
        tasks.append(
            (task.id, task.name, task.path, task.error, task.interrupts, task.result if results else "", inside)
        )
    metadata = {key: value for key, value in snapshot.metadata.items() if key != FOLLOWED}
    return snapshot.values, snapshot.next, metadata, snapshot.created_at, tasks, snapshot.interrupts, snapshot.spent


def is_cut(snapshot: StateSnapshot) -> bool:
    """Whether what came after a checkpoint is gone, and with it what its tasks gave."""
    return dict(snapshot.metadata).get(FOLLOWED) == CLOSED
