"""Child process that asks questions or gets answers and is then killed: python question_child.py DATABASE BACKEND
INPUT.

INPUT is the JSON of the graph's input: a state, null, or an answer as {"resume": ...}. The process prints "asked" and
the questions when the run has paused, "in" when node `after` runs, "end" and the log when nothing is left to run. After
that it sleeps forever.
"""

from __future__ import annotations

import json
import operator
import sys
from typing import Annotated, Any, TypedDict

import anyio

from checkpoint_savers import SqliteSaver
from pregel_async import START, Command, StateGraph, interrupt, task


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


@task
async def work() -> str:
    print("work", flush=True)
    return "work"


async def asks(state: State) -> Any:
    done = await work()
    first = interrupt("first?")
    if first == "die":
        print("in", flush=True)
        await anyio.sleep_forever()
    return {"log": [done, first, interrupt("second?")]}


async def main(database: str, given: Any) -> None:
    made = StateGraph(State).add_node("a", asks).add_node("b", asks).add_edge(START, "a").add_edge(START, "b")
    if given and "resume" in given:
        given = Command(resume=given["resume"])
    async with SqliteSaver.from_conn_string(database) as saver:
        result = await made.compile(saver).ainvoke(given, "t")
        asked = [[question.id, question.value] for question in result.get("__interrupt__", ())]
        print(json.dumps(["asked", asked] if asked else ["end", result["log"]]), flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], json.loads(sys.argv[3]), backend=sys.argv[2])
