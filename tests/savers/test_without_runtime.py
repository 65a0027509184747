"""A saver that is opened without the runtime reads the objects that the runtime stores: sends, questions, failures
(P11)."""

from __future__ import annotations

import operator
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import (
    BaseCheckpointSaver,
    Codec,
    InMemorySaver,
    PostgresSaver,
    SqliteSaver,
    StoredObject,
    UnknownTypeError,
)
from checkpoint_savers.codec.runtime_types import RUNTIME_READERS
from checkpoint_savers.errors import CorruptCheckpointError
from checkpoint_savers.stores import Item, SearchItem
from pregel_async import START, Command, Interrupt, NodeError, Overwrite, Send, StateGraph, TimeoutPolicy
from pregel_async._api.stored_types import with_runtime_types
from pregel_async._core.untracked import NotStored
from pregel_async.errors import RecordedFailureError
from pregel_async.types import TaskId
from tests.helpers.postgres_tools import conninfo, made_schema, unsynced

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)

VALUES: list[Any] = [
    Command(goto="work"),
    Interrupt("sure?", "id-1"),
    Item(value={"a": 1}, key="k", namespace=("n",), created_at=NOON, updated_at=NOON),
    NodeError("work", TaskId("task-1"), RecordedFailureError("ValueError", "no")),
    SearchItem(value={}, key="k", namespace=("n",), created_at=NOON, updated_at=NOON),
]

CHILD = """
import sys
import anyio
from checkpoint_savers import InMemorySaver, PostgresSaver, SqliteSaver

file, exported, url, schema = sys.argv[1:]

async def show(saver):
    found = await saver.aget_tuple("t")
    print(found.checkpoint["pending_sends"])
    print(found.checkpoint["channel_values"]["seen"])
    print([(channel, value) for _, channel, value in found.pending_writes])
    listed = [each async for each in saver.alist("t")]
    print(len(listed), listed[0] == found)

async def main():
    saver = InMemorySaver()
    await saver.aimport_thread(exported)
    await show(saver)
    async with SqliteSaver(file) as saver:
        await show(saver)
    async with PostgresSaver(url, schema=schema) as saver:
        await show(saver)
    assert not any(name.partition(".")[0] == "pregel_async" for name in sys.modules)

anyio.run(main, backend="asyncio")
anyio.run(main, backend="trio")
"""


class State(TypedDict, total=False):
    seen: Any
    log: Annotated[list[str], operator.add]


async def paused_with_sends(saver: BaseCheckpointSaver) -> None:
    """A thread whose open superstep has two sends, one of them recorded, and whose state holds objects of the
    runtime."""

    def begin(state: State) -> State:
        return {"seen": VALUES}

    def sends(state: State) -> list[Send]:
        return [Send("work", 1, timeout=TimeoutPolicy(run_timeout=5)), Send("work", 2)]

    async def work(n: int) -> Any:
        if n == 2:
            raise ValueError("no")
        return {"log": Overwrite(["one"])}

    builder = StateGraph(State).add_node("begin", begin).add_node("work", work)
    builder.add_edge(START, "begin").add_conditional_edges("begin", sends, ["work"])
    with pytest.raises(ValueError, match="^no\n"):
        await builder.compile(saver, on_failure="finish").ainvoke({}, "t")


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_another_process_reads_the_runtimes_objects_as_data(tmp_path: Path) -> None:
    """P11: a process that imports only the savers reads a checkpoint with pending sends and records, from memory,
    SQLite and PostgreSQL, on both event loops, without importing the runtime."""
    with made_schema() as schema:
        async with SqliteSaver(tmp_path / "db") as saver:
            await paused_with_sends(saver)
            await saver.aexport_thread("t", tmp_path / "exported")
        async with PostgresSaver(unsynced(), schema=schema) as saver:
            await paused_with_sends(saver)
        arguments = [str(tmp_path / "db"), str(tmp_path / "exported"), conninfo(), schema]
        child = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False)
    timeout = StoredObject(
        "pregel_async.TimeoutPolicy", {"run_timeout": 5.0, "idle_timeout": None, "refresh_on": "auto"}
    )
    first = StoredObject("pregel_async.Send", {"node": "work", "arg": 1, "timeout": timeout})
    second = StoredObject("pregel_async.Send", {"node": "work", "arg": 2, "timeout": None})
    data = Codec().decode(with_runtime_types(Codec(), []).encode(VALUES, channel="c"), channel="c")
    overwrite = StoredObject("pregel_async.Overwrite", {"value": ["one"]})
    expected = [[first, second], data, [("log", overwrite), ("__error__", "ValueError('no')")], "3 True"]
    assert child.stdout.splitlines() == [str(line) for line in expected] * 6, child.stderr


def test_every_class_of_the_runtime_is_read_as_data() -> None:
    """P11: for each class that graphs register automatically, codecs without the class have a reader that gives all
    its fields."""
    codec = with_runtime_types(Codec(), [])
    values = [*VALUES, Send("a", 1), Overwrite(2), TimeoutPolicy(run_timeout=3), RecordedFailureError("E", "m")]
    values.append(NotStored("client"))
    assert all(codec.knows(type(value)) for value in values)
    read_as_data = RUNTIME_READERS.keys() - {"checkpoint_savers.Shared"}  # a type that checkpoint_savers itself defines
    assert {str(tag).rpartition(".")[2] for tag in read_as_data} == {type(value).__name__ for value in values}
    registered = repr(codec).removeprefix("<Codec with ").removesuffix(">").split(", ")
    assert set(registered) - RUNTIME_READERS.keys() == {"pregel_async.policies.TimeoutPolicy"}, (
        "an older tag of one class"
    )
    for value in values:
        read: Any = Codec().decode(codec.encode(value, channel="c"), channel="c")
        assert read.type.rpartition(".")[2] == type(value).__name__
        for name, part in read.fields.items():
            assert type(part) is StoredObject or part == getattr(value, name)
    error: Any = Codec().decode(codec.encode(VALUES[3], channel="c"), channel="c")
    assert error.fields["error"].fields == {"type": "ValueError", "message": "no"}


def test_a_registered_class_takes_precedence() -> None:
    """P11: where the class is registered, decoding returns an instance of it."""
    codec = InMemorySaver().codec.with_types(Send, tag="pregel_async.Send")
    assert codec.decode(codec.encode(Send("a", 1), channel="c"), channel="c") == Send("a", 1)


def test_other_classes_are_not_read_as_data() -> None:
    """P11: an object of a user's class raises an error that names the tag, and a damaged object of the runtime is
    reported as damage."""
    codec = Codec().with_types(Send, tag="mine.Send")
    with pytest.raises(UnknownTypeError, match=r"mine\.Send"):
        Codec().decode(codec.encode(Send("a", 1), channel="c"), channel="c")
    damaged = Codec().with_type(
        RecordedFailureError,
        encode=lambda error: [error.type],
        decode=lambda state: RecordedFailureError(*state, "m"),
        tag="pregel_async.RecordedFailureError",
    )
    with pytest.raises(CorruptCheckpointError):
        Codec().decode(damaged.encode(RecordedFailureError("E", "m"), channel="c"), channel="c")
