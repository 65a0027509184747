"""Threads of the whole graph language: questions, calls of tasks, subgraphs of each kind, branches, edits, messages."""

from __future__ import annotations

import operator
import uuid
from typing import Annotated, Any, TypedDict

from checkpoint_savers import Codec
from pregel_async import (
    START,
    Command,
    MessagesState,
    Overwrite,
    RemoveMessage,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)
from pregel_async.channels import DeltaChannel

later = False
"""Set while the threads are being finished: results are marked as later."""


def codec() -> Codec:
    return Codec()


def token(name: str) -> str:
    """A result that differs each time a node runs, so that a stored result can be recognised."""
    return f"{name} later" if later else f"{name} {uuid.uuid4().hex[:8]}"


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    delta: Annotated[list[str], DeltaChannel(operator.add, list)]
    answer: str


@task
async def work(name: str) -> str:
    return token(f"task {name}")


def asking(saver: Any) -> Any:
    """A node that calls tasks and asks two questions, next to one that finishes and one that asks."""

    async def asks(state: State) -> dict[str, Any]:
        done = [await work("before")]
        first = interrupt({"question": "first?", "options": ("a", "b")})
        done.append(await work(f"after {first}"))
        second = interrupt("second?")
        return {"log": [*done, f"answers {first} {second}"], "answer": second}

    async def beside(state: State) -> dict[str, Any]:
        return {"log": [token("beside")]}

    async def also(state: State) -> Command[Any]:
        return Command(update={"log": [f"also {interrupt('also?')}"]}, goto="end")

    async def end(state: State) -> dict[str, Any]:
        return {"log": [token("end")], "delta": ["end"]}

    graph = StateGraph(State)
    graph.add_node("asks", asks).add_node("beside", beside).add_node("also", also).add_node("end", end)
    for name in ("asks", "beside", "also"):
        graph.add_edge(START, name)
    return graph.add_edge("asks", "end").compile(saver)


def nested(saver: Any, *, kept: bool) -> Any:
    """Two levels of subgraphs, called twice, with a question in the innermost; they may keep their state."""

    async def count(state: State) -> dict[str, Any]:
        return {"log": [token("count")], "delta": [f"inside {len(state.get('delta', []))}"]}

    async def ask(state: State) -> dict[str, Any]:
        return {"log": [f"inner {interrupt('inner?')}"]}

    inner = StateGraph(State).add_node("count", count).add_node("ask", ask)
    inner.add_edge(START, "count").add_edge("count", "ask")
    middle = StateGraph(State).add_node("inner", inner.compile()).add_node("note", _noted("middle"))
    middle.add_edge(START, "note").add_edge("note", "inner")
    made = middle.compile(checkpointer=True if kept else None)

    async def call(state: State) -> dict[str, Any]:
        result = await made.ainvoke({"log": ["called"]})
        return {"log": [f"inside: {result['log'][-1]}"]}

    outer = StateGraph(State).add_node("first", _noted("first")).add_node("call", call)
    outer.add_edge(START, "first").add_edge("first", "call")
    if kept:
        outer.add_node("again", call).add_edge("call", "again")
    return outer.compile(saver)


def _noted(name: str) -> Any:
    async def note(state: State) -> dict[str, Any]:
        return {"log": [token(name)]}

    return note


def chain(saver: Any) -> Any:
    graph = StateGraph(State)
    for name in "abc":
        graph.add_node(name, _grows(name))
    return graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").compile(saver)


def _grows(name: str) -> Any:
    async def grow(state: State) -> dict[str, Any]:
        return {"log": [token(name)], "delta": [name, f"{name}{name}"]}

    return grow


def sends(saver: Any) -> Any:
    """A fan-out that stops before its tasks run."""

    async def plan(state: State) -> Command[Any]:
        return Command(update={"log": [token("plan")]}, goto=[Send("one", {"i": i, "t": (i,)}) for i in range(3)])

    async def one(given: Any) -> dict[str, Any]:
        return {"log": [f"one {given['i']} {given['t']!r}"]}

    graph = StateGraph(State).add_node("plan", plan).add_node("one", one).add_edge(START, "plan")
    return graph.compile(saver, interrupt_before=["one"])


def chat(saver: Any) -> Any:
    async def reply(state: MessagesState) -> dict[str, Any]:
        number = len(state["messages"])
        said: list[Any] = [{"role": "assistant", "content": f"reply {number}", "id": f"m{number}"}]
        return {"messages": [*said, RemoveMessage(id="m1")] if number == 5 else said}

    return StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply").compile(saver)


def workflow(saver: Any) -> Any:
    @entrypoint(checkpointer=saver)
    async def run(given: str, *, previous: Any = None) -> Any:
        parts = [await work(f"{given} {number}") for number in range(3)]
        answer = interrupt(f"is {given} well?")
        return entrypoint.final(value=[*parts, answer, previous], save=[given, answer])

    return run


def graphs(saver: Any) -> dict[str, Any]:
    """Return the graph of each thread."""
    return {
        "asking": asking(saver),
        "nested": nested(saver, kept=False),
        "kept": nested(saver, kept=True),
        "forked": chain(saver),
        "edited": chain(saver),
        "edited inside": chain(saver),
        "sends": sends(saver),
        "chat": chat(saver),
        "workflow": workflow(saver),
    }


async def fill(saver: Any) -> None:
    made = graphs(saver)
    paused = await made["asking"].ainvoke({"log": ["in"]}, "asking")
    ids = {one.value if isinstance(one.value, str) else "first?": one.id for one in paused["__interrupt__"]}
    await made["asking"].ainvoke(Command(resume={ids["first?"]: "yes"}), "asking")
    for thread in ("nested", "kept"):
        await made[thread].ainvoke({"log": ["in"]}, thread)
    await made["kept"].ainvoke(Command(resume="one"), "kept")

    await made["forked"].ainvoke({"log": ["in"]}, "forked")
    past = [one async for one in made["forked"].aget_state_history("forked")]
    before_b = next(one for one in past if one.next == ("b",))
    await made["forked"].ainvoke(None, before_b.config)
    edited = await made["forked"].aupdate_state(before_b.config, {"log": ["by hand"]}, as_node="a")
    await made["forked"].ainvoke(None, edited)

    await made["edited"].ainvoke({"log": ["in"]}, "edited")
    await made["edited"].aupdate_state("edited", {"log": Overwrite(["rewritten"]), "answer": "x"}, as_node="a")
    await made["edited inside"].aupdate_state("edited inside", {"log": ["from nothing"]}, as_node="b")
    await made["sends"].ainvoke({"log": ["in"]}, "sends")
    for number in range(3):
        said = {"role": "user", "content": f"hello {number}", "id": f"u{number}"}
        await made["chat"].ainvoke({"messages": [said]}, "chat")
    await made["workflow"].ainvoke("one", "workflow")
    await made["workflow"].ainvoke(Command(resume="well"), "workflow")
    await made["workflow"].ainvoke("two", "workflow")


async def finish(saver: Any) -> dict[str, Any]:
    """Answer the open questions, and resume the open supersteps."""
    global later
    later = True
    made = graphs(saver)
    open_ones = [one for one in (await made["asking"].aget_state("asking")).interrupts]
    answers = {one.id: f"answer to {one.value}" for one in open_ones}
    return {
        "asking": await made["asking"].ainvoke(Command(resume=answers), "asking"),
        "nested": await made["nested"].ainvoke(Command(resume="deep"), "nested"),
        "kept": await made["kept"].ainvoke(Command(resume="two"), "kept"),
        "forked": await made["forked"].ainvoke({"log": ["more"]}, "forked"),
        "edited": await made["edited"].ainvoke(None, "edited"),
        "edited inside": await made["edited inside"].ainvoke(None, "edited inside"),
        "sends": await made["sends"].ainvoke(None, "sends"),
        "chat": await made["chat"].ainvoke({"messages": [{"role": "user", "content": "bye", "id": "u9"}]}, "chat"),
        "workflow": await made["workflow"].ainvoke(Command(resume="fine"), "workflow"),
    }


async def more(saver: Any, filled: Any) -> dict[str, Any]:
    """The states of subgraphs, read through their outer graph."""
    made = graphs(saver)
    found: dict[str, Any] = {}
    for thread in ("nested", "kept"):
        snapshot = await made[thread].aget_state(thread, subgraphs=True)
        inside = [one.state for one in snapshot.tasks]
        found[thread] = [
            repr((one.values, one.next, [(two.id, two.value) for two in one.interrupts])) for one in inside if one
        ]
    return found
