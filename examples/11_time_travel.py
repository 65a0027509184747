"""Time travel: read an earlier checkpoint of a thread, replay it, or fork it with a changed state.

Nothing is overwritten: each replay or fork makes a branch, and the history keeps all of them. The thread's head is the
end of the branch that was last run or edited.

python examples/11_time_travel.py
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph


class Input(TypedDict):
    guest: str


class Dinner(Input, total=False):
    dish: str
    log: Annotated[list[str], operator.add]


ran: list[str] = []


def choose(dinner: Dinner) -> dict[str, Any]:
    ran.append("choose")
    return {"dish": "soup", "log": ["chose soup"]}


def cook(dinner: Dinner) -> dict[str, Any]:
    ran.append("cook")
    return {"log": [f"cooked {dinner.get('dish')} for {dinner['guest']}"]}


builder = (
    StateGraph(Dinner, input_schema=Input)
    .add_node("choose", choose)
    .add_node("cook", cook)
    .add_edge(START, "choose")
    .add_edge("choose", "cook")
)


async def main() -> None:
    graph = builder.compile(InMemorySaver())
    await graph.ainvoke({"guest": "Ada"}, "dinner")
    history = [state async for state in graph.aget_state_history("dinner")]
    for state in reversed(history):
        print(f"{state.values.get('log')}, then {', '.join(state.next) or 'nothing'}")
    before_cook = next(state for state in history if state.next == ("cook",))
    before_choose = next(state for state in history if state.next == ("choose",))

    ran.clear()
    result = await graph.ainvoke(None, before_cook.config)
    print(f"replayed: {result.get('log')}; ran: {ran}")

    ran.clear()
    fork = await graph.aupdate_state(before_choose.config, {"dish": "cake", "log": ["chose cake"]}, as_node="choose")
    result = await graph.ainvoke(None, fork)
    print(f"forked: {result.get('log')}; ran: {ran}")

    await graph.aupdate_state("dinner", {"log": ["ate it"]}, as_node="cook")
    head = await graph.aget_state("dinner")
    print(f"edited: {head.values.get('log')}")
    old = await graph.aget_state(history[0].config)
    print(f"the first branch is as it was: {old.values.get('log')}")


if __name__ == "__main__":
    anyio.run(main)
