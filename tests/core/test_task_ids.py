"""Task ids are structural (P2): they depend only on the task's position in the graph and thread."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path as FilePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pregel_async._core import superstep
from pregel_async._core.board import Board
from pregel_async._core.program import SENDS
from pregel_async._core.task import PULL, PUSH, Path, Task, task_id
from pregel_async.channels import LastValue
from pregel_async.types import Send
from tests.core.scripted import SCOPE, Script, begin, drive, node, plan, program, run, write

names = st.text(max_size=8)
paths = st.one_of(st.tuples(st.just(PULL), names), st.tuples(st.just(PUSH), st.integers(0, 10**6), st.just(False)))
places = st.tuples(names, names, st.integers(-1, 10**6), names, paths)
Place = tuple[str, str, int, str, Path]


@given(one=places, other=places)
def test_equal_positions_and_only_they_have_equal_ids(one: Place, other: Place) -> None:
    """P2: equal work has equal ids; another thread, namespace, step, node or path gives another id."""
    assert (task_id(*one) == task_id(*other)) == (one == other)


@given(scope=st.tuples(names, names), step=st.integers(-1, 10**6), name=st.text(min_size=1, max_size=8))
def test_a_triggered_nodes_task_has_the_id_of_its_position(scope: tuple[str, str], step: int, name: str) -> None:
    """P2: `Task.id` has a fast path for triggered nodes, which returns the same id as `task_id`."""
    task = Task(node(name, "in"), step, 0, scope)
    assert task.id == task_id(*scope, step, name, task.path)


@pytest.mark.parametrize(
    "other",
    [
        ("thread 2", "", 1, "node", (PULL, "node")),
        ("thread", "outer:1", 1, "node", (PULL, "node")),
        ("thread", "", 2, "node", (PULL, "node")),
        ("thread", "", 1, "other", (PULL, "other")),
        ("thread", "", 1, "node", (PUSH, 0, False)),
        ("thread", "", 1, "node", (PUSH, 1, False)),
    ],
    ids=["thread", "ns", "step", "node", "path", "index"],
)
def test_what_an_id_depends_on(other: Place) -> None:
    """P2: an id depends on each of thread, namespace, superstep, node and path."""
    assert task_id("thread", "", 1, "node", (PULL, "node")) != task_id(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c", 1, "n", (PULL, "n")), ("a", "bc", 1, "n", (PULL, "n"))),
        (("a', 'b", "", 1, "n", (PULL, "n")), ("a", "b", 1, "n", (PULL, "n"))),
        (("1", "", 1, "n", (PUSH, 1, False)), ("1", "", 1, "n", (PUSH, "1", False))),
        (("t", "", 1, "n", (PUSH, 1, False)), ("t", "", 1, "n", (PUSH, True, False))),
        (("t", "", 1, "\ud800", (PULL, "\ud800")), ("t", "", 1, "?", (PULL, "?"))),
    ],
    ids=["border", "quotes", "type", "bool", "surrogate"],
)
def test_fields_of_an_id_are_separated(one: Any, other: Any) -> None:
    """P2: the fields of an id cannot run into one another, whatever characters or types they contain."""
    assert task_id(*one) != task_id(*other)


def test_an_id_is_text_fit_for_a_key() -> None:
    """An id is usable as an idempotency key: 32 hex digits."""
    made = task_id("thread", "", 0, "node", (PULL, "node"))
    assert len(made) == 32
    int(made, 16)


def test_an_id_is_the_same_in_another_process() -> None:
    """P2: an id is the same after a crash or on another host: it depends on no clock, hash seed or address."""
    code = (
        "import json, sys; from pregel_async._core.task import *;"
        "print(json.dumps([task_id('t', 'ns', 3, 'é', (PULL, 'é')), task_id('t', '', 4, 'n', (PUSH, 7, False))]))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=FilePath(__file__).parents[2],
        env={"PYTHONHASHSEED": "42", "PATH": ""},
    ).stdout
    assert json.loads(shown) == [task_id("t", "ns", 3, "é", (PULL, "é")), task_id("t", "", 4, "n", (PUSH, 7, False))]


def test_an_id_never_changes_between_versions() -> None:
    """P2: an id survives an upgrade of this package, as services store ids as idempotency keys."""
    assert task_id("thread", "", 1, "node", (PULL, "node")) == "5861eec7e524e3fab3ea93b0b3ec9641"


def test_runs_of_the_same_work_have_the_same_ids() -> None:
    """P2: another run of the same graph on the same thread and input plans the same ids."""
    graph = program(
        node("a", "x", lambda seen: [("y", 1), (SENDS, Send("b", 1)), (SENDS, Send("b", 2))]),
        node("b", "y"),
        x=LastValue(),
        y=LastValue(),
    )
    once, again = run(graph, {"x": 1}).steps, run(graph, {"x": 1}).steps
    assert [step.ids for step in once] == [step.ids for step in again]
    assert len({one for step in once for one in step.ids}) == 4


def test_an_attempt_after_a_failure_has_the_same_id() -> None:
    """P2: a task has the same id on every attempt."""
    attempts: list[str] = []
    fail = [True]

    def call(seen: Any) -> None:
        if fail.pop() if fail else False:
            raise ValueError

    graph = program(node("a", "x", call), x=LastValue())

    class Noting(Script):
        async def execute(self, board: Board, tasks: Any) -> Any:
            attempts.extend(task.id for task in tasks)
            return await super().execute(board, tasks)

    board = begin(graph, {"x": 1})
    with pytest.raises(ValueError):
        drive(superstep.run(graph, board, Noting(graph), scope=SCOPE, limit=9))
    drive(superstep.run(graph, board, Noting(graph), scope=SCOPE, limit=9))
    assert len(attempts) == 2
    assert attempts[0] == attempts[1]


def test_another_thread_has_other_ids() -> None:
    """P2, `ids`: a task's id includes the thread's id, as tasks of many threads call one service."""
    graph = program(node("a", "x"), x=LastValue())
    board = begin(graph, {"x": 1})
    ids = [plan(graph, board, scope)[0].id for scope in (("t1", ""), ("t2", ""), ("t1", "ns"))]
    assert len(set(ids)) == 3


def test_siblings_do_not_change_an_id() -> None:
    """P2: a task's id does not depend on its siblings in the superstep."""
    alone = program(node("m", "x"), x=LastValue())
    several = program(node("a", "x"), node("m", "x"), node("z", "x"), x=LastValue())
    by_name = {task.node.name: task.id for task in plan(several, begin(several, {"x": 1}))}
    assert plan(alone, begin(alone, {"x": 1}))[0].id == by_name["m"]


def test_ids_do_not_depend_on_values() -> None:
    """P2: an id depends neither on a node's input nor on a send's argument."""
    graph = program(node("a", "x"), x=LastValue())
    ids = []
    for value in (1, 2):
        board = write(graph, Board(graph), ("x", value), (SENDS, Send("a", value)))
        ids.append([task.id for task in plan(graph, board)])
    assert ids[0] == ids[1]


def test_an_id_is_computed_once_on_first_access() -> None:
    """A task computes its id on first access, once."""
    task = Task(node("a", "x"), 0, 0, ("t", ""))
    assert task.id is task.id
