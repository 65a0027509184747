"""What a run spends, and how much it may: counted where it is spent, checked at the barriers."""

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
"""By name."""

SpentBy: TypeAlias = tuple[str, TaskId, str]
"""Who has spent something inside: namespace of the graph around, its task, and namespace of the graph that it runs."""

_EXACT = Context(prec=1000, traps=[Inexact, InvalidOperation])


def plus(one: Amount, other: Amount) -> Amount:
    """The exact sum; a Decimal when one of the two is."""
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return _EXACT.add(Decimal(one), Decimal(other))


def minus(one: Amount, other: Amount) -> Amount:
    """The exact difference."""
    if isinstance(one, int) and isinstance(other, int):
        return one - other
    return _EXACT.subtract(Decimal(one), Decimal(other))


def total_of(several: Iterable[Mapping[str, Amount]]) -> Amounts:
    """The sums, by name."""
    total: Amounts = {}
    for amounts in several:
        for name, amount in amounts.items():
            total[name] = plus(total[name], amount) if name in total else amount
    return total


def as_text(amounts: Mapping[str, Amount]) -> dict[str, str]:
    """As they are stored: an int by its digits, a Decimal with a "d" behind them."""
    return {name: str(amount) if isinstance(amount, int) else f"{amount}d" for name, amount in amounts.items()}


def of_text(stored: Mapping[str, str]) -> Amounts:
    """As they were stored. Raises `CorruptCheckpointError`."""
    try:
        return {name: Decimal(text[:-1]) if text.endswith("d") else int(text) for name, text in stored.items()}
    except (ValueError, ArithmeticError) as error:
        raise CorruptCheckpointError("what was spent", f"it is no amount ({error})") from error


class SpendingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one call may spend.

    Attributes:
        budgets: by name, of the graph that was called.
        time_limit: seconds that the run may take; None for any time.
    """

    budgets: Mapping[str, Budget] = {}
    time_limit: float | None = None


NO_LIMITS = SpendingLimits()


class Spending:
    """What one call spends, in all its graphs.

    Args:
        limits: of the graph that was called.

    Attributes:
        run: spent in this call, failed attempts included.
        before: spent in the thread before it.
    """

    _lock = threading.Lock()  # of all runs: it is held for an addition, and a lock of its own would cost each run more

    def __init__(self, environment: Environment, limits: SpendingLimits) -> None:
        self.run: Amounts = {}
        self.before: Amounts = {}
        self._environment = environment
        self._limits = limits
        self._began = environment.monotonic()

    def spend(self, into: Amounts, name: str, amount: Amount, known: Mapping[str, Budget]) -> None:
        """Count an amount, and keep it for the task that spends it. Any thread may.

        Args:
            into: what the task has spent.
            known: the budgets of the graph that the task is of.

        Raises:
            UnknownBudgetError: nobody has a budget of that name.
            TypeError, ValueError: it is no amount.
        """
        if name not in self._limits.budgets and name not in known:
            raise UnknownBudgetError(name, tuple(sorted({*self._limits.budgets, *known})))
        check_amount(f"the amount of {name!r} that is spent", amount)
        with self._lock:
            for amounts in (self.run, into):
                amounts[name] = plus(amounts[name], amount) if name in amounts else amount

    def add_earlier(self, amounts: Mapping[str, Amount]) -> None:
        """The thread has spent this before."""
        self.before = total_of([self.before, amounts])

    @property
    def is_limited(self) -> bool:
        """Whether the run may have to stop, as it has spent too much."""
        return self._limits != NO_LIMITS

    def exceeded(self, step: int, pending: tuple[str, ...]) -> tuple[BudgetExceededError, ...]:
        """Return the exceeded budgets because of which the run stops here; empty if it may continue.

        Args:
            step: the last superstep that ran.
        """
        for name, spent, limit, per in self._amounts():
            if spent > limit:
                return (BudgetExceededError(name, spent=spent, limit=limit, per=per, step=step, pending=pending),)
        return ()

    def _amounts(self) -> Iterator[tuple[str, Amount | float, Amount | float, Literal["run", "thread"]]]:
        """What is limited: its name, what was spent of it, its limit, and whether that holds for the run or the
        thread."""
        limit = self._limits.time_limit
        if limit is not None:
            yield "seconds", self._environment.monotonic() - self._began, limit, "run"
        for name, budget in self._limits.budgets.items():
            spent = self.run.get(name, 0)
            if budget.run is not None:
                yield name, spent, budget.run, "run"
            if budget.thread is not None:
                yield name, plus(spent, self.before.get(name, 0)), budget.thread, "thread"
