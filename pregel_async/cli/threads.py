"""The commands `threads ...`: list, show, check, migrate, copy, prune, erase, export and import stored threads."""

from __future__ import annotations

import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from checkpoint_savers import (
    BaseCheckpointSaver,
    InMemorySaver,
    Pruned,
    Retention,
    ThreadHeader,
    ThreadNotFoundError,
)
from checkpoint_savers.owner import is_live
from checkpoint_savers.records import VERSION, ThreadDump
from checkpoint_savers.upkeep.export import export_threads, import_threads
from checkpoint_savers.upkeep.threads import erase_threads

from .database import Database, DbOption, PostgresOption, SchemaOption, ServiceOption, database_exists
from .exit_codes import JsonOption, TracebackOption, report_errors
from .formatting import escape, format_columns, plural, print_json
from .inbox import Order, ThreadStatusChoice, print_threads, status_fields, thread_query, threads_of_graph
from .json_options import parse_pairs
from .langgraph_import import LangGraphImport, load_for_langgraph, print_reports
from .show_state import print_checkpoint, print_differences
from .target import UsageError, attach, load
from .thread_checks import MigrationReport, Report

threads = typer.Typer(help="Look after stored threads.", no_args_is_help=True, rich_markup_mode=None)

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID...", help="The threads.")]
FilterOption = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="KEY=JSON", help="Only those whose metadata have it; may be given again."),
]
OpenOption = Annotated[bool, typer.Option("--open", help="Only threads with pending tasks.")]
VersionOption = Annotated[
    int | None, typer.Option("--version", metavar="N", help="Only threads that this version of the graph has stored.")
]
OfGraphOption = Annotated[
    str | None,
    typer.Option("--graph", metavar="NAME", help="Only threads whose first run in a service was of this graph."),
]

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@threads.command("list")
def list_(
    db: DbOption = "pregel.db",
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    service: ServiceOption = None,
    filters: FilterOption = None,
    status: Annotated[
        list[ThreadStatusChoice] | None,
        typer.Option("--status", help="Only threads of runs of a service, with this status; may be given again."),
    ] = None,
    graph: Annotated[
        str | None, typer.Option("--graph", metavar="NAME", help="Only those whose first run was of this graph.")
    ] = None,
    sort: Annotated[
        Order | None, typer.Option("--sort", help="By this time, the latest first, instead of by id.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            metavar="ID",
            help="Only ids greater than this: the last of a page. With --status, --sort or --graph, the cursor that "
            "the page before has printed.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Only how many.")] = False,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """List threads, in the order of their ids.

    With --status, --sort or --graph, list the threads of runs that a service has accepted, the latest first.
    """
    with report_errors(full=traceback):
        wanted = parse_pairs(filters, "--filter") or None
        if wanted and VERSION in wanted:
            raise UsageError(
                f"a thread's metadata has no {VERSION}, only its checkpoints' has: see threads check --open --version"
            )
        database = _database(db, postgres, schema, service)
        if status or sort or graph:
            query = thread_query(status or (), graph, sort or Order.updated_at, wanted or {})
            print_threads(database, query, limit=limit, after=after, count=count, as_json=as_json)
            return

        async def read(saver: BaseCheckpointSaver) -> list[dict[str, Any]]:
            found = saver.alist_threads(filter=wanted, after=after, limit=limit)
            return [_header_fields(header, saver.clock()) async for header in found]

        if count:
            print(database.run(lambda saver: saver.acount_threads(filter=wanted)))
            return
        found = database.run(read)
        if as_json:
            print_json(found, indent=2)
        else:
            rows = [
                (each["thread_id"], each["newest"] or "", each["running"] or "", _compact(each["metadata"]))
                for each in found
            ]
            print("\n".join(format_columns(("thread", "newest", "running", "metadata"), rows)))


@threads.command()
def show(
    thread: Annotated[str, typer.Argument(metavar="ID", help="The thread.")],
    db: DbOption = "pregel.db",
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    service: ServiceOption = None,
    at: Annotated[str | None, typer.Option("--at", metavar="CHECKPOINT", help="Show this checkpoint instead.")] = None,
    values: Annotated[bool, typer.Option("--values", help="Show the state: the newest, or that of --at.")] = False,
    diff: Annotated[
        tuple[str, str] | None, typer.Option("--diff", metavar="A B", help="Show how two checkpoints differ.")
    ] = None,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Show what is stored of a thread: namespaces, checkpoints, bytes, pins, and who runs it.

    Of a thread with runs of a service, also its status and its open questions. --at shows a checkpoint, --values a
    state, and --diff the places at which the states of two checkpoints differ. No code of a graph is needed: objects
    are shown as their fields.
    """
    with report_errors(full=traceback):
        database = _database(db, postgres, schema, service)
        if diff is not None:
            if at is not None or values:
                raise UsageError("--diff shows two checkpoints: leave out --at and --values")
            print_differences(database, thread, diff, as_json=as_json)
        elif at is not None or values:
            print_checkpoint(database, thread, at, values=values, as_json=as_json)
        else:
            _print_details(database.run(lambda saver: _thread_details(saver, thread)), as_json=as_json)


@threads.command()
def check(
    graph: Annotated[str, typer.Argument(metavar="MODULE:GRAPH", help="The graph, in the version to deploy.")],
    db: DbOption = "pregel.db",
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    service: ServiceOption = None,
    filters: FilterOption = None,
    open_only: OpenOption = False,
    version: VersionOption = None,
    of_graph: OfGraphOption = None,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many threads, the same ones each time.")
    ] = None,
    branches: Annotated[
        bool, typer.Option("--branches", help="The newest checkpoint of each branch, and not only the head.")
    ] = False,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Check before a deployment which threads the graph's code loads, and why it does not load the others.

    Threads that do not fit for the same reason are in one row, with the declaration that makes them fit. The items of
    the graph's store are read too. Nothing is changed, and no node runs. The exit code is 1 if a thread does not load,
    or an item cannot be read.
    """
    with report_errors(full=traceback):
        wanted, target, report = _checked_filter(filters), load(graph), Report()

        async def read(saver: BaseCheckpointSaver) -> None:
            found = attach(target, saver).acheck_threads(
                saver,
                open=open_only,
                of_version=version,
                sample=sample,
                branches=branches,
                filter=wanted,
                thread_ids=await threads_of_graph(saver, of_graph),
            )
            await report.read(found)
            await report.read_store(attach(target, saver).store)

        _database(db, postgres, schema, service).run(read)
        report.print(as_json=as_json)
        if report.refused or report.items:
            raise typer.Exit(1)


@threads.command()
def migrate(
    graph: Annotated[str, typer.Argument(metavar="MODULE:GRAPH", help="The graph, with the rules to apply.")],
    db: DbOption = "pregel.db",
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    service: ServiceOption = None,
    filters: FilterOption = None,
    open_only: OpenOption = False,
    version: VersionOption = None,
    of_graph: OfGraphOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only report what would be stored.")] = False,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Store what the rules that the graph declares make of threads, so that these rules can be removed from its code.

    Each thread is one transaction; running the command again continues where it stopped, and stores nothing twice.
    Threads that do not load, and threads that a run owns, stay as they are. The exit code is 1 if there are any. If the
    database also stores threads of other graphs, choose with --graph or --filter: the rules would change those that
    they happen to fit.
    """
    with report_errors(full=traceback):
        wanted, target, report = _checked_filter(filters), load(graph), MigrationReport(dry_run=dry_run)

        async def work(saver: BaseCheckpointSaver) -> None:
            found = attach(target, saver).amigrate_threads(
                saver,
                dry_run=dry_run,
                open=open_only,
                of_version=version,
                filter=wanted,
                thread_ids=await threads_of_graph(saver, of_graph),
            )
            await report.read(found)

        _database(db, postgres, schema, service).run(work)
        report.print(as_json=as_json)
        if report.is_incomplete:
            raise typer.Exit(1)


@threads.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="ID", help="The thread.")],
    target: Annotated[str, typer.Argument(metavar="NEW", help="The id of the copy.")],
    db: DbOption = "pregel.db",
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    traceback: TracebackOption = False,
) -> None:
    """Copy a thread, with its questions, branches and recorded results."""
    with report_errors(full=traceback):
        _database(db, postgres, schema).run(lambda saver: saver.acopy_thread(source, target))


@threads.command()
def prune(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The threads; all, if left out.")] = None,
    db: DbOption = "pregel.db",
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    keep: Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep the newest N of each namespace.")] = None,
    max_age: Annotated[
        str | None, typer.Option("--max-age", metavar="AGE", help="Keep what is no older: 30d, 12h, 45m, 10s.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=0, metavar="N", help="Keep the newest that take no more.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only print what would be removed.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Take out of threads what is not needed any more.

    What an open question, a branch, a recorded result or a pin needs stays, whatever the limits say.
    """
    with report_errors(full=traceback):
        if keep is None and max_age is None and max_bytes is None:
            raise UsageError("say how much is kept: --keep, --max-age or --max-bytes")
        retention = Retention(keep=keep, max_age=None if max_age is None else _parse_age(max_age), max_bytes=max_bytes)
        if not dry_run:
            _confirm(f"Prune {plural(len(ids), 'thread') if ids else 'all threads'}?", yes)

        async def work(saver: BaseCheckpointSaver) -> Pruned:
            for each in ids or ():
                if await saver.read(each) is None:
                    raise ThreadNotFoundError(each)
            return await saver.aprune(ids or None, retention=retention, dry_run=dry_run)

        pruned = _database(db, postgres, schema).run(work)
        if as_json:
            print_json(_pruned_fields(pruned), indent=2)
            return
        rows = [
            (each.thread_id, str(len(each.gone)), str(each.freed), _compact(_reason_counts(each.stayed)))
            for each in pruned.threads
        ]
        print("\n".join(format_columns(("thread", "would go" if dry_run else "gone", "bytes", "stays"), rows)))
        if pruned.busy:
            print(f"passed over, as a run owns them: {', '.join(map(escape, pruned.busy))}", file=sys.stderr)


@threads.command()
def erase(
    ids: IdsArgument,
    db: DbOption = "pregel.db",
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    yes: YesOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Erase threads: no byte of them is left in the database's files."""
    with report_errors(full=traceback):
        _confirm(f"Erase {plural(len(ids), 'thread')}: {', '.join(ids)}?", yes)

        async def work(saver: BaseCheckpointSaver) -> None:
            unknown = [each for each in ids if await saver.dump(each) is None]
            # Erase all or nothing: a misspelt id stops the command. If all ids are unknown, erase anyway: an earlier
            # erasure may have been interrupted and have left bytes in the files.
            if len(unknown) in (0, len(ids)):
                await erase_threads(saver, ids)
            if unknown:
                raise ThreadNotFoundError(unknown[0])

        _database(db, postgres, schema).run(work)


@threads.command("export")
def export_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The threads; all, if left out.")] = None,
    db: DbOption = "pregel.db",
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    traceback: TracebackOption = False,
) -> None:
    """Write threads to a file, byte for byte; any saver can import them."""
    with report_errors(full=traceback):

        async def work(saver: BaseCheckpointSaver) -> int:
            wanted = ids or [each.thread_id async for each in saver.alist_threads() if each.newest is not None]
            return await export_threads(saver, wanted, file)

        print(plural(_database(db, postgres, schema).run(work), "thread"), file=sys.stderr)


@threads.command("import")
def import_(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A file that `threads export` wrote.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="What the file's only thread is to be called.")
    ] = None,
    db: DbOption = "pregel.db",
    postgres: PostgresOption = None,
    schema: SchemaOption = "public",
    from_langgraph: Annotated[
        str | None,
        typer.Option(
            "--from-langgraph", metavar="FILE|URL", help="Import from a database of LangGraph's savers instead."
        ),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option("--graph", metavar="MODULE:GRAPH", help="From LangGraph: the graph that continues the threads."),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--thread", metavar="ID", help="From LangGraph: only this one; may be given again."),
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="From LangGraph: earlier checkpoints too.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="From LangGraph: replace threads that exist.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="From LangGraph: only report.")] = False,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Make threads of those of a file, and print their ids. An SQLite file is made if it is missing.

    With --from-langgraph, print what became of each thread, and what cannot be kept of it.
    """
    with report_errors(full=traceback):
        if from_langgraph is not None:
            if file is not None or name is not None:
                raise UsageError("--from-langgraph names the database to import: leave out FILE and --as")
            if graph is None:
                raise UsageError("--from-langgraph needs --graph MODULE:GRAPH, the graph that continues the threads")
            request = LangGraphImport(
                source=from_langgraph,
                target=load_for_langgraph(graph),
                thread_ids=ids,
                history=history,
                replace=replace,
                dry_run=dry_run,
            )
            # A dry run makes no file.
            if dry_run and postgres is None and not database_exists(db):
                reports = anyio.run(request.run, InMemorySaver())
            else:
                reports = _database(db, postgres, schema).run(request.run, new=True)
            print_reports(reports, as_json=as_json)
            if any(report.status == "refused" for report in reports):
                raise typer.Exit(1)
            return
        if graph is not None or ids or history or replace or dry_run or as_json:
            raise UsageError(
                "--graph, --thread, --history, --replace, --dry-run and --json need --from-langgraph, which is missing"
            )
        if file is None:
            raise UsageError("name the FILE to import, or a database with --from-langgraph")
        exported = file
        if not exported.exists():
            raise UsageError(f"there is no file {exported}")
        made = _database(db, postgres, schema).run(
            lambda saver: import_threads(saver, exported, thread_id=name), new=True
        )
        print("\n".join(map(escape, made)))


def _checked_filter(filters: list[str] | None) -> dict[str, Any] | None:
    wanted = parse_pairs(filters, "--filter") or None
    if wanted and VERSION in wanted:
        raise UsageError(f"a thread's metadata has no {VERSION}, only its checkpoints' has: use --version")
    return wanted


def _database(db: str, postgres: str | None, schema: str, service: str | None = None) -> Database:
    return Database(db=db, postgres=postgres, schema=schema, service=service)


def _print_details(details: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(details, indent=2)
        return
    inside = details.pop("namespaces")
    for name, value in details.items():
        text = str(value) if isinstance(value, (str, int)) else _compact(value)
        print(f"{name.replace('_', ' ')}: {escape(text)}")
    rows = [
        (each["ns"] or "(root)", each["head"] or "", str(each["checkpoints"]), str(each["bytes"])) for each in inside
    ]
    print("\n".join(format_columns(("namespace", "head", "checkpoints", "bytes"), rows)))


async def _thread_details(saver: BaseCheckpointSaver, thread_id: str) -> dict[str, Any]:
    dump = await saver.dump(thread_id)
    if dump is None:
        raise ThreadNotFoundError(thread_id)
    header: dict[str, Any] = {}
    # `after` is exclusive: list from the id without its last character, which sorts just before the thread.
    async for each in saver.alist_threads(after=thread_id[:-1] or None):
        if each.thread_id >= thread_id:
            header = _header_fields(each, saver.clock())
            break
    spaces = sorted({row.ns for row in dump.rows})
    return {
        "thread": thread_id,
        **await status_fields(saver, thread_id),
        "running": header.get("running") or "no",
        "checkpoints": len(dump.rows),
        "records": len(dump.records),
        "rows_of_events": len(dump.events),
        "bytes": _stored_bytes(dump),
        "pinned": [row.checkpoint_id for row in dump.rows if row.pinned],
        "metadata": header.get("metadata", {}),
        "namespaces": [
            {
                "ns": ns,
                "head": dump.heads.get(ns),
                "checkpoints": len([row for row in dump.rows if row.ns == ns]),
                "bytes": sum([len(row.frame) for row in dump.rows if row.ns == ns]),
            }
            for ns in spaces
        ],
    }


def _parse_age(text: str) -> timedelta:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise UsageError(f"--max-age is a number and a unit, as in 30d, 12h, 45m or 10s; not {text!r}")
    try:
        return timedelta(seconds=float(found[1]) * UNITS[found[2]])
    except OverflowError as error:
        raise UsageError(f"--max-age {text} is more than {timedelta.max.days} days") from error


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Standard input is not a terminal: pass --yes")
    if not typer.confirm(escape(question)):
        raise UsageError("nothing was done")


def _stored_bytes(dump: ThreadDump) -> int:
    frames = [row.frame for row in dump.rows] + [one.frame for one in dump.records] + [one.frame for one in dump.events]
    return sum(map(len, frames))


def _header_fields(header: ThreadHeader, now: float) -> dict[str, Any]:
    live = header.owner is not None and is_live(header.owner, header.expires_at, now=now)
    return {
        "thread_id": header.thread_id,
        "newest": header.newest,
        "head": header.head,
        "epoch": header.epoch,
        "running": str(header.owner) if live else None,
        "metadata": header.metadata,
    }


def _pruned_fields(pruned: Pruned) -> dict[str, Any]:
    return {
        "dry_run": pruned.dry_run,
        "checkpoints": pruned.checkpoints,
        "freed": pruned.freed,
        "busy": pruned.busy,
        "threads": pruned.threads,
    }


def _reason_counts(stayed: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in stayed:
        counts[each.why] = counts.get(each.why, 0) + 1
    return counts


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, default=str) if value else ""
