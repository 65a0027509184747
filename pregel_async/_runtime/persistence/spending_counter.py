"""What one namespace spends: seen by its tasks, recorded with what becomes of them, and added up by its supersteps.

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


class SpendingCounter:
    """Counts what the tasks of one namespace spend.

    Args:
        records: of the open superstep's tasks.
        ns: the namespace.
        inside: what the run's graphs inside have spent, by whom; one for all of a run's counters.
        around: the counter of the graph around; empty for the outermost graph.
        task: that runs this graph; `NO_TASK` for the outermost.

    Attributes:
        unrecorded: what tasks of the open superstep have spent in this run, and that is not recorded yet.
    """

    def __init__(
        self,
        records: TaskRecords,
        ns: str,
        inside: dict[SpentBy, Amounts],
        outer: tuple[SpendingCounter, ...] = (),
        task: TaskId = NO_TASK,
    ) -> None:
        self.unrecorded: dict[TaskId, Amounts] = {}
        self._records = records
        self.ns = ns
        self._inside = inside
        self._outer = outer
        self._task = task
        self._key_in_outer: tuple[SpentBy, ...] = tuple(
            [(each.ns, task, ns) for each in outer]
        )  # what this graph has spent, inside

    def by(self, task: TaskId) -> Amounts:
        """What a task of the open superstep spends, to be added to."""
        return self.unrecorded.setdefault(task, {})

    def recorded(self) -> Amounts:
        """What was spent, as far as it is recorded: in the thread, or of a graph inside, since it was called."""
        inside = [self._inside[key] for key in self._keys()]
        return total_of([of_text(self._records.totals), *self._of_records(), *inside])

    def load(self) -> None:
        """Records were read: what they know of graphs inside is known."""
        for task, ns, amounts in inside_of(self._records.results):
            self._inside.setdefault((self.ns, task, ns), of_text(amounts))

    def with_spent(self, task: TaskId, result: TaskResult) -> TaskResult:
        """The record of a task, with what it has spent since its last record, and in all."""
        spent_now, before = self.unrecorded.pop(task, {}), self._records.results.get(task, NOT_RECORDED)
        keys = [key for key in self._keys() if key[1] == task]
        if not spent_now and not keys and not before.spent:
            return result
        spent = [spent_now, of_text(before.spent)]
        if result.finished:
            spent += [self._inside.pop(key) for key in keys]
            keys = []
        return structs.replace(result, spent=as_text(total_of(spent)), inside=self._as_inside(keys))

    def with_unrecorded(self, results: list[tuple[Task, TaskResult]]) -> None:
        """Add to the record of the first task that has no result what tasks have spent that have no record: they were
        cancelled beside it, or called."""
        for place, (task, result) in enumerate(results):
            if not result.finished:
                seen = {inside[:2] for _, other in results for inside in other.inside}
                keys = [key for key in self._keys() if key[1:] not in seen]
                spent = as_text(total_of([of_text(result.spent), *self.unrecorded.values()]))
                self.unrecorded.clear()
                inside = (*result.inside, *self._as_inside(keys))
                results[place] = task, structs.replace(result, spent=spent, inside=inside)
                return

    def close_superstep(self, *, anew: bool) -> dict[str, str]:
        """The new totals, at the end of a superstep: what its tasks have spent is counted now, and no more.

        Args:
            anew: a graph inside is called anew: what it has spent so far is counted around it.
        """
        stored, recorded = self._records.totals, self._of_records() if self._records.results else []
        if not (self.unrecorded or stored or self._inside or recorded):
            return {}  # nobody spends
        if anew:
            stored, recorded = dict.fromkeys(stored, "0"), []
        below = [self._inside.pop(key) for key in self._keys()]
        changed = total_of([*self.unrecorded.values(), *recorded, *below])
        self.unrecorded.clear()
        before = of_text(stored)
        total = {name: plus(before[name], amount) if name in before else amount for name, amount in changed.items()}
        if changed or stored:
            self._publish({**before, **total})
        return {**stored, **as_text(total)} if anew else as_text(total)

    def publish(self) -> None:
        """Let the graph around know what was spent here: a node fails, is asked, or goes on with what there was."""
        if self._outer and (spent := self.recorded()):
            self._publish(spent)

    def publish_earlier(self) -> Amounts:
        """An earlier attempt at this call may have spent something: let the graph around know.

        Returns:
            What it did not know.
        """
        known = self._published()
        self.publish()
        return {name: minus(amount, known.get(name, 0)) for name, amount in self._published().items()}

    def hand_over(self) -> None:
        """The run of this graph is over, cut off perhaps: what is not recorded here is spent by the task that ran
        it."""
        if not self.unrecorded:
            return
        for outer in self._outer:
            into = outer.by(self._task)
            into.update(total_of([into, *self.unrecorded.values()]))
            self.unrecorded.clear()

    def _published(self) -> Amounts:
        return total_of([self._inside.get(key, {}) for key in self._key_in_outer])

    def _publish(self, amounts: Amounts) -> None:
        for key in self._key_in_outer:
            self._inside[key] = amounts

    def _keys(self) -> list[SpentBy]:
        """Of what the graphs have spent that tasks of the open superstep run, and that is not those tasks' yet."""
        return [key for key in self._inside if key[0] == self.ns] if self._inside else []

    def _of_records(self) -> list[Amounts]:
        return [of_text(result.spent) for result in self._records.results.values() if result.spent]

    def _as_inside(self, keys: Sequence[SpentBy]) -> Inside:
        return tuple([(key[1], key[2], as_text(self._inside[key])) for key in keys])


def inside_of(records: Mapping[TaskId, TaskResult]) -> Iterator[tuple[TaskId, str, dict[str, str]]]:
    """What graphs have spent that tasks run which have no result: task, namespace and amounts, each once."""
    seen: set[tuple[str, str]] = set()
    for result in records.values():
        for task_id, ns, amounts in result.inside:
            if (task_id, ns) not in seen and not records.get(TaskId(task_id), NOT_RECORDED).finished:
                seen.add((task_id, ns))
                yield TaskId(task_id), ns, amounts
