"""Several middleware in one agent, whose thread is continued by other processes."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from checkpoint_savers import BaseCheckpointSaver, SqliteSaver
from pregel_async import Command
from pregel_async.prebuilt import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolStrategy,
    create_agent,
)
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio


class Report(msgspec.Struct):
    text: str


async def test_all_of_them(saver: BaseCheckpointSaver) -> None:
    """Each does its part in one turn; a question is answered by an agent that another process has made."""
    sent: list[str] = []

    def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to} from 10.0.0.1"

    todos = [{"content": "send", "status": "in_progress"}]
    answers = [
        asking(call("write_todos", "1", todos=todos), call("send", "2", to="ada")),
        asking(call("send", "3", to="bob")),
        asking(call("Report", "4", text="both")),
    ]
    writers: list[Script] = []
    models: list[Script] = []

    def agent() -> Any:
        writers.append(Script("they talked"))
        # The script counts the answers that the model gets, and the two of the input are summarized.
        models.append(Script(*answers))
        return create_agent(
            models[-1],
            [send],
            middleware=[
                PIIMiddleware("email"),
                PIIMiddleware("ip", apply_to_tool_results=True),
                SummarizationMiddleware(writers[-1], trigger=("messages", 5), keep=("messages", 4)),
                TodoListMiddleware(),
                ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=0, keep=1)]),
                ModelCallLimitMiddleware(thread_limit=9),
                HumanInTheLoopMiddleware({"send": True}),
            ],
            response_format=ToolStrategy(Report),
            checkpointer=saver,
        )

    chat: list[Any] = ["I am ada@example.com", {"role": "system", "content": "a"}, "b", "c", "d"]
    (question,) = (await agent().ainvoke({"messages": chat}, "t"))["__interrupt__"]
    assert [each["args"] for each in question.value["action_requests"]] == [{"to": "ada"}]
    (question,) = (await agent().ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), "t"))["__interrupt__"]
    done = await agent().ainvoke(Command(resume={"decisions": [{"type": "reject"}]}), "t")
    assert (done["structured_response"], done["todos"], sent) == (Report("both"), todos, ["ada"])
    assert set(done) == {"messages", "structured_response", "todos"}
    assert [len(writer.seen) for writer in writers] == [1, 1, 1]
    assert [len(model.seen) for model in models] == [1, 1, 1]
    assert "sent to ada from [REDACTED_IP]" in contents(done)
    assert "sent to ada from [cleared]" not in contents(done)
    seen = str([[each.seen for each in made] for made in (writers, models)])
    assert "[REDACTED_EMAIL]" in seen
    assert "ada@example.com" not in seen + str(done) and "10.0.0.1" not in seen + str(done)


@pytest.mark.one_loop
async def test_bytes_of_a_summary(tmp_path: Path) -> None:
    """The superstep that summarizes 80 of 480 messages stores the summary and ids, and none of the 400 others."""
    path = tmp_path / "threads.db"
    async with SqliteSaver.from_conn_string(path) as saver:
        middleware = SummarizationMiddleware(Script("sum"), trigger=("messages", 480), keep=("messages", 400))
        agent = create_agent(Script("done"), middleware=[middleware], checkpointer=saver)
        chat = [{"role": "user", "content": f"{at} " + "x" * 1000, "id": f"m{at}"} for at in range(480)]
        for at in range(0, 480, 24):
            await agent.aupdate_state("t", {"messages": chat[at : at + 24]}, as_node="__start__")
        await agent.ainvoke(None, "t")
    with sqlite3.connect(path) as rows:
        sizes = [size for (size,) in rows.execute("SELECT length(data) FROM frame ORDER BY rowid")]
    assert sum(sizes[-2:]) < 4000  # of the summary and the answer; one of the messages has 1000
