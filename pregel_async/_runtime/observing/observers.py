"""Call the observers of a call. Their exceptions do not change the run, and become warnings when the call ends."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager

from checkpoint_savers.errors import annotate

from ...errors import ObserverWarning
from ..platform.environment import Environment
from .error_text import described
from .observer import AttemptStarted, Event, Observer


class Observers:
    """The observers of a call, and the exceptions that they have raised.

    Attributes:
        registered: all observers, each once.
        environment: its clock measures durations.
    """

    def __init__(
        self, registered: tuple[Observer, ...], environment: Environment, failures: dict[int, _Failure] | None = None
    ) -> None:
        self.registered = registered
        self.environment = environment
        # Observers that do not override `around` cost nothing per attempt.
        self._with_context = [observer for observer in registered if type(observer).around is not Observer.around]
        self._failures: dict[int, _Failure] = {} if failures is None else failures

    def extended_with(self, registered: tuple[Observer, ...]) -> Observers:
        """Return the observers of a subgraph. Their exceptions are reported with those of the call.

        Args:
            registered: the subgraph's observers, including these.
        """
        return self if registered == self.registered else Observers(registered, self.environment, self._failures)

    def notify(self, event: Event) -> None:
        """Pass an event to each observer."""
        for observer in self.registered:
            try:
                observer.observe(event)
            # Not only Exception: a cancellation that an observer raises is not the run's. Let through, it would look
            # like one.
            except BaseException as error:
                self.failed(observer, f"on {type(event).__name__}", error)

    def around(self, started: AttemptStarted) -> list[_EnteredContext]:
        """Enter the observers' context managers for an attempt, and return those that were entered."""
        entered: list[_EnteredContext] = []
        for observer in self._with_context:
            try:
                # Entered one by one, and not with an ExitStack, which would pass one observer's exception to the
                # others' managers.
                manager = observer.around(started)
                manager.__enter__()
            except BaseException as error:
                self.failed(observer, "in around()", error)
            else:
                entered.append(_EnteredContext(self, observer, manager))
        return entered

    def failed(self, observer: Observer, where: str, error: BaseException) -> None:
        """Remember an observer's exception until the call ends."""
        # Swallowing these would make a process that cannot be stopped.
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        # By id, because an observer need not be hashable. Only the first exception is kept: an observer that fails on
        # each event would otherwise hold a traceback for each.
        known = self._failures.setdefault(id(observer), _Failure(observer, where, error))
        known.count += 1

    def warn(self, error: BaseException | None) -> None:
        """Warn of each observer that has failed. Called when the call ends.

        Args:
            error: the exception that the call raises; None for none.

        Raises:
            ObserverWarning: warnings are errors, and the call raises no exception of its own.
        """
        failures = list(self._failures.values())
        self._failures.clear()
        raised: ObserverWarning | None = None
        for failure in failures:
            try:
                warnings.warn(failure.warning(), stacklevel=2)
            except ObserverWarning as warning:
                # Warnings are errors here. The call's own exception matters more, so that the warning becomes its note.
                if error is None:
                    warning.__cause__ = failure.error
                    error = raised = warning
                else:
                    annotate(error, str(warning))
        if raised is not None:
            raise raised


class _Failure:
    """The first exception of an observer, and how often the observer has failed."""

    def __init__(self, observer: Observer, where: str, error: BaseException) -> None:
        self.error = error
        self.count = 0
        self._name = repr(observer)
        self._where = where

    def warning(self) -> ObserverWarning:
        kind, message = described(self.error)
        more = f", and failed {self.count - 1} times more" if self.count > 1 else ""
        return ObserverWarning(
            f"observer {self._name} raised {kind}: {message} {self._where}{more}. The run was not changed by that, and "
            "the observer may have missed something"
        )


class _EnteredContext:
    """The context manager of one observer around an attempt, entered."""

    __slots__ = ("_manager", "_observer", "_observers")

    def __init__(self, observers: Observers, observer: Observer, manager: AbstractContextManager[object]) -> None:
        self._observers = observers
        self._observer = observer
        self._manager = manager

    def exit(self, error: BaseException | None) -> None:
        # The result of `__exit__` is ignored: an observer must not suppress a node's exception.
        try:
            if error is None:
                self._manager.__exit__(None, None, None)
            else:
                self._manager.__exit__(type(error), error, error.__traceback__)
        except BaseException as second:
            if second is not error:
                self._observers.failed(self._observer, "in around()", second)
