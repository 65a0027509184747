"""`ToolNode`: calls are run at the same time, answered in order, and recorded one by one."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Annotated, Any

import anyio
import pytest

from checkpoint_savers import InMemorySaver, InMemoryStore
from checkpoint_savers.errors import StorageError
from pregel_async import END, START, Command, MessagesState, Runtime, Send, StateGraph, add_messages, interrupt
from pregel_async.errors import GraphValidationError, InvalidInputError, InvalidUpdateError
from pregel_async.prebuilt import (
    InjectedState,
    InjectedStore,
    InjectedToolCallId,
    InvalidToolError,
    ToolCallRequest,
    ToolInjectionError,
    ToolInvocationError,
    ToolNode,
    ToolRuntime,
    tool,
    tools_condition,
)
from tests.prebuilt.calls import asking, call, contents

pytestmark = pytest.mark.anyio


class State(MessagesState, total=False):
    user: str
    log: Annotated[list[str], operator.add]


def upper(text: str) -> str:
    return text.upper()


def broken(text: str) -> str:
    raise ValueError(f"no {text}")


def graph_of(node: ToolNode, saver: Any = None, *, send: bool = False, store: Any = None) -> Any:
    """A graph of the node alone, which gets the state, or one send for each call."""
    builder = StateGraph(State).add_node("tools", node)
    if send:
        builder.add_conditional_edges(
            START, lambda state: [Send("tools", [each]) for each in state["messages"][-1]["tool_calls"]], ["tools"]
        )
    else:
        builder.add_edge(START, "tools")
    return builder.compile(saver, store=store)


async def results(graph: Any, *calls: dict[str, Any], thread: str | None = None, **state: Any) -> list[Any]:
    done = await graph.ainvoke({"messages": [asking(*calls)], **state}, thread)
    return contents(done)[1:]


@pytest.mark.parametrize("send", [False, True])
async def test_results_come_in_the_order_of_the_calls(send: bool) -> None:
    """All calls run at the same time, plain functions in threads; the first one ends last."""
    last = anyio.Event()
    threads: set[int] = set()

    async def slow(text: str) -> str:
        await last.wait()
        return f"slow {text}"

    def blocking(text: str) -> str:
        threads.add(threading.get_ident())
        return f"blocking {text}"

    async def quick(text: str) -> str:
        last.set()
        return f"quick {text}"

    graph = graph_of(ToolNode([slow, quick, blocking]), send=send)
    calls = call("slow", "1", text="a"), call("blocking", "2", text="b"), call("quick", "3", text="c")
    assert await results(graph, *calls) == ["slow a", "blocking b", "quick c"]
    assert threads != {threading.get_ident()}


async def test_alone() -> None:
    """Without a graph: by a state, a list of messages, or a list of calls. The form of the result follows the input."""
    node = ToolNode([upper])
    answer = {"role": "tool", "tool_call_id": "1", "name": "upper", "content": "A"}
    asked = asking(call("upper", "1", text="a"))
    assert await node.ainvoke({"messages": [asked]}) == {"messages": [answer]}
    assert await node.ainvoke([asked]) == [answer]
    assert await node.ainvoke([call("upper", "1", text="a")]) == {"messages": [answer]}
    sent: Any = {"__type": "tool_call_with_context", "tool_call": call("upper", "1", text="a"), "state": {}}
    assert await node.ainvoke(sent) == {"messages": [answer]}
    assert await ToolNode([upper], messages_key="chat").ainvoke({"chat": [asked]}) == {"chat": [answer]}


@pytest.mark.one_loop
def test_alone_without_an_event_loop() -> None:
    assert contents(ToolNode([upper]).invoke([call("upper", text="a"), call("upper", "2", text="b")])) == ["A", "B"]


@pytest.mark.one_loop
@pytest.mark.parametrize("given", [[], {}, {"messages": []}, {"messages": [{"role": "user", "content": "hi"}]}])
async def test_an_input_without_calls(given: Any) -> None:
    with pytest.raises(InvalidInputError, match="ToolNode 'tools' has nothing to run"):
        await ToolNode([upper]).ainvoke(given)


async def test_an_error_alone_is_raised_as_it_is() -> None:
    """Of the calls that run together without a graph, one failure is raised as the tool's own exception."""
    with pytest.raises(ValueError, match="no a"):
        await ToolNode([upper, broken]).ainvoke([call("broken", text="a"), call("upper", "2", text="b")])


@pytest.mark.one_loop
@pytest.mark.parametrize("send", [False, True])
async def test_unknown_tools_and_invalid_arguments_become_messages(send: bool) -> None:
    """By default the model is shown both, and every other error is raised."""
    graph = graph_of(ToolNode([upper, broken]), send=send)
    unknown, invalid = await results(graph, call("uper", "1", text="a"), call("upper", "2"))
    assert unknown == "There is no tool 'uper'. The tools are: upper, broken."
    assert invalid.startswith("The call of 'upper' is invalid: Object missing required field `text`.")
    with pytest.raises(ValueError, match="no a"):
        await results(graph, call("broken", text="a"))


@pytest.mark.one_loop
async def test_arguments_that_could_not_be_parsed() -> None:
    """A call that the adapters could not parse is answered, too: providers refuse calls without an answer."""
    bad = {"type": "invalid_tool_call", "id": "2", "name": "upper", "args": '{"te', "error": "it is cut off"}
    message = {**asking(call("upper", text="a")), "invalid_tool_calls": [bad]}
    update = await ToolNode([upper]).ainvoke({"messages": [message]})
    assert contents(update)[0] == "A"
    assert "it is cut off" in contents(update)[1]
    assert [each.get("status") for each in update["messages"]] == [None, "error"]
    assert tools_condition({"messages": [{"role": "assistant", "content": "", "invalid_tool_calls": [bad]}]}) == "tools"


def on_value_error(error: ValueError) -> str:
    return f"saw {error}"


def on_two(error: KeyError | ValueError) -> str:
    return f"saw {error}"


def on_key_error(error: KeyError) -> str:
    return "unused"


def on_any(error) -> str:
    return "any"


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        (True, "The tool failed: ValueError('no a'). Correct the mistake, or continue without it."),
        ("Try again.", "Try again."),
        (ValueError, "The tool failed: ValueError('no a'). Correct the mistake, or continue without it."),
        ((KeyError, ValueError), "The tool failed: ValueError('no a'). Correct the mistake, or continue without it."),
        (on_value_error, "saw no a"),
        (on_two, "saw no a"),
        (on_any, "any"),
        (False, None),
        (KeyError, None),
        (on_key_error, None),
    ],
)
async def test_handle_tool_errors(flag: Any, shown: str | None) -> None:
    """Each form shows the model the errors that it names, and raises others."""
    node = ToolNode([broken], handle_tool_errors=flag)
    if shown is None:
        with pytest.raises(ValueError, match="no a"):
            await node.ainvoke([call("broken", text="a")])
    else:
        (message,) = (await node.ainvoke([call("broken", text="a")]))["messages"]
        assert (message["content"], message["status"]) == (shown, "error")


@pytest.mark.one_loop
async def test_false_raises_invalid_arguments_too() -> None:
    with pytest.raises(ToolInvocationError):
        await ToolNode([upper], handle_tool_errors=False).ainvoke([call("upper")])


@pytest.mark.one_loop
@pytest.mark.parametrize("flag", [3, (int,), [ValueError]])
def test_other_values_of_handle_tool_errors_are_refused(flag: Any) -> None:
    with pytest.raises(GraphValidationError, match="handle_tool_errors"):
        ToolNode([upper], handle_tool_errors=flag)


@pytest.mark.one_loop
def test_an_error_handler_of_something_else_is_refused() -> None:
    def handler(error: int) -> str:
        return ""

    with pytest.raises(GraphValidationError, match="annotate its first parameter"):
        ToolNode([upper], handle_tool_errors=handler)


@pytest.mark.one_loop
async def test_errors_of_the_run_are_never_shown_to_the_model() -> None:
    """Storage that fails inside of a tool fails the run, whatever errors are handled."""

    def stores(text: str) -> str:
        raise StorageError("the disk is full")

    with pytest.raises(StorageError):
        await ToolNode([stores], handle_tool_errors=True).ainvoke([call("stores", text="a")])


async def test_questions_are_not_errors() -> None:
    """A tool may ask, also in a thread and with all errors handled."""

    def ask(text: str) -> Any:
        return interrupt(text)

    graph = graph_of(ToolNode([ask], handle_tool_errors=True), InMemorySaver())
    asked = await graph.ainvoke({"messages": [asking(call("ask", text="really?"))]}, "t")
    assert [question.value for question in asked["__interrupt__"]] == ["really?"]
    assert contents(await graph.ainvoke(Command(resume="yes"), "t"))[1:] == ["yes"]


def remembers(
    what: str,
    whole: Annotated[dict[str, Any], InjectedState],
    user: Annotated[str, InjectedState("user")],
    store: Annotated[Any, InjectedStore],
    id: Annotated[str, InjectedToolCallId],
    runtime: ToolRuntime,
    missing: Annotated[str, InjectedState("nowhere")] = "default",
) -> str:
    assert runtime.state == whole
    assert runtime.store is store
    assert runtime.execution_info is not None
    kind = type(store).__name__
    return f"{what} {len(whole['messages'])} {user} {kind} {id} {runtime.tool_call_id} {runtime.context} {missing}"


@pytest.mark.parametrize("send", [False, True])
async def test_injection(send: bool) -> None:
    """State, store, call id and runtime reach the tool, also if a send carries nothing but the call."""
    graph = graph_of(ToolNode([remembers]), send=send, store=InMemoryStore())
    calls = call("remembers", "a", what="x"), call("remembers", "b", what="y", user="mallory", whole={})
    done = await graph.ainvoke({"messages": [asking(*calls)], "user": "ada"}, context="ctx")
    assert contents(done)[1:] == [
        "x 1 ada InMemoryStore a a ctx default",
        "y 1 ada InMemoryStore b b ctx default",  # what the model wrote for injected parameters is dropped
    ]


@pytest.mark.one_loop
async def test_injection_alone() -> None:
    """A unit test passes a state, and a runtime or a store."""

    def about(
        user: Annotated[str, InjectedState("user")], store: Annotated[Any, InjectedStore], runtime: ToolRuntime
    ) -> str:
        return f"{user} {store is not None} {runtime.context}"

    node = ToolNode([about])
    asked = {"messages": [asking(call("about"))], "user": "ada"}
    store = InMemoryStore()
    assert contents(await node.ainvoke(asked, store=store)) == ["ada True None"]
    assert contents(await node.ainvoke(asked, runtime=Runtime(store=store, context=7))) == ["ada True 7"]
    with pytest.raises(ToolInjectionError, match="the graph has no store"):
        await node.ainvoke(asked)
    with pytest.raises(ToolInjectionError, match="the state has no key 'user'"):
        await node.ainvoke({"messages": asked["messages"]}, store=store)
    with pytest.raises(ToolInjectionError):
        await ToolNode([about], handle_tool_errors=True).ainvoke(asked)


@pytest.mark.one_loop
async def test_a_tool_that_changes_its_state_changes_no_other_state() -> None:
    def spoil(runtime: ToolRuntime) -> str:
        runtime.state["messages"].clear()
        runtime.state["user"] = "mallory"
        return "done"

    graph = graph_of(ToolNode([spoil]), send=True)
    done = await graph.ainvoke({"messages": [asking(call("spoil", "1"), call("spoil", "2"))], "user": "ada"})
    assert len(done["messages"]) == 3
    assert done["user"] == "ada"


async def test_a_state_that_is_a_list_of_messages() -> None:
    def count(all: Annotated[Any, InjectedState], messages: Annotated[Any, InjectedState("messages")]) -> str:
        return f"{len(all['messages'])} {len(messages)}"

    builder = StateGraph(Annotated[list[Any], add_messages])
    graph = builder.add_node(ToolNode([count])).add_edge(START, "tools").compile()
    done = await graph.ainvoke([asking(call("count"))])
    assert done[-1]["content"] == "1 1"


def go(id: Annotated[str, InjectedToolCallId]) -> Command:
    answer = {"role": "tool", "tool_call_id": id, "content": "moved"}
    return Command(update={"messages": [answer], "log": [f"went {id}"]}, goto="later")


@pytest.mark.parametrize("send", [False, True])
@pytest.mark.parametrize("saved", [False, True])
async def test_a_tool_may_return_a_command(send: bool, saved: bool) -> None:
    """Updates and messages come in the order of the calls, and the goto is followed."""

    async def later(state: State) -> State:
        return {"log": ["later"], "messages": []}

    builder = StateGraph(State).add_node("tools", ToolNode([upper, go])).add_node(later)
    if send:
        builder.add_conditional_edges(
            START, lambda state: [Send("tools", [each]) for each in state["messages"][-1]["tool_calls"]], ["tools"]
        )
    else:
        builder.add_edge(START, "tools")
    graph = builder.compile(InMemorySaver() if saved else None)
    calls = call("upper", "1", text="a"), call("go", "2"), call("upper", "3", text="b"), call("go", "4")
    done = await graph.ainvoke({"messages": [asking(*calls)]}, "t" if saved else None)
    assert contents(done)[1:] == ["A", "moved", "B", "moved"]
    assert [message.get("name") for message in done["messages"][1:]] == ["upper", "go", "upper", "go"]
    assert done["log"] == ["went 2", "went 4", "later"]


@pytest.mark.parametrize("send", [False, True])
async def test_a_command_for_the_parent_graph(send: bool) -> None:
    """A tool of a subgraph hands over to a node of the outer graph, and to each of several by sends."""

    def leave(id: Annotated[str, InjectedToolCallId]) -> Command:
        return Command(graph=Command.PARENT, goto=Send("outer", id), update={"log": [f"left {id}"]})

    async def outer(id: str) -> State:
        return {"log": [f"outer {id}"], "messages": []}

    inner = graph_of(ToolNode([leave]), send=send)
    builder = StateGraph(State).add_node("inner", inner).add_node(outer).add_edge(START, "inner")
    done = await builder.compile().ainvoke({"messages": [asking(call("leave", "1"), call("leave", "2"))]})
    assert done["log"] == ["left 1", "left 2", "outer 1", "outer 2"]


@pytest.mark.one_loop
async def test_a_tool_may_return_messages() -> None:
    """A list of messages, of which one answers the call; commands may be among them."""

    def several(id: Annotated[str, InjectedToolCallId]) -> list[Any]:
        answer = {"role": "tool", "tool_call_id": id, "content": {"a": 1}}
        return [answer, {"role": "user", "content": "look at this"}, Command(update={"log": ["noted"]})]

    def one(id: Annotated[str, InjectedToolCallId]) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": id, "content": "mine", "artifact": [1]}

    def data() -> list[dict[str, str]]:
        return [{"role": "user", "content": "a row of a table"}]

    done = await graph_of(ToolNode([several, one, data])).ainvoke(
        {"messages": [asking(call("several", "1"), call("one", "2"), call("data", "3"))]}
    )
    assert contents(done)[1:] == [
        '{"a":1}',
        "look at this",
        "mine",
        '[{"role":"user","content":"a row of a table"}]',  # no message among them: this is data
    ]
    assert done["messages"][1]["name"] == "several"
    assert done["messages"][3]["artifact"] == [1]
    assert done["log"] == ["noted"]


def unanswered() -> Command:
    return Command(update={"log": ["x"]})


def answers_twice(id: Annotated[str, InjectedToolCallId]) -> list[Any]:
    return [{"role": "tool", "tool_call_id": id, "content": "a"}] * 2


def answers_other() -> list[Any]:
    return [{"role": "tool", "tool_call_id": "other", "content": "a"}]


def mixed(id: Annotated[str, InjectedToolCallId]) -> list[Any]:
    return [{"role": "tool", "tool_call_id": id, "content": "a"}, 3]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (unanswered, "with 0 tool messages"),
        (answers_twice, "with 2 tool messages"),
        (answers_other, "with 0 tool messages"),
        (mixed, "with a int in it"),
    ],
)
async def test_a_call_is_answered_exactly_once(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(InvalidUpdateError, match=why):
        await ToolNode([function]).ainvoke([call(function.__name__)])


@pytest.mark.one_loop
async def test_contents() -> None:
    """Texts and content blocks stay; other values become JSON, or text if they are none."""

    class Opaque:
        def __str__(self) -> str:
            return "opaque"

    values: dict[str, Any] = {
        "text": "as it is",
        "blocks": [{"type": "text", "text": "a"}],
        "object": {"ä": [1, None]},
        "nothing": None,
        "opaque": Opaque(),
    }

    def give(name: str) -> Any:
        return values[name]

    @tool(response_format="content_and_artifact")
    def pair() -> tuple[str, list[int]]:
        return "shown", [1, 2]

    @tool(response_format="content_and_artifact")
    def no_pair() -> Any:
        return "shown"

    node = ToolNode([give, pair, no_pair])
    given = await node.ainvoke([call("give", str(index), name=name) for index, name in enumerate(values)])
    assert contents(given) == ["as it is", [{"type": "text", "text": "a"}], '{"ä":[1,null]}', "null", "opaque"]
    (message,) = (await node.ainvoke([call("pair")]))["messages"]
    assert (message["content"], message["artifact"]) == ("shown", [1, 2])
    with pytest.raises(InvalidUpdateError, match="must return a pair"):
        await node.ainvoke([call("no_pair")])


def wrap(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
    name, args = request.tool_call["name"], request.tool_call["args"]
    if name == "skip":
        return {"role": "tool", "tool_call_id": request.tool_call["id"], "content": "skipped"}
    if name == "late":
        return execute(request.override(tool=upper))
    if name == "twice":
        execute(request)
    if name == "fail":
        raise ValueError("wrapper")
    changed = {**request.tool_call, "args": {"text": args["text"] + "!"}}
    return execute(request.override(tool_call=changed, state={"user": "other"}))


async def awrap(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
    name, args = request.tool_call["name"], request.tool_call["args"]
    if name == "skip":
        return {"role": "tool", "tool_call_id": request.tool_call["id"], "content": "skipped"}
    if name == "late":
        return await execute(request.override(tool=upper))
    if name == "twice":
        await execute(request)
    if name == "fail":
        raise ValueError("wrapper")
    changed = {**request.tool_call, "args": {"text": args["text"] + "!"}}
    return await execute(request.override(tool_call=changed, state={"user": "other"}))


@pytest.mark.parametrize("wrapper", [{"wrap_tool_call": wrap}, {"awrap_tool_call": awrap}], ids=["sync", "async"])
async def test_wrappers(wrapper: Any) -> None:
    """A wrapper changes the call, the state and the tool, answers without the tool, calls it again, or supplies one."""
    ran: list[str] = []

    def twice(text: str, user: Annotated[str, InjectedState("user")]) -> str:
        ran.append(text)
        return f"{text} {user}"

    node = ToolNode([twice, upper], handle_tool_errors=on_value_error, **wrapper)
    calls = [call(name, name, text="a") for name in ("twice", "skip", "late", "fail")]
    assert contents(await node.ainvoke({"messages": [asking(*calls)], "user": "ada"})) == [
        "a! other",
        "skipped",
        "A",
        "saw wrapper",
    ]
    assert ran == ["a", "a!"]
    with pytest.raises(ValueError, match="wrapper"):
        await ToolNode([upper], **wrapper).ainvoke([call("fail", text="a")])


@pytest.mark.one_loop
@pytest.mark.parametrize("name", ["wrap_tool_call", "awrap_tool_call"])
def test_a_wrapper_that_is_no_function_is_refused(name: Any) -> None:
    with pytest.raises(InvalidToolError, match=name):
        ToolNode([upper], **{name: 3})


@pytest.mark.one_loop
def test_tools_condition() -> None:
    asked, said = asking(call("upper", text="a")), {"role": "assistant", "content": "hi"}
    assert tools_condition({"messages": [asked]}) == "tools"
    assert tools_condition([said, asked]) == "tools"
    assert tools_condition({"chat": [asked]}, "chat") == "tools"
    assert tools_condition({"messages": [asked, said]}) == END
    with pytest.raises(InvalidInputError, match="the state has none in 'messages'"):
        tools_condition({"messages": []})


async def test_in_the_code_of_a_node() -> None:
    """A node may run the calls itself; each is recorded as if the node of tools ran it."""
    ran: list[str] = []
    tools = ToolNode([upper, tool("noted")(lambda text: ran.append(text))])

    async def work(state: State) -> Any:
        update = await tools.ainvoke(state)
        return update if interrupt("go on?") else None

    graph = StateGraph(State).add_node(work).add_edge(START, "work").compile(InMemorySaver())
    await graph.ainvoke({"messages": [asking(call("upper", "1", text="a"), call("noted", "2", text="b"))]}, "t")
    assert contents(await graph.ainvoke(Command(resume=True), "t"))[1:] == ["A", "null"]
    assert ran == ["b"]
