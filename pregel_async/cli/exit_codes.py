"""How every command ends, and the options that all of them have.

0     done
1     the run, or what is stored, failed
2     the command line is wrong, or does not fit the thread; nothing was run
130   stopped by Ctrl-C (143: by SIGTERM); the thread can go on
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from typing import Annotated

import typer

from ..errors import PregelError
from .formatting import escape, explain
from .target import UsageError

DbOption = Annotated[str, typer.Option("--db", metavar="FILE", help="The SQLite file that keeps threads.")]
TracebackOption = Annotated[bool, typer.Option("--traceback", help="Show where an error comes from.")]


@contextlib.contextmanager
def report_errors(*, full: bool) -> Generator[None]:
    """Turns what goes wrong into lines on standard error, and an exit code."""
    try:
        yield
    except UsageError as error:
        print(escape(f"error: {error}"), file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:  # typer would say 1
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `| head` has seen enough; Python flushes again at its end, and would complain then
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except Exception as error:
        for line in explain(error, full=full):
            print(line, file=sys.stderr)
        if not full and not isinstance(error, PregelError):
            print("(--traceback shows where)", file=sys.stderr)
        raise typer.Exit(1) from None
