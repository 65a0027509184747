"""P2, P5, P8: a stored thread that is reopened, replayed from any checkpoint, forked or edited behaves like the live
one."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.history import walk
from pregel_async import Command, Interrupt, StateSnapshot, StateUpdate
from tests.helpers.environments import SeededEnvironment
from tests.helpers.law_programs import Build, Flow, Hooks, Node, Program, answer_to, inputs_of, keeps, programs
from tests.laws.conversations import THREAD, converse, law, plain, same, show, trace_of, undisturbed

LOOPS = ("asyncio", "trio")


async def seen(graph: Any) -> Any:
    """Return all that a thread shows: its state with subgraph states, and its history."""
    state = await graph.aget_state("t", subgraphs=True)
    return [plain(state), *[plain(each) async for each in graph.aget_state_history("t")]]


async def inside(graph: Any, saver: BaseCheckpointSaver) -> dict[str, list[Any]]:
    """Return the history of each namespace of a thread, and the position and checkpoint of each subgraph's state."""
    names: dict[str, None] = {}
    async for header, _, _ in walk(saver, "t", None):
        names[header.ns] = None
    configs = {ns: {"configurable": {"thread_id": "t", "checkpoint_ns": ns}} for ns in names}
    return {
        ns: [await resolved(graph, each) async for each in graph.aget_state_history(config)]
        for ns, config in configs.items()
    }


async def resolved(graph: Any, snapshot: StateSnapshot) -> StateSnapshot:
    """Add the checkpoint id to a head's address, as this checkpoint will not stay the head."""
    tasks: list[Any] = []
    for task in snapshot.tasks:
        if task.state is not None:
            known = (await graph.aget_state(task.state)).config["configurable"]
            at = {key: known[key] for key in ("checkpoint_ns", "checkpoint_id")}
            task = structs.replace(task, state={"configurable": at})
        tasks.append(task)
    return snapshot.__replace__(tasks=tuple(tasks))


@law(0.5)
@given(made=programs(), loop=st.sampled_from(LOOPS), stops=st.booleans())
def test_a_thread_is_what_is_stored(made: Program, loop: str, stops: bool) -> None:
    """P2: at each pause, a newly opened saver shows the same thread and continues it in the same way; so it does after
    a stop at any superstep."""
    show(made)

    async def main(folder: str) -> None:
        environment = SeededEnvironment()
        talk, trace, _ = await undisturbed(made, InMemorySaver(clock=environment.now), environment)
        environment = SeededEnvironment()
        path = Path(folder) / "threads.db"
        options: dict[str, Any] = {"interrupt_after": "*"} if stops and not isinstance(made, Flow) else {}
        inputs = inputs_of(made)
        call: Any = inputs.pop(0)
        for _ in range(400):
            async with SqliteSaver(path, synchronous="NORMAL", clock=environment.now) as live:
                graph = Build(Hooks())(made, live, environment, **options)
                result = await graph.ainvoke(call, THREAD)
                shown = await seen(graph)
                async with SqliteSaver(path, synchronous="NORMAL", clock=environment.now) as reopened:
                    same(shown, await seen(Build(Hooks())(made, reopened, environment)), "what a thread shows")
                state = await graph.aget_state("t")
                question = state.interrupts
                if question:
                    assert {each.id for each in result["__interrupt__"]} == {each.id for each in question}
                    call = Command(resume={each.id: answer_to(each.value) for each in question})
                elif state.next:
                    call = None
                elif inputs:
                    call = inputs.pop(0)
                else:
                    same(talk.values, state.values, "values")
                    same(trace, await trace_of(graph, live), "traces")
                    return
        raise AssertionError("the conversation does not end")

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, folder, backend=loop)


@law(0.7)
@given(made=programs(), seed=st.integers(0, 999), loop=st.sampled_from(LOOPS), other_answers=st.booleans())
def test_replays_end_where_the_run_ended(made: Program, seed: int, loop: str, other_answers: bool) -> None:
    """P2, P5: a replay from any checkpoint reaches the end of the original run, on a branch of its own, and leaves
    other branches as they are, whatever its answers; earlier branches can be continued."""
    show(made)
    luck = random.Random(seed)
    functions = {"flow"} if isinstance(made, Flow) else {node.name for node in made.nodes if isinstance(node, Node)}

    def differently(asked: Sequence[Interrupt]) -> Any:
        return Command(resume={each.id: f"no, {each.id}" for each in asked})

    async def main() -> None:
        environment = SeededEnvironment()
        saver = InMemorySaver(clock=environment.now)
        talk, trace, _ = await undisturbed(made, saver, environment, 1)
        for _ in range(3):
            hooks = Hooks()
            graph = Build(hooks)(made, saver, environment)
            before = await inside(graph, saver)
            known = {each.config["configurable"]["checkpoint_id"] for shown in before.values() for each in shown}
            tip = await resolved(graph, await graph.aget_state("t"))
            at = luck.choice(before[""])
            chosen = differently if other_answers else None
            again = await converse(graph, [None], at.config, **({} if chosen is None else {"answer": chosen}))
            ran = {key for _, key in hooks.began}
            left_out = [task.name for task in at.tasks if task.name in functions and task.id not in ran]
            assert not left_out, f"did not run again: {left_out}"
            if not other_answers:
                same(talk.values, again.values, "values of a replay")
            after = await inside(graph, saver)
            left = {
                ns: [each for each in shown if each.config["configurable"]["checkpoint_id"] in known]
                for ns, shown in after.items()
            }
            same(before, {ns: shown for ns, shown in left.items() if shown}, "snapshots of the other branches")
            same(tip, await resolved(graph, await graph.aget_state(tip.config)), "the other branch's tip")
            if not other_answers:
                head = await graph.aget_state("t")
                same(await branch(graph, tip), await branch(graph, head), "the branches")
        # Continue the first tip: the head moves there.
        if not other_answers:
            await graph.ainvoke(None, tip.config)
            same(tip.values, (await graph.aget_state("t")).values, "the tip gone back to")

    anyio.run(main, backend=loop)


async def branch(graph: Any, tip: Any) -> list[Any]:
    """Return the supersteps from the first to a tip: their values and planned tasks. A fork starts with a copy."""
    found: list[Any] = []
    at = tip
    while True:
        if at.metadata["source"] != "fork":
            found.append((at.metadata["step"], at.values))
        if at.parent_config is None:
            return found[::-1]
        at = await graph.aget_state(at.parent_config)


@law()
@given(made=programs(), seed=st.integers(0, 999), loop=st.sampled_from(LOOPS), share=st.sampled_from((0.3, 0.6, 1.0)))
def test_an_edit_as_a_pending_node_is_that_node(made: Program, seed: int, loop: str, share: float) -> None:
    """P2: an edit as a pending node with the node's own result leaves the same trace as running it, for some of a
    superstep's nodes or all."""
    if isinstance(made, Flow):
        return
    show(made)
    luck = random.Random(seed)
    plain_nodes = {node.name for node in made.nodes if isinstance(node, Node) and not keeps(node)}

    async def main() -> None:
        environment = SeededEnvironment()
        _, trace, hooks = await undisturbed(made, InMemorySaver(clock=environment.now), environment)
        environment = SeededEnvironment()
        saver = InMemorySaver(clock=environment.now)
        ran = Hooks()
        graph = Build(ran)(made, saver, environment)
        edited: dict[str, int] = {}  # task id -> how many bodies had begun by then

        async def edit() -> None:
            for _ in range(100):
                state = await graph.aget_state("t")
                again = [
                    task
                    for task in state.tasks
                    if task.result is None
                    and task.name in plain_nodes
                    and luck.random() < share
                    and task.id in hooks.given  # the others end with parent commands of their subgraph
                ]
                if not again:
                    return
                if luck.random() < 0.5:
                    again = again[:1]
                edited.update({task.id: len(ran.began) for task in again})
                await graph.abulk_update_state(
                    "t", [[StateUpdate(hooks.given[task.id], task.name, task.id) for task in again]]
                )

        graph = Build(ran)(made, saver, environment, interrupt_before="*")
        await converse(graph, inputs_of(made), at_pause=edit, stops=True)
        again = [name for place, (name, key) in enumerate(ran.began) if place >= edited.get(key, place + 1)]
        assert not again, f"ran although their results were given: {again}"
        found = await trace_of(graph, saver)
        for rows in (*trace.values(), *found.values()):
            for row in rows:
                row["source"] = None
        same(trace[""], found[""], "traces")

    anyio.run(main, backend=loop)
