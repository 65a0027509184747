"""The graph: list the files, audit each in a task, rank the results, write the report.

list_files --> audit_file (once per file) --> rank_files --> write_report

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
    """The input of a run; every key is optional.

    Keys:
        root: the tree, or a single file; None or no key for the running interpreter's standard library.
        report: where to write the report; `code-audit.md` in the working directory by default.
        limit: number of worst files to show; 20 by default.
        skip: names of directories to skip; `sources.SKIPPED` by default, `[]` for none.
    """

    root: str | None
    report: str
    limit: int
    skip: list[str]


class State(Input):
    """The state of a run.

    Keys:
        tree, target: the input's root and report as absolute paths, so that a resume from another directory finds them.
        files: the paths to audit, relative to the tree.
        audits: the facts: the reducer appends each task's result, in the order of the sends. A thread that is
            used for a second audit still holds the first.
        totals, worst: results of the ranking.
    """

    tree: str
    target: str
    files: list[str]
    audits: Annotated[list[FileAudit], operator.add]
    totals: Totals
    worst: list[Ranked]


class Output(TypedDict):
    """The result of a run."""

    report: str
    totals: Totals
    worst: list[Ranked]


class FileTask(TypedDict):
    """The argument of one task: everything it needs, so that it does not depend on the shared state."""

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
    """Send one task per file; a tree without files goes directly to the ranking."""
    tasks = [Send("audit_file", FileTask(tree=state["tree"], path=path)) for path in state["files"]]
    return tasks or "rank_files"


def audit_file(task: FileTask) -> dict[str, Any]:
    """Audit one file. A plain function runs in a worker thread. A file that cannot be read becomes a finding."""
    try:
        data = sources.read(Path(task["tree"], task["path"]))
    except (OSError, sources.TooLarge) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return {"audits": [FileAudit(path=task["path"], problem=f"cannot be read: {reason}")]}
    return {"audits": [audit(task["path"], data)]}


def rank_files(state: State) -> dict[str, Any]:
    """Sum up, and choose the worst files."""
    audits = _of_this_run(state)
    return {"totals": ranking.total(audits), "worst": ranking.rank(audits, state.get("limit", 20))}


def write_report(state: State) -> dict[str, Any]:
    """Write the report, with a drawing of this graph. Running it again writes the same file."""
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
    """Return the newest audit of each file, in the order of the files."""
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
