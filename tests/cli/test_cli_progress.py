"""Counting tasks from a stream, and showing them as lines, on a clock of the test's own."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest

from pregel_async.cli import progress as module
from pregel_async.cli.progress import LineView, LiveView, RunProgress, choose_view


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def plan(progress: RunProgress, *names: str) -> None:
    for name in names:
        assert not progress.count_chunk("tasks", {"id": "-", "name": name, "input": None, "triggers": ()})


def done(progress: RunProgress, name: str, *, recorded: bool = False) -> None:
    extra: dict[str, Any] = {"__metadata__": {"cached": True}} if recorded else {}
    assert progress.count_chunk("updates", {name: None, **extra})
    if not recorded:
        assert not progress.count_chunk(
            "tasks", {"id": "-", "name": name, "error": None, "result": {}, "interrupts": []}
        )


def test_tasks_are_counted_by_superstep(clock: Clock) -> None:
    """A task that starts after all others have finished belongs to the next superstep."""
    progress = RunProgress(1)
    plan(progress, "a")
    assert str(progress) == "superstep 1: a, 0 of 1 task done, 0.0 s"
    done(progress, "a")
    assert str(progress) == "superstep 1: a, 1 task done, 0.0 s"
    plan(progress, "b", "b", "c")
    assert (progress.step, progress.planned, progress.done) == (2, 3, 0)
    done(progress, "b")
    clock.now += 61
    assert str(progress) == "superstep 2: b, c, 1 of 3 tasks done, 1:01 min"
    done(progress, "c")
    assert progress.nodes == "b"
    done(progress, "b")
    assert str(progress) == "superstep 2: b, c, 3 of 3 tasks done, 1:01 min"
    assert (progress.supersteps, progress.tasks) == (2, 4)


def test_recorded_tasks_are_done_and_not_counted_as_run(clock: Clock) -> None:
    progress = RunProgress(7)
    plan(progress, "a", "a")
    done(progress, "a", recorded=True)
    done(progress, "a")
    assert str(progress) == "superstep 7: a, 2 of 2 tasks done, 1 of them earlier, 0.0 s"
    assert progress.tasks == 1


def test_many_nodes_are_not_all_named(clock: Clock) -> None:
    progress = RunProgress(1)
    plan(progress, "a", "b", "c", "d")
    assert progress.nodes == "a, b, c, ..."


def lines(progress: RunProgress) -> tuple[LineView, StringIO]:
    stream = StringIO()
    return LineView(progress, stream), stream


def test_a_long_superstep_says_now_and_then_how_far_it_is(clock: Clock) -> None:
    """A long superstep reports its progress at most every two seconds, whether tasks end or only time passes."""
    progress = RunProgress(1)
    view, stream = lines(progress)
    plan(progress, *["a"] * 100)
    for _ in range(40):
        clock.now += 0.125
        done(progress, "a")
        view.on_task_done()
    assert stream.getvalue().splitlines() == [
        "superstep 1: a, 16 of 100 tasks done, 2.0 s",
        "superstep 1: a, 32 of 100 tasks done, 4.0 s",
    ]
    for _ in range(2):
        clock.now += 1
        view.on_tick()
    assert stream.getvalue().splitlines()[2:] == ["superstep 1: a, 40 of 100 tasks done, 6.0 s"]


def test_many_supersteps_do_not_have_a_line_each(clock: Clock) -> None:
    """The first ten supersteps have a line each; after that there are two lines a second."""
    progress = RunProgress(1)
    view, stream = lines(progress)
    for _ in range(1010):
        clock.now += 0.01
        plan(progress, "a")
        done(progress, "a")
        view.on_task_done()
    assert len(stream.getvalue().splitlines()) == 10 + 10 * 2


def test_between_supersteps_nothing_is_said(clock: Clock) -> None:
    progress = RunProgress(1)
    view, stream = lines(progress)
    plan(progress, "a")
    done(progress, "a")
    clock.now += 60
    view.on_tick()
    assert stream.getvalue() == ""


def test_only_a_terminal_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(choose_view(RunProgress(1), Screen()), LiveView)
    assert isinstance(choose_view(RunProgress(1), StringIO()), LineView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_view(RunProgress(1), Screen()), LineView)
