"""Ask a person: a node asks, the run stops, and continues with the answer: days later, in another process.

After the answer, the node runs again from its start. Put work that must not run twice after the question, into an
earlier node, or into a task (see 09_workflow.py).

python examples/07_ask_a_person.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, TypedDict

import anyio

from checkpoint_savers import SqliteSaver
from pregel_async import START, Command, StateGraph, interrupt


class Input(TypedDict):
    amount: int


class Refund(Input):
    reason: str
    outcome: str


def write_reason(refund: Refund) -> dict[str, Any]:
    print("    writing the reason (once)")
    return {"reason": "the kettle leaks"}


def approve(refund: Refund) -> dict[str, Any]:
    allowed = interrupt(f"Refund {refund['amount']} euros, because {refund['reason']}?")
    if not allowed:
        return {"outcome": "refused"}
    account = interrupt("To which account?")  # a second question, with its own id
    return {"outcome": f"paid to {account}"}


builder = (
    StateGraph(Refund, input_schema=Input)
    .add_node("write_reason", write_reason)
    .add_node("approve", approve)
    .add_edge(START, "write_reason")
    .add_edge("write_reason", "approve")
)


async def first_process(db: Path) -> None:
    async with SqliteSaver.from_conn_string(db) as saver:
        result: Any = await builder.compile(saver).ainvoke({"amount": 40}, "refund-7")
        print(f"    it asks: {result['__interrupt__'][0].value}")


async def second_process(db: Path) -> None:
    async with SqliteSaver.from_conn_string(db) as saver:
        graph = builder.compile(saver)
        (question,) = (await graph.aget_state("refund-7")).interrupts
        print(f"    still open: {question.value}")
        result: Any = await graph.ainvoke(Command(resume=True), "refund-7")  # the answer to the one open question
        (question,) = result["__interrupt__"]
        print(f"    it asks: {question.value}")
        result = await graph.ainvoke(Command(resume={question.id: "NL 12"}), "refund-7")  # alternatively, answer by id
        print(f"    {result['outcome']}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder, "refunds.db")
        print("first process:")
        await first_process(db)
        print("second process:")
        await second_process(db)


if __name__ == "__main__":
    anyio.run(main)
