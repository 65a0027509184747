"""The command line `pregel-async`. Importing `pregel_async` does not import it; it needs the extra `cli`.

app          the commands and their options
threads      the commands that manage stored threads
exit_codes   how commands end: errors as lines, and exit codes
target       from MODULE:GRAPH to a graph that stores its threads
run_command  one run: start or continue, show progress, stop on a signal
progress     counts made from a stream's chunks, and two views of them: lines, and a live display
history      the checkpoints of a thread, for the command `history`
formatting   values, errors and tables as text
"""

from __future__ import annotations

import sys

__all__ = ["main"]

EXTRA = frozenset(("typer", "rich"))


def main() -> None:
    """Run the command line and exit the process; `exit_codes` lists the exit codes.

    Raises:
        SystemExit: always, with the exit code. It is 1 if the extra `cli` is not installed.
    """
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
