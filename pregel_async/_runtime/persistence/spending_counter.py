"""Count what one namespace spends: by task, stored in task records, and summed up by its supersteps.

Amounts spent in a subgraph become the calling task's own when that task has its result. Until then they are counted
separately (`inside`), because a subgraph that is resumed reports its total again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from checkpoint_savers.deltas import TaskResult
from checkpoint_savers.records import TaskId

from ..._core.task import Task
from .namespaces import NO_TASK
from .records import NOT_RECORDED
from .spending import Amounts, SpentBy, minus, plus, read_amounts, total_of, write_amounts
from .task_records import TaskRecords

Inside = tuple[tuple[TaskId, str, dict[str, str]], ...]
"""The amounts of subgraphs as they are stored: task, namespace, and amounts by name."""


class SpendingCounter:
    """Counts what the tasks of one namespace spend.

    Args:
        records: the records of the open superstep's tasks.
        ns: the namespace.
        inside: the amounts spent in the run's subgraphs; one dict for all counters of a run.
        outer: the outer graph's counter, as a tuple of one; empty for the root graph.
        task: the task that runs this graph; `NO_TASK` for the root graph.

    Attributes:
        unrecorded: amounts that tasks of the open superstep have spent in this run and that no record has yet.
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
        )  # the key of this graph's amounts

    def unrecorded_of(self, task: TaskId) -> Amounts:
        """Return the unrecorded amounts of a task. The caller adds to them."""
        return self.unrecorded.setdefault(task, {})

    def recorded(self) -> Amounts:
        """Return the recorded amounts: of the thread, or of a subgraph since it was called."""
        inside = [self._inside[key] for key in self._keys()]
        return total_of([read_amounts(self._records.totals), *self._of_records(), *inside])

    def load(self) -> None:
        """Take the amounts of subgraphs from loaded records."""
        for task, ns, amounts in inside_of(self._records.results):
            self._inside.setdefault((self.ns, task, ns), read_amounts(amounts))

    def with_spent(self, task: TaskId, result: TaskResult) -> TaskResult:
        """Return a task's record with the total that the task has spent."""
        spent_now, before = self.unrecorded.pop(task, {}), self._records.results.get(task, NOT_RECORDED)
        keys = [key for key in self._keys() if key[1] == task]
        if not spent_now and not keys and not before.spent:
            return result
        spent = [spent_now, read_amounts(before.spent)]
        if result.finished:
            spent += [self._inside.pop(key) for key in keys]
            keys = []
        return structs.replace(result, spent=write_amounts(total_of(spent)), subgraphs_spent=self._as_inside(keys))

    def with_unrecorded(self, results: list[tuple[Task, TaskResult]]) -> None:
        """Add the amounts of tasks without a record to the record of the first task that has no result."""
        # Tasks without a record were cancelled together with that task, or called by it. Their amounts must be stored
        # with some record, or they would be lost.
        for place, (task, result) in enumerate(results):
            if not result.finished:
                seen = {inside[:2] for _, other in results for inside in other.subgraphs_spent}
                keys = [key for key in self._keys() if key[1:] not in seen]
                spent = write_amounts(total_of([read_amounts(result.spent), *self.unrecorded.values()]))
                self.unrecorded.clear()
                inside = (*result.subgraphs_spent, *self._as_inside(keys))
                results[place] = task, structs.replace(result, spent=spent, subgraphs_spent=inside)
                return

    def close_superstep(self, *, anew: bool) -> dict[str, str]:
        """Return the changed totals at the end of a superstep, and start the next one with nothing unrecorded.

        Args:
            anew: the subgraph gets a new input. The outer graph counts its earlier amounts already, so its totals
                start at zero.
        """
        stored, recorded = self._records.totals, self._of_records() if self._records.results else []
        if not (self.unrecorded or stored or self._inside or recorded):
            return {}  # nothing was ever spent
        if anew:
            stored, recorded = dict.fromkeys(stored, "0"), []
        below = [self._inside.pop(key) for key in self._keys()]
        changed = total_of([*self.unrecorded.values(), *recorded, *below])
        self.unrecorded.clear()
        before = read_amounts(stored)
        total = {name: plus(before[name], amount) if name in before else amount for name, amount in changed.items()}
        if changed or stored:
            self._publish({**before, **total})
        return {**stored, **write_amounts(total)} if anew else write_amounts(total)

    def publish(self) -> None:
        """Report this graph's recorded total to the outer graph."""
        if self._outer and (spent := self.recorded()):
            self._publish(spent)

    def publish_earlier(self) -> Amounts:
        """Report what an earlier attempt at this call spent to the outer graph.

        Returns:
            The amounts that the outer graph had not counted.
        """
        known = self._published()
        self.publish()
        return {name: minus(amount, known.get(name, 0)) for name, amount in self._published().items()}

    def hand_over(self) -> None:
        """Move unrecorded amounts to the task that ran this graph, at the end of the run, however it ended."""
        if not self.unrecorded:
            return
        for outer in self._outer:
            into = outer.unrecorded_of(self._task)
            into.update(total_of([into, *self.unrecorded.values()]))
            self.unrecorded.clear()

    def _published(self) -> Amounts:
        return total_of([self._inside.get(key, {}) for key in self._key_in_outer])

    def _publish(self, amounts: Amounts) -> None:
        for key in self._key_in_outer:
            self._inside[key] = amounts

    def _keys(self) -> list[SpentBy]:
        """Return the keys of amounts in subgraphs that are not counted as their calling task's yet."""
        return [key for key in self._inside if key[0] == self.ns] if self._inside else []

    def _of_records(self) -> list[Amounts]:
        return [read_amounts(result.spent) for result in self._records.results.values() if result.spent]

    def _as_inside(self, keys: Sequence[SpentBy]) -> Inside:
        return tuple([(key[1], key[2], write_amounts(self._inside[key])) for key in keys])


def inside_of(records: Mapping[TaskId, TaskResult]) -> Iterator[tuple[TaskId, str, dict[str, str]]]:
    """Yield the amounts in subgraphs of tasks without a result: task, namespace and amounts, each once."""
    seen: set[tuple[str, str]] = set()
    for result in records.values():
        for task_id, ns, amounts in result.subgraphs_spent:
            if (task_id, ns) not in seen and not records.get(TaskId(task_id), NOT_RECORDED).finished:
                seen.add((task_id, ns))
                yield TaskId(task_id), ns, amounts
