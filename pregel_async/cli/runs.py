"""The commands `runs ...`: start, list, show, cancel, retry and follow the runs of a service, from any process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from checkpoint_savers.runs.rows import CancelAction, RunStatus

from ..service import Page, Run, RunService
from ..types import Command, StreamMode
from .database import run_with_service
from .exit_codes import FAILED, JsonOption, TracebackOption, report_errors
from .formatting import escape, format_columns, print_json
from .json_options import InputOption, ResumeOption, parse_json, parse_pairs
from .target import UsageError

runs = typer.Typer(help="Look after the runs of a service.", no_args_is_help=True, rich_markup_mode=None)

ServiceArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:SERVICE", help="A RunService, or a function that returns one. The command executes no runs."
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]


class StatusChoice(StrEnum):
    """The statuses of runs."""

    pending = "pending"
    running = "running"
    success = "success"
    interrupted = "interrupted"
    error = "error"
    timeout = "timeout"
    cancelled = "cancelled"


class ModeChoice(StrEnum):
    """The stream modes that can be followed."""

    values = "values"
    updates = "updates"
    messages = "messages"
    custom = "custom"
    tasks = "tasks"
    checkpoints = "checkpoints"
    debug = "debug"


ModesOption = Annotated[
    list[ModeChoice] | None,
    typer.Option("--mode", help="A stream mode; may be given again. Only values, if left out."),
]


@runs.command()
def start(
    service: ServiceArgument,
    graph: Annotated[str, typer.Argument(metavar="GRAPH", help="The name of the graph in the service.")],
    input: InputOption = None,
    resume: ResumeOption = None,
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", metavar="ID", help="The thread; made up if left out.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="A name of this request: with it, the command may be repeated."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=JSON", help="Metadata of the run; may be given again."),
    ] = None,
    modes: ModesOption = None,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Accept a run, which a worker executes. Print its id.

    Without --input, a new thread gets {}, and another one continues.
    """
    with report_errors(full=traceback):
        if input is not None and resume is not None:
            raise UsageError("--input begins anew and --resume answers: give one of them")
        given = parse_json(input) if resume is None else Command(resume=parse_json(resume, "--resume"))
        found = parse_pairs(metadata, "--metadata")

        async def work(opened: RunService) -> Run:
            return await opened.start(
                graph,
                {} if given is None and await _is_new(opened, thread) else given,
                thread_id=thread,
                idempotency_key=key,
                metadata=found,
                stream_mode=_modes(modes),
            )

        _print_run(run_with_service(service, work), as_json=as_json)


@runs.command("list")
def list_(
    service: ServiceArgument,
    thread: Annotated[str | None, typer.Option("--thread", "-t", metavar="ID", help="Only of this thread.")] = None,
    graph: Annotated[str | None, typer.Option("--graph", metavar="NAME", help="Only of this graph.")] = None,
    status: Annotated[
        list[StatusChoice] | None, typer.Option("--status", help="Only with this status; may be given again.")
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="KEY=JSON", help="Only those whose metadata have it; may be given again."),
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="The cursor that the page before has printed.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 100,
    count: Annotated[bool, typer.Option("--count", help="Only how many.")] = False,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """List runs, the newest first."""
    with report_errors(full=traceback):
        statuses: Sequence[RunStatus] = [each.value for each in status or ()]
        metadata = parse_pairs(filters, "--filter")

        async def work(opened: RunService) -> Page[Run] | int:
            if count:
                return await opened.count_runs(thread_id=thread, graph=graph, status=statuses, metadata=metadata)
            return await opened.search_runs(
                thread_id=thread, graph=graph, status=statuses, metadata=metadata, limit=limit, after=after
            )

        found = run_with_service(service, work)
        if isinstance(found, int):
            print(found)
            return
        if as_json:
            print_json(found.items, indent=2)
        else:
            head = ("run", "status", "graph", "thread", "attempt", "created", "ended")
            print("\n".join(format_columns(head, [_row(run) for run in found.items])))
        if found.next is not None:
            print(f"there are more: --after {found.next}", file=sys.stderr)


@runs.command()
def show(
    service: ServiceArgument, run: RunArgument, as_json: JsonOption = False, traceback: TracebackOption = False
) -> None:
    """Show a run: its status, its times, and why it failed, with the traceback."""
    with report_errors(full=traceback):
        found = run_with_service(service, lambda opened: opened.get_run(run))
        if as_json:
            print_json(found, indent=2)
            return
        for name in found.__struct_fields__:
            value = getattr(found, name)
            if name != "error" and value not in (None, "", {}):
                print(f"{name.replace('_', ' ')}: {escape(_text(value))}")
        if found.error is not None:
            print(f"error: {escape(f'{found.error.type}: {found.error.message}')}")
            for line in found.error.traceback.splitlines():
                print(f"  {escape(line)}")


@runs.command()
def cancel(
    service: ServiceArgument,
    run: RunArgument,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Also delete the checkpoints that the run has made.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Who or what cancels it.")] = "user",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until its tasks have ended.")] = True,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Wait at most so long. The request remains.")
    ] = None,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Cancel a run, wherever it is executed. The exit code is 1 if it has ended by itself first."""
    with report_errors(full=traceback):

        async def work(opened: RunService) -> Run:
            limit: bool | float = wait if timeout is None or not wait else timeout
            action: CancelAction = "rollback" if rollback else "interrupt"
            return await opened.cancel(run, action=action, reason=reason, wait=limit)

        found = run_with_service(service, work)
        _print_run(found, as_json=as_json)
        if found.ended_at is not None and found.status != "cancelled":
            raise typer.Exit(FAILED)


@runs.command()
def retry(
    service: ServiceArgument, run: RunArgument, as_json: JsonOption = False, traceback: TracebackOption = False
) -> None:
    """Run the thread of an ended run again from where it is. Print the id of the new run."""
    with report_errors(full=traceback):
        _print_run(run_with_service(service, lambda opened: opened.retry(run)), as_json=as_json)


@runs.command()
def follow(
    service: ServiceArgument,
    run: RunArgument,
    modes: ModesOption = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Only parts after this one's cursor.")
    ] = None,
    subgraphs: Annotated[bool, typer.Option("--subgraphs", help="Parts of subgraphs, too.")] = False,
    traceback: TracebackOption = False,
) -> None:
    """Print the parts of a run as lines of JSON, those stored and those to come, until it has ended.

    Ctrl-C ends the command and not the run. The exit code is 1 if the run has failed, was cancelled or was too late.
    """
    with report_errors(full=traceback):

        async def work(opened: RunService) -> Run:
            async with opened.follow(run, after=after, stream_mode=_modes(modes), subgraphs=subgraphs) as parts:
                async for part in parts:
                    print_json(part)
                    sys.stdout.flush()
            return await opened.get_run(run)

        found = run_with_service(service, work)
        error = "" if found.error is None else f": {found.error.type}: {found.error.message}"
        print(escape(f"run {found.run_id}: {found.status}{error}"), file=sys.stderr)
        if found.status in ("error", "timeout", "cancelled"):
            raise typer.Exit(FAILED)


async def _is_new(opened: RunService, thread: str | None) -> bool:
    """Return True if no run of the thread was ever accepted."""
    return thread is None or not await opened.count_threads(thread_ids=(thread,))


def _modes(modes: list[ModeChoice] | None) -> tuple[StreamMode, ...]:
    return tuple(mode.value for mode in modes) if modes else ("values",)


def _print_run(run: Run, *, as_json: bool) -> None:
    """Print a run: as JSON, or its id on standard output and its status on standard error."""
    if as_json:
        print_json(run, indent=2)
        return
    print(escape(run.run_id))
    print(escape(f"{run.status}: graph {run.graph}, thread {run.thread_id}"), file=sys.stderr)


def _row(run: Run) -> tuple[str, ...]:
    ended = "" if run.ended_at is None else _text(run.ended_at)
    return run.run_id, run.status, run.graph, run.thread_id, str(run.attempt), _text(run.created_at), ended


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone().isoformat(" ", "seconds")
    return str(value)
