"""Keep threads that a released version of a graph has stored, and check that later code continues them.

await recorded(graph, "tests/recorded")             # once per release, after runs that leave threads of each kind
await check_recorded(graph, "tests/recorded")       # in the test suite, with the code as it is now
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.upkeep.export import import_threads

from .._api.compiled import Graph
from ..errors import ConfigError
from ..types import StateSnapshot, ThreadCheck

SUFFIX = ".threads"
"""The end of the names of exported threads' files."""


class RecordedThreadsError(AssertionError):
    """Code does not load threads that an earlier version has stored.

    Attributes:
        checks: the checks of these threads, by the name of the thread's file.
    """

    def __init__(self, folder: str, checks: dict[str, ThreadCheck]) -> None:
        self.checks = checks
        lines = [f"{len(checks)} of the threads in {folder!r} do not load:"]
        for name, check in checks.items():
            reasons = [f"{each.reason}. {each.advice}" for each in check.mismatches if each.blocks != "nothing"]
            lines += [f"  {name}: {reason}" for reason in (reasons or [check.damage])]
        super().__init__("\n".join(lines))


async def recorded(graph: Graph[Any, Any], folder: str | os.PathLike[str]) -> list[Path]:
    """Export the threads of a graph's checkpointer to a folder, one file per thread.

    A file that exists is kept as it is: threads of earlier releases are recorded under names that a later call does not
    use, if the graph's `version=` is raised with each incompatible change, or the threads have other ids.

    Args:
        graph: the graph that has made the threads.
        folder: the folder, which is made if it is missing. Keep its files in the repository.

    Returns:
        The paths of the new files.

    Raises:
        ConfigError: the graph has no checkpointer.
        StorageError: storage failed.
        OSError: a file could not be written.
    """
    saver = graph.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        raise ConfigError("the graph has no checkpointer, so it has no threads to record")
    made: list[Path] = []
    there = await anyio.Path(folder).absolute()
    await there.mkdir(parents=True, exist_ok=True)
    async for check in graph.acheck_threads():
        path = Path(there, f"v{check.version}-{quote(check.thread_id, safe='')}{SUFFIX}")
        if not await anyio.Path(path).exists():
            await saver.aexport_thread(check.thread_id, path)
            made.append(path)
    return made


async def check_recorded(
    graph: Graph[Any, Any],
    folder: str | os.PathLike[str],
    *,
    continue_with: Callable[[StateSnapshot[Any]], Any] | None = None,
) -> list[str]:
    """Check that a graph loads all recorded threads, and optionally continue each of them.

    The threads are imported into memory: the files stay as they are.

    Args:
        graph: the graph, with the code as it is now.
        folder: the folder that `recorded` has written.
        continue_with: returns the input with which a thread is continued, given its state: None for what is pending, a
            `Command(resume=...)` for its questions. None continues no thread, so that no node runs.

    Returns:
        The names of the files.

    Raises:
        RecordedThreadsError: threads do not load. It names the declarations that would make them load.
        FileNotFoundError: the folder has no recorded threads.
        Exception: what continuing a thread has raised, with the name of its file as a note.
    """
    refused: dict[str, ThreadCheck] = {}
    paths = sorted([Path(path) async for path in anyio.Path(folder).glob(f"*{SUFFIX}")])
    if not paths:
        raise FileNotFoundError(f"no threads are recorded in {os.fspath(folder)!r}: call recorded() with a release")
    for path in paths:
        saver = InMemorySaver(codec=_codec_of(graph))
        await import_threads(saver, path)
        bound = graph.with_checkpointer(saver)
        checks = [check async for check in bound.acheck_threads(branches=True)]
        for check in checks:
            if not check.loads:
                refused[path.name] = check
        if continue_with is None or path.name in refused:
            continue
        try:
            for check in checks:
                state = await bound.aget_state(check.thread_id)
                await bound.ainvoke(continue_with(state), check.thread_id)
        except Exception as error:
            error.add_note(f"while continuing the thread recorded in {path.name}")
            raise
    if refused:
        raise RecordedThreadsError(os.fspath(folder), refused)
    return [path.name for path in paths]


def _codec_of(graph: Graph[Any, Any]) -> Any:
    """Return the codec with the types that the graph's checkpointer was given; None for the default."""
    saver = graph.checkpointer
    return saver.codec if isinstance(saver, BaseCheckpointSaver) else None
