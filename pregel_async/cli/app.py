"""The commands and their options. This module declares and checks them; other modules do the work."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from .exit_codes import DbOption, TracebackOption, report_errors
from .history import database_exists, print_rows, read_history
from .run_command import RunArguments, run_graph
from .target import NotStoredError, UsageError, attach, load
from .threads import threads

app = typer.Typer(
    name="pregel-async",
    help="Run graphs durably, look at their threads, and draw them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(threads, name="threads")

GraphArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:GRAPH",
        help="A module (or a .py file), and in it a StateGraph, a compiled graph, or a function that returns one. "
        "A function with one parameter is given the checkpointer.",
    ),
]
ThreadOption = Annotated[
    str | None, typer.Option("--thread", "-t", metavar="ID", help="The thread; made up if left out.")
]


def start() -> int:
    """Run the command in `sys.argv`.

    Returns:
        The exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A character that the terminal's encoding lacks must not make printing fail and so end a run.
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            found = version("pregel-async")
        except PackageNotFoundError:  # run from a source tree
            found = "(not installed)"
        print(f"pregel-async {found}")
        raise typer.Exit()


@app.callback()
def _main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    return


@app.command()
def run(
    graph: GraphArgument,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="JSON", help="The input: JSON, @FILE, or - for standard input."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", "-r", metavar="JSON", help="The answer to the open question, or {id: answer, ...}."),
    ] = None,
    thread: ThreadOption = None,
    db: DbOption = "pregel.db",
    recursion_limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many supersteps the run may take.")
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many tasks run at once; all, if left out.")
    ] = None,
    discard_pending: Annotated[
        bool, typer.Option("--discard-pending", help="Let a new input discard the thread's unfinished work.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for another run that owns the thread, instead of failing.")
    ] = False,
    output_json: Annotated[
        bool, typer.Option("--output-json", help="Print the whole output as one line of JSON; nothing else on stdout.")
    ] = False,
    figures: Annotated[
        bool,
        typer.Option("--figures/--no-figures", help="Print at the end what the run took: tasks, retries, storage."),
    ] = True,
    traceback: TracebackOption = False,
) -> None:
    """Run a graph, or go on with a thread.

    Without --input a new thread gets {}, a thread with unfinished work goes on, and one that has finished shows its
    output. With --input a thread that has finished runs again, on its state; one with unfinished work refuses, unless
    --discard-pending is given. A thread that waits for an answer shows its questions; --resume answers them.

    Progress goes to standard error, the output to standard output. Ctrl-C or SIGTERM ends the run in order and says how
    to go on; a second one ends it at once. Whatever ends it, what was recorded does not run again.
    """
    with report_errors(full=traceback):
        graph_input = _parse_input(input)
        if graph_input is not None and resume is not None:
            raise UsageError("--input begins anew and --resume answers: give one of them")
        request = RunArguments(
            target=graph,
            graph_input=graph_input,
            resume=_parse_input(resume, "--resume"),
            thread=thread,
            db=db,
            recursion_limit=recursion_limit,
            max_concurrency=max_concurrency,
            discard_pending=discard_pending,
            wait=wait,
            output_json=output_json,
            figures=figures,
            traceback=traceback,
            program=_program(),
        )
        with contextlib.redirect_stdout(sys.stderr) if output_json else contextlib.nullcontext():
            target = load(graph)
        code = run_graph(target, request)
    raise typer.Exit(code)


@app.command()
def history(
    thread: Annotated[str, typer.Option("--thread", "-t", metavar="ID", help="The thread.")],
    graph: Annotated[
        str | None, typer.Argument(metavar="MODULE:GRAPH", help="The graph: shows what runs next after each.")
    ] = None,
    db: DbOption = "pregel.db",
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    traceback: TracebackOption = False,
) -> None:
    """List the checkpoints of a thread, newest first."""
    with report_errors(full=traceback):
        if not database_exists(db):
            raise NotStoredError(f"there is no database {db}")
        rows = read_history(None if graph is None else load(graph), thread=thread, db=db, limit=limit)
        if not rows:
            raise NotStoredError(f"nothing is stored of thread {thread!r} in {db}")
        print_rows(rows, as_json=as_json)


class Format(StrEnum):
    """The output format of `draw`."""

    mermaid = "mermaid"
    text = "text"
    svg = "svg"
    json = "json"


@app.command()
def draw(
    graph: GraphArgument,
    form: Annotated[Format, typer.Option("--format", "-f", help="As what.")] = Format.mermaid,
    xray: Annotated[bool, typer.Option("--xray", help="With the graphs that nodes run in place of the nodes.")] = False,
    traceback: TracebackOption = False,
) -> None:
    """Print a graph: as mermaid, as text for the terminal, as an SVG image, or as JSON."""
    with report_errors(full=traceback):
        drawn = attach(load(graph), None).get_graph(xray=xray)
        if form is Format.text:
            print(drawn.draw_text(width=shutil.get_terminal_size().columns))
        elif form is Format.svg:
            print(drawn.draw_svg())
        elif form is Format.json:
            # In ASCII, because names may hold control characters, which a terminal would obey.
            print(json.dumps(drawn.to_json(), indent=2))
        else:
            print(drawn.draw_mermaid(), end="")


def _parse_input(text: str | None, source: str = "--input") -> Any:
    """Return the value of an option: JSON, the content of @FILE, or standard input for "-"."""
    if text is None:
        return None
    try:
        if text == "-":
            source = "standard input"
            return json.load(sys.stdin)
        if text.startswith("@"):
            source = text[1:]
            return json.loads(Path(source).read_text(encoding="utf-8"))
        return json.loads(text)
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{source} is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        bare = source.startswith("--") and text[:1] not in ("{", "[", '"', "-")  # probably text without quotes
        advice = f". A text is in quotes: {source} {shlex.quote(json.dumps(text))}" if bare else ""
        raise UsageError(f"{source} is no JSON: {error}{advice}") from None


def _program() -> tuple[str, ...]:
    """Return the words that start this program again."""
    name = Path(sys.argv[0]).name
    return ("python", "-m", "pregel_async.cli") if name == "__main__.py" else (name,)
