"""Child process of `test_agent_failures`: an agent that is killed between two calls of a turn.

Usage: python killed_agent.py KIND PLACE LOG VERB GIVEN. KIND is "sqlite" or "postgres", and PLACE its file or schema. Each
call of the model and of a tool is a line of LOG. GIVEN is the JSON of the input. At its end the process prints the
contents of the conversation, and what the thread has spent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio

from checkpoint_savers import PostgresSaver, SqliteSaver
from pregel_async import open_sync
from pregel_async.prebuilt import create_agent
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.recording import ReportingSaver


def agent_of(saver: ReportingSaver, log: Path) -> Any:
    def note(what: str) -> None:
        with log.open("a") as file:
            file.write(f"{what}\n")

    async def pay() -> str:
        note("pay")
        return "paid"

    async def ship() -> str:
        is_first = "ship" not in log.read_text().split()
        note("ship")
        if is_first:
            await saver.recorded()
            os.kill(os.getpid(), signal.SIGKILL)
        return "shipped"

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        note("model")
        usage = {"input_tokens": 10, "output_tokens": 1}
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": "done", "usage": usage}
        return {**asking(call("pay", "1"), call("ship", "2")), "usage": usage}

    return create_agent(model, [pay, ship], checkpointer=saver)


def report(state: Any, spent: Any) -> None:
    print(json.dumps([contents(state), spent]))


def main(kind: str, place: str, log: Path, verb: str, given: Any) -> None:
    opened: Any = (
        SqliteSaver(place)
        if kind == "sqlite"
        else PostgresSaver(os.environ["PREGEL_POSTGRES"], schema=place, setup=False)
    )
    if verb == "invoke":
        with open_sync(opened) as saver:
            agent = agent_of(ReportingSaver(saver), log)
            report(agent.invoke(given, "t"), agent.get_state("t").spent)
        return

    async def run() -> None:
        async with opened as saver:
            agent = agent_of(ReportingSaver(saver), log)
            report(await agent.ainvoke(given, "t"), (await agent.aget_state("t")).spent)

    anyio.run(run)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], json.loads(sys.argv[5]))
