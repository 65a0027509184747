"""What the other imports."""

from typing import Any, TypedDict

from pregel_async import START, StateGraph


class State(TypedDict, total=False):
    word: str


async def say(state: State) -> dict[str, Any]:
    return {"word": "parcel"}


builder = StateGraph(State).add_node("say", say).add_edge(START, "say")
