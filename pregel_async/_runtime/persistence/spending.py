"""Count what a run spends against its budgets and time limit. Limits are checked between supersteps."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Literal, TypeAlias

import msgspec

from checkpoint_savers.errors import CorruptCheckpointError
from checkpoint_savers.records import TaskId

from ...errors import BudgetExceededError, UnknownBudgetError
from ...policies import Budget, check_amount
from ..platform.environment import Environment

Amount: TypeAlias = int | Decimal
Amounts: TypeAlias = dict[str, Amount]
"""Amounts by the name of their budget."""

SpentBy: TypeAlias = tuple[str, TaskId, str]
"""The key of amounts spent in a subgraph: the outer graph's namespace, its task, and the subgraph's namespace."""

# Traps what would round: a sum that is not exact would make a budget depend on the order of the additions.
_EXACT = Context(prec=1000, traps=[Inexact, InvalidOperation])


def plus(one: Amount, other: Amount) -> Amount:
    """Return the exact sum; a Decimal if one of the two is."""
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return _EXACT.add(Decimal(one), Decimal(other))


def minus(one: Amount, other: Amount) -> Amount:
    """Return the exact difference."""
    if isinstance(one, int) and isinstance(other, int):
        return one - other
    return _EXACT.subtract(Decimal(one), Decimal(other))


def total_of(several: Iterable[Mapping[str, Amount]]) -> Amounts:
    """Return the sums by name."""
    total: Amounts = {}
    for amounts in several:
        for name, amount in amounts.items():
            total[name] = plus(total[name], amount) if name in total else amount
    return total


def write_amounts(amounts: Mapping[str, Amount]) -> dict[str, str]:
    """Return amounts as they are stored: an int as its digits, a Decimal as its text and a "d"."""
    return {name: str(amount) if isinstance(amount, int) else f"{amount}d" for name, amount in amounts.items()}


def read_amounts(stored: Mapping[str, str]) -> Amounts:
    """Return stored amounts. Raises `CorruptCheckpointError` if one is not an amount."""
    try:
        return {name: Decimal(text[:-1]) if text.endswith("d") else int(text) for name, text in stored.items()}
    except (ValueError, ArithmeticError) as error:
        raise CorruptCheckpointError("what was spent", f"it is not an amount ({error})") from error


class SpendingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one call.

    Attributes:
        budgets: the called graph's budgets, by name.
        time_limit: the longest duration of the run in seconds; None for no limit.
    """

    budgets: Mapping[str, Budget] = {}
    time_limit: float | None = None


NO_LIMITS = SpendingLimits()


class Spending:
    """The amounts that one call spends in all of its graphs.

    Args:
        environment: the run's clock.
        limits: the called graph's limits.

    Attributes:
        run: amounts spent in this call, failed attempts included.
        before: amounts spent in the thread before this call.
    """

    # A lock, because plain functions spend from worker threads. One lock for all runs: it is held for an addition only,
    # and creating a lock for each run would cost more.
    _lock = threading.Lock()

    def __init__(self, environment: Environment, limits: SpendingLimits) -> None:
        self.run: Amounts = {}
        self.before: Amounts = {}
        self._environment = environment
        self._limits = limits
        self._began = environment.monotonic()

    def spend(self, into: Amounts, name: str, amount: Amount, known: Mapping[str, Budget]) -> None:
        """Add an amount to the run's and the task's amounts. May be called from any thread.

        Args:
            into: the task's amounts.
            name: the budget's name.
            amount: the amount.
            known: the budgets of the task's own graph.

        Raises:
            UnknownBudgetError: neither the task's graph nor the called graph has a budget of this name.
            TypeError, ValueError: `amount` is not an amount.
        """
        if not self.has_budget(name, known):
            raise UnknownBudgetError(name, tuple(sorted({*self._limits.budgets, *known})))
        check_amount(f"the amount of {name!r} that is spent", amount)
        with self._lock:
            for amounts in (self.run, into):
                amounts[name] = plus(amounts[name], amount) if name in amounts else amount

    def has_budget(self, name: str, known: Mapping[str, Budget]) -> bool:
        """Return True if amounts can be spent under this name.

        Args:
            name: the budget's name.
            known: the budgets of the task's own graph.
        """
        return name in self._limits.budgets or name in known

    def add_earlier(self, amounts: Mapping[str, Amount]) -> None:
        """Add amounts that the thread spent before this call."""
        self.before = total_of([self.before, amounts])

    @property
    def is_limited(self) -> bool:
        """Whether the call has a limit of time, or on a budget. Budgets without limits only count."""
        limits = self._limits
        if limits.time_limit is not None or not limits.budgets:
            return limits.time_limit is not None
        return any(budget.run is not None or budget.thread is not None for budget in limits.budgets.values())

    def exceeded(self, step: int, pending: tuple[str, ...]) -> tuple[BudgetExceededError, ...]:
        """Return the error of the first exceeded limit, as a tuple of one; empty if the run may continue.

        Args:
            step: the number of the last superstep that ran.
            pending: the names of the nodes that would run next.
        """
        for name, spent, limit, per in self._amounts():
            if spent > limit:
                return (BudgetExceededError(name, spent=spent, limit=limit, per=per, step=step, pending=pending),)
        return ()

    def _amounts(self) -> Iterator[tuple[str, Amount | float, Amount | float, Literal["run", "thread"]]]:
        """Yield each limit: its name, the amount spent, the limit, and whether it is for the run or the thread."""
        limit = self._limits.time_limit
        if limit is not None:
            yield "seconds", self._environment.monotonic() - self._began, limit, "run"
        for name, budget in self._limits.budgets.items():
            spent = self.run.get(name, 0)
            if budget.run is not None:
                yield name, spent, budget.run, "run"
            if budget.thread is not None:
                yield name, plus(spent, self.before.get(name, 0)), budget.thread, "thread"
