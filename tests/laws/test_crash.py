"""P4, P5: a random program with one fault at a random place ends as if there had been no fault."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st

from checkpoint_savers import InMemorySaver
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import StorageError
from pregel_async import Command
from pregel_async.types import Durability
from tests.helpers.environments import SeededEnvironment
from tests.helpers.law_programs import Build, Hooks, Program, inputs_of, programs
from tests.helpers.passing_saver import Through
from tests.laws.conversations import (
    THREAD,
    Conversation,
    ScheduledHooks,
    all_at_once,
    law,
    recorded_in,
    same,
    show,
    trace_of,
    undisturbed,
)

T = TypeVar("T")

LOOPS = ("asyncio", "trio")
HOWS = ("error", "down", "die", "cancel")


class Died(BaseException):
    """Stands for the end of the process."""


class PlannedError(Exception):
    """An error raised by a node on purpose."""


class Trouble:
    """One fault, at the n-th of the counted places, from 1; with 0 places are only counted.

    Attributes:
        seen: the number of places so far.
        hit: the place of the fault; None before it.
        scope: the cancel scope of the current run.
    """

    def __init__(self, at: int, how: str, after: bool) -> None:
        self.at = at
        self.how = how
        self.after = after
        self.seen = 0
        self.hit: str | None = None
        self.scope: anyio.CancelScope | None = None

    def counts(self) -> bool:
        self.seen += 1
        return self.seen == self.at

    def strike(self, what: str) -> None:
        self.hit = what
        if self.how == "cancel":
            assert self.scope is not None
            self.scope.cancel()
        elif self.how == "die":
            raise Died(what)
        else:
            raise StorageError(f"injected at {what}")


class Failing(Through):
    """A saver with a fault at one of its operations; once it is down or dead, it stays so."""

    def __init__(self, inner: BaseCheckpointSaver, trouble: Trouble) -> None:
        super().__init__(inner)
        self.trouble = trouble

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        trouble = self.trouble
        if trouble.hit is not None and trouble.how in ("down", "die"):
            trouble.strike(trouble.hit)
        if not trouble.counts():
            return await call()
        where = f"{verb} {trouble.seen}"
        if trouble.after:
            result = await call()
            trouble.strike(f"after {where}")
            return result
        trouble.strike(f"before {where}")
        return await call()


class FailingHooks(ScheduledHooks):
    """Programs with a fault at one of their suspension points."""

    def __init__(self, seed: int, trouble: Trouble | None = None) -> None:
        super().__init__(seed)
        self.trouble = trouble

    async def turn(self) -> None:
        trouble = self.trouble
        if trouble is not None and trouble.counts():
            if trouble.how == "cancel":
                trouble.strike("a body")
            else:
                trouble.hit = "a body"
                raise PlannedError
        await super().turn()


async def disturbed(
    made: Program,
    mode: Durability,
    saver: BaseCheckpointSaver,
    environment: SeededEnvironment,
    storage: Trouble,
    bodies: Trouble,
    seed: int,
) -> tuple[Conversation, dict[str, list[Any]], list[str]]:
    """Run a program's conversation with one fault. Also return the tasks that ran although they were recorded, or (with
    "sync") shown as finished, and the questions that were asked although they were answered."""
    talk = Conversation()
    inputs = inputs_of(made)
    given = inputs[0]
    turn = 0
    again: list[str] = []
    answered: set[str] = set()  # ids of questions whose answers were accepted
    shown: set[str] = set()  # ids of tasks that a stream has shown as finished
    for number in range(600):
        recorded = await recorded_in(saver) | (shown if mode == "sync" else set[str]())
        hooks = FailingHooks(seed + number, bodies)
        graph = Build(hooks)(made, Failing(saver, storage), environment)
        ended = False
        config = {**THREAD, "metadata": {"turn": turn}}
        error: BaseException | None = None
        with anyio.CancelScope() as storage.scope:
            bodies.scope = storage.scope
            try:
                if seed % 4 == 3:
                    await graph.ainvoke(given, config, durability=mode)
                else:
                    async with graph.astream(given, config, stream_mode="tasks", durability=mode) as chunks:
                        async for chunk in chunks:
                            if "result" in chunk and chunk["error"] is None and not chunk["interrupts"]:
                                shown.add(chunk["id"])
                ended = True
            except (StorageError, PlannedError, Died) as raised:
                error = raised
            except BaseExceptionGroup as group:  # several results could not be stored, or several tasks died
                if group.split((StorageError, PlannedError, Died))[1] is not None:
                    raise
                error = group
        again += [f"{name} {key}" for name, key in hooks.began if key in recorded]
        if isinstance(given, Command) and (ended or bodies.hit):
            answered.update(given.resume)
        if (storage.hit or bodies.hit) and not ended:
            storage = Trouble(0, "error", False)
            bodies = Trouble(0, "error", False)
            environment.time += 31  # the lease of a dead process expires
        elif error is not None:
            raise error
        state = await Build(Hooks())(made, saver, environment).aget_state("t")
        if not state.metadata or state.metadata.get("turn") != turn:
            continue  # nothing was stored: pass the same input again
        asked = state.interrupts
        again += [f"question {each.id}" for each in asked if each.id in answered]
        if asked and (ended or seed & 2):  # open questions can be answered at once, also after a crash
            talk.asked.append([(question.id, question.value) for question in asked])
            given = all_at_once(asked)
        elif ended and not state.next and turn + 1 < len(inputs):
            turn += 1
            given = inputs[turn]
        elif ended and not state.next:
            talk.values = state.values
            return talk, await trace_of(Build(Hooks())(made, saver, environment), saver), again
        else:
            given = None
    raise AssertionError("the conversation does not end")


@pytest.mark.parametrize("mode", ["sync", "async", "exit"])
@law(0.25)
@given(made=programs(), seed=st.integers(0, 999), loop=st.sampled_from(LOOPS))
def test_a_crash_anywhere_changes_nothing(mode: Durability, made: Program, seed: int, loop: str) -> None:
    """P2, P4, P5, in each durability mode: the result, and except with "exit", which stores fewer checkpoints, the
    whole trace, equal those of an undisturbed run; recorded work never runs again."""
    show(made)
    luck = random.Random(seed)

    async def main() -> None:
        environment = SeededEnvironment()
        talk, trace, _ = await undisturbed(made, InMemorySaver(clock=environment.now), environment)

        async def play(storage: Trouble, bodies: Trouble) -> None:
            environment = SeededEnvironment()
            saver = InMemorySaver(clock=environment.now)
            other, found, again = await disturbed(made, mode, saver, environment, storage, bodies, luck.randrange(1000))
            assert not again, f"ran again although recorded: {again}"
            same(talk.values, other.values, "values")
            if mode != "exit":
                same(trace, found, "traces")

        counted = [Trouble(0, "error", False), Trouble(0, "error", False)]
        await play(*counted)
        for _ in range(5):
            where = luck.randrange(2)
            how, after = luck.choice(HOWS), luck.random() < 0.5
            trouble = [Trouble(0, how, after), Trouble(0, how, after)]
            trouble[where].at = luck.randint(1, counted[where].seen)
            try:
                await play(*trouble)
            except BaseException:
                note(f"disturbed: {trouble[where].hit}, {how}")
                raise
            event(f"{(trouble[where].hit or 'nowhere').rstrip('0123456789 ')}, {how}")

    anyio.run(main, backend=loop)
