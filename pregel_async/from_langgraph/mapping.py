"""Convert a thread of LangGraph's to rows of this package's savers.

Both compile edges to channels of the same names, so that a checkpoint is converted channel by channel, with the
versions that say which nodes run next. Updates by hand (`aupdate_state`) would not do: they run the graph's routers,
whose decisions are already part of the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import structs

from checkpoint_savers.chain import ChainWriter
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import TaskResult, write_record
from checkpoint_savers.records import CALLER, CheckpointId, CheckpointRow, TaskRecord, ThreadDump

from .._api.definition import Definition
from .._core import superstep
from .._core.board import Board
from .._core.ids import interrupt_id
from .._core.ownership import REGISTERED, own
from .._core.program import BRANCH, JOIN, SENDS, Program, Write
from .._core.task import Finished, Task
from .._runtime.persistence.encoder import Encoder
from .._runtime.persistence.lease import CheckpointIds
from .._runtime.platform.environment import Environment
from ..channels import (
    BaseChannel,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
)
from ..errors import PregelError
from ..messages import messages_in
from ..types import END, RESERVED, START, Interrupt
from .decoding import DecodedCheckpoint, Decoder
from .stored import LangGraphCheckpoint, StoredThread, StoredWrite, UndecodableThreadError

LANGGRAPH_ID: Final = "langgraph_checkpoint_id"
"""The metadata key of an imported checkpoint that holds the id which LangGraph gave to it."""

_OWN_METADATA: Final = frozenset(
    ("source", "step", "parents", "writes", "thread_id", "run_id", "checkpoint_ns", "checkpoint_id")
)
"""Keys of LangGraph's metadata that are no entries of the user's."""

_WITH_CHANNELS = 4
"""The first of LangGraph's formats in which pending sends and edges are channels named as they are here."""

_ERROR, _INTERRUPT, _RESUME, _NO_WRITES = "__error__", "__interrupt__", "__resume__", "__no_writes__"
_SPECIAL: Final = frozenset((_ERROR, _INTERRUPT, _RESUME, _NO_WRITES, "__error_source_node__", "__scheduled__"))

_PULL: Final = "~__pregel_pull, "
_push = re.compile(r"~__pregel_push, (\d+)(?:, (?:True|False))?").fullmatch


class ImportedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A pending question that was taken over.

    Attributes:
        id: the question's id here, for `Command(resume={id: answer})`.
        langgraph_id: the id that LangGraph gave to it.
        node: the node that asks.
        value: the question.
    """

    id: str
    langgraph_id: str
    node: str
    value: Any


class MappedThread(msgspec.Struct, frozen=True, kw_only=True):
    """A converted thread.

    Attributes:
        dump: what a saver stores.
        step: the number of the last superstep.
        keys: the state keys that hold a value, sorted.
        messages: the number of messages in the state.
        next: the nodes that run next.
        questions: the pending questions.
        lost: what cannot be kept, and why, one sentence each.
    """

    dump: ThreadDump
    step: int
    keys: tuple[str, ...]
    messages: int
    next: tuple[str, ...]
    questions: tuple[ImportedQuestion, ...]
    lost: tuple[str, ...]


def map_thread(
    stored: StoredThread, graph: Definition, codec: Codec, decoder: Decoder, environment: Environment
) -> MappedThread:
    """Convert a thread.

    Args:
        stored: the thread.
        graph: the graph that will continue it.
        codec: encodes the values.
        decoder: decodes LangGraph's values.
        environment: provides random bits and a run's id.

    Returns:
        The converted thread.

    Raises:
        UndecodableThreadError: a value cannot be decoded.
        UnstorableValueError: a value is of a type that the graph's codec does not know.
        InvalidUpdateError: a value contains itself.
    """
    token = REGISTERED.set(codec.kept_scalars)
    try:
        return _ThreadMapper(stored, graph, codec, decoder, environment).mapped()
    finally:
        REGISTERED.reset(token)


class _TaskWrites(msgspec.Struct, frozen=True):
    """What LangGraph has stored of a task.

    Attributes:
        task_id: LangGraph's id of the task.
        writes: the writes of the task's result.
        finished: True if it has a result.
        error: the description of its failure; "" if it has not failed.
        questions: the questions that it has asked and that were stored.
        answers: the answers to its questions, in order.
    """

    task_id: str
    writes: list[Write]
    finished: bool
    error: str
    questions: tuple[Interrupt, ...]
    answers: tuple[Any, ...]


class _CheckpointMapper:
    """Converts the checkpoints of one namespace."""

    def __init__(
        self,
        program: Program,
        codec: Codec,
        decoder: Decoder,
        *,
        scope: tuple[str, str],
        origin: Mapping[str, Any],
        lost: dict[str, None],
    ) -> None:
        """
        Args:
            program: the graph.
            codec, decoder: as in `map_thread`.
            scope: the thread's id, and the namespace.
            origin: entries of the metadata of each checkpoint.
            lost: gets what cannot be kept, in order, each once.
        """
        self._program = program
        self._decoder = decoder
        self._scope = scope
        self._origin = origin
        self._lost = lost
        self.encoder = Encoder(program, codec)
        self.chain = ChainWriter.start(scope[1])

    def board(self, stored: LangGraphCheckpoint, decoded: DecodedCheckpoint) -> Board:
        """Return the board of a checkpoint."""
        program, values = self._program, dict(decoded.values)
        if decoded.format < _WITH_CHANNELS:
            self._lost["work that was pending: a version of LangGraph before 0.5 has stored the thread"] = None
            values = {name: value for name, value in values.items() if name in program.keys}
        found: dict[str, Any] = {}
        for name, value in values.items():
            channel = program.channels.get(name)
            if channel is None:
                self.note_unknown(name)
            elif name == START:
                with suppress(PregelError):  # an input that was discarded: history shows none
                    found.update({each: own(item, each) for each, item in program.read_input(value)})
            elif name == SENDS:
                found[name] = own([send for send in value if self._can_send(send)], name)
            elif channel.tracked:
                found[name] = own(_checkpoint_value(channel, value), name)
        clock = max(decoded.versions.values(), default=0)
        seen: dict[str, dict[str, int]] = {}
        for node, channels in decoded.seen.items():
            for name, version in channels.items():
                if node in program.nodes and name in found:
                    seen.setdefault(name, {})[node] = version
        return Board.restore(
            program,
            step=int(stored.metadata.get("step", -1)),
            clock=clock,
            stored=found,
            versions={name: decoded.versions.get(name, clock) for name in found},
            seen=seen,
            ran=self._ran(stored, decoded),
        )

    def _ran(self, stored: LangGraphCheckpoint, decoded: DecodedCheckpoint) -> tuple[str, ...]:
        """Return the nodes of the checkpoint's superstep: those that have seen the newest versions."""
        # LangGraph stores no more, and finds the node of an update without `as_node` in the same way.
        if stored.metadata.get("source") == "input":
            return ()
        newest = {
            node: max(channels.values())
            for node, channels in decoded.seen.items()
            if channels and node in self._program.nodes and not self._program.nodes[node].hidden
        }
        last = max(newest.values(), default=0)
        return tuple(sorted([node for node, version in newest.items() if version == last]))

    def row(
        self,
        stored: LangGraphCheckpoint,
        decoded: DecodedCheckpoint,
        board: Board,
        before: tuple[Board, DecodedCheckpoint] | None,
        ran: Sequence[tuple[Task, _TaskWrites]],
        checkpoint_id: CheckpointId,
        tips: Mapping[str, str] | None = None,
    ) -> CheckpointRow:
        """Return the row of the next checkpoint.

        Args:
            stored: the checkpoint.
            decoded: the same, decoded.
            board: its board.
            before: the board and the decoded checkpoint before it; None for the first.
            ran: what LangGraph has stored of the tasks of its superstep.
            checkpoint_id: its new id.
            tips: the checkpoints of the subgraphs that keep their states, by namespace.
        """
        held = self.chain.state
        earlier: Mapping[str, int] = {} if before is None else before[1].versions
        changed = {name for name in board.channels if decoded.versions.get(name) != earlier.get(name)}
        changed |= {name for name in held.values if name not in board.channels or name == SENDS}
        changed |= {name for name in board.versions if name not in held.values}
        for name in changed - board.channels.keys():
            board.channels[name] = self._program.channels[name].fresh()  # it holds nothing any more
        board.changed = tuple(sorted(changed))
        closed = [(task, each) for task, each in ran if each.finished]
        outcomes = [Finished(each.writes, own=len(each.writes)) for _, each in closed]
        delta = self.encoder.delta(board, held, [task for task, _ in closed], outcomes, {}, self.time_of(decoded))
        seen = {name: nodes for name, nodes in board.seen.items() if nodes and name in board.versions}
        seen = {name: nodes for name, nodes in seen.items() if name in delta.values or name in held.values}
        metadata = {
            **_user_metadata(stored.metadata),
            "source": str(stored.metadata.get("source", "loop")),
            "step": board.step,
            LANGGRAPH_ID: stored.checkpoint_id,
            **self._origin,
        }
        return self.chain.append(
            structs.replace(delta, seen=seen, tips=dict(tips or {})),
            checkpoint_id=checkpoint_id,
            step=board.step,
            metadata=metadata,
        )

    def note_unknown(self, name: str) -> None:
        if name.startswith(BRANCH):
            self._lost[f"a pending run of node {name.removeprefix(BRANCH)!r}: the graph has no such node"] = None
        elif name.startswith(JOIN):
            self._lost[f"the progress of the edges {name.removeprefix(JOIN)!r}: the graph has no such edges"] = None
        elif name not in RESERVED and name not in (START, END) and not name.startswith("__"):
            self._lost[f"the value of key {name!r}: the graph has no such key"] = None

    def _can_send(self, send: Any) -> bool:
        known = send.node in self._program.nodes
        if not known:
            self._lost[f"a pending Send to node {send.node!r}: the graph has no such node"] = None
        return known

    @staticmethod
    def time_of(decoded: DecodedCheckpoint) -> float:
        """Return when a checkpoint was made, in unix seconds."""
        return datetime.fromisoformat(decoded.ts).timestamp()


class _ThreadMapper:
    """Converts one thread, checkpoint by checkpoint."""

    def __init__(
        self, stored: StoredThread, graph: Definition, codec: Codec, decoder: Decoder, environment: Environment
    ) -> None:
        self._stored = stored
        self._graph = graph
        self._program = graph.program
        self._codec = codec
        self._decoder = decoder
        self._ids = CheckpointIds(environment, None)
        self._scope = stored.thread_id, ""
        self._lost: dict[str, None] = {}
        self._origin: dict[str, Any] = {"run_id": environment.new_id()}
        self._root = self._mapper(self._program, codec, "", {**self._origin, "parents": {}})
        self._encoder = self._root.encoder
        self._unmatched = 0  # the number of tasks whose writes could not be matched with the open superstep's tasks
        self._is_old = False  # whether a version has stored the newest checkpoint of which no pending work is taken

    def _mapper(self, program: Program, codec: Codec, ns: str, origin: Mapping[str, Any]) -> _CheckpointMapper:
        scope = self._stored.thread_id, ns
        return _CheckpointMapper(program, codec, self._decoder, scope=scope, origin=origin, lost=self._lost)

    def mapped(self) -> MappedThread:
        """Convert the thread."""
        root, rows = self._root, list[CheckpointRow]()
        kept = self._kept_states()
        tips = {row.ns: row.checkpoint_id for row in kept}
        before: tuple[Board, DecodedCheckpoint] | None = None
        pending: list[tuple[Task, _TaskWrites]] = []
        board = Board(self._program)
        for each in self._stored.checkpoints:
            decoded = self._decoder.checkpoint(each)
            board = root.board(each, decoded)
            is_head = each is self._stored.checkpoints[-1]
            made = self._ids.next(root.time_of(decoded))
            rows.append(root.row(each, decoded, board, before, pending, made, tips=tips if is_head else {}))
            before = board, decoded
            pending = self._pending(each, decoded, board)
        records, questions = self._records(pending)
        planned = superstep.plan(self._program, board, self._scope)
        self._note_what_is_left_out({task.node.name for task in planned}, tips)
        done = {record.task_id for record in records if record.kind == "result"}
        state = {name: value for name, value in board.values.items() if name in board.versions}
        head = rows[-1].checkpoint_id
        kept = [structs.replace(row, metadata={**row.metadata, "parents": {"": head}}) for row in kept]
        return MappedThread(
            dump=ThreadDump(
                heads={**tips, "": head},
                rows=(*kept, *rows),
                records=tuple(records),
                events=(),
                metadata=_user_metadata(self._stored.checkpoints[-1].metadata),
            ),
            step=board.step,
            keys=tuple(sorted(state)),
            messages=sum(1 for _ in messages_in(state)),
            next=superstep.names_of([task for task in planned if task.id not in done]),
            questions=tuple(questions),
            lost=tuple(self._lost),
        )

    def _kept_states(self) -> list[CheckpointRow]:
        """Return a row for the state of each subgraph that keeps its state from call to call."""
        rows: list[CheckpointRow] = []
        for ns, stored in sorted(self._stored.kept.items()):
            found = self._graph.subgraph_index.stored.get(ns)
            if found is None or found._definition.checkpointer is not True:
                continue
            graph = found._definition
            # No task of this thread has made the state: the name stands in for a task's id.
            mapper = self._mapper(graph.program, graph.codecs.nested(self._codec), ns, {CALLER: "langgraph"})
            decoded = self._decoder.checkpoint(stored)
            board = mapper.board(stored, decoded)
            first = self._decoder.checkpoint(self._stored.checkpoints[0])  # ids of the root's checkpoints are greater
            rows.append(mapper.row(stored, decoded, board, None, (), self._ids.next(mapper.time_of(first))))
        return rows

    def _pending(
        self, stored: LangGraphCheckpoint, decoded: DecodedCheckpoint, board: Board
    ) -> list[tuple[Task, _TaskWrites]]:
        """Return the tasks planned on a checkpoint of which LangGraph has stored something, in plan order."""
        by_task: dict[str, list[StoredWrite]] = {}
        paths: dict[str, str] = {}
        for write in stored.writes:
            by_task.setdefault(write.task_id, []).append(write)
            paths[write.task_id] = write.path or paths.get(write.task_id, "")
        found: list[tuple[Task, _TaskWrites]] = []
        tasks = superstep.plan(self._program, board, self._scope)
        self._is_old = decoded.format < _WITH_CHANNELS
        for task in () if self._is_old else tasks:
            for task_id, path in paths.items():
                if _names_task(path, task, is_only=len(tasks) == len(by_task) == 1):
                    found.append((task, self._task_writes(task_id, by_task[task_id])))
        self._unmatched = len(by_task.keys() - {each.task_id for _, each in found} - {_NO_TASK})
        return found

    def _task_writes(self, task_id: str, stored: Sequence[StoredWrite]) -> _TaskWrites:
        writes: list[Write] = []
        special: dict[str, Any] = {}
        for write in stored:
            if write.channel in _SPECIAL:
                special[write.channel] = self._decoder.value(write.value)
            elif write.channel in self._program.channels:
                writes.append((write.channel, own(self._decoder.value(write.value), write.channel)))
            else:
                self._root.note_unknown(write.channel)
        questions, answers = special.get(_INTERRUPT, ()), special.get(_RESUME, ())
        questions = questions if isinstance(questions, (list, tuple)) else (questions,)
        answers = answers if isinstance(answers, (list, tuple)) else (answers,)
        return _TaskWrites(
            task_id=task_id,
            writes=writes,
            finished=any(write.channel not in _SPECIAL for write in stored) or _NO_WRITES in special,
            error=str(special.get(_ERROR, "")) if _ERROR in special else "",
            questions=tuple([each for each in questions if isinstance(each, Interrupt)]),
            answers=tuple(answers),
        )

    def _records(self, pending: Sequence[tuple[Task, _TaskWrites]]) -> tuple[list[TaskRecord], list[ImportedQuestion]]:
        """Return the records of the open superstep, and the questions that are asked in it."""
        records: list[TaskRecord] = []
        questions: list[ImportedQuestion] = []
        for task, stored in pending:
            result = TaskResult(name=task.node.name)
            if stored.finished:
                result = structs.replace(result, writes=self._encoder.writes(stored.writes))
            else:
                asked = self._question(task, stored)
                if asked is None:
                    continue
                questions.append(asked)
                # The questions that were answered have the numbers before the open one's. What they were is unknown.
                keys = [interrupt_id(task.id, number) for number in range(len(stored.answers) + 1)]
                answers = {
                    key: self._codec.encode(own(answer), channel=f"the answer to {key}")
                    for key, answer in zip(keys, stored.answers, strict=False)
                }
                result = structs.replace(
                    result,
                    interrupts=self._encoder.questions([Interrupt(own(asked.value), asked.id)]),
                    answers=answers,
                    askers=dict.fromkeys(keys, (task.id,)),
                )
            records.append(self._record(task, result))
        return records, questions

    def _question(self, task: Task, stored: _TaskWrites) -> ImportedQuestion | None:
        """Return the open question of a task that is not finished; None if it has none that can be kept."""
        name, again = task.node.name, "it runs again"
        if stored.error:
            self._lost[f"the failure of node {name!r} ({stored.error}): {again}"] = None
            return None
        if not stored.questions:
            return None
        (asked, *more), number = stored.questions, len(stored.answers)
        ids = self._decoder.question_ids(f"{name}:{stored.task_id}", number + 1)
        if more or asked.id not in ids[number]:
            self._lost[
                f"{len(stored.questions)} open question(s) of tasks or a subgraph of node {name!r}: it runs again, and "
                "asks them again, after ainvoke(None)"
            ] = None
            return None
        return ImportedQuestion(id=interrupt_id(task.id, number), langgraph_id=asked.id, node=name, value=asked.value)

    def _record(self, task: Task, result: TaskResult) -> TaskRecord:
        assert self._root.chain.tip is not None
        return TaskRecord(
            ns="",
            checkpoint_id=self._root.chain.tip,
            task_id=task.id,
            index=task.index,
            kind="result" if result.interrupts is None else "interrupt",
            frame=write_record(result),
        )

    def _note_what_is_left_out(self, pending: Container[str], kept: Container[str]) -> None:
        for ns, count in self._stored.namespaces.items():
            if ns in kept:
                continue
            node = ns.partition("|")[0].partition(":")[0]
            then = f": node {node!r} runs its graph from the start" if node in pending else ""
            self._lost[f"{count} checkpoint(s) of the subgraph in namespace {ns!r}{then}"] = None
        if self._stored.others:
            self._lost[f"{self._stored.others} checkpoint(s) on other branches than the newest checkpoint's"] = None
        if self._unmatched and not self._is_old:
            self._lost[
                f"results of {self._unmatched} task(s) of the open superstep, which a node has called or the graph "
                "does not plan: they run again"
            ] = None


_NO_TASK: Final = "00000000-0000-0000-0000-000000000000"
"""The task id under which LangGraph stores what a call brings, such as an answer."""


def _names_task(path: str, task: Task, *, is_only: bool) -> bool:
    """Return True if LangGraph's path of a task names a planned task."""
    if not path:
        return is_only  # a database of an older version, without paths
    if task.send < 0:
        return path == f"{_PULL}{task.node.name}"
    found = _push(path)
    return found is not None and int(found[1]) == task.send


def _checkpoint_value(channel: BaseChannel[Any, Any, Any], value: Any) -> Any:
    """Return a channel's checkpoint value in the form that the channel of this package reads."""
    if isinstance(channel, NamedBarrierValue):
        return sorted(value)
    if isinstance(channel, NamedBarrierValueAfterFinish):
        names, finished = value
        return sorted(names), finished
    if isinstance(channel, LastValueAfterFinish):
        held, finished = value
        return held, finished
    return value


def _user_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that the user has passed to a call, of the types that are stored with a checkpoint."""
    return {
        key: value
        for key, value in metadata.items()
        if key not in _OWN_METADATA and not key.startswith("__") and isinstance(value, (str, int, float, bool))
    }


__all__ = ["LANGGRAPH_ID", "ImportedQuestion", "MappedThread", "UndecodableThreadError", "map_thread"]
