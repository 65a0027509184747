"""Import threads of LangGraph's for the command `threads import --from-langgraph`, and print what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from checkpoint_savers import BaseCheckpointSaver

from .formatting import escape, format_columns, plural, print_json
from .target import Target, attach, load

if TYPE_CHECKING:
    from ..from_langgraph import ThreadReport


class LangGraphImport(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the import.

    Attributes:
        source: the file or URL of LangGraph's database.
        target: the graph that continues the threads.
        thread_ids: the threads; None for all.
        history: import earlier checkpoints too.
        replace: replace threads that exist.
        dry_run: store nothing.
    """

    source: str
    target: Target
    thread_ids: Sequence[str] | None
    history: bool
    replace: bool
    dry_run: bool

    async def run(self, saver: BaseCheckpointSaver) -> list[ThreadReport]:
        """Import the threads, and return the report of each."""
        from ..from_langgraph import import_threads

        reports = import_threads(
            attach(self.target, saver),
            self.source,
            thread_ids=self.thread_ids or None,
            history=self.history,
            replace=self.replace,
            dry_run=self.dry_run,
        )
        return [report async for report in reports]


def load_for_langgraph(target: str) -> Target:
    """Import the graph, after LangGraph.

    Args:
        target: MODULE:GRAPH, as written on the command line.

    Raises:
        LangGraphNotInstalledError: LangGraph is not installed.
        UsageError: `target` names no graph.
    """
    from ..from_langgraph.decoding import Decoder

    Decoder()  # before the graph: `compile` registers messages of langchain-core only if they are imported
    return load(target)


def print_reports(reports: Sequence[ThreadReport], *, as_json: bool) -> None:
    """Print the reports on standard output.

    Args:
        reports: the reports.
        as_json: print one JSON document, a list of objects.
    """
    if as_json:
        print_json(reports, indent=2)
        return
    rows = [
        (
            report.thread_id,
            report.status,
            "" if report.step is None else str(report.step),
            str(report.checkpoints),
            str(report.messages),
            ", ".join(report.keys),
            ", ".join(report.next),
        )
        for report in reports
    ]
    print("\n".join(format_columns(("thread", "status", "step", "checkpoints", "messages", "keys", "next"), rows)))
    for report in reports:
        for question in report.questions:
            renamed = f"question {question.langgraph_id} of node {question.node!r} is {question.id}: {question.value!r}"
            print(escape(f"{report.thread_id}: {renamed}"))
        for each in report.lost:
            print(escape(f"{report.thread_id}: not kept: {each}"))
        if report.reason:
            print(escape(f"{report.thread_id}: refused: {report.reason}"))
    print(plural(len(reports), "thread"))
