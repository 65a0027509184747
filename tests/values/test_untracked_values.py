"""Sends and inputs with the value of an untracked key: the value is never stored, and a resume raises if a send lacks
it."""

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Command, Send, StateGraph, interrupt, task
from pregel_async._core.untracked import storable
from pregel_async.channels import LastValue, UntrackedValue
from pregel_async.errors import UnstorableValueError, UntrackedValueLostError
from pregel_async.pregel import NodeBuilder, Pregel

pytestmark = pytest.mark.anyio


class Client:
    """An object that cannot be stored."""

    name = "c"


class State(TypedDict, total=False):
    items: list[int]
    client: Annotated[Any, UntrackedValue]
    done: Annotated[list[Any], operator.add]


@dataclasses.dataclass
class Data:
    items: list[int] = dataclasses.field(default_factory=list)
    client: Annotated[Any, UntrackedValue] = None
    done: Annotated[list[Any], operator.add] = dataclasses.field(default_factory=list)


class Struct(msgspec.Struct, frozen=True):
    items: list[int] = msgspec.field(default_factory=list)
    client: Annotated[Any, UntrackedValue] = None
    done: Annotated[list[Any], operator.add] = msgspec.field(default_factory=list)


class Model(pydantic.BaseModel):
    items: list[int] = []
    client: Annotated[Any, UntrackedValue] = None
    done: Annotated[list[Any], operator.add] = []


def connect(state: Any) -> Any:
    return {"client": Client()}


def items_of(state: Any) -> list[int]:
    return state["items"] if isinstance(state, dict) else state.items


def spread(state: Any) -> Any:
    if isinstance(state, dict):
        return [Send("work", {**state, "item": item}) for item in state["items"]]
    kind = type(state)
    return [Send("work", kind(items=[item], client=state.client)) for item in state.items]


def worked(arg: Any) -> Any:
    client, item = (arg["client"], arg["item"]) if isinstance(arg, dict) else (arg.client, arg.items[0])
    return {"done": [f"{client.name}{item}"]}


def graph_of(work: Any, schema: Any = State) -> Any:
    builder = StateGraph(schema).add_node("connect", connect).add_node("work", work)
    return builder.add_edge(START, "connect").add_conditional_edges("connect", spread, ["work"])


@pytest.mark.parametrize("schema", [State, Data, Struct, Model])
async def test_an_untracked_value_goes_with_a_send(saver: BaseCheckpointSaver, schema: Any) -> None:
    """A send may carry an untracked value, as the advice of `UnstorableValueError` requires."""
    graph = graph_of(worked, schema).compile(saver)
    await graph.ainvoke({"items": [1, 2]}, "t")
    assert (await graph.aget_state("t")).values["done"] == ["c1", "c2"]


async def test_sends_of_a_command_carry_untracked_values(saver: BaseCheckpointSaver) -> None:
    """A node returns a command with sends while a sibling asks a question: its result is recorded with the sends."""

    def start(state: State) -> Command[Any]:
        client = Client()
        return Command(update={"client": client}, goto=[Send("work", {"client": client, "item": 1})])

    def ask(state: State) -> Any:
        return {"done": [interrupt("?")]}

    builder = StateGraph(State).add_node("start", start, destinations=("work",)).add_node("ask", ask)
    builder.add_node("work", worked).add_edge(START, "start").add_edge(START, "ask")
    graph = builder.compile(saver)
    await graph.ainvoke({"items": []}, "t")
    with pytest.raises(UntrackedValueLostError) as caught:
        await graph.ainvoke(Command(resume="yes"), "t")
    assert (caught.value.node, caught.value.key) == ("work", "client")
    got = await graph.ainvoke(Command(update={"client": Client()}), "t")
    assert got["done"] == ["yes", "c1"]


@pytest.mark.parametrize("schema", [State, Data, Struct, Model])
async def test_a_resume_that_lacks_an_untracked_value_raises(saver: BaseCheckpointSaver, schema: Any) -> None:
    """P5, P15: a resume that lacks the value runs nothing; the error names node and key, and what to do; recorded
    results stay."""
    broken, ran = [True], list[Any]()

    def work(arg: Any) -> Any:
        ran.append((arg["item"], None) if isinstance(arg, dict) else (arg.items[0], None))
        if broken and ran[-1][0] == 2:
            raise ValueError("down")
        return worked(arg)

    graph = graph_of(work, schema).compile(saver)
    with pytest.raises(ValueError, match="down"):
        await graph.ainvoke({"items": [1, 2]}, {"configurable": {"thread_id": "t"}, "max_concurrency": 1})
    broken.clear()
    ran.clear()
    with pytest.raises(UntrackedValueLostError, match="node 'work'.*'t'.*'client'") as caught:
        await graph.ainvoke(None, "t")
    assert (caught.value.node, caught.value.key, caught.value.thread_id) == ("work", "client", "t")
    assert ran == []
    snapshot = await graph.aget_state("t")
    assert snapshot.next == ("work",)
    await graph.ainvoke(Command(update={"client": Client()}), "t")
    assert ran == [(2, None)]
    assert (await graph.aget_state("t")).values["done"] == ["c1", "c2"]


async def test_a_resume_of_sends_that_have_their_results_needs_none(saver: BaseCheckpointSaver) -> None:
    """P5: a send with a recorded result is not run, so a resume does not need its argument."""

    def ask(state: State) -> Any:
        return {"done": [interrupt("?")]}

    builder = graph_of(worked).add_node("ask", ask).add_edge("connect", "ask")
    graph = builder.compile(saver)
    await graph.ainvoke({"items": [1]}, "t")
    got = await graph.ainvoke(Command(resume="yes"), "t")
    assert sorted(got["done"]) == ["c1", "yes"]


def test_a_field_that_is_not_set_is_no_value() -> None:
    """None in an unset field of a state's object does not count as a value of the untracked key."""
    send = Send("work", Data(items=[1]))
    assert storable(send, frozenset({"client"})) is send


async def test_a_value_that_no_key_holds_is_refused() -> None:
    """P11: only values of untracked keys are left out; other unstorable values are refused."""

    def spread_other(state: State) -> Any:
        return Send("work", {"other": state["client"]})

    builder = StateGraph(State).add_node("connect", connect).add_node("work", worked)
    graph = builder.add_edge(START, "connect").add_conditional_edges("connect", spread_other, ["work"])
    with pytest.raises(UnstorableValueError, match="other"):
        await graph.compile(InMemorySaver()).ainvoke({"items": []}, "t")


@pytest.mark.parametrize(("schema", "durability"), [(State, "sync"), (Model, "async"), (State, "exit")])
async def test_an_input_may_hold_an_untracked_value(saver: BaseCheckpointSaver, schema: Any, durability: Any) -> None:
    """An input may carry an untracked value, as the advice of `UnstorableValueError` requires. Its checkpoint has the
    other keys; a resume finds the state without the value, as after any superstep."""

    def ask(state: Any) -> Any:
        client = state.get("client") if isinstance(state, dict) else state.client
        return {"done": [interrupt(None if client is None else client.name)]}

    graph = StateGraph(schema).add_node("ask", ask).add_edge(START, "ask").compile(saver)
    given = {"items": [1], "client": Client()}
    asked = await graph.ainvoke(given if schema is State else schema(**given), "t", durability=durability)
    assert [question.value for question in asked["__interrupt__"]] == ["c"]
    before = [state async for state in graph.aget_state_history("t")][-1]
    assert before.values.get("client") is None
    replayed = await graph.ainvoke(None, before.config)
    assert [question.value for question in replayed["__interrupt__"]] == [None]
    assert replayed["items"] == [1]


async def test_what_else_an_input_holds_is_refused_by_its_key() -> None:
    """P11: only untracked keys are left out, and the error names the key of another unstorable value."""
    graph = StateGraph(State).add_node("work", worked).add_edge(START, "work").compile(InMemorySaver())
    with pytest.raises(UnstorableValueError, match="channel 'done'"):
        await graph.ainvoke({"done": [Client()], "client": Client()}, "t")


MODES: Any = ["values", "updates", "tasks", "checkpoints", "debug", "custom"]


@pytest.mark.parametrize("schema", [State, Data])
async def test_stored_events_have_no_untracked_values(saver: BaseCheckpointSaver, schema: Any) -> None:
    """Events stored for reconnecting readers leave untracked values out, such as access tokens. A live reader gets
    every chunk with the value, a reconnecting one without it."""

    @task
    async def renewed() -> Any:
        return {"client": "of a call"}

    async def work(state: Any) -> Any:
        await renewed()
        return [{"done": ["worked"]}, {"client": "SECRET"}, {"done": [{"client": "of an item"}]}]

    inner = StateGraph(schema).add_node("work", work).add_edge(START, "work").compile()
    builder = StateGraph(schema).add_node("spread", lambda state: Command(goto=[Send("inner", state)]))
    graph = builder.add_node("inner", inner).add_edge(START, "spread").compile(saver, blocking=False)
    given = schema(client="SECRET", done=[], items=[])
    asked: Any = {"stream_mode": MODES, "subgraphs": True, "version": "v2"}
    live = [part async for part in graph.astream(given, "t", **asked, keep_events=True)]
    rows = await saver.events("t", limit=1000)
    assert "SECRET" in repr(live)
    assert rows and not any(b"SECRET" in row.frame for row in rows)
    again = [part async for part in graph.astream(None, "t", **asked, after=live[0]["cursor"])]
    assert [part["type"] for part in again] == [part["type"] for part in live[1:]]
    assert "SECRET" not in repr(again) and "of a call" in repr(again) and "of an item" in repr(again)


@pytest.mark.parametrize("schema", [State, Data, Struct, Model])
@pytest.mark.parametrize("sends", [False, True])
async def test_a_resumed_subgraph_gets_the_untracked_values_of_its_input(
    saver: BaseCheckpointSaver, schema: Any, sends: bool
) -> None:
    """A subgraph continues from its stored state, which lacks them: the values that the resume gave would be lost."""

    def ask(state: Any) -> Any:
        return {"done": [interrupt("which item?")]}

    def use(state: Any) -> Any:
        client = state["client"] if isinstance(state, dict) else state.client
        return {"done": [client.name]}

    inner = StateGraph(schema).add_sequence([ask, use]).add_edge(START, "ask").compile()

    async def node(state: Any) -> Any:
        found = await inner.ainvoke(state)
        return {"done": found["done"] if isinstance(found, dict) else found.done}

    def send(state: Any) -> Any:
        return [Send("work", {**state} if isinstance(state, dict) else state)]

    made = StateGraph(schema).add_node("connect", connect).add_node("work", node).add_edge(START, "connect")
    made = made.add_conditional_edges("connect", send, ["work"]) if sends else made.add_edge("connect", "work")
    graph = made.compile(saver)
    await graph.ainvoke({"items": []}, "t")
    found = await graph.ainvoke(Command(resume=1, update={"client": Client()}), "t")
    assert (found["done"] if isinstance(found, dict) else found.done) == [1, "c"]


@pytest.mark.parametrize(("given", "expected"), [({"client": None}, "None"), (Command(update={"client": "c"}), "'c'")])
async def test_a_resumed_subgraph_reads_its_input_as_in_the_first_run(
    saver: BaseCheckpointSaver, given: Any, expected: str
) -> None:
    """None is a value of a dict's key, and a command may be the input: the key is not missing after a resume."""

    def ask(state: State) -> Any:
        return {"done": [interrupt("which item?")]}

    def use(state: State) -> Any:
        return {"done": [repr(state["client"])]}

    inner = StateGraph(State).add_sequence([ask, use]).add_edge(START, "ask").compile()

    async def node(state: State) -> Any:
        if isinstance(given, Command):
            return {"done": (await inner.ainvoke(Command(update=given.update, goto="ask")))["done"]}
        return {"done": (await inner.ainvoke(given))["done"]}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile(saver)
    await graph.ainvoke({"items": []}, "t")
    assert (await graph.ainvoke(Command(resume=1), "t"))["done"] == [1, expected]


async def test_a_channels_mapping_is_no_state(saver: BaseCheckpointSaver) -> None:
    """The input of a low-level graph is the value of a channel: its entries are not taken for values of channels."""

    def ask(request: Any) -> Any:
        return interrupt("which item?")

    def use(read: Any) -> Any:
        return repr(read.get("client"))

    inner = Pregel(
        nodes={
            "ask": NodeBuilder().subscribe_only("request").do(ask).write_to("answer"),
            "use": NodeBuilder().subscribe_to("answer").read_from("client").do(use).write_to("found"),
        },
        channels={
            "request": LastValue(dict),
            "answer": LastValue(int),
            "client": UntrackedValue(Any),
            "found": LastValue(str),
        },
        input_channels="request",
        output_channels="found",
    )

    async def node(state: State) -> Any:
        return {"done": [await inner.ainvoke({"client": "of the request"})]}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile(saver)
    await graph.ainvoke({"items": []}, "t")
    assert (await graph.ainvoke(Command(resume=1), "t"))["done"] == ["None"]
