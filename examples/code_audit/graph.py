"""The graph: list the files, one task for each of them, rank what they found, write the report.

list_files --> audit_file (as often as there are files) --> rank_files --> write_report

pregel-async run examples.code_audit.graph:graph --input '{"root": "src"}'
"""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pregel_async import END, START, Send, StateGraph

from . import ranking, report, sources
from .audit import FileAudit, audit
from .ranking import Ranked, Totals


class Input(TypedDict, total=False):
    """What a run takes; every key may be left out.

    Keys:
        root: the tree, or a single file; None or nothing for the running interpreter's standard library.
        report: where to write the report; `code-audit.md` in the working directory by default.
        limit: how many of the worst files to show; 20 by default.
        skip: names of directories to pass over; `sources.SKIPPED` by default, `[]` for none.
    """

    root: str | None
    report: str
    limit: int
    skip: list[str]


class State(Input):
    """What is known while the run goes on.

    Keys:
        tree, target: the input's root and report as absolute paths: a resume from another directory means the same.
        files: the paths to audit, relative to the tree.
        audits: what was found: the reducer appends what each task returns, in the order of the sends. A thread that is
            used for a second audit still holds the first.
        totals, worst: what the ranking made of it.
    """

    tree: str
    target: str
    files: list[str]
    audits: Annotated[list[FileAudit], operator.add]
    totals: Totals
    worst: list[Ranked]


class Output(TypedDict):
    """What a run returns."""

    report: str
    totals: Totals
    worst: list[Ranked]


class FileTask(TypedDict):
    """What one task is sent: all that it needs, so that it does not look at the state that the others share."""

    tree: str
    path: str


def list_files(state: State) -> dict[str, Any]:
    """Find the files."""
    root = Path(state.get("root") or sources.standard_library()).absolute()
    target = Path(state.get("report") or "code-audit.md").absolute()
    if root.is_file():
        return {"tree": str(root.parent), "target": str(target), "files": [root.name]}
    files = sources.find(root, state.get("skip", sources.SKIPPED))
    return {"tree": str(root), "target": str(target), "files": files}


def one_task_per_file(state: State) -> list[Send] | Literal["rank_files"]:
    """Fan out; a tree without files goes straight on."""
    tasks = [Send("audit_file", FileTask(tree=state["tree"], path=path)) for path in state["files"]]
    return tasks or "rank_files"


def audit_file(task: FileTask) -> dict[str, Any]:
    """Audit one file. A plain function runs in a worker thread. Whatever is wrong with the file becomes a finding."""
    try:
        data = sources.read(Path(task["tree"], task["path"]))
    except (OSError, sources.TooLarge) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return {"audits": [FileAudit(path=task["path"], problem=f"cannot be read: {reason}")]}
    return {"audits": [audit(task["path"], data)]}


def rank_files(state: State) -> dict[str, Any]:
    """Sum up, and choose the worst."""
    audits = _of_this_run(state)
    return {"totals": ranking.total(audits), "worst": ranking.rank(audits, state.get("limit", 20))}


def write_report(state: State) -> dict[str, Any]:
    """Write the report, with the picture of this graph in it. Done twice, it writes the same."""
    text = report.render(
        tree=state["tree"],
        totals=state["totals"],
        worst=state["worst"],
        audits=_of_this_run(state),
        drawing=graph.get_graph().draw_mermaid(),
        limit=state.get("limit", 20),
    )
    report.write(text, Path(state["target"]))
    return {"report": state["target"]}


def _of_this_run(state: State) -> list[FileAudit]:
    """One audit for each file, the newest, in the order of the files."""
    newest = {audit.path: audit for audit in state["audits"]}
    return [newest[path] for path in state["files"]]


builder = (
    StateGraph(State, input_schema=Input, output_schema=Output)
    .add_node("list_files", list_files)
    .add_node("audit_file", audit_file)
    .add_node("rank_files", rank_files)
    .add_node("write_report", write_report)
    .add_edge(START, "list_files")
    .add_conditional_edges("list_files", one_task_per_file, ["audit_file", "rank_files"])
    .add_edge("audit_file", "rank_files")
    .add_edge("rank_files", "write_report")
    .add_edge("write_report", END)
)

graph = builder.compile(name="code_audit")
