"""How every command ends, and the options that all commands have.

0     done
1     the run failed, or stored data could not be read
2     the command line is wrong, or does not fit the thread; nothing was run
3     another run owns the thread, or too many runs wait for a worker; nothing was run, and the command can be repeated
130   stopped by Ctrl-C (143: by SIGTERM); the thread can be resumed
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from typing import Annotated

import typer

from ..errors import PregelError, ThreadBusyError
from ..service import ServiceBusyError
from .formatting import escape, explain
from .target import UsageError

TracebackOption = Annotated[bool, typer.Option("--traceback", help="Show where an error comes from.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]

FAILED = 1
BUSY = 3


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command that an error has ended.

    Args:
        error: the error.
    """
    if isinstance(error, ThreadBusyError):
        return FAILED if error.lost else BUSY
    return BUSY if isinstance(error, ServiceBusyError) else FAILED


@contextlib.contextmanager
def report_errors(*, full: bool) -> Generator[None]:
    """Print errors of the body on standard error, and turn them into an exit code.

    Args:
        full: print tracebacks.

    Yields:
        None.

    Raises:
        typer.Exit: the body raised an error; `exit_code` is the process's exit code.
    """
    try:
        yield
    except typer.Exit:  # an exception, which the last clause would report
        raise
    except UsageError as error:
        print(escape(f"error: {error}"), file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:  # typer would exit with 1
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # The reader has closed the pipe, as `| head` does. Python flushes standard output once more when it exits, and
        # would print an error then, so point the descriptor elsewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except Exception as error:
        for line in explain(error, full=full):
            print(line, file=sys.stderr)
        if not full and not isinstance(error, PregelError):
            print("(--traceback shows where)", file=sys.stderr)
        raise typer.Exit(exit_code_of(error)) from None
