"""P2, P8: the trace of a random program depends neither on the schedule nor on the way its questions are answered."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_savers import InMemorySaver
from pregel_async import Command, Interrupt
from tests.helpers.environments import SeededEnvironment
from tests.helpers.law_programs import Build, Hooks, Program, answer_to, inputs_of, programs
from tests.laws.conversations import Conversation, ScheduledHooks, converse, law, same, show, trace_of

LOOPS = ("asyncio", "trio")


async def conversation_of(made: Program, hooks: Hooks) -> tuple[Conversation, Any]:
    environment = SeededEnvironment()
    saver = InMemorySaver(clock=environment.now)
    graph = Build(hooks)(made, saver, environment)
    talk = await converse(graph, inputs_of(made))
    return talk, await trace_of(graph, saver)


@law()
@given(made=programs(), seed=st.integers(0, 999))
def test_every_schedule_gives_the_same_trace(made: Program, seed: int) -> None:
    """P2: values, versions, task ids, recorded results, and question ids in order are the same on every schedule, on
    asyncio and trio."""
    show(made)
    talk, trace = anyio.run(conversation_of, made, Hooks())
    for loop in LOOPS:
        hooks = ScheduledHooks(seed)
        other, found = anyio.run(conversation_of, made, hooks, backend=loop)
        same(talk.asked, other.asked, f"questions on {loop}")
        same(trace, found, f"traces on {loop}")


@law()
@given(made=programs(), seed=st.integers(0, 999), loop=st.sampled_from(LOOPS))
def test_answers_in_any_order_and_partition_give_the_same_end(made: Program, seed: int, loop: str) -> None:
    """P8: answers given one by one or several at once, in any order, by map or bare, lead to the same end."""
    show(made)
    luck = random.Random(seed)

    def some(asked: Sequence[Interrupt]) -> Any:
        chosen = luck.sample(list(asked), luck.randint(1, len(asked)))
        answers = {question.id: answer_to(question.value) for question in chosen}
        bare = answer_to(asked[0].value)
        if len(asked) == 1 and luck.random() < 0.5 and bare is not None and not isinstance(bare, dict):
            return Command(resume=bare)
        return Command(resume=answers)

    async def main() -> None:
        talk, trace = await conversation_of(made, Hooks())
        environment = SeededEnvironment()
        saver = InMemorySaver(clock=environment.now)
        hooks = ScheduledHooks(seed)
        graph = Build(hooks)(made, saver, environment)
        other = await converse(graph, inputs_of(made), answer=some)
        same(talk.values, other.values, "values")
        same(trace, await trace_of(graph, saver), "traces")
        first, second = ({asked for pause in each.asked for asked in pause} for each in (talk, other))
        assert first == second, "other questions were asked"

    anyio.run(main, backend=loop)


class AnsweringHooks(Hooks):
    """Programs that know the answers, and never ask."""

    def ask(self, question: str) -> Any:
        return answer_to(question)


@law()
@given(made=programs(), loop=st.sampled_from(LOOPS))
def test_pauses_leave_no_trace(made: Program, loop: str) -> None:
    """P5, P8: a run with questions has the same trace as one that knew all answers."""
    show(made)

    async def main() -> None:
        knowing, asking = AnsweringHooks(), Hooks()
        talk, trace = await conversation_of(made, knowing)
        other, found = await conversation_of(made, asking)
        assert not talk.asked
        same(talk.values, other.values, "values")
        same(trace, found, "traces")
        same(set(knowing.began), set(asking.began), "what ran")
        twice = [name for name, count in Counter(knowing.began).items() if count > 1]
        assert not twice, f"ran twice, and was never disturbed: {twice}"

    anyio.run(main, backend=loop)
