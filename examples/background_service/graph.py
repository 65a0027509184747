"""The graph: collect notes, draft a report section by section, ask an editor, then publish.

collect --> draft --> review --> publish
              ^          |
              +----------+  if the editor wants something changed
"""

from __future__ import annotations

import operator
import os
from typing import Annotated, Literal, TypedDict

import anyio

from pregel_async import END, START, Command, StateGraph, StreamWriter, interrupt

PAUSE = float(os.environ.get("REPORT_PAUSE", "0.5"))
"""Seconds that each section takes. A language model would take them."""

SECTIONS = ("What it is", "What it costs", "What to do")


class Request(TypedDict):
    """The input of a run."""

    topic: str


class Report(Request):
    notes: Annotated[list[str], operator.add]
    text: str
    published: bool


async def collect(report: Report) -> dict[str, list[str]]:
    return {"notes": [f"{report['topic']} was looked up"]}


async def draft(report: Report, writer: StreamWriter) -> dict[str, str]:
    """Write the sections. Each is reported to the run's followers when it is begun."""
    lines = [f"Report on {report['topic']}", *(f"({note})" for note in report["notes"])]
    for section in SECTIONS:
        await writer(f"drafting: {section}")
        await anyio.sleep(PAUSE)
        lines.append(f"{section}: ...")
    return {"text": "\n".join(lines)}


async def review(report: Report) -> Command[Literal["draft", "publish"]]:
    """Ask the editor.

    The run ends here, with the status "interrupted", and no process waits. The answer is the input of a new run.
    """
    answer = str(interrupt({"question": "Publish it? Answer yes, or say what to change.", "text": report["text"]}))
    if answer.strip().lower() == "yes":
        return Command(goto="publish")
    return Command(goto="draft", update={"notes": [answer]})


async def publish(report: Report) -> dict[str, bool]:
    return {"published": True}


graph = (
    StateGraph(Report, input_schema=Request)
    .add_node("collect", collect)
    .add_node("draft", draft)
    .add_node("review", review)
    .add_node("publish", publish)
    .add_edge(START, "collect")
    .add_edge("collect", "draft")
    .add_edge("draft", "review")
    .add_edge("publish", END)
    .compile(name="report")
)
