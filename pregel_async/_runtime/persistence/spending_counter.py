"""What one namespace spends: told by its tasks, recorded with what becomes of them, and added up by its supersteps.

What a graph that a node runs has spent is that node's own when the node has its result. Until then it stands apart
(`inside`), as a graph that goes on tells it anew, in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from checkpoint_savers.deltas import TaskResult
from checkpoint_savers.records import TaskId

from ..._core.task import Task
from .namespaces import NO_TASK
from .records import NOT_RECORDED
from .spending import Amounts, SpentBy, as_text, minus, of_text, plus, total_of
from .task_records import TaskRecords

Inside = tuple[tuple[TaskId, str, dict[str, str]], ...]
"""As it is stored: by task and namespace."""


class Counter:
    """Counts what the tasks of one namespace spend.

    Args:
        records: of the open superstep's tasks.
        ns: the namespace.
        inside: what the run's graphs inside have spent, by whom; one for all of a run's counters.
        around: the counter of the graph around; empty for the outermost graph.
        task: that runs this graph; `NO_TASK` for the outermost.

    Attributes:
        now: what tasks of the open superstep have spent in this run, and that is not recorded yet.
    """

    def __init__(
        self,
        records: TaskRecords,
        ns: str,
        inside: dict[SpentBy, Amounts],
        around: tuple[Counter, ...] = (),
        task: TaskId = NO_TASK,
    ) -> None:
        self.now: dict[TaskId, Amounts] = {}
        self._records = records
        self.ns = ns
        self._inside = inside
        self._around = around
        self._task = task
        self._known_as: tuple[SpentBy, ...] = tuple(
            [(outer.ns, task, ns) for outer in around]
        )  # what this graph has spent, inside

    def by(self, task: TaskId) -> Amounts:
        """What a task of the open superstep spends, to be added to."""
        return self.now.setdefault(task, {})

    def recorded(self) -> Amounts:
        """What was spent, as far as it is recorded: in the thread, or of a graph inside, since it was called."""
        inside = [self._inside[key] for key in self._keys()]
        return total_of([of_text(self._records.totals), *self._of_records(), *inside])

    def loaded(self) -> None:
        """Records were read: what they know of graphs inside is known."""
        for task, ns, amounts in inside_of(self._records.entries):
            self._inside.setdefault((self.ns, task, ns), of_text(amounts))

    def with_spent(self, task: TaskId, entry: TaskResult) -> TaskResult:
        """The record of a task, with what it has spent since its last record, and in all."""
        now, before = self.now.pop(task, {}), self._records.entries.get(task, NOT_RECORDED)
        keys = [key for key in self._keys() if key[1] == task]
        if not now and not keys and not before.spent:
            return entry
        spent = [now, of_text(before.spent)]
        if entry.finished:
            spent += [self._inside.pop(key) for key in keys]
            keys = []
        return structs.replace(entry, spent=as_text(total_of(spent)), subgraphs_spent=self._as_inside(keys))

    def with_rest(self, entries: list[tuple[Task, TaskResult]]) -> None:
        """Add to the record of the first task that has no result what tasks have spent that have no record: they were
        cancelled beside it, or called."""
        for place, (task, entry) in enumerate(entries):
            if not entry.finished:
                told = {inside[:2] for _, other in entries for inside in other.subgraphs_spent}
                keys = [key for key in self._keys() if key[1:] not in told]
                spent = as_text(total_of([of_text(entry.spent), *self.now.values()]))
                self.now.clear()
                inside = (*entry.subgraphs_spent, *self._as_inside(keys))
                entries[place] = task, structs.replace(entry, spent=spent, subgraphs_spent=inside)
                return

    def close(self, *, anew: bool) -> dict[str, str]:
        """The new totals, at the end of a superstep: what its tasks have spent is counted now, and no more.

        Args:
            anew: a graph inside is called anew: what it has spent so far is counted around it.
        """
        stored, recorded = self._records.totals, self._of_records() if self._records.entries else []
        if not (self.now or stored or self._inside or recorded):
            return {}  # nobody spends
        if anew:
            stored, recorded = dict.fromkeys(stored, "0"), []
        below = [self._inside.pop(key) for key in self._keys()]
        changed = total_of([*self.now.values(), *recorded, *below])
        self.now.clear()
        before = of_text(stored)
        total = {name: plus(before[name], amount) if name in before else amount for name, amount in changed.items()}
        if changed or stored:
            self._tell({**before, **total})
        return {**stored, **as_text(total)} if anew else as_text(total)

    def tell(self) -> None:
        """Let the graph around know what was spent here: a node fails, is asked, or goes on with what there was."""
        if self._around and (spent := self.recorded()):
            self._tell(spent)

    def go_on(self) -> Amounts:
        """An earlier attempt at this call may have spent something: let the graph around know.

        Returns:
            What it did not know.
        """
        known = self._told()
        self.tell()
        return {name: minus(amount, known.get(name, 0)) for name, amount in self._told().items()}

    def hand_over(self) -> None:
        """The run of this graph is over, cut off perhaps: what is not recorded here is spent by the task that ran
        it."""
        if not self.now:
            return
        for outer in self._around:
            into = outer.by(self._task)
            into.update(total_of([into, *self.now.values()]))
            self.now.clear()

    def _told(self) -> Amounts:
        return total_of([self._inside.get(key, {}) for key in self._known_as])

    def _tell(self, amounts: Amounts) -> None:
        for key in self._known_as:
            self._inside[key] = amounts

    def _keys(self) -> list[SpentBy]:
        """Of what the graphs have spent that tasks of the open superstep run, and that is not those tasks' yet."""
        return [key for key in self._inside if key[0] == self.ns] if self._inside else []

    def _of_records(self) -> list[Amounts]:
        return [of_text(entry.spent) for entry in self._records.entries.values() if entry.spent]

    def _as_inside(self, keys: Sequence[SpentBy]) -> Inside:
        return tuple([(key[1], key[2], as_text(self._inside[key])) for key in keys])


def inside_of(records: Mapping[TaskId, TaskResult]) -> Iterator[tuple[TaskId, str, dict[str, str]]]:
    """What graphs have spent that tasks run which have no result: task, namespace and amounts, each once."""
    told: set[tuple[str, str]] = set()
    for entry in records.values():
        for task_id, ns, amounts in entry.subgraphs_spent:
            if (task_id, ns) not in told and not records.get(TaskId(task_id), NOT_RECORDED).finished:
                told.add((task_id, ns))
                yield TaskId(task_id), ns, amounts
