"""Graphs for the command line's tests. Each node that runs says so in `ran.txt`, in the working directory."""

from __future__ import annotations

import operator
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio.lowlevel

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, NodeBuilder, Pregel, Send, StateGraph, interrupt
from pregel_async.channels import LastValue
from pregel_async.runtime import Runtime, get_config


def ran(what: str) -> None:
    with open("ran.txt", "a") as file:
        file.write(what + "\n")


@dataclass(frozen=True)
class Answer:
    text: str
    letters: list[str]


class Hello(TypedDict, total=False):
    name: str
    times: Annotated[int, operator.add]
    answer: Answer


async def hello(state: Hello) -> dict[str, Any]:
    ran("hello")
    print("a node prints this")
    name = state.get("name", "world")
    return {"answer": Answer(f"hello, {name}", list(name)), "times": 1}


greeting = StateGraph(Hello).add_node("hello", hello).add_edge(START, "hello")
compiled = greeting.compile(InMemorySaver(), name="compiled")


class Form(TypedDict, total=False):
    name: str
    colour: str


async def ask(state: Form) -> Form:
    ran("ask")
    return {"name": interrupt("who are you?")}


async def ask_more(state: Form) -> Form:
    ran("ask_more")
    return {"colour": interrupt({"which": ["red", "blue"]})}


asking = StateGraph(Form).add_node("ask", ask).add_node("ask_more", ask_more)
asking.add_edge(START, "ask").add_edge(START, "ask_more")
outer = StateGraph(Form).add_node("inner", asking.compile()).add_edge(START, "inner")


def make() -> StateGraph[Any]:
    return greeting


def make_stored(checkpointer: BaseCheckpointSaver | None) -> Pregel:
    return Pregel(
        nodes={"double": NodeBuilder().subscribe_only("in").do(lambda number: number * 2).write_to("out")},
        channels={"in": LastValue(int), "out": LastValue(int)},
        input_channels="in",
        output_channels="out",
        checkpointer=checkpointer,
    )


raw = make_stored(None)


class Holder:
    graph = greeting


number = 3


def make_nothing() -> int:
    return 3


def make_of_two(one: object, two: object) -> object:
    return greeting


async def make_later() -> object:
    return greeting


class Fan(TypedDict, total=False):
    items: int
    done: Annotated[list[int], operator.add]


class Item(TypedDict):
    item: int


def items(state: Fan) -> list[Send]:
    return [Send("work", Item(item=item)) for item in range(state.get("items", 5))]


async def first(state: Fan) -> None:
    ran("first")


async def work(task: Item) -> dict[str, Any]:
    """The last of five waits until there is a file `open`."""
    item = task["item"]
    if item == 4 and not os.path.exists("open"):
        print("item 4 waits", flush=True)
        await anyio.sleep_forever()
    ran(f"work {item}")
    return {"done": [item]}


def _fan(node: Any) -> StateGraph[Any]:
    builder = StateGraph(Fan).add_node("first", first).add_node("work", node)
    return builder.add_edge(START, "first").add_conditional_edges("first", items, ["work"])


waiting = _fan(work)


async def waits(state: Hello) -> None:
    print("a node with an odd name", flush=True)
    await anyio.sleep_forever()


odd = StateGraph(Hello).add_node("[/red] smile", waits).add_edge(START, "[/red] smile")


async def breaks(task: Item) -> dict[str, Any]:
    """Unless there is a file `open`."""
    await anyio.lowlevel.checkpoint()
    if task["item"] % 2 and not os.path.exists("open"):
        raise ValueError(f"item {task['item']}\nis odd")
    return await work(task)


breaking = _fan(breaks)


def fails(state: Hello) -> None:
    ran("fails")
    if not os.path.exists("open"):
        raise ConnectionError("nobody is there")


failing = greeting.__class__(Hello).add_sequence([hello, fails]).add_edge(START, "hello")


def reads_a_pipe(state: Hello) -> None:
    """In a worker thread; ends when a test opens the pipe for writing."""
    print("reading", flush=True)
    Path("pipe").read_text()
    ran("read")


reading = StateGraph(Hello).add_node("reads", reads_a_pipe).add_edge(START, "reads")


async def waits_for_a_file(state: Hello) -> None:
    """Can be cancelled, unlike a function in a worker thread."""
    print("waiting for a file", flush=True)
    while not os.path.exists("open"):
        await anyio.sleep(0.01)
    ran("waited")


waiting_first = StateGraph(Hello).add_sequence([waits_for_a_file, hello]).add_edge(START, "waits_for_a_file")


async def blocks(state: Hello) -> None:
    """Keeps the event loop busy."""
    print("blocking", flush=True)
    while True:
        time.sleep(0.05)


blocking = StateGraph(Hello).add_node("blocks", blocks).add_edge(START, "blocks")


async def interrupts(state: Hello) -> None:
    raise KeyboardInterrupt


async def exits(state: Hello) -> None:
    raise SystemExit(7)


interrupting = StateGraph(Hello).add_node("interrupts", interrupts).add_edge(START, "interrupts")
exiting = StateGraph(Hello).add_node("exits", exits).add_edge(START, "exits")


async def again(state: Hello) -> dict[str, Any]:
    return {"times": 1}


looping = StateGraph(Hello).add_node("again", again).add_edge(START, "again").add_edge("again", "again")


NASTY = "\x1b[31m\x9b2J\u202e\u200b\x07\r\nforged line"


@dataclass(frozen=True)
class Customer:
    name: str


async def greet(state: Hello, runtime: Runtime[Customer]) -> dict[str, Any]:
    config = get_config()
    ran(f"greet {runtime.context.name} {config['configurable'].get('tone')}")
    return {"name": runtime.context.name, "times": 1}


with_context = StateGraph(Hello, context_schema=Customer).add_node("greet", greet).add_edge(START, "greet")


class Nasty(TypedDict, total=False):
    value: Any
    fails: bool


async def asks_nastily(state: Nasty) -> Nasty:
    return {"value": interrupt(NASTY)}


async def fails_nastily(state: Nasty) -> None:
    if state.get("fails"):
        raise ValueError(NASTY)


nasty = (
    StateGraph(Nasty)
    .add_node(f"asks{NASTY}", asks_nastily)
    .add_node(f"fails{NASTY}", fails_nastily)
    .add_edge(START, f"asks{NASTY}")
    .add_edge(f"asks{NASTY}", f"fails{NASTY}")
)
