"""The `messages` stream: messages of nodes and models, each once, with their origin."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import anyio
import anyio.to_thread
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import (
    START,
    Command,
    MessagesState,
    NodeBuilder,
    Pregel,
    RemoveMessage,
    Send,
    StateGraph,
    StreamWriter,
    entrypoint,
    get_stream_writer,
    interrupt,
    task,
)
from pregel_async.channels import EphemeralValue, LastValue

pytestmark = pytest.mark.anyio


def message_of(content: str, id: str | None = None, role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": content, **({} if id is None else {"id": id})}


def graph_of(**nodes: Any) -> Any:
    """Return nodes in sequence on a list of messages."""
    made = StateGraph(MessagesState)
    before = START
    for name, node in nodes.items():
        made.add_node(name, node).add_edge(before, name)
        before = name
    return made


async def shown(graph: Any, given: Any, config: Any = None, **arguments: Any) -> list[Any]:
    return [chunk async for chunk in graph.astream(given, config, stream_mode="messages", **arguments)]


async def contents(graph: Any, given: Any, config: Any = None, **arguments: Any) -> list[Any]:
    return [chunk[-2]["content"] for chunk in map(tuple, await shown(graph, given, config, **arguments))]


async def test_a_chunk_is_a_message_with_metadata(saver: BaseCheckpointSaver) -> None:
    """A chunk is `(message or chunk, metadata)`, with exactly the keys of the metadata."""

    async def node(state: Any) -> Any:
        get_stream_writer().message(message_of("hel", "1"), {"model": "m", "tags": ["fast"]})
        return {"messages": [message_of("hello", "1"), message_of("bye", "2")]}

    made = StateGraph(MessagesState).add_node("a", node, metadata={"team": "x"}).add_edge(START, "a")
    got = await shown(made.compile(saver), {"messages": [message_of("hi", "0", "user")]}, "t")
    state = [snapshot async for snapshot in made.compile(saver).aget_state_history("t")]
    place = {
        "langgraph_step": 1,
        "langgraph_node": "a",
        "langgraph_triggers": ("branch:to:a",),
        "langgraph_path": ("__pregel_pull", "a"),
        "langgraph_checkpoint_ns": f"a:{state[1].tasks[0].id}",
        "checkpoint_ns": f"a:{state[1].tasks[0].id}",
        "thread_id": "t",
        "team": "x",
    }
    assert got == [
        (message_of("hel", "1"), {**place, "model": "m", "tags": ["fast"]}),
        (message_of("bye", "2"), place),
    ]


async def test_metadata_of_sends_and_nodes_without_a_thread() -> None:
    """The metadata has the path and triggers of a send, and no thread where there is none."""
    made = StateGraph(MessagesState).add_node("w", lambda n: {"messages": [message_of(str(n))]})
    made.add_conditional_edges(START, lambda state: [Send("w", 0), Send("w", 1)])
    got = sorted(await shown(made.compile(blocking=False), {}), key=lambda each: each[0]["content"])
    assert [place["langgraph_path"] for _, place in got] == [("__pregel_push", 0, False), ("__pregel_push", 1, False)]
    assert [place["thread_id"] for _, place in got] == [None, None]


async def test_the_users_metadata_and_tags() -> None:
    """The user's metadata of the node and of the chunk are merged, the chunk's taking precedence; the tags of both are
    joined."""
    node = (
        NodeBuilder()
        .subscribe_only("in")
        .do(lambda given: get_stream_writer().message(message_of("x"), {"a": 2, "tags": ["t2"]}))
    ).meta("t1", a=1, b=1)
    graph = Pregel(
        nodes={"n": node.write_to("out")},
        channels={"in": EphemeralValue(int), "out": LastValue(Any)},
        input_channels="in",
        output_channels="out",
        blocking=False,
    )
    ((_, place),) = await shown(graph, 1)
    assert (place["a"], place["b"], place["tags"]) == (2, 1, ["t1", "t2"])


@pytest.mark.parametrize("wrap", [lambda **m: m, lambda **m: SimpleNamespace(type="ai", **m)], ids=["dict", "object"])
async def test_objects_that_count_as_messages(wrap: Any) -> None:
    """Dicts and objects alike are messages; single, in a list, in a mapping of lists; nothing else."""

    class State(TypedDict, total=False):
        one: Any
        many: Any
        other: Any

    def node(state: Any) -> Any:
        message = wrap(id="1", content="one", **({"role": "ai"} if wrap(a=1) == {"a": 1} else {}))
        more = wrap(id="2", content="two", **({"role": "ai"} if wrap(a=1) == {"a": 1} else {}))
        return {"one": message, "many": [more, "text", 5], "other": {"content": "no role"}}

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile(blocking=False)
    got = await shown(graph, {"other": 1})
    ids = [message["id"] if isinstance(message, dict) else message.id for message, _ in got]
    assert sorted(ids) == ["1", "2"]


async def test_each_message_is_streamed_once() -> None:
    """A message that was streamed under an id, that the input or the state had, or that an earlier node returned, is
    not streamed again when a node returns it."""

    async def first(state: Any, writer: StreamWriter) -> Any:
        await writer.message(message_of("a", "1"))
        await writer.message(message_of("b", "1"))
        return {"messages": [message_of("ab", "1"), message_of("new", "2"), *state["messages"]]}

    async def second(state: Any) -> Any:
        return {"messages": [*state["messages"], message_of("newer", "3")]}

    graph = graph_of(first=first, second=second).compile()
    assert await contents(graph, {"messages": [message_of("hi", "0", "user")]}) == ["a", "b", "new", "newer"]


async def test_messages_of_sends_are_not_streamed() -> None:
    """A send's argument is the node's input: the messages in it are not new."""

    def work(given: Any) -> Any:
        return {"messages": [*given["messages"], message_of("new", "2")]}

    made = StateGraph(MessagesState).add_node("w", work)
    made.add_conditional_edges(START, lambda state: [Send("w", {"messages": [message_of("sent", "1")]})])
    assert await contents(made.compile(blocking=False), {}) == ["new"]


async def test_messages_without_an_id_get_one() -> None:
    """A node's message without an id is streamed with the id that it has in the state afterwards."""
    graph = graph_of(
        a=lambda state: {"messages": [message_of("x"), message_of("y")]},
        b=lambda state: {"messages": state["messages"]},
    )
    compiled = graph.compile(InMemorySaver(), blocking=False)
    got = await shown(compiled, {}, "t")
    kept = (await compiled.aget_state("t")).values["messages"]
    assert [message["content"] for message, _ in got] == ["x", "y"]
    assert [message["id"] for message, _ in got] == [message["id"] for message in kept]
    assert all(message["id"] for message in kept)


async def test_the_same_text_without_an_id_is_another_message() -> None:
    """Each message is streamed once, under the id that it has in the state. A response without an id was not streamed
    at all if the thread already had one with the same text, of this turn or of an earlier one."""
    yes = message_of("Yes.")
    graph = graph_of(a=lambda state: {"messages": [yes]}, b=lambda state: {"messages": [yes, yes]})
    compiled = graph.compile(InMemorySaver(), blocking=False)
    for turn in (1, 2, 3):
        got = await shown(compiled, {"messages": [message_of("Well?", role="user")]}, "t")
        kept = (await compiled.aget_state("t")).values["messages"][-3:]
        assert [message["content"] for message, _ in got] == ["Yes."] * 3, turn
        assert [message["id"] for message, _ in got] == [message["id"] for message in kept]


@pytest.mark.parametrize("keeps", [None, True])
async def test_messages_passed_on_without_an_id_are_not_streamed_again(keeps: Any) -> None:
    """Messages of a subgraph that keeps no ids, and of a task, are streamed where they were emitted, and not again."""

    class Plain(TypedDict):
        log: Annotated[list[Any], operator.add]

    sub = StateGraph(Plain).add_node("x", lambda state: {"log": [message_of("inside")]}).add_edge(START, "x")
    inside = sub.compile(checkpointer=keeps, blocking=False)

    @task
    async def call() -> dict[str, Any]:
        return message_of("task")

    async def runs(state: Any) -> Any:
        ended = await inside.ainvoke({"log": []})
        return {"messages": [ended["log"][-1], await call(), message_of("own")]}

    compiled = graph_of(a=runs, b=runs).compile(InMemorySaver(), blocking=False)
    got = await shown(compiled, {"messages": [message_of("hi", role="user")]}, "t", subgraphs=True)
    assert [message["content"] for _, (message, _) in got] == ["inside", "task", "own"] * 2
    alone = await shown(compiled, {"messages": [message_of("hi", role="user")]}, "u")
    assert [message["content"] for message, _ in alone] == ["task", "inside", "own"] * 2


@pytest.mark.parametrize(
    "given", ["hi", ("user", "hi"), ["hi"], [("human", "hi")], [message_of("hi", role="user")]], ids=repr
)
@pytest.mark.parametrize("keeps", [False, True])
async def test_the_inputs_message_is_not_the_nodes(given: Any, keeps: bool) -> None:
    """A subgraph returns the whole list: the caller's message, in whatever form, is not streamed as the node's."""
    inner = graph_of(n=lambda state: {"messages": [message_of("done")]}).compile(checkpointer=keeps or None)
    made = graph_of(a=inner).compile(InMemorySaver())
    assert await contents(made, {"messages": given}, "t") == ["done"]
    assert await contents(made, {"messages": given}, "t") == ["done"]


async def test_a_message_of_an_earlier_run_is_not_streamed(saver: BaseCheckpointSaver) -> None:
    """A thread's history is in the node's input: returning a part of it streams no message, in a resumed run
    neither."""
    graph = graph_of(a=lambda state: {"messages": [*state["messages"], message_of("n", str(len(state["messages"])))]})
    compiled = graph.compile(saver, blocking=False)
    assert await contents(compiled, {"messages": [message_of("hi", "u1", "user")]}, "t") == ["n"]
    assert await contents(compiled, {"messages": [message_of("hi", "u2", "user")]}, "t") == ["n"]


async def test_removals_and_recorded_messages_are_not_streamed() -> None:
    """A task that does not run again streams nothing again; a removal is no message."""

    async def good(state: Any) -> Any:
        return {"messages": [message_of("good", "1")]}

    async def flaky(state: Any) -> Any:
        await anyio.wait_all_tasks_blocked()
        if broken:
            raise ValueError
        return {"messages": [RemoveMessage(id="1"), message_of("late", "2")]}

    broken = [True]
    made = (
        StateGraph(MessagesState)
        .add_node(good)
        .add_node("later", flaky)
        .add_edge(START, "good")
        .add_edge(START, "later")
    )
    graph = made.compile(InMemorySaver())
    got: list[Any] = []
    with pytest.raises(ValueError):
        async for message, _ in graph.astream({"messages": [message_of("hi", "0")]}, "t", stream_mode="messages"):
            got.append(message["content"])
    assert got == ["good"]
    broken.clear()
    assert await contents(graph, None, "t") == ["late"]


@pytest.mark.parametrize("stored", [False, True])
async def test_once_across_subgraphs(stored: bool) -> None:
    """With `subgraphs=True` a message is streamed once, as that of the node that emitted it, and not again as that of
    the node which runs its graph; nor again by a later node."""
    sub = graph_of(x=lambda state: {"messages": [message_of("x", "1")]}, y=_speaks).compile(blocking=False)
    made = graph_of(sub=sub, after=lambda state: {"messages": state["messages"]})
    graph = made.compile(InMemorySaver() if stored else None, blocking=False)
    got = await shown(graph, {}, "t", subgraphs=True)
    assert [(len(ns), message["content"], place["langgraph_node"]) for ns, (message, place) in got] == [
        (1, "x", "x"),
        (1, "chunk", "y"),
    ]
    ((ns, (_, place)), _) = got
    assert place["checkpoint_ns"].startswith(f"{ns[0]}|x:")
    # A reader without subgraphs gets what the node that runs a subgraph returns.
    assert [(message["content"], place["langgraph_node"]) for message, place in await shown(graph, {}, "u")] == [
        ("x", "sub"),
        ("y", "sub"),
    ]


def _speaks(state: Any) -> Any:
    get_stream_writer().message(message_of("chunk", "2"))
    return {"messages": [message_of("y", "2")]}


async def test_nostream() -> None:
    """The tag "nostream" on the chunk or on the node suppresses the message."""

    def tagged(state: Any) -> Any:
        get_stream_writer().message(message_of("secret", "1"), {"tags": ["nostream"]})
        get_stream_writer().message(message_of("open", "2"))
        return {}

    assert await contents(graph_of(a=tagged).compile(blocking=False), {}) == ["open"]
    node = NodeBuilder().subscribe_only("in").do(lambda given: [message_of("x", "1")]).meta("nostream").write_to("out")
    graph = Pregel(
        nodes={"n": node},
        channels={"in": EphemeralValue(int), "out": LastValue(Any)},
        input_channels="in",
        output_channels="out",
        blocking=False,
    )
    assert await shown(graph, 1) == []


async def test_from_every_kind_of_code() -> None:
    """Messages are streamed from async nodes, threads, tasks, subgraphs and routers."""

    def speak(what: str) -> None:
        get_stream_writer().message(message_of(what, what))

    @task
    async def atask() -> None:
        speak("task")

    @task
    def plain_task() -> None:
        speak("plain task")

    sub = StateGraph(MessagesState).add_node("n", lambda state: speak("inside")).add_edge(START, "n").compile()
    flow = entrypoint()(lambda given: speak("entrypoint"))

    async def anode(state: Any, writer: StreamWriter) -> None:
        await writer.message(message_of("parameter", "p"))
        await atask()
        await plain_task()
        await sub.ainvoke({})
        await flow.ainvoke(1)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, speak, "thread")

    graph = graph_of(anode=anode, plain=lambda state: speak("plain")).compile()
    got = await shown(graph, {})
    assert [message["content"] for message, _ in got] == ["parameter", "task", "plain task", "thread", "plain"]
    assert [place["langgraph_node"] for _, place in got] == ["anode", "atask", "plain_task", "anode", "plain"]
    inside = await shown(graph, {}, subgraphs=True)
    assert [message["content"] for _, (message, _) in inside] == [
        "parameter", "task", "plain task", "inside", "entrypoint", "thread", "plain",
    ]  # fmt: skip


async def test_chunks_arrive_while_their_node_runs() -> None:
    """Chunks reach the reader while their superstep still runs."""
    heard = anyio.Event()

    async def node(state: Any, writer: StreamWriter) -> Any:
        await writer.message(message_of("a", "1"))
        await heard.wait()
        return {"messages": [message_of("a", "1")]}

    with anyio.fail_after(30):
        async for message, _ in graph_of(node=node).compile().astream({}, stream_mode="messages"):
            assert message["content"] == "a"
            heard.set()


async def test_a_reader_may_change_what_it_gets() -> None:
    """P1: a reader's change to a chunk does not reach the node's later chunks."""

    async def node(state: Any, writer: StreamWriter) -> Any:
        said, tags = message_of("a", "1"), {"tags": ["t"], "more": [1]}
        await writer.message(said, tags)
        said["content"] = "changed"
        tags["more"].append(2)
        return {"messages": [{**message_of("b", "2"), "extra": [1]}]}

    graph = graph_of(node=node).compile(InMemorySaver())
    seen = []
    async for message, place in graph.astream({}, "t", stream_mode="messages"):
        seen.append((message["content"], place.get("more")))
        message["content"] = "mine"
        message.setdefault("extra", []).append(9)
        place.clear()
    assert seen == [("a", [1]), ("b", None)]
    assert (await graph.aget_state("t")).values["messages"] == [{**message_of("b", "2"), "extra": [1]}]


async def test_messages_before_questions() -> None:
    """A node that asks and is resumed streams its messages again, and returns them once."""

    def node(state: Any) -> Any:
        get_stream_writer().message(message_of("thinking", "1"))
        return {"messages": [message_of(interrupt("?"), "2")]}

    graph = graph_of(node=node).compile(InMemorySaver(), blocking=False)
    assert await contents(graph, {}, "t") == ["thinking"]
    assert await contents(graph, Command(resume="answer"), "t") == ["thinking", "answer"]


async def test_without_a_reader() -> None:
    """Without a reader the call returns at once, and nothing is copied."""

    class Uncopyable:
        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError

    async def node(state: Any, writer: StreamWriter) -> None:
        await writer.message(Uncopyable(), {"x": Uncopyable()})
        await writer(Uncopyable())

    graph = graph_of(node=node).compile()
    assert await graph.ainvoke({}) == {"messages": []}
    assert [chunk async for chunk in graph.astream({}, stream_mode="updates")] == [{"node": None}]
