"""How far a run is: counts made of a stream's chunks, and two views of them, for files and for terminals."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from ..types import INTERRUPT, StreamMode
from .formatting import escape, format_duration, plural

MODES: tuple[StreamMode, ...] = ("tasks", "updates")
"""What is streamed for it. `tasks` tells each task of a superstep before one of them runs, `updates` each that is done,
those recorded by an earlier run too."""


class RunProgress:
    """Counts of one run.

    Attributes:
        step: the number of the superstep that runs, or ran last.
        planned, done: its tasks.
        recorded: those of its tasks that an earlier run had done.
        supersteps, tasks: how many this run has ended, of all supersteps; recorded tasks are not among them.

    Args:
        step: the number of the first superstep.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.planned = 0
        self.done = 0
        self.recorded = 0
        self.supersteps = 0
        self.tasks = 0
        self._first = True
        self._names: tuple[str, ...] = ()
        self._left: dict[str, int] = {}
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    @property
    def is_superstep_done(self) -> bool:
        """All tasks of the superstep are done, and none of the next has been told."""
        return self.done == self.planned

    @property
    def nodes(self) -> str:
        """The nodes that are at work; of a superstep that is over, those that were."""
        names = tuple(self._left) or self._names
        return escape(", ".join(names[:3])) + (", ..." if len(names) > 3 else "")

    def count_chunk(self, mode: str, chunk: Mapping[str, Any]) -> bool:
        """Count a chunk. Whether it says that a task is done."""
        if mode == "updates":
            if INTERRUPT in chunk:  # questions, which are told at the end
                return False
            name = next(key for key in chunk if key != "__metadata__")
            self._end_task(name, recorded="__metadata__" in chunk)
            return True
        if "input" in chunk:
            self._plan_task(chunk["name"])
        return False

    def _plan_task(self, name: str) -> None:
        if self.is_superstep_done:
            self.step += not self._first
            self._first = False
            self.planned = self.done = self.recorded = 0
            self._names = ()
        self.planned += 1
        if name not in self._left:
            self._left[name] = 0
            self._names = (*self._names, name)
        self._left[name] += 1

    def _end_task(self, name: str, *, recorded: bool) -> None:
        self.done += 1
        self.recorded += recorded
        self.tasks += not recorded
        self._left[name] -= 1
        if not self._left[name]:
            del self._left[name]
        self.supersteps += self.is_superstep_done

    def __str__(self) -> str:
        """One line: the superstep, what it does, how far it is, and since when the run goes on."""
        tasks = plural(self.planned, "task")
        if self.planned > 1 or not self.is_superstep_done:
            tasks = f"{self.done} of {tasks}"
        earlier = f", {self.recorded} of them earlier" if self.recorded else ""
        return f"superstep {self.step}: {self.nodes}, {tasks} done{earlier}, {format_duration(self.elapsed)}"


class ProgressView(Protocol):
    """Shows progress while it is open.

    Attributes:
        clearing: what makes room for a line on the terminal, and leaves it fit for use.
    """

    clear_sequence: bytes

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: object) -> None: ...

    def close(self) -> None:
        """Stop showing; once is enough, and more does no harm."""
        ...

    def on_task_done(self) -> None:
        """A task is done."""
        ...

    def on_tick(self) -> None:
        """Time has gone by."""
        ...


def choose_view(progress: RunProgress, stream: TextIO) -> ProgressView:
    """Live on a terminal, lines everywhere else."""
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return LiveView(progress) if stream.isatty() and not dumb else LineView(progress, stream)


class LineView:
    """A line when a superstep has ended, and now and then while one goes on; never many a second.

    Args:
        every: seconds between two lines of one superstep.
    """

    clear_sequence = b""

    ALWAYS_SHOWN = 10
    """So many supersteps get their line whatever the time."""

    MIN_PAUSE = 0.5
    """Seconds between the lines of two supersteps after that."""

    def __init__(self, progress: RunProgress, stream: TextIO, *, every: float = 2.0) -> None:
        self._progress = progress
        self._stream = stream
        self._every = every
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        return

    def on_task_done(self) -> None:
        since = time.monotonic() - self._last
        if self._progress.is_superstep_done:
            if self._progress.supersteps <= self.ALWAYS_SHOWN or since >= self.MIN_PAUSE:
                self._write()
        elif since >= self._every:
            self._write()

    def on_tick(self) -> None:
        if not self._progress.is_superstep_done and time.monotonic() - self._last >= self._every:
            self._write()

    def _write(self) -> None:
        self._last = time.monotonic()
        print(self._progress, file=self._stream, flush=True)


class LiveView:
    """One line at the bottom of the terminal, drawn again by a thread of its own, so that the clock runs when nothing
    else does. What nodes print appears above it. It leaves nothing behind."""

    clear_sequence = b"\r\x1b[2K\x1b[?25h"  # erase the line, show the cursor

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._live = Live(
            self,
            console=Console(stderr=True, markup=False, emoji=False),
            refresh_per_second=8,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        self._live.stop()

    def on_task_done(self) -> None:
        return

    def on_tick(self) -> None:
        return

    def __rich__(self) -> Table:
        progress = self._progress
        line = Table.grid(padding=(0, 2))
        for _ in range(5):
            line.add_column(no_wrap=True)
        line.add_row(
            f"superstep {progress.step}",
            ProgressBar(total=progress.planned or 1, completed=progress.done, width=24),
            f"{progress.done} of {plural(progress.planned, 'task')}",
            progress.nodes,
            format_duration(progress.elapsed),
        )
        return line
