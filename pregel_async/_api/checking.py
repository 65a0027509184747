"""Check what is stored of threads against a graph's code, without running or changing anything.

`Graph.acheck_threads` loads this module: most programs never check threads.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any
from zlib import crc32

import anyio
import msgspec
from msgspec import structs

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.chain import ChainReader, EncodedState
from checkpoint_savers.children import start_soon
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import read_record
from checkpoint_savers.errors import (
    CorruptCheckpointError,
    StoredTypeChangedError,
    UnknownTypeError,
    UnstorableValueError,
    UnsupportedFormatError,
)
from checkpoint_savers.records import CALLER, GIVEN, VERSION, Chain, CheckpointId
from checkpoint_savers.saver_port import PAGE

from .._checks.options import CheckOptions
from .._core.program import BRANCH, NO_UPGRADES, SENDS, Program, is_state_key
from .._core.task import PATCH, Task
from .._runtime.persistence.mismatches import is_unknown, node_of_send, of_rule, of_unknown
from .._runtime.persistence.namespaces import NO_TASK, graphs_on, made_on, namespace_of
from .._runtime.persistence.restore import restore
from .._runtime.persistence.upgrading import Place, renamed_record
from ..channels import MISSING
from ..errors import ConfigError, GraphChangedError, MigrationError
from ..types import Mismatch, ThreadCheck
from .definition import Definition, HasDefinition
from .state import StateReader

READ_AHEAD = 32
"""Number of threads whose heads are read at the same time, and kept in memory."""


async def check_threads(
    graph: Definition,
    saver: BaseCheckpointSaver | None,
    given: CheckOptions,
    choose: Callable[[str, Chain], Definition] | None = None,
) -> AsyncGenerator[ThreadCheck, None]:
    """See `Graph.acheck_threads`. `choose` returns the graph of a thread by its head; None for the same one for all."""
    async with aclosing(find_in_threads(checkers_of(graph, saver, choose), given)) as found:
        async for thread_id, each in found:
            yield each.check(thread_id)


def checkers_of(
    graph: Definition, saver: BaseCheckpointSaver | None, choose: Callable[[str, Chain], Definition] | None
) -> Checkers:
    """Return the checkers of the threads of a saver, by default the graph's own. Raises `ConfigError`."""
    if saver is not None:
        graph = graph.with_checkpointer(saver)
    saver = graph.saver
    if saver is None:
        raise ConfigError("the graph has no checkpointer: pass the saver whose threads are to be checked")
    return Checkers(saver, lambda thread_id, head: graph if choose is None else choose(thread_id, head))


async def find_in_threads(checkers: Checkers, given: CheckOptions) -> AsyncGenerator[tuple[str, Found], None]:
    """Yield the ids of threads, sorted, and what was found in them; see `Graph.acheck_threads`."""
    saver = checkers.saver
    sample: object = given.get("sample")
    if sample is not None and (not isinstance(sample, int) or isinstance(sample, bool) or sample < 1):
        raise ConfigError(f"sample is the number of threads to check, from 1 on, or None, not {sample!r}")
    filter, version = given.get("filter"), given.get("of_version")
    if filter is not None and VERSION in filter:
        raise ConfigError(f"a thread's metadata has no {VERSION}, only its checkpoints' has: pass of_version= instead")
    chosen: object = given.get("thread_ids")
    if isinstance(chosen, str):
        raise ConfigError(f"thread_ids is a collection of ids, or None, not {chosen!r}: pass [{chosen!r}]")
    async with (
        aclosing(_thread_ids(saver, given)) as thread_ids,
        aclosing(_in_groups(thread_ids)) as groups,
    ):
        async for some in groups:
            heads = await _read_heads(saver, some)
            for thread_id in some:
                if version not in (None, _version_of(heads[thread_id], version)):
                    continue
                found = await check_found(checkers, thread_id, heads[thread_id], branches=bool(given.get("branches")))
                if found is not None and (found.is_open or not given.get("open")):
                    yield thread_id, found


def _version_of(head: Chain | Exception | None, unreadable: int | None) -> int | None:
    """Return the version of the graph that stored a head; `unreadable` if the head could not be read."""
    return head.rows[-1].metadata.get(VERSION, 1) if isinstance(head, Chain) else unreadable


async def _in_groups(thread_ids: AsyncGenerator[str, None]) -> AsyncGenerator[list[str], None]:
    some: list[str] = []
    async for thread_id in thread_ids:
        some.append(thread_id)
        if len(some) == READ_AHEAD:
            yield some
            some = []
    if some:
        yield some


async def _read_heads(saver: BaseCheckpointSaver, thread_ids: list[str]) -> dict[str, Chain | Exception | None]:
    """Read the heads of threads at the same time: one by one, most of the time would be waiting for the saver."""
    found: dict[str, Chain | Exception | None] = {}

    async def read(thread_id: str) -> None:
        try:
            found[thread_id] = await saver.read(thread_id)
        except Exception as error:  # raised or reported when the thread's turn comes
            found[thread_id] = error

    async with anyio.create_task_group() as tasks:
        for thread_id in thread_ids:
            start_soon(tasks, read, thread_id)
    return found


async def _thread_ids(saver: BaseCheckpointSaver, given: CheckOptions) -> AsyncGenerator[str, None]:
    """Yield the ids of the threads to check, sorted. A sample is the same each time, while no threads are added."""
    size, thread_ids = given.get("sample"), given.get("thread_ids")
    chosen = None if thread_ids is None else frozenset(thread_ids)
    sample: list[tuple[int, str]] = []  # a heap of the ids with the smallest checksums, the greatest of them first
    async with aclosing(saver.alist_threads(filter=given.get("filter"))) as headers:
        async for header in headers:
            if header.head is None or (chosen is not None and header.thread_id not in chosen):
                continue
            if size is None:
                yield header.thread_id
                continue
            ranked = -crc32(header.thread_id.encode("utf-8", "surrogatepass")), header.thread_id
            if len(sample) < size:
                heapq.heappush(sample, ranked)
            else:
                heapq.heappushpop(sample, ranked)
    for thread_id in sorted([each for _, each in sample]):
        yield thread_id


class FoundState(msgspec.Struct, frozen=True):
    """A stored state that was found in a thread.

    Attributes:
        program: the graph that continues it.
        codec: the codec of the graph's values.
        chain: the checkpoint's rows and records.
        ns: the present name of the graph's namespace: another one than it is stored under if a node that runs a kept
            graph was renamed.
    """

    program: Program
    codec: Codec
    chain: Chain
    ns: str


class Found:
    """What was found in one thread so far.

    Attributes:
        version: the version of the root graph that stored the head.
        is_open: tasks are pending, or could not be looked at.
        states: the states that the next call may load: the root graph's first, then those of subgraphs.
        migrated: a declared rule is applied.
        mismatches: what does not fit, once each, in the order in which it was found.
        damage: the message of the error with which reading ended; empty for none.
    """

    def __init__(self) -> None:
        self.version = 0
        self.is_open = False
        self.states: list[FoundState] = []
        self.migrated = False
        self.mismatches: dict[Mismatch, None] = {}
        self.damage = ""

    def check(self, thread_id: str) -> ThreadCheck:
        return ThreadCheck(
            thread_id=thread_id,
            version=self.version or 1,
            mismatches=tuple(self.mismatches),
            migrated=self.migrated,
            damage=self.damage,
        )


class Checkers:
    """The checkers of the graphs that are chosen."""

    def __init__(self, saver: BaseCheckpointSaver, choose: Callable[[str, Chain], Definition]) -> None:
        self.saver = saver
        self._choose = choose
        self._known: dict[int, _GraphChecker] = {}

    def of(self, thread_id: str, head: Chain) -> _GraphChecker:
        """Return the checker for a thread. Raises `GraphChangedError` if no graph can continue it."""
        graph = self._choose(thread_id, head)
        if id(graph) not in self._known:
            assert graph.codec is not None  # it has a saver
            self._known[id(graph)] = _GraphChecker(graph, self.saver, graph.codec)
        return self._known[id(graph)]


async def check_found(
    checkers: Checkers, thread_id: str, head: Chain | Exception | None, *, branches: bool = False
) -> Found | None:
    """Check a thread at its head, or at the tips of all its branches. Returns None if the thread has gone meanwhile."""
    if head is None:
        return None
    found = Found()
    try:
        if isinstance(head, Exception):
            raise head
        found.version = head.rows[-1].metadata.get(VERSION, 1)
        checker = checkers.of(thread_id, head)
        await checker.check(thread_id, head, found)
        for tip in await _other_tips(checker.saver, thread_id, head.head) if branches else ():
            chain = await checker.saver.read(thread_id, "", tip)
            if chain is not None:
                await checker.check(thread_id, chain, found)
    except GraphChangedError as error:
        found.mismatches, found.is_open = dict.fromkeys(error.mismatches), True
    except (CorruptCheckpointError, UnsupportedFormatError) as error:
        found.damage, found.is_open = str(error), True
    return found


async def _other_tips(saver: BaseCheckpointSaver, thread_id: str, head: CheckpointId) -> list[CheckpointId]:
    """Return the root graph's checkpoints without children, except the head; newest first."""
    tips: list[CheckpointId] = []
    parents: set[CheckpointId | None] = set()
    before: CheckpointId | None = None
    while True:
        page = await saver.scan(thread_id, "", before=before, limit=PAGE)
        for header in page:  # a child has a greater id than its parent, and so comes first
            if header.checkpoint_id not in parents and header.checkpoint_id != head:
                tips.append(header.checkpoint_id)
            parents.discard(header.checkpoint_id)
            parents.add(header.parent_id)
        if len(page) < PAGE:
            return tips
        before = page[-1].checkpoint_id


class _GraphChecker:
    """Checks stored states of one graph, and the states of its subgraphs in them.

    Args:
        graph: the graph.
        saver: stores the threads.
        codec: decodes the graph's values.
    """

    def __init__(self, graph: Definition, saver: BaseCheckpointSaver, codec: Codec) -> None:
        self.saver = saver
        self._graph = graph
        self._codec = codec
        # A set of warnings of its own, which suppresses them: the first run is to warn nevertheless.
        self._program = structs.replace(graph.program, warned=set())
        self._reader = StateReader(self._program, saver, codec, {})
        self._inner: dict[int, _GraphChecker] = {}  # made when they are needed: a graph may run itself

    async def check(
        self, thread_id: str, chain: Chain, found: Found, *, is_idle: bool = False, present: str | None = None
    ) -> None:
        """Check the state at the last checkpoint of a chain.

        Args:
            thread_id: the thread.
            chain: the checkpoint's rows and records.
            found: takes what is found.
            is_idle: the next call of the graph has a new input, which discards what is pending.
            present: the present name of the namespace, if a node was renamed.
        """
        row = chain.rows[-1]
        found.states.append(FoundState(self._program, self._codec, chain, row.ns if present is None else present))
        reader = ChainReader(thread_id, row.ns, chain.rows)
        state = reader.state(row.checkpoint_id)
        unknown = {name for name in state.values if is_unknown(self._program, name)}
        self._program.warned.update(unknown)
        planned: list[Task] = []
        try:
            if self._program.upgrades is not NO_UPGRADES:
                found.mismatches.update(dict.fromkeys(self._apply_rules(thread_id, chain, state, found)))
            view, tasks = self._reader.view_with_tasks((reader, row), chain.records, ())
        except (MigrationError, StoredTypeChangedError, UnknownTypeError) as error:
            found.mismatches[of_error(error, row.ns)] = None
            found.is_open = True
        else:
            changed = [each for each in view.changed if each.blocks != "resume" or not is_idle]
            found.mismatches.update(dict.fromkeys(changed))
            found.is_open = found.is_open or bool(view.next and not row.ns)
            planned = [task for task, _, is_finished in tasks if not is_finished and not is_idle]
            if not is_idle and self._needs_aliases(thread_id, chain, state, [task for task, _, _ in tasks]):
                found.migrated = True
            unknown.intersection_update(view.unknown)
            unknown.difference_update([each.name for each in changed])
        found.mismatches.update(dict.fromkeys([_of_unknown(name, row.ns) for name in sorted(unknown)]))
        found.mismatches.update(dict.fromkeys(self._of_patches(thread_id, chain, planned)))
        by_node = self._graph.subgraph_index.by_node
        for task in planned:
            for graph in _that_store(by_node.get(task.node.name, ())):
                await self._check_calls(graph, thread_id, task, chain, found)
        if not row.ns and self._graph.subgraph_index.stored:
            await self._check_kept(thread_id, state, found, row.checkpoint_id)

    def _needs_aliases(self, thread_id: str, chain: Chain, state: EncodedState, planned: Sequence[Task]) -> bool:
        """Return True if the open superstep has former names of nodes, so that `was=` or `retired=` must stay.

        Until the superstep has ended, its tasks (finished ones, too), the deferred nodes that wait and the recorded
        sends have the names under which they were stored.
        """
        aliases = self._program.upgrades.aliases
        if not aliases:
            return False
        results = [read_record(record, thread_id) for record in chain.records]
        sent = [node_of_send(data, self._codec) for each in results for name, data in each.writes if name == SENDS]
        names = {*[task.node.identity for task in planned], *sent}
        return any(former in names or BRANCH + former in state.values for former in aliases)

    def _of_patches(self, thread_id: str, chain: Chain, planned: Sequence[Task]) -> list[Mismatch]:
        """Return the `patched()` decisions of pending tasks that are False: these tasks need the code from before."""
        entries = {record.task_id: read_record(record, thread_id) for record in chain.records if planned}
        names = {each.name.removeprefix(f"{PATCH}:") for each in entries.values() if each.name.startswith(PATCH)}
        found: list[Mismatch] = []
        for name in sorted(names):
            decided = [entries[id] for id in [task.id_of_patch(name) for task in planned] if id in entries]
            if not all(self._codec.decode(data, channel=name) for each in decided for _, data in each.writes):
                found.append(_of_patch(name, chain.rows[-1].ns))
        return found

    def _apply_rules(self, thread_id: str, chain: Chain, state: EncodedState, found: Found) -> list[Mismatch]:
        """Apply the declared rules twice, and compare the bytes of what they make: rules must be pure."""
        program, codec, row = self._program, self._codec, chain.rows[-1]
        place = Place(program, thread_id, row.checkpoint_id)
        made: list[dict[tuple[str, str], bytes | None]] = []
        unstorable: dict[Mismatch, None] = {}
        entries = {record.task_id: read_record(record, thread_id) for record in chain.records}
        for _ in range(2):
            restored = restore(
                program,
                state,
                row.step,
                codec,
                thread_id=thread_id,
                ns=row.ns,
                at=row.checkpoint_id,
                version=row.metadata.get(VERSION, 1),
                results=entries,
            )
            found.migrated = found.migrated or bool(restored.converted)
            results: dict[tuple[str, str], bytes | None] = {}
            for name in filter(is_state_key, restored.converted):
                value = restored.board.stored_value(name)
                try:
                    results["", name] = None if value is MISSING else codec.encode(value, channel=name)
                except UnstorableValueError as error:
                    unstorable[_of_unstorable(error, row.ns)] = None
            for task_id, result in entries.items():
                renamed = renamed_record(place, result, codec)
                if renamed != result:
                    results.update({(task_id, name): data for name, data in renamed.writes})
            made.append(results)
        first, second = made
        found.migrated = found.migrated or bool(first)
        changed = {key[1] for key in {*first, *second} if first.get(key) != second.get(key)}
        return [*unstorable, *[_of_impure(name, row.ns) for name in sorted(changed)]]

    async def _check_calls(self, graph: HasDefinition, thread_id: str, task: Task, chain: Chain, found: Found) -> None:
        """Check the states that a pending task's calls of a subgraph have left."""
        outer, number = chain.rows[-1], 0
        inner, called = self._checker_of(graph), graph._definition
        keeps_state = called.checkpointer is True
        caller = task.id if keeps_state else NO_TASK
        while True:
            ns = namespace_of(outer.ns, task, keeps_state=keeps_state, number=number)
            place = await made_on(self.saver, thread_id, ns, outer.ns, outer.checkpoint_id, caller=caller)
            made = None if place is None else await self.saver.read(thread_id, ns, place[0])
            if made is None:
                return
            given = made.rows[-1].metadata.get(GIVEN)  # a task may call several graphs
            if not given or given[0] == called.name:
                await inner.check(thread_id, made, found)
            number += 1

    async def _check_kept(self, thread_id: str, state: EncodedState, found: Found, at: CheckpointId) -> None:
        """Check the states that subgraphs with `checkpointer=True` keep from call to call.

        Args:
            thread_id: the thread.
            state: the root graph's state.
            found: takes what is found.
            at: the root graph's checkpoint.
        """
        # A resume continues with the states that the open superstep has left, and a new input with those before it.
        moved = await graphs_on(self.saver, thread_id, at) if found.is_open else {}
        later = {ns: header.checkpoint_id for ns, header in moved.items() if CALLER in header.metadata}
        for tips in (state.tips, {**state.tips, **later}):
            newest: dict[str, str] = {}
            for ns in sorted(tips, key=tips.__getitem__):
                newest[self._checker_at(ns)[1]] = ns  # of several names, the state that was written last counts
            for present, ns in newest.items():
                checker, _ = self._checker_at(ns)
                if checker is None:
                    found.mismatches[_of_kept(ns)] = None
                    continue
                known = {(each.chain.rows[-1].ns, each.chain.rows[-1].checkpoint_id) for each in found.states}
                if (ns, tips[ns]) in known:
                    continue
                chain = await self.saver.read(thread_id, ns, CheckpointId(tips[ns]))
                if chain is not None:
                    found.migrated = found.migrated or present != ns
                    await checker.check(thread_id, chain, found, is_idle=True, present=present)

    def _checker_at(self, ns: str) -> tuple[_GraphChecker | None, str]:
        """Return the checker of the graph that keeps its state in a namespace, and that namespace's present name."""
        checker, parts = self, list[str]()
        for part in ns.split("|"):
            if part.isdigit():  # the number of a subgraph among those of one task
                parts.append(part)
                continue
            name = checker._program.upgrades.nodes.get(part, part)
            graph = checker._graph.subgraph_index.stored.get(name)
            if graph is None:
                return None, ns
            checker = checker._checker_of(graph)
            parts.append(name)
        return checker, "|".join(parts)

    def _checker_of(self, graph: HasDefinition) -> _GraphChecker:
        definition = graph._definition
        checker = self._inner.get(id(definition))
        if checker is None:
            checker = _GraphChecker(definition, self.saver, definition.codecs.nested(self._codec))
            self._inner[id(definition)] = checker
        return checker


def _that_store(graphs: Any) -> list[HasDefinition]:
    return [graph for graph in graphs if graph._definition.checkpointer is not False]


def of_error(error: MigrationError | StoredTypeChangedError | UnknownTypeError, ns: str) -> Mismatch:
    """Return the mismatch of an error with which reading ended, in a thread or in a store."""
    if isinstance(error, MigrationError):
        return of_rule(error, ns)
    if isinstance(error, StoredTypeChangedError):
        reason, advice = f"a stored object of type {error.tag!r} {error.reason}", error.advice
    else:
        reason = f"an object of type {error.tag!r} is stored, and no class is registered under that name"
        advice = f"Codec().with_types(TheClass, tag={error.tag!r})"
    return Mismatch(kind="type", name=error.tag, namespace=ns, reason=reason, advice=advice, blocks="all")


def _of_impure(name: str, ns: str) -> Mismatch:
    reason = f"a declared rule makes another value of key {name!r} each time that it is called"
    advice = "let the rule's function read nothing but its argument: no clock, no randomness"
    return Mismatch(kind="key", name=name, namespace=ns, reason=reason, advice=advice, blocks="all")


def _of_unstorable(error: UnstorableValueError, ns: str) -> Mismatch:
    reason = f"a declared rule makes a value of key {error.channel!r} that cannot be stored: {error.reason}"
    advice = "correct the rule's function"
    return Mismatch(kind="key", name=error.channel, namespace=ns, reason=reason, advice=advice, blocks="all")


def _of_unknown(name: str, ns: str) -> Mismatch:
    return structs.replace(of_unknown(name, ns, f"key {name!r} is stored and unknown"), blocks="nothing")


def _of_patch(name: str, ns: str) -> Mismatch:
    reason = f"patched({name!r}) is False for a pending task"
    advice = f"leave patched({name!r}) and the earlier calls in the code until no thread is listed here"
    return Mismatch(kind="calls", name=name, namespace=ns, reason=reason, advice=advice, blocks="nothing")


def _of_kept(ns: str) -> Mismatch:
    node = ns.rpartition("|")[2]
    reason = f"the graph that node {node!r} ran has left a state, and there is no such node that runs a graph"
    advice = f"add_node(..., was={node!r}) if it was renamed"
    return Mismatch(kind="state", name=ns, namespace=ns, reason=reason, advice=advice, blocks="nothing")
