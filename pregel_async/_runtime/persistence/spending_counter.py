"""What one namespace spends: told by its tasks, recorded with what becomes of them, and added up by its supersteps.

What a graph that a node runs has spent is that node's own when the node has its result. Until then it stands apart
(`inside`), as a graph that goes on tells it anew, in all.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import structs

from checkpoint_savers.entries import TaskEntry
from checkpoint_savers.records import TaskId

from ..._core.task import Task
from .spending import Amounts, SpentBy, as_text, minus, of_text, plus, total_of

Inside = tuple[tuple[TaskId, str, dict[str, str]], ...]
"""As it is stored: by task and namespace."""


class Kept(Protocol):
    """What a namespace holds."""

    @property
    def records(self) -> Mapping[TaskId, TaskEntry]:
        """Of the open superstep's tasks."""
        ...

    @property
    def totals(self) -> Mapping[str, str]:
        """What was spent until the last superstep, as it is stored."""
        ...


class Counter:
    """Counts what the tasks of one namespace spend.

    Args:
        kept: what the namespace holds.
        ns: which it is.
        inside: what the run's graphs inside have spent, by whom; one for all of a run's counters.
        outer: of the graph around; None for the root's.
        task: that runs this graph; None for the root's.
    """

    def __init__(
        self, kept: Kept, ns: str, inside: dict[SpentBy, Amounts], outer: Counter | None, task: TaskId | None
    ) -> None:
        self._kept: Kept = weakref.proxy(kept)  # whose counter this is
        self._ns = ns
        self._inside = inside
        self._outer = outer
        self._task = task
        self._now: dict[TaskId, Amounts] = {}  # in this run, by tasks of the open superstep; not recorded yet

    def by(self, task: TaskId) -> Amounts:
        """What a task of the open superstep spends, to be added to."""
        return self._now.setdefault(task, {})

    def recorded(self) -> Amounts:
        """What was spent, as far as it is recorded: in the thread, or of a graph inside, since it was called."""
        inside = [self._inside[key] for key in self._keys()]
        return total_of([of_text(self._kept.totals), *self._of_records(), *inside])

    def loaded(self) -> None:
        """Records were read: what they know of graphs inside is known."""
        for task, ns, amounts in inside_of(self._kept.records):
            self._inside.setdefault((self._ns, task, ns), of_text(amounts))

    # ---- with records ------------------------------------------------------------------------------------------------

    def with_spent(self, task: TaskId, entry: TaskEntry) -> TaskEntry:
        """The record of a task, with what it has spent since its last record, and in all."""
        now, before = self._now.pop(task, None), self._kept.records.get(task)
        keys = [key for key in self._keys() if key[1] == task]
        if not now and not keys and (before is None or not before.spent):
            return entry
        spent = [now or {}, {} if before is None else of_text(before.spent)]
        if entry.finished:
            spent += [self._inside.pop(key) for key in keys]
            keys = []
        return structs.replace(entry, spent=as_text(total_of(spent)), inside=self._as_inside(keys))

    def with_rest(self, entries: list[tuple[Task, TaskEntry]]) -> None:
        """Add to the record of the first task that has no result what tasks have spent that have no record: they were
        cancelled beside it, or called."""
        for place, (task, entry) in enumerate(entries):
            if not entry.finished:
                told = {inside[:2] for _, other in entries for inside in other.inside}
                keys = [key for key in self._keys() if key[1:] not in told]
                spent = as_text(total_of([of_text(entry.spent), *self._now.values()]))
                self._now.clear()
                inside = (*entry.inside, *self._as_inside(keys))
                entries[place] = task, structs.replace(entry, spent=spent, inside=inside)
                return

    # ---- with supersteps ---------------------------------------------------------------------------------------------

    def close(self, *, anew: bool) -> dict[str, str]:
        """The new totals, at the end of a superstep: what its tasks have spent is counted now, and no more.

        Args:
            anew: a graph inside is called anew: what it has spent so far is counted around it.
        """
        stored, recorded = self._kept.totals, self._of_records() if self._kept.records else []
        if not (self._now or stored or self._inside or recorded):
            return {}  # nobody spends
        if anew:
            stored, recorded = dict.fromkeys(stored, "0"), []
        below = [self._inside.pop(key) for key in self._keys()]
        changed = total_of([*self._now.values(), *recorded, *below])
        self._now.clear()
        before = of_text(stored)
        total = {name: plus(before[name], amount) if name in before else amount for name, amount in changed.items()}
        if changed or stored:
            self._tell({**before, **total})
        return {**stored, **as_text(total)} if anew else as_text(total)

    # ---- to the graph around -----------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Let the graph around know what was spent here: a node fails, is asked, or goes on with what there was."""
        if self._outer is not None and (spent := self.recorded()):
            self._tell(spent)

    def go_on(self) -> Amounts:
        """An earlier attempt at this call may have spent something: let the graph around know.

        Returns:
            What it did not know.
        """
        known = dict(self._told())
        self.tell()
        return {name: minus(amount, known.get(name, 0)) for name, amount in self._told().items()}

    def hand_over(self) -> None:
        """The run of this graph is over, cut off perhaps: what is not recorded here is spent by the task that ran
        it."""
        if self._now and self._outer is not None and self._task is not None:
            into = self._outer.by(self._task)
            into.update(total_of([into, *self._now.values()]))
            self._now.clear()

    def _told(self) -> Amounts:
        return {} if self._outer is None else self._inside.get(self._known_as(self._outer), {})

    def _tell(self, amounts: Amounts) -> None:
        if self._outer is not None:
            self._inside[self._known_as(self._outer)] = amounts

    def _known_as(self, outer: Counter) -> SpentBy:
        assert self._task is not None  # somebody runs it
        return outer._ns, self._task, self._ns

    # ---- what stands where -------------------------------------------------------------------------------------------

    def _keys(self) -> list[SpentBy]:
        """Of what the graphs have spent that tasks of the open superstep run, and that is not those tasks' yet."""
        return [key for key in self._inside if key[0] == self._ns] if self._inside else []

    def _of_records(self) -> list[Amounts]:
        return [of_text(entry.spent) for entry in self._kept.records.values() if entry.spent]

    def _as_inside(self, keys: Sequence[SpentBy]) -> Inside:
        return tuple([(key[1], key[2], as_text(self._inside[key])) for key in keys])


def inside_of(records: Mapping[TaskId, TaskEntry]) -> Iterator[tuple[TaskId, str, dict[str, str]]]:
    """What graphs have spent that tasks run which have no result: task, namespace and amounts, each once."""
    told: set[tuple[str, str]] = set()
    for entry in records.values():
        for task_id, ns, amounts in entry.inside:
            by = records.get(TaskId(task_id))
            if (task_id, ns) not in told and (by is None or not by.finished):
                told.add((task_id, ns))
                yield TaskId(task_id), ns, amounts
