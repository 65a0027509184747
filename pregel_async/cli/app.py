"""The commands and their options. This module declares and checks them; other modules do the work."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from .database import Database, DbOption, PostgresOption, SchemaOption
from .exit_codes import JsonOption, TracebackOption, report_errors
from .history import HistoryQuery, print_rows, read_history
from .json_options import InputOption, ResumeOption, parse_json, parse_pairs
from .run_command import RunArguments, run_graph
from .runs import runs
from .target import NotStoredError, UsageError, attach, load, load_service
from .threads import threads
from .worker_command import run_worker, settings_of

PROGRAM = "pregel-async"
COMPLETE = "_PREGEL_ASYNC_COMPLETE"
"""The environment variable with which a shell asks this program for completions."""

app = typer.Typer(
    name=PROGRAM,
    help="Run graphs durably, look at their threads, and draw them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(threads, name="threads")
app.add_typer(runs, name="runs")

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
ContextOption = Annotated[
    str | None, typer.Option("--context", metavar="JSON", help="The context of the nodes: JSON, or @FILE.")
]
ConfigurableOption = Annotated[
    list[str] | None,
    typer.Option("--configurable", metavar="KEY=JSON", help="A key of the config's configurable; may be given again."),
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
    input: InputOption = None,
    resume: ResumeOption = None,
    thread: ThreadOption = None,
    db: DbOption = "pregel.db",
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="ID", help="Run from this checkpoint of the thread; the newest, if left out."
        ),
    ] = None,
    context: ContextOption = None,
    configurable: ConfigurableOption = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=JSON", help="Metadata of the run's checkpoints; may be given again."),
    ] = None,
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
        bool,
        typer.Option(
            "--output-json", "--json", help="Print the whole output as one line of JSON; nothing else on stdout."
        ),
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
        if [input, resume, context].count("-") > 1:
            raise UsageError("standard input is read once: write - for one option only")
        graph_input = parse_json(input)
        if graph_input is not None and resume is not None:
            raise UsageError("--input begins anew and --resume answers: give one of them")
        request = RunArguments(
            target=graph,
            graph_input=graph_input,
            resume=parse_json(resume, "--resume"),
            thread=thread,
            database=Database(db=db, postgres=postgres, schema=schema),
            context=parse_json(context, "--context"),
            configurable=parse_pairs(configurable, "--configurable"),
            metadata=parse_pairs(metadata, "--metadata"),
            checkpoint=checkpoint,
            recursion_limit=recursion_limit,
            max_concurrency=max_concurrency,
            discard_pending=discard_pending,
            wait=wait,
            output_json=output_json,
            figures=figures,
            traceback=traceback,
            program=_program(),
            repeated=_repeated(context, configurable, metadata),
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
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="ID", help="Begin with this checkpoint; the newest, if left out."),
    ] = None,
    configurable: ConfigurableOption = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", metavar="KEY=JSON", help="Only checkpoints whose metadata have it; may be given again."
        ),
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="With the state at each checkpoint.")] = False,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """List the checkpoints of a thread, newest first.

    Values of classes are shown as their fields, unless the graph is given. --configurable checkpoint_ns=NS lists the
    checkpoints of a subgraph.
    """
    with report_errors(full=traceback):
        database = Database(db=db, postgres=postgres, schema=schema)
        if not database.exists:  # before the graph is imported
            raise NotStoredError(f"there is no database {database.name}")
        query = HistoryQuery(
            thread=thread,
            limit=limit,
            metadata=parse_pairs(metadata, "--metadata"),
            checkpoint=checkpoint,
            configurable=parse_pairs(configurable, "--configurable"),
            values=values,
        )
        rows = read_history(None if graph is None else load(graph), query, database)
        if not rows:
            wanted = " that fits the options" if checkpoint is not None or metadata or configurable else ""
            raise NotStoredError(f"nothing is stored of thread {thread!r} in {database.name}{wanted}")
        print_rows(rows, as_json=as_json, with_values=values)


@app.command()
def worker(
    service: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:SERVICE",
            help="A module (or a .py file), and in it a RunService, or a function that returns one.",
        ),
    ],
    slots: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many runs at the same time; as the service says, or 20.")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long runs may take to reach their next barrier at a shutdown; as the service says, or 30.",
        ),
    ] = None,
    traceback: TracebackOption = False,
) -> None:
    """Execute the runs that a service has accepted, until SIGTERM or Ctrl-C.

    At the first signal the worker stops to take runs, stops its own at their next barrier, gives them back to other
    workers, and exits with 0. A second signal cancels the tasks that are running, which other workers run again. A
    third one ends the process at once, as a crash does: another worker notices it and continues the runs.
    """
    with report_errors(full=traceback):
        found = load_service(service)
        code = run_worker(found, settings_of(found, slots, grace), service)
    raise typer.Exit(code)


class Shell(StrEnum):
    """The shells for which there is completion."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="The shell.", metavar="bash|zsh|fish")]) -> None:
    """Print the completion script of a shell: eval "$(pregel-async completion bash)"."""
    # The library's protocol of completion: this program is called with the variable set. The option --show-completion
    # does the same for the shell that it finds among the parent processes, which in a container may be none.
    os.environ[COMPLETE] = f"source_{shell.value}"
    try:
        app(prog_name=PROGRAM)
    finally:
        del os.environ[COMPLETE]


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


def _program() -> tuple[str, ...]:
    """Return the words that start this program again."""
    name = Path(sys.argv[0]).name
    return ("python", "-m", "pregel_async.cli") if name == "__main__.py" else (name,)


def _repeated(context: str | None, configurable: list[str] | None, metadata: list[str] | None) -> tuple[str, ...]:
    """Return the options that a command repeats which continues the run."""
    words: list[str] = [] if context is None else ["--context", context]
    for option, given in (("--configurable", configurable), ("--metadata", metadata)):
        for each in given or ():
            words += [option, each]
    return tuple(words)
