"""`python -m examples.code_audit`: the audit as a separate program, durable like any other run."""

from __future__ import annotations

import argparse
import sys

import anyio

from checkpoint_savers import SqliteSaver
from pregel_async.errors import PregelError

from .graph import Input, Output, builder


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.code_audit", description="Audit a tree of Python sources."
    )
    parser.add_argument("root", nargs="?", help="a directory or a file; the standard library by default")
    parser.add_argument("--report", default="code-audit.md", help="where to write the report (%(default)s)")
    parser.add_argument("--limit", type=int, default=20, help="how many of the worst files to show (%(default)s)")
    parser.add_argument("--everything", action="store_true", help="tests, site-packages and the like too")
    parser.add_argument("--db", default="pregel.db", help="where threads are kept (%(default)s)")
    parser.add_argument("--thread", default="code-audit", help="the thread; one that was stopped goes on (%(default)s)")
    options = parser.parse_args()
    given = Input(root=options.root, report=options.report, limit=options.limit)
    if options.everything:
        given["skip"] = []
    try:
        result = anyio.run(audit, given, options.db, options.thread)
    except (PregelError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    totals, worst = result["totals"], result["worst"]
    print(f"{totals.files} files, {totals.lines:,} lines, {totals.functions:,} functions")
    for ranked in worst[:5]:
        print(f"{ranked.score:8g}  {ranked.path}")
    print(f"The report is in {result['report']}")
    return 0


async def audit(given: Input, db: str, thread: str) -> Output:
    """Resume the thread if an earlier call left work; otherwise delete it and start a new audit."""
    async with SqliteSaver.from_conn_string(db) as saver:
        graph = builder.compile(saver)
        if (await graph.aget_state(thread)).next:
            print(f"thread {thread!r} goes on where it was stopped", file=sys.stderr)
            return await graph.ainvoke(None, thread)
        await saver.adelete_thread(thread)
        return await graph.ainvoke(given, thread)


if __name__ == "__main__":
    sys.exit(main())
