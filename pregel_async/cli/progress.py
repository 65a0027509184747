"""Show the progress of a run: counts made from a stream's chunks, and views of them for files and for terminals."""

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
"""The stream modes that `RunProgress` counts.

`tasks` has a chunk for each task of a superstep before any of them starts. `updates` has a chunk for each finished
task, including those that an earlier run recorded."""


class RunProgress:
    """Count the supersteps and tasks of one run.

    Args:
        step: the number of the first superstep.

    Attributes:
        step: the number of the current superstep, or of the last one after the run.
        planned, done: the number of its tasks, and of those that have finished.
        recorded: how many of its tasks an earlier run had already finished.
        supersteps, tasks: how many this run has finished in all. Recorded tasks are not included.
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
        """True if all tasks of the current superstep have finished and none of the next one is known."""
        return self.done == self.planned

    @property
    def nodes(self) -> str:
        """The names of the running nodes; if the superstep has finished, the names of its nodes."""
        names = tuple(self._left) or self._names
        return escape(", ".join(names[:3])) + (", ..." if len(names) > 3 else "")

    def count_chunk(self, mode: str, chunk: Mapping[str, Any]) -> bool:
        """Count a chunk of the stream.

        Args:
            mode: the chunk's stream mode, one of `MODES`.
            chunk: the chunk.

        Returns:
            True if the chunk reports a finished task.
        """
        if mode == "updates":
            if INTERRUPT in chunk:  # open questions, which the command prints at the end
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
        """Format one line: the superstep, its nodes, the number of finished tasks, and the time since the run began."""
        tasks = plural(self.planned, "task")
        if self.planned > 1 or not self.is_superstep_done:
            tasks = f"{self.done} of {tasks}"
        earlier = f", {self.recorded} of them earlier" if self.recorded else ""
        return f"superstep {self.step}: {self.nodes}, {tasks} done{earlier}, {format_duration(self.elapsed)}"


class ProgressView(Protocol):
    """Show progress while the context is open.

    Attributes:
        clear_sequence: the bytes that clear the view's line on the terminal and restore the cursor.
    """

    clear_sequence: bytes

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: object) -> None: ...

    def close(self) -> None:
        """Stop showing progress. Further calls do nothing."""
        ...

    def on_task_done(self) -> None:
        """React to a finished task."""
        ...

    def on_tick(self) -> None:
        """React to the passing of time."""
        ...


def choose_view(progress: RunProgress, stream: TextIO) -> ProgressView:
    """Choose a live view for a terminal, or lines for everything else.

    Args:
        progress: the counts to show.
        stream: where to write.

    Returns:
        The view, not yet open.
    """
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return LiveView(progress) if stream.isatty() and not dumb else LineView(progress, stream)


class LineView:
    """Print a line after each superstep, and now and then during a long one.

    Args:
        progress: the counts to show.
        stream: where to write.
        every: seconds between two lines of one superstep.
    """

    clear_sequence = b""

    ALWAYS_SHOWN = 10
    """How many supersteps get a line even if they end quickly."""

    MIN_PAUSE = 0.5
    """After those, the minimum number of seconds between the lines of two supersteps."""

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
        """Do nothing: printed lines stay."""
        return

    def on_task_done(self) -> None:
        """Print a line if the superstep has ended, or if the last line is `every` seconds old."""
        since = time.monotonic() - self._last
        if self._progress.is_superstep_done:
            if self._progress.supersteps <= self.ALWAYS_SHOWN or since >= self.MIN_PAUSE:
                self._write()
        elif since >= self._every:
            self._write()

    def on_tick(self) -> None:
        """Print a line if the superstep is still running and the last line is `every` seconds old."""
        if not self._progress.is_superstep_done and time.monotonic() - self._last >= self._every:
            self._write()

    def _write(self) -> None:
        self._last = time.monotonic()
        print(self._progress, file=self._stream, flush=True)


class LiveView:
    """Show one line at the bottom of the terminal, and remove it at the end.

    Output of nodes appears above the line. A thread redraws it, so that the clock advances even while a node blocks the
    event loop.

    Args:
        progress: the counts to show.
    """

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
        """Remove the line from the terminal."""
        self._live.stop()

    def on_task_done(self) -> None:
        """Do nothing: a thread redraws the line."""
        return

    def on_tick(self) -> None:
        """Do nothing: a thread redraws the line."""
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
