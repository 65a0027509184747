"""Agents hand a customer over to each other, ask before they act, and remember who speaks."""

from typing import Annotated, Any, Literal, TypedDict

import pytest

from tests.langgraph_programs.libraries import said, text_of

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "customer-7"}}


def update_dialog_stack(left: list[str], right: str | None) -> list[str]:
    """Push the name of an assistant, or pop the last one."""
    if right is None:
        return left
    return left[:-1] if right == "pop" else [*left, right]


def with_a_dialog_stack(library: Any, booked: list[str]) -> Any:
    """Build a primary assistant that hands over to one for flights, whose sensitive tools need an approval."""

    class State(TypedDict, total=False):
        messages: Annotated[list[Any], library.add_messages]
        user_info: str
        dialog_state: Annotated[list[Literal["flights"]], update_dialog_stack]

    def fetch_user_info(state: dict[str, Any]) -> dict[str, Any]:
        return {"user_info": "seat 7A"}

    def primary_assistant(state: dict[str, Any]) -> dict[str, Any]:
        wish = text_of(state["messages"][-1])
        answer = "to flights" if "flight" in wish else f"you have {state['user_info']}"
        return {"messages": [{"role": "assistant", "content": answer}]}

    def enter_flights(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "the assistant is now flights"}], "dialog_state": "flights"}

    def flights(state: dict[str, Any]) -> dict[str, Any]:
        last = text_of(state["messages"][-1])
        answer = {"booked": "done, anything else?", "thanks": "complete"}.get(last, "book it")
        return {"messages": [{"role": "assistant", "content": answer}]}

    def sensitive_tools(state: dict[str, Any]) -> dict[str, Any]:
        booked.append("flight")
        return {"messages": [{"role": "user", "content": "booked"}]}

    def leave_skill(state: dict[str, Any]) -> dict[str, Any]:
        return {"dialog_state": "pop", "messages": [{"role": "user", "content": "what else?"}]}

    def route_to_workflow(state: dict[str, Any]) -> Literal["primary_assistant", "flights"]:
        stack = state.get("dialog_state")
        return stack[-1] if stack else "primary_assistant"

    def route_primary_assistant(state: dict[str, Any]) -> str:
        return "enter_flights" if text_of(state["messages"][-1]) == "to flights" else library.END

    def route_flights(state: dict[str, Any]) -> str:
        last = text_of(state["messages"][-1])
        return {"book it": "sensitive_tools", "complete": "leave_skill"}.get(last, library.END)

    builder = library.StateGraph(State)
    for node in (fetch_user_info, primary_assistant, enter_flights, flights, sensitive_tools, leave_skill):
        builder.add_node(node)
    builder.add_edge(library.START, "fetch_user_info")
    builder.add_conditional_edges("fetch_user_info", route_to_workflow)
    builder.add_conditional_edges("primary_assistant", route_primary_assistant, ["enter_flights", library.END])
    builder.add_edge("enter_flights", "flights")
    builder.add_conditional_edges("flights", route_flights, ["sensitive_tools", "leave_skill", library.END])
    builder.add_edge("sensitive_tools", "flights")
    builder.add_edge("leave_skill", "primary_assistant")
    return builder.compile(checkpointer=library.InMemorySaver(), interrupt_before=["sensitive_tools"])


def test_a_sensitive_tool_waits_for_approval(library: Any) -> None:
    """The run stops before the tool; a call with None approves it."""
    booked: list[str] = []
    graph = with_a_dialog_stack(library, booked)
    events = list(graph.stream({"messages": ("user", "a flight, please")}, CONFIG, stream_mode="updates"))
    assert [next(iter(event)) for event in events] == [
        "fetch_user_info",
        "primary_assistant",
        "enter_flights",
        "flights",
        "__interrupt__",
    ]
    assert events[-1] == {"__interrupt__": ()}
    assert graph.get_state(CONFIG).next == ("sensitive_tools",) and booked == []

    result = graph.invoke(None, CONFIG)
    assert booked == ["flight"] and result["dialog_state"] == ["flights"]
    assert said(result["messages"])[-2:] == [("user", "booked"), ("assistant", "done, anything else?")]


def test_the_next_message_reaches_the_assistant_that_speaks(library: Any) -> None:
    """The stack of assistants lasts from call to call, until the assistant leaves it."""
    graph = with_a_dialog_stack(library, [])
    graph.invoke({"messages": ("user", "a flight, please")}, CONFIG)
    graph.invoke(None, CONFIG)
    events = list(graph.stream({"messages": ("user", "thanks")}, CONFIG, stream_mode="updates"))
    assert [next(iter(event)) for event in events] == ["fetch_user_info", "flights", "leave_skill", "primary_assistant"]
    values = graph.get_state(CONFIG).values
    assert values["dialog_state"] == [] and text_of(values["messages"][-1]) == "you have seat 7A"


def test_a_refused_tool_does_not_run(library: Any) -> None:
    """An update in the name of the tool is its result, so the assistant goes on without it."""
    booked: list[str] = []
    graph = with_a_dialog_stack(library, booked)
    graph.invoke({"messages": ("user", "a flight, please")}, CONFIG)
    refusal = {"messages": [{"role": "user", "content": "thanks"}]}
    graph.update_state(CONFIG, refusal, as_node="sensitive_tools")
    assert graph.get_state(CONFIG).next == ("flights",)
    result = graph.invoke(None, CONFIG)
    assert booked == [] and result["dialog_state"] == []


def with_hand_offs(library: Any) -> Any:
    """Build agents that are graphs of their own, whose tools command the graph around them to go to another agent."""

    class SwarmState(TypedDict, total=False):
        messages: Annotated[list[Any], library.add_messages]
        active_agent: str

    def agent(name: str, speciality: str, other: str) -> Any:
        def model(state: dict[str, Any]) -> Any:
            wish = text_of(state["messages"][-1])
            if speciality in wish:
                return {"messages": [{"role": "assistant", "content": f"{name}: {wish}"}]}
            return library.Command(goto="hand_off")

        def hand_off(state: dict[str, Any]) -> Any:
            return library.Command(graph=library.Command.PARENT, goto=other, update={"active_agent": other})

        inner = library.StateGraph(SwarmState)
        inner.add_node(model)
        inner.add_node(hand_off)
        inner.add_edge(library.START, "model")
        return inner.compile(name=name)

    def route(state: dict[str, Any]) -> str:
        return state.get("active_agent", "hotels")

    builder = library.StateGraph(SwarmState)
    builder.add_node("hotels", agent("hotels", "room", "cars"), destinations=("cars",))
    builder.add_node("cars", agent("cars", "car", "hotels"), destinations=("hotels",))
    builder.add_conditional_edges(library.START, route, ["hotels", "cars"])
    return builder.compile(checkpointer=library.InMemorySaver())


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_hand_off_leaves_a_graph_for_another(library: Any) -> None:
    """The command's update is the handing agent's update in the outer graph, and its goto the next node."""
    graph = with_hand_offs(library)
    stream = graph.astream({"messages": [{"role": "user", "content": "a car"}]}, CONFIG, stream_mode="updates")
    events = [event async for event in stream]
    assert [next(iter(event)) for event in events] == ["hotels", "cars"]
    assert events[0] == {"hotels": {"active_agent": "cars"}}
    assert said((await graph.aget_state(CONFIG)).values["messages"]) == [
        ("user", "a car"),
        ("assistant", "cars: a car"),
    ]


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_the_active_agent_answers_first(library: Any) -> None:
    """A later message of the thread goes to the agent that was active, and may be handed back."""
    graph = with_hand_offs(library)
    await graph.ainvoke({"messages": [{"role": "user", "content": "a car"}]}, CONFIG)
    steps = []
    async for namespace, event in graph.astream(
        {"messages": [{"role": "user", "content": "a room"}]}, CONFIG, stream_mode="updates", subgraphs=True
    ):
        steps.append(([part.split(":")[0] for part in namespace], next(iter(event))))
    assert steps == [(["cars"], "model"), ([], "cars"), (["hotels"], "model"), ([], "hotels")]
    values = (await graph.aget_state(CONFIG)).values
    assert values["active_agent"] == "hotels" and text_of(values["messages"][-1]) == "hotels: a room"
