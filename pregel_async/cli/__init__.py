"""The command line `pregel-async`. Importing `pregel_async` does not import it; it needs the extra `cli`.

app          the commands and their options
threads      the commands that look after stored threads
ending       how commands end: errors as lines, and exit codes
target       from MODULE:GRAPH to a graph that stores its threads
running      one run: begin or go on, show progress, stop on a signal
progress     counts from a stream's chunks, and their two views: lines, and a live display
listing      `history`
showing      values, errors and tables as text
"""

from __future__ import annotations

import sys

__all__ = ["main"]

EXTRA = frozenset(("typer", "rich"))


def main() -> None:
    """The entry point. Ends the process with an exit code: see `app`."""
    try:
        from .app import start
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA:
            raise
        print(
            f"pregel-async: the command line needs {missing}, which is missing: pip install 'pregel-async[cli]'",
            file=sys.stderr,
        )
        sys.exit(1)
    sys.exit(start())
