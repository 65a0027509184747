"""Random histories of threads: runs, answers, replays and edits one after the other, and how to compare the results."""

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
from tests.helpers.environments import SeededEnvironment
from tests.helpers.law_programs import Build, Flow, Hooks, Program, answer_to, inputs_of
from tests.laws.conversations import THREAD, questions_in


class PlannedError(Exception):
    """An error raised by a node on purpose."""


class FailingHooks(Hooks):
    """Programs that fail, or are cancelled, at one of their suspension points.

    Attributes:
        left: how many suspension points are left before that; None for no fault.
        scope: the scope to cancel; None lets the node fail.
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
                    raise PlannedError
                self.scope.cancel()
        await anyio.lowlevel.checkpoint()


def at(snapshot: StateSnapshot) -> dict[str, Any]:
    return {**snapshot.config, "recursion_limit": THREAD["recursion_limit"]}


async def random_history(
    made: Program, saver: BaseCheckpointSaver, luck: random.Random, environment: SeededEnvironment
) -> None:
    """Apply some random operations to a thread: runs that end, ask, fail or are cancelled, answers to some of the
    questions, replays and edits of any checkpoint."""
    hooks = FailingHooks()
    graph = Build(hooks)(made, saver, environment)
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
            hooks.left = luck.randint(0, 8)
        with anyio.CancelScope() as scope:
            hooks.scope = scope if does == "cut off" else None
            note(f"{does}: {call!r}")
            await attempt(graph, call, config)
        hooks.left = hooks.scope = None


async def attempt(graph: Any, call: Any, config: Any) -> Any:
    """Make a call, and return its result or the name of its error."""
    try:
        return await graph.ainvoke(call, config)
    except PlannedError:
        return "failed"
    except (PregelError, GraphRecursionError) as error:
        return type(error).__name__
    except ExceptionGroup as group:
        return sorted(type(error).__name__ for error in group.exceptions)


async def finish(made: Program, saver: BaseCheckpointSaver, config: Any) -> tuple[list[Any], list[Any], Any]:
    """Continue from a checkpoint until no work is left, and with two more inputs.

    Returns: the results of the calls; the bodies that ran (sorted, as trio has no order); and the final values.
    """
    hooks = Hooks()
    graph = Build(hooks)(made, saver, SeededEnvironment())
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
    return results, sorted(hooks.began), (await graph.aget_state("t")).values


async def copied(saver: BaseCheckpointSaver) -> InMemorySaver:
    """Return another saver with the same thread, byte for byte."""
    dump = await saver.dump("t")
    assert dump is not None
    other = InMemorySaver(clock=saver.clock)
    async with UpkeepLease(other, "t") as held:
        await other.load(held.token, dump)
    return other


async def shown(graph: Any, snapshot: StateSnapshot, *, results: bool = True) -> Any:
    """Return all data of a snapshot except its parent; for subgraphs the data at their configs.

    Args:
        results: include the results of tasks.
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
    """Return True if the checkpoints after this one, and so its tasks' results, were pruned."""
    return dict(snapshot.metadata).get(FOLLOWED) == CLOSED
